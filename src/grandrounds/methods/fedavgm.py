"""FedAvgM (Hsu et al. 2019): the server keeps a momentum over rounds."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg


class FedAvgM(FedAvg):
    """v = beta v + D, x += eta v, with D the mean update."""

    name = "fedavgm"
    title = "FedAvgM: FedAvg with momentum at the server (method.server.momentum)"
    family = "fedopt"

    def step(self, server: Server, model: Array) -> tuple[Array, dict[str, Array]]:
        s = self.settings.server
        x = server.model.astype(float)
        velocity = s.momentum * server.state.get("velocity", np.zeros_like(x)) + (model - x)
        return x + (1.0 if s.lr is None else s.lr) * velocity, {"velocity": velocity}
