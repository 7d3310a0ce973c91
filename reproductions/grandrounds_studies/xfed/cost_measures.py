"""Cost of one IoU-ratio: multiply-adds, counted on the run's net, and time and memory, measured with its final model.

Images are drawn at random: neither time nor memory depends on what they show. A time is from the image in memory to its
IoU-ratio, on the run's own device.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from torch import nn

    from grandrounds.models.nets.layers import Shape
    from grandrounds.models.torch_model import TorchModel
    from grandrounds.runs.run import Run

SAMPLES, STEPS = 5, 5
POINTS = SAMPLES * STEPS
"""Images that integrated gradients with SmoothGrad put through a net for one heat map."""

BOTH_WAYS = 2
"""A heat map needs the gradient at the image: as many multiply-adds again as the way forward (`multiply_adds` says why)."""

OUTPUTS = 1000
"""Classes of the nets whose parameters the paper counts: ImageNet's."""

SMALL: Shape = (3, 32, 32)
LARGE: Shape = (3, 720, 1280)

_PICTURES = {"cuda": 30, "cpu": 2}
"""Of a scoring set; a CPU takes seconds for each, and two of them tell as much."""

_PASSES = {"cuda": 5, "cpu": 1}


@dataclass(frozen=True)
class Spent:
    """Milliseconds a sample, one at a time and all in one pass; seconds and MB of what only a GPU is asked for, else NaN."""

    one: float
    together: float
    large: float
    megabytes: float


@lru_cache(maxsize=1)
def spent(run: Run) -> Spent:
    """Measure the cost of IoU-ratios by the run's final model; the medians of several passes after one that is not counted."""
    import torch

    from grandrounds.models import build_model

    engine = run.plan["engine"]
    net: Any = build_model(run.model.spec, device=engine["device"], precision=engine["precision"])
    theta, device = run.model.theta, net.device.type
    gpu = device == "cuda"
    count, passes = _PICTURES[device], _PASSES[device]
    scored = _Scored(net, theta, count, SMALL)
    scored(0, 1)
    one = 1e3 * statistics.median(_seconds(partial(scored, i, i + 1)) for i in range(count))
    if gpu:
        scored(0, count)
    together = 1e3 * statistics.median(_seconds(partial(scored, 0, count)) for _ in range(passes)) / count
    if not gpu:
        return Spent(one, together, nan, nan)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    scored(0, 1)
    megabytes = (torch.cuda.max_memory_allocated() - before) / 1e6
    picture = _Scored(net, theta, 1, LARGE)
    picture(0, 1)
    large = statistics.median(_seconds(partial(picture, 0, 1)) for _ in range(passes))
    return Spent(one, together, large, megabytes)


class _Scored:
    """Random images of a shape, whose left half is the mask: called with a range of them, it works out their IoU-ratios."""

    def __init__(self, net: TorchModel, theta: Any, count: int, shape: Shape) -> None:
        from grandrounds.core.rng import generator

        self.net, self.theta = net, theta
        self.x = generator(0, purpose="cost").standard_normal((count, *shape), np.float32)
        self.y = np.zeros(count, np.int64)
        self.masks = np.broadcast_to(np.arange(shape[2]) < shape[2] // 2, (count, *shape[1:]))

    def __call__(self, first: int, end: int) -> None:
        from grandrounds.explain.agreement import iou_ratio
        from grandrounds.explain.explainers.heat import heat

        x, y = self.x[first:end], self.y[first:end]
        found = heat("integrated_gradients", self.net, self.theta, x, y, steps=STEPS, samples=SAMPLES)
        iou_ratio(found, self.masks[first:end])


def _seconds(work: Callable[[], None]) -> float:
    """Wall-clock seconds; heat maps come back to the CPU, so a GPU is done when the work is."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def machine(run: Run) -> dict[str, Any]:
    """Return the machine on which the times were taken."""
    import torch

    from grandrounds.models.torch_build import pick_device

    gpu = pick_device(run.plan["engine"]["device"]) == "cuda"
    return {"gpu": gpu, "machine": torch.cuda.get_device_name() if gpu else f"one core of a CPU ({platform.machine()})"}


def _net(run: Run) -> nn.Module:
    """The run's net for 1000 classes, to be counted: it has shapes and no numbers."""
    from grandrounds.models.nets import build_net

    m = run.plan["model"]
    return build_net(m["name"], shape=SMALL, outputs=OUTPUTS, norm=m["norm"], stem=m["stem"]).to("meta")


def _parameters(run: Run) -> float:
    from grandrounds_studies.xfed.count import parameter_count

    return parameter_count(_net(run)) / 1e6


def _multiply_adds(shape: Shape, unit: float, times: int = 1) -> Callable[[Run], float]:
    def read(run: Run) -> float:
        from grandrounds_studies.xfed.count import multiply_adds

        return times * multiply_adds(_net(run), shape) / unit

    return read


def _ptflops(shape: Shape, unit: float, times: int = 1) -> Callable[[Run], float]:
    def read(run: Run) -> float:
        from grandrounds_studies.xfed.count import ptflops_count

        return times * ptflops_count(_net(run), shape) / unit

    return read


PARAMETERS = Measure("parameters_m", "parameters, M", _parameters, digits=2)
FORWARD = Measure("madds", "multiply-adds of convolutions and dense layers, M", _multiply_adds(SMALL, 1e6), digits=2)
PTFLOPS = Measure("ptflops", "multiply-adds as ptflops counts, M", _ptflops(SMALL, 1e6), digits=2)
IG_FORWARD = Measure("ig_forward", "IG-SmoothGrad as printed: 25 x that, M", _ptflops(SMALL, 1e6, POINTS), digits=2)
IG_BOTH = Measure(
    "ig_both", "IG-SmoothGrad forward and back, M", _multiply_adds(SMALL, 1e6, POINTS * BOTH_WAYS), digits=2
)
ONE = Measure("ms_one", "IoU-ratio, ms a sample, one at a time", lambda run: spent(run).one, lower=True, digits=2)
TOGETHER = Measure(
    "ms_together", "IoU-ratio, ms a sample, all in one pass", lambda run: spent(run).together, lower=True
)
MEGABYTES = Measure("ig_mb", "memory of a heat map, MB", lambda run: spent(run).megabytes, lower=True, digits=1)
LARGE_COUNT = Measure("large_ptflops", "720p: multiply-adds as ptflops counts, G", _ptflops(LARGE, 1e9), digits=2)
LARGE_SECONDS = Measure("large_s", "720p: IoU-ratio, s", lambda run: spent(run).large, lower=True)

COUNTED = (PARAMETERS, FORWARD, PTFLOPS, IG_FORWARD, IG_BOTH, LARGE_COUNT)
MEASURED = (ONE, TOGETHER, MEGABYTES, LARGE_SECONDS)
