"""FedBN (Li et al. 2021): FedAvg in which every site keeps its own BatchNorm layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg whose sites train and predict with their own BatchNorm layers; the mean serves hospitals that join later.

    A site learns which entries it keeps when it prepares its rows (`keeps = "norm"`).
    """

    name = "fedbn"
    title = "FedBN: FedAvg with local BatchNorm layers at each site (nets with model.norm = 'batch')"

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        if not getattr(model, "statistics", ()):
            yield "method 'fedbn' keeps BatchNorm layers at sites and this model has none: set model.norm = 'batch' in a net"
