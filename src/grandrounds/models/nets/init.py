"""Starting weights from a seed, drawn with NumPy: the same bits on any device and beside any other use of torch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator

_NORMS = (nn.GroupNorm, nn.modules.batchnorm._BatchNorm, nn.LayerNorm)


def init_net(net: nn.Module, seed: int) -> None:
    """Draw every parameter of `net` anew from `seed`, and set running statistics back.

    The distributions are those of PyTorch or torchvision for the same net, after He et al. (2015,
    arXiv:1502.01852); `net.scheme` names them:

    - "torch" (the default): uniform in +-1/sqrt(fan in), weights and biases;
    - "resnet": convolutions normal with variance 2/fan out and no bias, dense layers as "torch";
    - "mobilenet": convolutions as "resnet", dense layers normal with deviation 0.01, biases zero.

    One stream serves all parameters in the order the net names them. The classifier comes last, so nets that
    differ in the number of classes alone start with the same body. Numbers are drawn in float32 whatever the
    net's precision, so a float64 net starts where its float32 twin does.
    """
    rng = generator(seed, purpose="init")
    scheme = getattr(net, "scheme", "torch")
    with torch.no_grad():
        for module, name, parameter in _parameters(net):
            values = _draw(rng, module, name, parameter, scheme)
            parameter.copy_(torch.from_numpy(values).to(parameter.dtype))
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_running_stats()


def _parameters(net: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for path, parameter in net.named_parameters():
        owner, _, name = path.rpartition(".")
        yield net.get_submodule(owner), name, parameter


def _draw(rng: np.random.Generator, module: nn.Module, name: str, parameter: Tensor, scheme: str) -> Array:
    shape = tuple(parameter.shape)
    if isinstance(module, _NORMS):
        return np.full(shape, float(name == "weight"))
    if not isinstance(module, nn.Conv2d | nn.Linear):
        raise TypeError(f"no starting weights are known for a {type(module).__name__}")
    conv = isinstance(module, nn.Conv2d)
    if scheme == "torch" or (scheme == "resnet" and not conv):
        bound = 1 / math.sqrt(module.weight[0].numel())
        return (2 * rng.random(shape, np.float32) - 1) * np.float32(bound)
    if name == "bias":
        return np.zeros(shape)
    # As torch counts it, without regard to groups: channels out times the size of the kernel.
    deviation = math.sqrt(2 / (shape[0] * math.prod(shape[2:]))) if conv else 0.01
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)
