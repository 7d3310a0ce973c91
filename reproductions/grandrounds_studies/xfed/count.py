"""Costs of a net as papers count them: parameters to send, multiply-adds to compute."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from grandrounds.models.nets.layers import NORM_LAYERS, Shape, products_per_output, sum_layer_costs

_ENTERED = ("relu", "hardtanh", "max_pool2d", "mean")
"""Layers that cost one operation for each input number, by their names in torch: ReLU, ReLU6 and pools."""


def parameter_count(net: nn.Module) -> int:
    """Count the numbers that are trained; running statistics are not among them."""
    return sum(p.numel() for p in net.parameters())


def multiply_adds(net: nn.Module, shape: Shape) -> int:
    """Count multiply-adds of convolutions and dense layers for one image, as papers count them.

    Biases, normalisation, activations and pooling are left out. The gradient at the image costs as much once more:
    each of these layers is gone through backwards with the same products. (The weights' gradients, a third time as
    much, are for training.)
    """
    return sum_layer_costs(net, shape, lambda module, out: out.numel() * products_per_output(module))


def ptflops_count(net: nn.Module, shape: Shape) -> int:
    """Count multiply-adds as ptflops does, which papers print too: 37.69 M for ResNet-18 on 32x32x3, and not 37.52 M.

    One more for each bias, two for each number that is normalised, one for each that enters a ReLU or a pool. Other
    activations (hard-swish, hard-sigmoid) and shortcuts are free.
    """
    entered = _Entered()

    def price(module: nn.Module, out: Tensor) -> int:
        if isinstance(module, NORM_LAYERS):
            return 2 * out.numel()
        return out.numel() * (products_per_output(module) + (getattr(module, "bias", None) is not None))

    with entered:
        layers = sum_layer_costs(net, shape, price)
    return layers + entered.total


class _Entered(TorchFunctionMode):
    """Counts the numbers that enter a ReLU or a pool, whether a layer calls it or the net itself."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _ENTERED:
            self.total += args[0].numel()
        return func(*args, **(kwargs or {}))
