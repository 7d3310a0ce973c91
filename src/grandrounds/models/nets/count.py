"""Costs of a net: parameters to send, multiply-adds to compute, patches to hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from grandrounds.models.nets.layers import Conv2d, Shape

_NORMS = (nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
_ENTERED = ("relu", "hardtanh", "max_pool2d", "mean")
"""What is counted once for each number that enters it, by torch's names: ReLU, ReLU6 and pools."""


def parameter_count(net: nn.Module) -> int:
    """Count the numbers that are trained; running statistics are not among them."""
    return sum(p.numel() for p in net.parameters())


def multiply_adds(net: nn.Module, shape: Shape) -> int:
    """Count multiply-adds of convolutions and dense layers for one image, as papers count them.

    Biases, normalisation, activations and pooling are left out. The gradient at the image costs as much once more:
    each of these layers is gone through backwards with the same products. (The weights' gradients, a third time as
    much, are for training.)
    """
    return _forward(net, shape, lambda module, out: out.numel() * _inputs(module))


def ptflops_count(net: nn.Module, shape: Shape) -> int:
    """Count multiply-adds as ptflops does, which papers print too: 37.69 M for ResNet-18 on 32x32x3, and not 37.52 M.

    One more for each bias, two for each number that is normalised, one for each that enters a ReLU or a pool. Other
    activations (hard-swish, hard-sigmoid) and shortcuts are free.
    """
    entered = _Entered()

    def price(module: nn.Module, out: Tensor) -> int:
        if isinstance(module, _NORMS):
            return 2 * out.numel()
        return out.numel() * (_inputs(module) + (getattr(module, "bias", None) is not None))

    with entered:
        layers = _forward(net, shape, price)
    return layers + entered.total


def patch_numbers(net: nn.Module, shape: Shape) -> int | None:
    """Count the numbers that the patches of one image take up in this net where convolutions are products of matrices.

    Returns:
        The count; None where the net has convolutions that products do not replace (in groups, dilated, or not the
        package's own).
    """
    convolutions = [m for m in net.modules() if isinstance(m, nn.modules.conv._ConvNd)]
    if not all(isinstance(m, Conv2d) and m.groups == 1 and set(m.dilation) == {1} for m in convolutions):
        return None
    return _forward(net, shape, lambda m, out: out[0, 0].numel() * _inputs(m) if isinstance(m, Conv2d) else 0)


def _inputs(module: nn.Module) -> int:
    """Return how many products make one number of a convolution's or a dense layer's output; 0 for other layers."""
    return module.get_parameter("weight")[0].numel() if isinstance(module, nn.Conv2d | nn.Linear) else 0


class _Entered(TorchFunctionMode):
    """Counts the numbers that enter a ReLU or a pool, whether a layer calls it or the net itself."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _ENTERED:
            self.total += args[0].numel()
        return func(*args, **(kwargs or {}))


def _forward(net: nn.Module, shape: Shape, price: Callable[[nn.Module, Tensor], int]) -> int:
    """Add up the prices of all layers' outputs over one image's forward; the net is left as it was."""
    total = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal total
        total += price(module, output)

    priced = (nn.Conv2d, nn.Linear, *_NORMS)
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
