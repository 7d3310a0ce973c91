"""Rewards of FedXChain: each site's contribution to the round's model on reference rows, times its trust.

contribution_i = loss(theta without i) - loss((1 - s_i) (theta without i) + s_i theta_i) on reference rows, with s_i the share
that its rows give it under the rule whatever its trust (1 / K with kappa = 0); reward_i = trust_i * contribution_i. The paper
draws rewards (Fig. 7) and does not define them. At the weight that trust left it a site that was shut out would contribute zero,
more than an honest site that happened to be of little use: so all sites are judged at the share that is theirs by rows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.trust import count_rows
from grandrounds.methods.aggregate import Aggregation
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import CONTRIBUTE

if TYPE_CHECKING:
    from grandrounds.methods.base import Server


_WHOLE_SHARE = 1 - 1e-6
"""The share of a mean from which on what is left of it without the site is rounding."""


def with_rewards(server: Server, settings: Any, joined: Aggregation, answers: Answers) -> Generator[Ask, Answers, Aggregation]:
    """The same, with every site's contribution and reward among its signals, where there are labelled rows to tell by.

    What a robust rule makes of models is no mean of them, so there is no such model without one site.
    """
    mean = settings.robust.rule == "none" and joined.assignment.models is None
    if not settings.trust.rewards or not server.reference_labelled or not mean or len(joined.sites) < 2:
        return joined
    if server.secure is not None:
        if not server.shared_reference:
            return joined
        by_site = yield from _site_contributions(server, joined, answers, _row_shares(settings, joined, answers))
    elif server.reference is None:
        return joined
    else:
        contributions = _server_contributions(server, joined, answers, _row_shares(settings, joined, answers))
        by_site = dict(zip(joined.sites, contributions.tolist(), strict=True))
    known = joined.signals["trust"]
    reward = {s: known[s] * c for s, c in by_site.items()}
    return replace(joined, signals={**joined.signals, "contribution": by_site, "reward": reward})


def _row_shares(settings: Any, joined: Aggregation, answers: Answers) -> Array:
    """Compute the share (K,) of each site that is left by its rows alone, as the rule of trust counts them."""
    rows = answers.by_site("count")
    return data_size(count_rows(np.array([rows[s] for s in joined.sites], float), settings.trust.kappa))


def _server_contributions(server: Server, joined: Aggregation, answers: Answers, shares: Array) -> Array:
    """Compute contributions at a server that has the models."""
    assert server.reference is not None
    whole, weights = joined.model, joined.weights
    averages = isinstance(answers["model"], np.ndarray) and server.can_average
    models: list[Array] = []
    for k, (own, share) in enumerate(zip(weights.tolist(), shares.tolist(), strict=True)):
        rest = np.delete(np.arange(len(weights)), k)
        left = weights[rest] / weights[rest].sum() if weights[rest].any() else np.full(len(rest), 1 / len(rest))
        if averages:
            known = own < _WHOLE_SHARE and weights[rest].any()
            without = (
                (whole - own * answers["model"][k]) / (1 - own)
                if known
                else server.combine(answers.only(rest, {}), left)
            )
            models += [without, (1 - share) * without + share * answers["model"][k]]
        else:
            models += [
                server.combine(answers.only(rest, {}), left),
                server.combine(answers, np.insert((1 - share) * left, k, share)),
            ]
    losses = server.reference.losses(models)
    out: Array = losses[0::2] - losses[1::2]
    return out


def _site_contributions(
    server: Server, joined: Aggregation, answers: Answers, shares: Array
) -> Generator[Ask, Answers, dict[str, float]]:
    """Ask each site for its contribution, under masks: it alone knows what it added."""
    own = zip(joined.sites, joined.weights.tolist(), shares.tolist(), strict=True)
    each = {site: {"weight": weight, "share": share} for site, weight, share in own}
    shared: dict[str, Value] = {"model": joined.model, "of": str(answers.id), "total": 1.0, "on": server.shared_reference}
    heard = yield Ask(CONTRIBUTE, shared=shared, each=each, to=joined.sites, report=("trust",))
    return heard.by_site("trust.contribution") if len(heard) else {}
