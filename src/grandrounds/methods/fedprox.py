"""FedProx (Li et al. 2020): FedAvg with a proximal term that keeps local models close to the global one."""

from __future__ import annotations

from grandrounds.methods.base import LocalRegularizer, Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.protocol.messages import Value


class Proximal(LocalRegularizer):
    """Adds mu/2 * ||theta - theta_global||^2 to the local loss; mu = 0 is FedAvg to the bit."""

    name = "proximal"
    title = "FedProx's proximal term, which pulls each local model to the global one (method.mu)"

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        return {"proximal": self.settings.mu}


class FedProx(FedAvg):
    name = "fedprox"
    title = "FedProx: FedAvg with a proximal term (method.mu) that keeps local models close to the global one"
    regularizer_name = "proximal"
