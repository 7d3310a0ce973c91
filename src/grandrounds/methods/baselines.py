"""Baselines of comparisons: local training at every site, and pooled training on all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision
from grandrounds.data.corruption.attacks import ABSENT, DATA_KINDS
from grandrounds.methods.assignment import ModelAssignment, stack_models
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers


class Local(Method):
    """Local training: each site keeps its own model. The mean serves hospitals that did not train."""

    name = "local"
    title = "Local: every site trains alone (the lower reference)"
    parts = frozenset()

    def round(self, server: Server) -> Round:
        served = server.assignment or ModelAssignment(server.model)
        each = served.payloads()
        answers: Answers = yield self.ask_to_train(server, server.sites, each=each)
        trained = {site: answers["model"][k] for k, site in enumerate(answers.sites)}
        models = [trained.get(s, served.for_site(s)) for s in server.sites]
        weights = data_size(answers["count"])
        mean = server.combine(answers, weights) if server.can_average else server.model
        after = ModelAssignment(mean, stack_models(models), {s: k for k, s in enumerate(server.sites)})
        decision = Decision(
            signals={"data_size": answers.by_site("count")},
            weights=dict.fromkeys(answers.sites, 1.0),
            why="every site keeps its own locally trained model",
        )
        return server.next(after, decision)


POOLED = "pooled"
"""Name of the method that trains on pooled rows."""

POOL = "pooled rows"
"""Name of its single site, which has the training rows of all hospitals."""


class Pooled(FedAvg):
    """FedAvg over a single site with all training rows; hospitals validate and test as usual (`runs/federation.py`)."""

    name = POOLED
    title = "Pooled: training on the rows of all sites together, without privacy (the upper reference)"
    parts = frozenset()

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        tampering = [a["kind"] for a in plan.plain()["attacks"] if a["kind"] not in (*DATA_KINDS, ABSENT)]
        if tampering:
            yield f"method 'pooled' sends no site models, so attack '{tampering[0]}' has no effect: use {', '.join(DATA_KINDS)}"
