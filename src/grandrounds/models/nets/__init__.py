"""Nets for images. torch is imported when a net is asked for, not before."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput, install_extra

NETS: dict[str, str] = {
    "small-cnn": "Two convolutions and three dense layers (LeNet-5), 62 thousand parameters; 16 pixels or more.",
    "deep-cnn": "Six convolutions in three blocks and two dense layers (a short VGG), for 28 to 64 pixels.",
    "resnet18": "ResNet-18, 11 million parameters: the usual choice for medical images.",
    "mobilenet-v2": "MobileNetV2, 2.2 million parameters: light to send and to run.",
    "mobilenet-v3-small": "MobileNetV3-small, 1.5 million parameters: the fewest multiply-adds of the deep nets.",
    "mobilenet-v3-large": "MobileNetV3-large, 4.2 million parameters: more accurate than the small one, at four times its work.",
    "shufflenet-v2": "ShuffleNetV2 x1.0, 1.3 million parameters: the least of the deep nets to send.",
}
"""Name and one line for each net; the counts are those of a few classes."""

if TYPE_CHECKING:
    from grandrounds.models.nets.build import build_net
    from grandrounds.models.nets.cnn import DeepCNN, SmallCNN
    from grandrounds.models.nets.init import init_net
    from grandrounds.models.nets.mobilenet import MobileNetV2, MobileNetV3Large, MobileNetV3Small
    from grandrounds.models.nets.resnet import ResNet18
    from grandrounds.models.nets.shufflenet import ShuffleNetV2
    from grandrounds.models.nets.weights import load_weights

_HOME = {
    "build_net": "build",
    "DeepCNN": "cnn",
    "SmallCNN": "cnn",
    "init_net": "init",
    "MobileNetV2": "mobilenet",
    "MobileNetV3Large": "mobilenet",
    "MobileNetV3Small": "mobilenet",
    "ResNet18": "resnet",
    "ShuffleNetV2": "shufflenet",
    "load_weights": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise BadInput(f"nets for images need torch; {install_extra('imaging')}", code="missing-package") from None
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "NETS",
    "DeepCNN",
    "MobileNetV2",
    "MobileNetV3Large",
    "MobileNetV3Small",
    "ResNet18",
    "ShuffleNetV2",
    "SmallCNN",
    "build_net",
    "init_net",
    "load_weights",
]
