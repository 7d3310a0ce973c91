"""The step rules of `optimizers.py` in torch, element by element, as pure functions.

A CUDA graph replays fixed work, so the learning rate and the step counters are tensors. Written by hand: building the first
`torch.optim` optimiser imports 1.5 s of compiler.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Result = tuple[Tensor, list[Tensor]]
Step = Callable[[Tensor, Tensor, list[Tensor], Tensor, Tensor, Tensor], Result]
"""step(theta, grad, slots, t, lr, decay) -> (change of theta, new slots); t counts from 1, lr is a tensor, decay is 1
on weights and 0 on biases and norms. Everything broadcasts, so any layout of sites and parameters works."""

SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def torch_optimizer(name: str, *, momentum: float, weight_decay: float) -> Step:
    """Return the named rule."""
    rules: dict[str, Step] = {
        "sgd": _sgd,
        "momentum": _momentum(momentum),
        "adam": _adam(0.0),
        "adamw": _adam(weight_decay),
    }
    return rules[name]


def _sgd(theta: Tensor, grad: Tensor, slots: list[Tensor], t: Tensor, lr: Tensor, decay: Tensor) -> Result:
    return -lr * grad, []


def _momentum(beta: float) -> Step:
    def step(theta: Tensor, grad: Tensor, slots: list[Tensor], t: Tensor, lr: Tensor, decay: Tensor) -> Result:
        velocity = beta * slots[0] + grad
        return -lr * velocity, [velocity]

    return step


def _adam(weight_decay: float) -> Step:
    def step(theta: Tensor, grad: Tensor, slots: list[Tensor], t: Tensor, lr: Tensor, decay: Tensor) -> Result:
        m = 0.9 * slots[0] + 0.1 * grad
        v = 0.999 * slots[1] + 0.001 * grad * grad
        root = torch.sqrt(1 - 0.999**t)
        change = -lr * root / (1 - 0.9**t) * m / (v.sqrt() + 1e-8 * root)
        if weight_decay:
            change = change - lr * weight_decay * decay * theta
        return change, [m, v]

    return step
