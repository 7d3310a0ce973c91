"""What a site's part in a round was worth: the round's model against the one without it, and a reward by trust.

contribution_i = loss(theta without i) - loss(theta) on reference rows; reward_i = trust_i * contribution_i. The paper draws
rewards (Fig. 7) and does not define them; this is the marginal contribution, weighted by trust.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.messages import Answers, Ask, Value
from grandrounds.methods.aggregate import Joined
from grandrounds.privacy.tasks import CONTRIBUTE

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

_ALL = 1 - 1e-6
"""The share of a mean from which on what is left of it without the site is rounding."""


def rewarded(server: Server, settings: Any, joined: Joined, answers: Answers) -> Generator[Ask, Answers, Joined]:
    """The same, with every site's contribution and reward among its signals, where there are labelled rows to tell by.

    What a robust rule makes of models is no mean of them, so there is no such model without one site.
    """
    mean = settings.robust.rule == "none" and joined.served.models is None
    if not settings.trust.rewards or not server.labelled or not mean or len(joined.sites) < 2:
        return joined
    if server.secure is not None:
        if not server.lent:
            return joined
        by_site = yield from _told(server, joined, answers)
    elif server.reference is None:
        return joined
    else:
        by_site = dict(zip(joined.sites, _seen(server, joined, answers).tolist(), strict=True))
    known = joined.signals["trust"]
    reward = {s: known[s] * c for s, c in by_site.items()}
    return replace(joined, signals={**joined.signals, "contribution": by_site, "reward": reward})


def _seen(server: Server, joined: Joined, answers: Answers) -> Array:
    """By a server that has the models."""
    assert server.reference is not None
    whole, weights = joined.model, joined.weights
    others: list[Array] = []
    for k, own in enumerate(weights.tolist()):
        rest = np.delete(np.arange(len(weights)), k)
        if isinstance(answers["model"], np.ndarray) and server.averages and own < _ALL:
            others.append((whole - own * answers["model"][k]) / (1 - own))
        else:
            left = weights[rest] / weights[rest].sum() if weights[rest].any() else np.full(len(rest), 1 / len(rest))
            others.append(server.combine(answers.only(rest, {}), left))
    losses = server.reference.losses([whole, *others])
    out: Array = losses[1:] - losses[0]
    return out


def _told(server: Server, joined: Joined, answers: Answers) -> Generator[Ask, Answers, dict[str, float]]:
    """By each site for itself, under masks: it alone knows what it added."""
    each = {s: {"weight": w} for s, w in zip(joined.sites, joined.weights.tolist(), strict=True)}
    shared: dict[str, Value] = {"model": joined.model, "of": str(answers.id), "total": 1.0, "on": server.lent}
    heard = yield Ask(CONTRIBUTE, shared=shared, each=each, to=joined.sites, report=("trust",))
    return heard.by_site("trust.contribution") if len(heard) else {}
