"""Server optimisers: the server treats the mean update as a gradient and takes a step with momentum (FedAvgM) or an adaptive one.

Adaptive steps are those of Reddi et al. 2021, Algorithm 2:
m = b1 m + (1 - b1) D,  v by the rule,  x += eta m / (sqrt(v) + tau).  tau is added outside the root (the FL-XAI thesis prints it
inside), v starts at tau^2, and bias correction is off by default. `v0 = 0` with `bias_correction`
is Flower's variant, with the exponent round + 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg

RULES: dict[str, Callable[[Array, Array, float], Array]] = {
    "adam": lambda v, square, beta: beta * v + (1 - beta) * square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * np.sign(v - square),
    "adagrad": lambda v, square, beta: v + square,
    "rmsprop": lambda v, square, beta: beta * v + (1 - beta) * square,
}
"""Second moment after a round, by rule; RMSProp is Adam without a first moment (beta1 = 0)."""

BETA1 = {"adam": 0.9, "yogi": 0.9, "adagrad": 0.0, "rmsprop": 0.0}
LR = 0.01


class FedOpt(FedAvg):
    name = "fedopt"
    title = "FedOpt: FedAvg's mean update as a gradient for a server optimiser (method.server.rule)"
    family = "fedopt"
    rule = ""

    def step(self, server: Server, model: Array) -> tuple[Array, dict[str, Array]]:
        s = self.settings.server
        rule = self.rule or s.rule
        beta1 = BETA1[rule] if s.beta1 is None else s.beta1
        x = server.model.astype(float)
        change = model - x
        m = beta1 * server.state.get("m", 0.0) + (1 - beta1) * change
        before = server.state.get("v", np.full(len(x), s.tau**2 if s.v0 is None else s.v0))
        v = RULES[rule](before, change**2, s.beta2)
        eta = LR if s.lr is None else s.lr
        if s.bias_correction:
            t = server.round + 1
            eta *= np.sqrt(1 - s.beta2**t) / (1 - beta1**t)
        return x + eta * m / (np.sqrt(v) + s.tau), {"m": m, "v": v}


class FedAdam(FedOpt):
    name = "fedadam"
    title = "FedAdam: the server takes Adam steps (Reddi et al. 2021)"
    rule = "adam"


class FedYogi(FedOpt):
    name = "fedyogi"
    title = "FedYogi: the server takes Yogi steps"
    rule = "yogi"


class FedAdagrad(FedOpt):
    name = "fedadagrad"
    title = "FedAdagrad: the server takes Adagrad steps"
    rule = "adagrad"


class FedRMSProp(FedOpt):
    name = "fedrmsprop"
    title = "FedRMSProp: the server takes RMSProp steps"
    rule = "rmsprop"


class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al. 2019): v = beta v + D, x += eta v, with D the mean update."""

    name = "fedavgm"
    title = "FedAvgM: FedAvg with momentum at the server (method.server.momentum)"
    family = "fedopt"

    def step(self, server: Server, model: Array) -> tuple[Array, dict[str, Array]]:
        s = self.settings.server
        x = server.model.astype(float)
        velocity = s.momentum * server.state.get("velocity", np.zeros_like(x)) + (model - x)
        return x + (1.0 if s.lr is None else s.lr) * velocity, {"velocity": velocity}
