"""Cyclic weight transfer (Chang et al. 2018): the model visits one site after another, and each trains it further.

A cycle visits every site once, in an order that is drawn anew for each cycle. The model is never averaged, so it is that of the
last site visited, which influences it most.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.methods.base import Server
from grandrounds.methods.dp import CLIENT
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.select import Selection
from grandrounds.protocol.messages import Answers, Ask


class Cyclic(FedAvg):
    """One site trains in each round and passes the model on."""

    name = "cyclic"
    title = "Cyclic: the model visits one site after another, in a new order each cycle (cyclic weight transfer)"
    parts = frozenset({"stability"})

    def select_sites(self, server: Server) -> Generator[Ask, Answers, Selection]:
        """Select the site whose turn it is; one that is away is passed over."""
        cycle, turn = divmod(server.round - 1, len(server.sites))
        names = sorted(server.sites)  # a simulation and a consortium may list them in another order
        order = [names[k] for k in generator(server.seed, purpose="cycle", round=cycle).permutation(len(names))]
        present = [s for s in (*order[turn:], *order[:turn]) if s in server.available_sites]
        yield from ()
        why = f"turn {turn + 1} of {len(order)} in cycle {cycle + 1}: {present[0]} trains the model"
        return Selection((present[0],), why=why)

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        """Refuse privacy for whole sites: noise for the sum over all sites does not cover the model of one."""
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.privacy.mechanism == CLIENT:
            yield (
                "privacy.mechanism 'client' adds noise to a sum over sites, and method 'cyclic' passes on the model of one site: "
                "use privacy.mechanism = 'dp-sgd' (patients), or method 'fedavg'"
            )

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        """Refuse secure aggregation: each round has the model of one site, and no sum to hide it in."""
        yield "but method 'cyclic' passes on the model of one site in each round: use fedavg, fedopt or scaffold"
