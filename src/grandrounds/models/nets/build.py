"""Build a net from its name, the shape of its images and the number of its outputs."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from grandrounds.core.errors import BadInput, nearest
from grandrounds.models.nets import NETS
from grandrounds.models.nets.cnn import DeepCNN, SmallCNN
from grandrounds.models.nets.init import init_net
from grandrounds.models.nets.layers import NORMS, STEMS, Shape, check_choice
from grandrounds.models.nets.mobilenet import MobileNetV2, MobileNetV3Large, MobileNetV3Small
from grandrounds.models.nets.resnet import ResNet18
from grandrounds.models.nets.shufflenet import ShuffleNetV2

_KINDS: dict[str, type[nn.Module]] = {
    "small-cnn": SmallCNN,
    "deep-cnn": DeepCNN,
    "resnet18": ResNet18,
    "mobilenet-v2": MobileNetV2,
    "mobilenet-v3-small": MobileNetV3Small,
    "mobilenet-v3-large": MobileNetV3Large,
    "shufflenet-v2": ShuffleNetV2,
}


def build_net(
    name: str,
    *,
    shape: Shape,
    outputs: int,
    norm: str = "group",
    stem: str = "small",
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Build the named net for images of `shape` (channels, height, width), with starting weights from `seed`.

    `norm` is "group" (default; what vmap over sites needs) or "batch", for deep-cnn also "none". `stem` is "small",
    for images of about 28 to 64 pixels, or "imagenet", for larger ones. Nets without normalisation or a stem ignore them.
    `options` are the net's own: `dropout` (MobileNets), `widths` and `hidden` (deep-cnn).
    """
    if name not in NETS:
        raise BadInput(f"no net '{name}'; {nearest(str(name), NETS)}", code="unknown-model")
    if len(shape) != 3:
        raise BadInput(
            f"an image's shape is channels, height and width; this is {tuple(shape)}", code="invalid-image-shape"
        )
    if outputs < 1:
        raise BadInput(
            f"a net needs one output (two classes) or as many as there are classes; this is {outputs}",
            code="bad-output-count",
        )
    check_choice("norm", norm, (*NORMS, "none") if name == "deep-cnn" else NORMS)
    check_choice("stem", stem, STEMS)
    kind = _KINDS[name]
    parameters = set(signature(kind).parameters) - {"shape", "outputs"}
    extra = parameters - {"norm", "stem"}
    for option in options:
        if option not in extra:
            hint = nearest(option, sorted(extra)) if extra else "it takes none"
            raise BadInput(f"{name} has no option '{option}'; {hint}", code="unknown-option")
    common = {key: value for key, value in (("norm", norm), ("stem", stem)) if key in parameters}
    net = kind(tuple(shape), outputs, **common, **options)
    init_net(net, seed)
    return net
