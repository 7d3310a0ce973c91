"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381) and MobileNetV3, small and large (Howard et al. 2019, arXiv:1905.02244).

Names and shapes are torchvision's. Strides have no shape, so published weights fit either stem: "imagenet"
shrinks images by 32; "small" takes the first two halvings out (stem and first halving stage, as in the CIFAR
forms in use) and shrinks by 8, which leaves 28- and 32-pixel images a 4x4 map at the end. Dropout is off unless
asked for: it would need random numbers in the forward pass, which vmap over sites cannot give reproducibly.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import hardsigmoid, relu

from grandrounds.core.errors import BadInput
from grandrounds.models.nets.layers import (
    NORMS,
    Conv2d,
    ConvNorm,
    Linear,
    Shape,
    check_choice,
    check_stride,
    mean_pool,
    normalise,
)

# Expansion, channels, blocks, stride of the first block.
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

# Kernel, expanded channels, channels out, squeeze-and-excitation, hard-swish, stride.
_V3_SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
_V3_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


class InvertedResidual(nn.Module):
    """Widen by a 1x1 convolution, filter each channel, narrow again; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int, norm: str) -> None:
        super().__init__()
        wide = inputs * expand
        layers: list[nn.Module] = [ConvNorm(inputs, wide, 1, norm=norm, act=nn.ReLU6)] if expand != 1 else []
        layers += [
            ConvNorm(wide, wide, 3, norm=norm, stride=stride, groups=wide, act=nn.ReLU6),
            Conv2d(wide, outputs, 1, bias=False),
            normalise(norm, outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.shortcut else out


class MobileNetV2(nn.Module):
    """Inverted residuals with linear bottlenecks, width 1.0."""

    scheme: ClassVar[str] = "mobilenet"

    def __init__(
        self, shape: Shape, outputs: int, *, norm: str = "group", stem: str = "small", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_stride("mobilenet-v2", shape, stem)
        small = stem == "small"
        layers: list[nn.Module] = [ConvNorm(shape[0], 32, norm=norm, stride=1 if small else 2, act=nn.ReLU6)]
        before = 32
        for expand, width, blocks, stride in _V2:
            for i in range(blocks):
                step = stride if i == 0 and not (small and width == 24) else 1
                layers.append(InvertedResidual(before, width, step, expand, norm))
                before = width
        layers.append(ConvNorm(before, 1280, 1, norm=norm, act=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(_dropout(dropout), Linear(1280, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(mean_pool(self.features(x)))
        return out


class SqueezeExcitation(nn.Module):
    """Scale each channel by what the whole image says of it (Hu et al. 2018, arXiv:1709.01507)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _divisible(channels // 4)
        self.fc1 = Conv2d(channels, squeezed, 1)
        self.fc2 = Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(relu(self.fc1(x.mean((2, 3), keepdim=True))))
        return x * hardsigmoid(scale)


class SqueezedResidual(nn.Module):
    """MobileNetV3's block: an inverted residual with squeeze-and-excitation and hard-swish where the table says so."""

    def __init__(
        self, inputs: int, wide: int, outputs: int, *, kernel: int, squeeze: bool, swish: bool, stride: int, norm: str
    ) -> None:
        super().__init__()
        act: type[nn.Module] = nn.Hardswish if swish else nn.ReLU
        layers: list[nn.Module] = [_v3(inputs, wide, 1, norm, act=act)] if wide != inputs else []
        layers.append(_v3(wide, wide, kernel, norm, stride=stride, groups=wide, act=act))
        layers += [SqueezeExcitation(wide)] if squeeze else []
        layers.append(_v3(wide, outputs, 1, norm))
        self.block = nn.Sequential(*layers)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return x + out if self.shortcut else out


class MobileNetV3(nn.Module):
    """Base of the two nets found by search, with torchvision's batch-norm constants (eps 0.001, momentum 0.01)."""

    scheme: ClassVar[str] = "mobilenet"
    name: ClassVar[str]
    blocks: ClassVar[tuple[tuple[int, int, int, bool, bool, int], ...]]
    hidden: ClassVar[int]  # width of the dense layer before the last

    def __init__(
        self, shape: Shape, outputs: int, *, norm: str = "group", stem: str = "small", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_stride(self.name, shape, stem)
        small = stem == "small"
        layers: list[nn.Module] = [_v3(shape[0], 16, 3, norm, stride=1 if small else 2, act=nn.Hardswish)]
        before = 16
        halving = next(i for i, block in enumerate(self.blocks) if block[-1] == 2)
        for i, (kernel, wide, width, squeeze, swish, stride) in enumerate(self.blocks):
            step = 1 if small and i == halving else stride
            layers.append(
                SqueezedResidual(
                    before, wide, width, kernel=kernel, squeeze=squeeze, swish=swish, stride=step, norm=norm
                )
            )
            before = width
        layers.append(_v3(before, 6 * before, 1, norm, act=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            Linear(6 * before, self.hidden), nn.Hardswish(), _dropout(dropout), Linear(self.hidden, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(mean_pool(self.features(x)))
        return out


class MobileNetV3Small(MobileNetV3):
    """Eleven blocks, up to 96 channels."""

    name = "mobilenet-v3-small"
    blocks = _V3_SMALL
    hidden = 1024


class MobileNetV3Large(MobileNetV3):
    """Fifteen blocks, up to 160 channels: what is meant by "MobileNetV3" without a further word."""

    name = "mobilenet-v3-large"
    blocks = _V3_LARGE
    hidden = 1280


def _v3(
    inputs: int,
    outputs: int,
    kernel: int,
    norm: str,
    *,
    stride: int = 1,
    groups: int = 1,
    act: type[nn.Module] | None = None,
) -> ConvNorm:
    return ConvNorm(inputs, outputs, kernel, norm=norm, stride=stride, groups=groups, act=act, eps=0.001, momentum=0.01)


def _dropout(p: float) -> nn.Module:
    if not 0 <= p < 1:
        raise BadInput(
            f"dropout is {p}; give a share of units to drop, from 0 up to but not including 1",
            code="share-out-of-range",
        )
    return nn.Dropout(p) if p else nn.Identity()


def _divisible(channels: int, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `channels`, at least `divisor` and never a tenth smaller (the papers' rule)."""
    near = max(divisor, (channels + divisor // 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near
