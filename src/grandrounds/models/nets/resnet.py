"""ResNet-18: He, Zhang, Ren & Sun, "Deep residual learning for image recognition" (2016, arXiv:1512.03385).

Names and shapes are torchvision's, so that weights saved from its resnet18 load. Batch norm keeps the names
bn1, bn2 and downsample.1; group norm takes their place under the same names.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import relu

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


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected by a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = normalise(norm, outputs)
        self.conv2 = Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = normalise(norm, outputs)
        same = stride == 1 and inputs == outputs
        self.downsample = None if same else ConvNorm(inputs, outputs, 1, norm=norm, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    """Eighteen layers. `stem` "imagenet" starts with a 7x7 convolution of stride 2 and a max-pool and shrinks
    images by 32 in all; "small" starts with a 3x3 convolution of stride 1 (the CIFAR form) and shrinks them by 8.

    Of published weights, all but the first convolution fit the small stem.
    """

    scheme: ClassVar[str] = "resnet"

    def __init__(self, shape: Shape, outputs: int, *, norm: str = "group", stem: str = "small") -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_stride("resnet18", shape, stem)
        small = stem == "small"
        self.conv1 = Conv2d(shape[0], 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = normalise(norm, 64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.layer1 = _layer(64, 64, 1, norm)
        self.layer2 = _layer(64, 128, 2, norm)
        self.layer3 = _layer(128, 256, 2, norm)
        self.layer4 = _layer(256, 512, 2, norm)
        self.fc = Linear(512, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(mean_pool(x))
        return out


def _layer(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride, norm), BasicBlock(outputs, outputs, 1, norm))
