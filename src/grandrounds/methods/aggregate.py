"""From answers to one model: weigh them, and let a robust rule stand the bad ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.arrays import Array
from grandrounds.errors import BadInput, RunFailed
from grandrounds.messages import Answers
from grandrounds.methods.decision import Decision
from grandrounds.methods.robust import RobustSettings, aggregate
from grandrounds.methods.select import Chosen
from grandrounds.methods.weigh import weigh
from grandrounds.models.combine import average

if TYPE_CHECKING:
    from grandrounds.methods.base import Method, Server


@dataclass(frozen=True)
class Joined:
    """The model that answers were joined to, with how much each site counted and why."""

    model: Array
    sites: tuple[str, ...]
    weights: Array
    signals: Mapping[str, Mapping[str, float]]
    why: str
    memory: Mapping[str, Array] = field(default_factory=dict)

    def decision(self, chosen: Chosen) -> Decision:
        """The record of how it came about, with how sites were chosen."""
        why = "; ".join(w for w in (self.why, chosen.why) if w)
        weights = dict(zip(self.sites, self.weights.tolist(), strict=True))
        return Decision(signals={**self.signals, **chosen.signals}, weights=weights, why=why)


def join(server: Server, answers: Answers, method: Method) -> Joined:
    """The answers as one model, by the method's rules for weighing and robustness."""
    settings = method.settings
    weighed = weigh(settings.weigh, server, answers)
    signals = {"data_size": answers.by_site("count"), **_by_site(answers, weighed.signals)}
    if settings.robust.rule == "none":
        model = server.combine(answers, weighed.weights)
        return Joined(model, answers.sites, weighed.weights, signals, weighed.why)
    r = settings.robust
    updates = np.asarray(answers["model"]) - server.model
    history, memory = _history(server, answers, updates) if r.rule == "foolsgold" else (None, {})
    rule = RobustSettings(r.rule, attackers=r.attackers, keep=r.keep, trim=r.trim, norm=r.norm)
    root = _root(server, method) if r.rule == "fltrust" else None
    try:
        verdict = aggregate(updates, weighed.weights, rule, root=root, history=history)
    except BadInput as e:  # too few answers, or a reference update that diverged
        raise RunFailed(f"round {server.round}: {e}") from None
    signals |= _by_site(answers, verdict.signals)
    return Joined(server.model + verdict.update, answers.sites, verdict.weights, signals, verdict.why, memory)


def measured(server: Server, model: Array, answers: Answers, weights: Array) -> Array:
    """The model with BatchNorm's statistics as the plain mean of the answers': a step past it can make a variance negative."""
    if not server.statistics or not weights.any():
        return model
    out = model.copy()
    out[-server.statistics :] = average(np.asarray(answers["model"])[:, -server.statistics :], weights / weights.sum())
    return out


def _by_site(answers: Answers, signals: Mapping[str, Array]) -> dict[str, dict[str, float]]:
    return {name: dict(zip(answers.sites, values.tolist(), strict=True)) for name, values in signals.items()}


def _root(server: Server, method: Method) -> Array:
    """FLTrust's own update: the server trains the model on its reference rows as a site would, without a stability."""
    assert server.reference is not None
    return server.reference.train(server.model, method.work(server)) - server.model


def _history(server: Server, answers: Answers, updates: Array) -> tuple[Array, dict[str, Array]]:
    """The sum of each answering site's updates so far, (K, P), and of all sites', to remember."""
    place = {s: k for k, s in enumerate(server.sites)}
    held = server.state.get("history", np.zeros((len(server.sites), len(server.model)), server.model.dtype)).copy()
    mine = [place[s] for s in answers.sites]
    held[mine] += updates
    return held[mine], {"history": held}
