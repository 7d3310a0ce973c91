"""MOON (Li et al. 2021): a site's features are drawn to the global model's and away from its own last ones."""

from __future__ import annotations

from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.stability import Stability
from grandrounds.protocol.messages import Value


class Contrastive(Stability):
    """The local loss gains method.contrast times the contrastive loss of eq. 3; the site keeps its previous model."""

    name = "moon"
    title = "MOON's contrastive loss on features (method.contrast, method.temperature)"
    needs = frozenset({"features"})

    def tells(self, server: Server, lr: float) -> dict[str, Value]:
        return {"contrast": self.settings.contrast, "contrast_temperature": self.settings.temperature}


class Moon(FedAvg):
    name = "moon"
    title = "MOON: FedAvg with a contrastive local loss (nets with a hidden layer)"
    holds = "moon"
