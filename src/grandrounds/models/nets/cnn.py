"""Plain convolutional nets, small enough to train at every hospital without an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from grandrounds.core.errors import BadInput
from grandrounds.models.nets.layers import NORMS, Conv2d, Linear, Shape, check_choice, check_size, normalise


class SmallCNN(nn.Module):
    """Two convolutions, two max-pools, three dense layers: LeNet-5 (LeCun et al. 1998) with ReLU.

    The net of PyTorch's own CIFAR-10 tutorial and of many federated papers, made to fit any image
    of 16x16 pixels or more. 62,006 parameters on 32x32x3 with 10 classes.
    """

    scheme: ClassVar[str] = "torch"

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        check_size("small-cnn", shape, 16, way_out="enlarge them")
        height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
        self.conv1 = Conv2d(shape[0], 6, 5)
        self.conv2 = Conv2d(6, 16, 5)
        self.fc1 = Linear(16 * height * width, 120)
        self.fc2 = Linear(120, 84)
        self.fc3 = Linear(84, outputs)
        self.relu = nn.ReLU()  # a module, so that a heat map can be read behind it

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(self.relu(self.conv1(x)), 2)
        x = max_pool2d(self.relu(self.conv2(x)), 2)
        x = self.relu(self.fc1(x.flatten(1)))
        out: Tensor = self.fc3(self.relu(self.fc2(x)))
        return out


class DeepCNN(nn.Module):
    """Six convolutions in three blocks, each halving the image, and two dense layers: a short VGG.

    After Simonyan & Zisserman (2015, arXiv:1409.1556), for images of 28 to 64 pixels. `norm` may also be
    "none" here. `features` and `classifier` are numbered as in torchvision's VGG; the widths are ours, so there
    are no published weights.
    """

    scheme: ClassVar[str] = "resnet"

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        *,
        norm: str = "group",
        widths: Sequence[int] = (32, 64, 128),
        hidden: int = 256,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, (*NORMS, "none"))
        if not widths or min(*widths, hidden) < 1:
            raise BadInput(
                f"deep-cnn needs positive widths and hidden; these are {list(widths)} and {hidden}", code="bad-widths"
            )
        shrink = 2 ** len(widths)
        check_size("deep-cnn", shape, shrink, way_out="enlarge them or give fewer widths")
        layers: list[nn.Module] = []
        before = shape[0]
        for width in widths:
            for inputs in (before, width):
                layers.append(Conv2d(inputs, width, 3, padding=1, bias=norm == "none"))
                layers += [] if norm == "none" else [normalise(norm, width)]
                layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(2))
            before = width
        self.features = nn.Sequential(*layers)
        flat = before * (shape[1] // shrink) * (shape[2] // shrink)
        self.classifier = nn.Sequential(Linear(flat, hidden), nn.ReLU(), Linear(hidden, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(x).flatten(1))
        return out
