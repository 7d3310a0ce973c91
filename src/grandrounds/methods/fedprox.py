"""FedProx (Li et al. 2020): FedAvg with a pull of every local model towards the global one."""

from __future__ import annotations

from grandrounds.messages import Ask, Value
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """The local loss gains mu/2 * ||theta - theta_global||^2; mu = 0 is FedAvg to the bit."""

    name = "fedprox"
    title = "FedProx: FedAvg with a proximal term (method.mu) that holds sites together"

    def ask_to_train(self, server: Server, **more: Value) -> Ask:
        return super().ask_to_train(server, proximal=self.settings.mu, **more)
