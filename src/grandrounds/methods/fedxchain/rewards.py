"""Rewards of FedXChain: each site's contribution to the round's model on reference rows, times its trust.

contribution_i = loss(theta without i) - loss((1 - s_i) (theta without i) + s_i theta_i) on reference rows, with s_i its share by
rows under the rule, without trust (1 / K with kappa = 0); reward_i = trust_i * contribution_i. The paper plots rewards (Fig. 7)
without defining them. At its trust weight, an excluded site would contribute zero, more than an honest site with a small
negative contribution. So every site is evaluated at its share by rows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import MethodSettings
from grandrounds.explain.trust import count_rows
from grandrounds.methods.aggregate import Aggregation
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import CONTRIBUTE

if TYPE_CHECKING:
    from grandrounds.methods.base import Server


_WHOLE_SHARE = 1 - 1e-6
"""Share of a mean above which the mean without the site is rounding error."""


def with_rewards(
    server: Server, settings: MethodSettings, aggregation: Aggregation, answers: Answers
) -> Generator[Ask, Answers, Aggregation]:
    """Add each site's contribution and reward to the signals, if labelled reference rows exist.

    A robust rule gives no mean of models, so there is no model without one site.
    """
    mean = settings.robust.rule == "none" and aggregation.assignment.models is None
    if not settings.trust.rewards or not server.reference_labelled or not mean or len(aggregation.sites) < 2:
        return aggregation
    if server.secure is not None:
        if not server.shared_reference:
            return aggregation
        by_site = yield from _site_contributions(
            server, aggregation, answers, _row_shares(settings, aggregation, answers)
        )
    elif server.reference is None:
        return aggregation
    else:
        contributions = _server_contributions(server, aggregation, answers, _row_shares(settings, aggregation, answers))
        by_site = dict(zip(aggregation.sites, contributions.tolist(), strict=True))
    trust = aggregation.signals["trust"]
    reward = {s: trust[s] * c for s, c in by_site.items()}
    return replace(aggregation, signals={**aggregation.signals, "contribution": by_site, "reward": reward})


def _row_shares(settings: MethodSettings, aggregation: Aggregation, answers: Answers) -> Array:
    """Compute the share (K,) of each site by its rows alone, as the trust rule counts them."""
    rows = answers.by_site("count")
    return data_size(count_rows(np.array([rows[s] for s in aggregation.sites], float), settings.trust.kappa))


def _server_contributions(server: Server, aggregation: Aggregation, answers: Answers, shares: Array) -> Array:
    """Compute contributions at the server, which has the models."""
    assert server.reference is not None
    model, weights = aggregation.model, aggregation.weights
    averages = isinstance(answers["model"], np.ndarray) and server.can_average
    models: list[Array] = []
    for k, (weight, share) in enumerate(zip(weights.tolist(), shares.tolist(), strict=True)):
        rest = np.delete(np.arange(len(weights)), k)
        rest_weights = weights[rest] / weights[rest].sum() if weights[rest].any() else np.full(len(rest), 1 / len(rest))
        if averages:
            separable = weight < _WHOLE_SHARE and weights[rest].any()
            without = (
                (model - weight * answers["model"][k]) / (1 - weight)
                if separable
                else server.combine(answers.only(rest, {}), rest_weights)
            )
            models += [without, (1 - share) * without + share * answers["model"][k]]
        else:
            models += [
                server.combine(answers.only(rest, {}), rest_weights),
                server.combine(answers, np.insert((1 - share) * rest_weights, k, share)),
            ]
    losses = server.reference.losses(models)
    out: Array = losses[0::2] - losses[1::2]
    return out


def _site_contributions(
    server: Server, aggregation: Aggregation, answers: Answers, shares: Array
) -> Generator[Ask, Answers, dict[str, float]]:
    """Ask each site for its contribution under secure aggregation: only the site knows its update."""
    rows = zip(aggregation.sites, aggregation.weights.tolist(), shares.tolist(), strict=True)
    each = {site: {"weight": weight, "share": share} for site, weight, share in rows}
    shared: dict[str, Value] = {
        "model": aggregation.model,
        "of": str(answers.id),
        "total": 1.0,
        "on": server.shared_reference,
    }
    heard = yield Ask(CONTRIBUTE, shared=shared, each=each, to=aggregation.sites, report=("trust",))
    return heard.by_site("trust.contribution") if len(heard) else {}
