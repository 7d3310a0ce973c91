"""fluke imports torchvision, whose wheel may not find its operators beside a CPU build of torch from elsewhere.

No workload uses them, so their names are declared and the import goes through.
"""

from __future__ import annotations

import sys

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
