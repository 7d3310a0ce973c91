"""FedBN (Li et al. 2021): FedAvg in which every site keeps its own BatchNorm layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg whose sites train and predict with their own BatchNorm layers; the mean is for hospitals that join later.

    What a site keeps is the site's business: it is told once, when it prepares (`keeps = "norm"`).
    """

    name = "fedbn"
    title = "FedBN: FedAvg, but BatchNorm layers stay each site's own (nets with model.norm = 'batch')"

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        if not getattr(model, "statistics", ()):
            yield "method 'fedbn' keeps BatchNorm layers at sites and this model has none: set model.norm = 'batch' in a net"
