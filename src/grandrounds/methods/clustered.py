"""Clustered federated learning with separate models (IFCA, Ghosh et al. 2020): similar hospitals share a model.

In the first round all sites train from one model and are grouped by the direction of their updates, because IFCA needs different
initial models. Then each site joins the model with the lowest loss on its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.averaging import average
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Method, Outcome, Round, Server
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers, Ask

_SWEEPS = 50


class Clustered(Method):
    name = "clustered"
    title = "Clustered: method.clusters models; each site uses and trains the one with the lowest loss (IFCA)"
    family = "clustered"
    parts = frozenset({"stability"})

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        from grandrounds.methods import regularizer_class

        if "sgd" in regularizer_class(plan.method).needs:
            yield "method 'clustered' has several models, but SCAFFOLD has one control variate for all: use stability 'proximal'"

    def round(self, server: Server) -> Round:
        if server.assignment is None or server.assignment.models is None:
            answers: Answers = yield self.ask_to_train(server, server.sites)
            models = np.repeat(server.model[None], min(self.settings.clusters, len(answers)), axis=0)
            labels = cluster_by_direction(answers["model"] - server.model, count=len(models), rng=server.rng("clusters"))
            return self._next(server, models, answers, labels, "sites are grouped by the direction of their first updates")
        models = np.asarray(server.assignment.models)
        scored: Answers = yield Ask("score", shared={"models": models}, to=server.sites, report=("losses",))
        best = dict(zip(scored.sites, np.argmin(scored["losses"], axis=1).tolist(), strict=True))
        each = {site: {"model": models[c]} for site, c in best.items()}
        answers = yield self.ask_to_train(server, scored.sites, each=each)
        labels = np.array([best[s] for s in answers.sites])
        return self._next(server, models, answers, labels, "each site trains the model with the lowest loss on its own rows")

    def _next(self, server: Server, models: Array, answers: Answers, labels: Array, why: str) -> Outcome:
        weights, after = np.zeros(len(answers)), models.copy()
        for c in range(len(models)):
            members = np.flatnonzero(labels == c)
            if len(members):
                weights[members] = data_size(answers["count"][members])
                after[c] = average(answers["model"][members], weights[members])
        mean = average(answers["model"], data_size(answers["count"]))
        previous = dict(server.assignment.index_by_site) if server.assignment is not None else {}
        served = ModelAssignment(mean, after, {**previous, **dict(zip(answers.sites, labels.tolist(), strict=True))})
        decision = Decision(
            signals={
                "data_size": answers.by_site("count"),
                "cluster": dict(zip(answers.sites, (labels + 1.0).tolist(), strict=True)),
            },
            weights=dict(zip(answers.sites, weights.tolist(), strict=True)),
            why=f"{why}; a site's weight is its share of its cluster's rows",
        )
        return server.next(served, decision)


def cluster_by_direction(updates: Array, *, count: int, rng: np.random.Generator) -> Array:
    """Group updates (K, P) by direction into `count` clusters: spherical k-means with seeds far apart. (K,)"""
    unit = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-12)
    centres = [unit[int(rng.integers(len(unit)))]]
    while len(centres) < count:
        nearest = np.max(unit @ np.stack(centres).T, axis=1)
        centres.append(unit[int(np.argmin(nearest))])
    middle = np.stack(centres)
    labels: Array = np.argmax(unit @ middle.T, axis=1)
    for _ in range(_SWEEPS):
        for c in range(count):
            if (labels == c).any():
                mean = unit[labels == c].mean(axis=0)
                middle[c] = mean / max(float(np.linalg.norm(mean)), 1e-12)
        relabelled = np.argmax(unit @ middle.T, axis=1)
        if np.array_equal(relabelled, labels):
            break
        labels = relabelled
    return labels
