"""What a net costs: parameters to send and multiply-adds to compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from grandrounds.models.nets.layers import Shape


def parameter_count(net: nn.Module) -> int:
    """Numbers that are trained; running statistics are not among them."""
    return sum(p.numel() for p in net.parameters())


def multiply_adds(net: nn.Module, shape: Shape) -> int:
    """Multiply-adds of convolutions and dense layers for one picture, as papers count them.

    Biases, normalisation, activations and pooling are left out. Counters that include them (ptflops) print
    somewhat more: 37.69 M for ResNet-18 on 32x32x3, where this gives 37.52 M.
    """
    total = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal total
        weight = module.get_parameter("weight")
        total += output.numel() * weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
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
