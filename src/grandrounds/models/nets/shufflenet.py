"""ShuffleNetV2 x1.0: Ma, Zhang, Zheng & Sun, "Practical guidelines for efficient CNN architecture design"
(2018, arXiv:1807.11164).

Names and shapes are torchvision's. Stem "imagenet" (stride 2 and a max-pool) shrinks images by 32; "small"
(stride 1, no pool) by 8, for 28- and 32-pixel images. Published weights fit either stem.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

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


class ShuffleUnit(nn.Module):
    """Half of the channels pass, half are filtered, then they are interleaved; a halving unit filters both halves."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        self.branch1 = nn.Sequential()
        if not self.splits:
            self.branch1 = nn.Sequential(
                Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
                normalise(norm, inputs),
                Conv2d(inputs, half, 1, bias=False),
                normalise(norm, half),
                nn.ReLU(),
            )
        self.branch2 = nn.Sequential(
            Conv2d(half if self.splits else inputs, half, 1, bias=False),
            normalise(norm, half),
            nn.ReLU(),
            Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            normalise(norm, half),
            Conv2d(half, half, 1, bias=False),
            normalise(norm, half),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.splits:
            left, right = x.chunk(2, 1)
        else:
            left, right = self.branch1(x), x
        out = torch.stack((left, self.branch2(right)), 2)  # (B, C/2, 2, H, W): flat, the halves alternate
        return out.flatten(1, 2)


class ShuffleNetV2(nn.Module):
    """Stages of 4, 8 and 4 units with 116, 232 and 464 channels."""

    scheme: ClassVar[str] = "torch"

    def __init__(self, shape: Shape, outputs: int, *, norm: str = "group", stem: str = "small") -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_stride("shufflenet-v2", shape, stem)
        small = stem == "small"
        self.conv1 = ConvNorm(shape[0], 24, norm=norm, stride=1 if small else 2, act=nn.ReLU)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.stage2 = _stage(24, 116, 4, norm)
        self.stage3 = _stage(116, 232, 8, norm)
        self.stage4 = _stage(232, 464, 4, norm)
        self.conv5 = ConvNorm(464, 1024, 1, norm=norm, act=nn.ReLU)
        self.fc = Linear(1024, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage4(self.stage3(self.stage2(self.maxpool(self.conv1(x)))))
        out: Tensor = self.fc(mean_pool(self.conv5(x)))
        return out


def _stage(inputs: int, outputs: int, units: int, norm: str) -> nn.Sequential:
    first = ShuffleUnit(inputs, outputs, 2, norm)
    return nn.Sequential(first, *(ShuffleUnit(outputs, outputs, 1, norm) for _ in range(units - 1)))
