"""Local optimisers over a (K, P) buffer. Each is a step rule with its own slots of state.

Slots start at zero in every round unless a site keeps them (`train.keep_optimizer`). The step
counter is an array with one entry a site, because sites that keep their slots may be out of step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

Step = Callable[[Array, Array, list[Array], Array, float], None]
"""step(theta, grad, slots, t, lr): changes theta (K, P) and slots in place; t (K, 1) counts from 1."""


@dataclass(frozen=True)
class Optimizer:
    name: str
    slots: int
    step: Step


def _sgd(theta: Array, grad: Array, slots: list[Array], t: Array, lr: float) -> None:
    grad *= lr
    theta -= grad


def _momentum(beta: float) -> Step:
    def step(theta: Array, grad: Array, slots: list[Array], t: Array, lr: float) -> None:
        velocity = slots[0]
        velocity *= beta
        velocity += grad
        theta -= lr * velocity

    return step


def _adam(beta1: float, beta2: float, eps: float, decay: Array | None) -> Step:
    """Take Adam's steps (Kingma & Ba 2015); with `decay` (P,) AdamW's (Loshchilov & Hutter 2019), decoupled from the gradient."""

    def step(theta: Array, grad: Array, slots: list[Array], t: Array, lr: float) -> None:
        m, v = slots
        m *= beta1
        m += (1 - beta1) * grad
        v *= beta2
        v += (1 - beta2) * grad * grad
        if decay is not None:
            theta -= lr * decay * theta
        scale = (lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)).astype(theta.dtype)
        theta -= scale * m / (np.sqrt(v) + eps * np.sqrt(1 - beta2**t).astype(theta.dtype))

    return step


def optimizer(name: str, *, momentum: float = 0.9, weight_decay: float = 0.0, mask: Array) -> Optimizer:
    """Return the named rule. `mask` (P,) is 1 on weights and 0 on biases: biases are never decayed."""
    if name == "sgd":
        return Optimizer(name, 0, _sgd)
    if name == "momentum":
        return Optimizer(name, 1, _momentum(momentum))
    if name == "adam":
        return Optimizer(name, 2, _adam(0.9, 0.999, 1e-8, None))
    if name == "adamw":
        return Optimizer(name, 2, _adam(0.9, 0.999, 1e-8, weight_decay * mask))
    raise ValueError(f"unknown optimizer {name}")


def is_scale_free(name: str) -> bool:
    """Return True if the steps of a rule do not depend on the scale of the gradient."""
    return name in ("adam", "adamw")
