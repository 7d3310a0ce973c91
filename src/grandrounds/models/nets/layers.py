"""Layers of the nets: convolutions that draw no random numbers, normalisation by name, checks of image sizes.

PyTorch's own layers draw starting weights from the global generator when they are made. These start at zero until `init_net`, so
that building a net does not change the global random state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from grandrounds.core.errors import BadInput, nearest
from grandrounds.models.nets.products import convolve, group_norm, is_using_products

Shape = tuple[int, int, int]
"""Channels, height and width of one image."""

NORMS = ("group", "batch")
STEMS = ("small", "imagenet")
_GROUPS = 32
NORM_LAYERS = (nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


class Conv2d(nn.Conv2d):
    """A convolution whose weights are zero until `init_net` or `load_weights` fills them."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_using_products():
            return super().forward(x)
        (down, across), (above, left) = self.stride, cast("tuple[int, int]", self.padding)
        return convolve(x, self.weight, self.bias, stride=(down, across), padding=(above, left))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Linear(nn.Linear):
    """A dense layer whose weights are zero until `init_net` or `load_weights` fills them."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class GroupNorm(nn.GroupNorm):
    """Group norm, also where convolutions are products."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_using_products():
            return super().forward(x)
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class ConvNorm(nn.Sequential):
    """Convolution `0`, normalisation `1` and an activation: torchvision's Conv2dNormActivation, names included."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        norm: str,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] | None = None,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        layers: list[nn.Module] = [
            Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            normalise(norm, outputs, eps=eps, momentum=momentum),
        ]
        super().__init__(*layers, *([act()] if act else []))


def group_count(channels: int) -> int:
    """Return the groups for GroupNorm: the most that divide `channels`, at most 32 and never of a single channel.

    Wu & He (2018) use 32. A group of one channel is instance norm, which sets a 1x1 map to zero.
    """
    return max((g for g in range(1, min(_GROUPS, channels // 2) + 1) if channels % g == 0), default=1)


def normalise(norm: str, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> nn.Module:
    """Build the named normalisation over `channels`.

    Group norm (Wu & He 2018, arXiv:1803.08494) is the default: its statistics are of one image, so no statistics of other
    patients are averaged or sent, and it works with non-IID sites, unlike batch norm (Hsieh et al. 2020, arXiv:1910.00189).
    Batch norm is here for published weights.
    """
    if norm == "group":
        return GroupNorm(group_count(channels), channels, eps=eps)
    return nn.BatchNorm2d(channels, eps=eps, momentum=momentum)


def check_choice(setting: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in choices:
        raise BadInput(f"{setting} is '{value}'; {nearest(str(value), choices)}", code="unknown-choice")


def check_size(name: str, shape: Shape, least: int, *, way_out: str) -> None:
    """Refuse images that are too small for the net."""
    channels, height, width = shape
    if channels < 1 or min(height, width) < least:
        raise BadInput(
            f"{name} needs images of at least {least}x{least} pixels and one channel; "
            f"these have {height}x{width} and {channels}; {way_out}",
            code="image-too-small",
        )


def check_stride(name: str, shape: Shape, stem: str) -> None:
    """Run `check_size` for nets that shrink by 8 (small stem) or 32 (imagenet): the last halving must see two pixels."""
    check_choice("stem", stem, STEMS)
    least = (4 if stem == "small" else 16) + 1
    way_out = "enlarge them" if stem == "small" else "enlarge them or use stem = 'small'"
    check_size(name, shape, least, way_out=way_out)


def mean_pool(x: Tensor) -> Tensor:
    """Average over the image: (B, C, H, W) to (B, C)."""
    return x.mean((2, 3))


def patch_numbers(net: nn.Module, shape: Shape) -> int | None:
    """Count the numbers that the patches of one image take up in this net where convolutions are products of matrices.

    Returns:
        The count; None where the net has convolutions that products do not replace (in groups, dilated, or not the
        package's own).
    """
    convolutions = [m for m in net.modules() if isinstance(m, nn.modules.conv._ConvNd)]
    if not all(isinstance(m, Conv2d) and m.groups == 1 and set(m.dilation) == {1} for m in convolutions):
        return None
    return sum_layer_costs(
        net, shape, lambda m, out: out[0, 0].numel() * products_per_output(m) if isinstance(m, Conv2d) else 0
    )


def products_per_output(module: nn.Module) -> int:
    """Return how many products make one number of a convolution's or a dense layer's output; 0 for other layers."""
    return module.get_parameter("weight")[0].numel() if isinstance(module, nn.Conv2d | nn.Linear) else 0


def sum_layer_costs(net: nn.Module, shape: Shape, price: Callable[[nn.Module, Tensor], int]) -> int:
    """Add up the prices of all layers' outputs over one image's forward; the net is left as it was."""
    total = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal total
        total += price(module, output)

    priced = (nn.Conv2d, nn.Linear, *NORM_LAYERS)
    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, priced)]
    modes = {m: m.training for m in net.modules()}
    like = next(net.parameters())
    try:
        net.eval()
        with torch.no_grad():
            net(torch.zeros((1, *shape), dtype=like.dtype, device=like.device))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return total
