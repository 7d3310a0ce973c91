"""From answers to one model without seeing any: sites keep their models, and a secure sum adds them up by weight."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.methods.aggregate import Joined
from grandrounds.methods.decision import Stage
from grandrounds.methods.secure import SecureRule, secure_sum
from grandrounds.methods.served import Served
from grandrounds.methods.weigh import Weighed, weigh
from grandrounds.protocol.messages import Answers, Ask

if TYPE_CHECKING:
    from grandrounds.methods.base import Method, Server


def join_secretly(
    server: Server, rule: SecureRule, ask: Ask, method: Method
) -> Generator[Ask, Answers, tuple[Joined, Answers]]:
    """Train as asked, weigh by what sites may tell, and sum; the answers that come with it hold sums and no models.

    The weights are public and each site multiplies before it masks. Who drops out after that is not in the sum, so
    the weights of those that stayed are made to sum to 1.
    """
    shares = method.stability.sums(server)
    answers = yield ask.holding("model", *shares)
    weighed = weigh(method.settings.weigh, server, answers)
    return (yield from add_up(server, rule, answers, weighed, shares))


def add_up(
    server: Server, rule: SecureRule, answers: Answers, weighed: Weighed, shares: Mapping[str, Mapping[str, float]]
) -> Generator[Ask, Answers, tuple[Joined, Answers]]:
    """The sum of the models that sites hold, by these weights; `shares`: what else is added up, by report and site."""
    own = dict(zip(answers.sites, weighed.weights.tolist(), strict=True))
    of = {"model": own, **{name: {s: by[s] for s in answers.sites} for name, by in shares.items()}}
    summed = yield from secure_sum(rule, answers, weights=of, of=tuple(of))
    if not summed.weights["model"] > 0:
        raise RunFailed(f"round {server.round}: no site that stayed in the secure sum has any weight")
    kept = answers.only([k for k, s in enumerate(answers.sites) if s in summed.sites], summed.missing)
    mean = summed.values["model"] / summed.weights["model"]
    kept.totals = {**summed.values, "model": mean}
    weights = np.array([own[s] for s in kept.sites]) / summed.weights["model"]
    of = {name: dict(zip(answers.sites, np.asarray(v).tolist(), strict=True)) for name, v in weighed.signals.items()}
    said = f"{len(kept)} of {len(answers)} models were added up under masks; none was seen by the server"
    joined = Joined(
        Served(mean),
        kept.sites,
        weights,
        weighed.signals_of_all({"data_size": answers.by_site("count"), **of}),
        (Stage("weigh", weighed.why, own), Stage("secure", said, dict(zip(kept.sites, weights.tolist(), strict=True)))),
        _kept_shares(answers, kept, weighed.shares, summed.weights["model"]),
        {},
        weighed.memory,
        (*weighed.notes, *summed.notes),
        weighed.reasons,
    )
    return joined, kept


def _kept_shares(
    answers: Answers, kept: Answers, shares: Mapping[str, Array], total: float
) -> dict[str, dict[str, float]]:
    """What each signal contributes to the weights of those that stayed."""
    place = {s: k for k, s in enumerate(answers.sites)}
    return {name: {s: float(part[place[s]]) / total for s in kept.sites} for name, part in shares.items()}
