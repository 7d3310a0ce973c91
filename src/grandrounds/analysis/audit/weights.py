"""The weights of a round again, from the signals that its Decision records: does one follow from the other?

Every part that had a say is done over as far as its signals allow: the rule of [method.weigh], cohorts, robust rules. What
rests on numbers the record does not hold (every parameter of every model, for a median) is named as unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.analysis.audit.explanation_weights import agreement_again, column, explained_again
from grandrounds.analysis.audit.trust_weights import trust_again
from grandrounds.core.arrays import Array
from grandrounds.core.plugins import is_path
from grandrounds.explain.trust import CLOSE
from grandrounds.methods.asynchronous import trust_in_late
from grandrounds.methods.cohorts import shares
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.robust_kernels import lowest, on_simplex, trust_scores
from grandrounds.methods.select import share
from grandrounds.methods.weigh import EXPLANATIONS, data_size, nearness, uniform
from grandrounds.methods.xfed.server import by_rank

_SECURE = "secure"

BLIND = {
    "median": "it follows from every parameter of every model",
    "trimmed-mean": "it follows from every parameter of every model",
    "geometric-median": "it is found step by step from the updates themselves",
}
"""Robust rules whose weights do not follow from their signals."""


@dataclass
class Reweighed:
    """What does not follow, and what could not be told."""

    wrong: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def compare(self, what: str, recorded: Mapping[str, float], sites: Sequence[str], again: Array) -> None:
        """Note every site whose recorded number is not the one worked out again."""
        if set(recorded) != set(sites):
            self.wrong.append(f"{what}: it speaks of other sites than its signals")
            return
        for site, value in zip(sites, again.tolist(), strict=True):
            told = np.nan if recorded[site] is None else float(recorded[site])
            if not np.isclose(told, value, rtol=CLOSE, atol=CLOSE, equal_nan=True):
                self.wrong.append(f"{what} of {site} is recorded as {told:.6g}, its signals give {value:.6g}")


def reweigh(method: Any, decision: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Reweighed:
    """One round's weights again, by the plan's [method]; `before`: the Decisions of earlier rounds."""
    out = Reweighed()
    weights: Mapping[str, float] = decision["weights"]
    signals: Mapping[str, Mapping[str, float]] = decision["signals"]
    sites = list(weights)
    if is_path(method.name):
        out.unchecked.append("weights: the method is of the user's own")
    elif method.name == "fedasync":
        late = [int(signals["staleness"][s]) for s in sites]
        mixed = np.array([method.mixing * trust_in_late(n, method.staleness) for n in late])
        out.compare("the weight", weights, sites, mixed)
    elif method.name == "local":
        out.compare("the weight", weights, sites, np.ones(len(sites)))
    elif method.name == "veil":
        said = signals.get("rows_said")
        roots = np.ones(len(sites)) if said is None else np.sqrt(column(said, sites))
        out.compare("the weight", weights, sites, roots / roots.sum())
    elif decision.get("privacy", {}).get("mechanism") == "client":
        _client(method, decision, sites, out)
    elif method.name == "clustered":
        out.compare("the weight", weights, sites, _by_cluster(signals, sites))
    else:
        _stages(method, decision, sites, before, out)
    return out


def _client(method: Any, decision: Mapping[str, Any], sites: list[str], out: Reweighed) -> None:
    """Of client-level privacy: one over the sites that the plan is for, whoever answered; in version 0.1 over those asked."""
    if method.weigh.rule == "uniform":
        planned = int(decision["privacy"].get("sites", 0)) or len(decision["asked"])
        if method.select.rule != "all" and "sites" in decision["privacy"]:
            planned = share(method.select.fraction, planned)
        out.compare("the weight", decision["weights"], sites, np.full(len(sites), 1 / planned))
    else:
        out.unchecked.append(
            "weights: they are shares of the rows of all that were asked, which the record does not hold"
        )


def _stages(
    method: Any, decision: Mapping[str, Any], sites: list[str], before: Sequence[Mapping[str, Any]], out: Reweighed
) -> None:
    """Part by part: each one's weights from those of the part before and its own signals."""
    stages = {stage["part"]: stage for stage in decision["stages"] if stage["weights"]}
    weighed = list(stages["weigh"]["weights"]) if _SECURE in stages else sites
    last: Mapping[str, float] = {}
    for part in ("weigh", "cohorts", "robust"):
        if part in stages:
            _PARTS[part](method, decision, weighed, last, before, out)
            last = stages[part]["weights"]
    if _SECURE in stages:  # those that stayed in the sum, by the same weights
        left = column(last, sites)
        last = dict(zip(sites, (left / left.sum()).tolist(), strict=True))
        out.compare("the weight after the secure sum", stages[_SECURE]["weights"], sites, column(last, sites))
    out.compare("the weight", decision["weights"], sites, column(last, sites))


def _weigh(
    method: Any,
    decision: Mapping[str, Any],
    sites: list[str],
    _: Any,
    before: Sequence[Mapping[str, Any]],
    out: Reweighed,
) -> None:
    settings, signals = method.weigh, decision["signals"]
    told = next(s["weights"] for s in decision["stages"] if s["part"] == "weigh")
    counts = column(signals["data_size"], sites)
    earned: dict[str, float] = {}
    if method.name == "fedxchain":
        decision = {**decision, "cohorts": {}}  # it weighs before sites are grouped
        earned = trust_again(method, decision, before, out)
    if settings.rule == TRUST:  # of all that were weighed, those that went along
        shown = column(earned, sites)
        again = shown / shown.sum()
    elif settings.rule == EXPLANATIONS:
        again = explained_again(settings, decision, sites, counts)
        agreement_again(method, decision, sites, before, out)
    elif method.name == "xfed" and method.xfed.weights == "rank" and "place" in signals:
        again = by_rank(column(signals["place"], sites))
    elif settings.rule == "uniform":
        again = uniform(len(sites))
    elif settings.rule == "distance":
        again = nearness(column(signals["distance"], sites))
    elif settings.rule == "reference_accuracy":
        right = column(signals["reference_accuracy"], sites)
        again = data_size(right) if right.any() else uniform(len(right))
    else:
        again = data_size(counts)
    out.compare("the weight after 'weigh'", told, sites, again)


def _cohorts(method: Any, decision: Mapping[str, Any], sites: list[str], last: Any, _: Any, out: Reweighed) -> None:
    told = next(s["weights"] for s in decision["stages"] if s["part"] == "cohorts")
    of = np.array([decision["cohorts"]["of"][s] - 1 for s in sites])
    weights = column(last, sites)
    each = shares(method.cohorts.weight, of, weights, column(decision["signals"]["data_size"], sites))
    again = np.zeros(len(sites))
    for cohort in np.unique(of):
        mine = of == cohort
        own = weights[mine]
        again[mine] = each[cohort] * (own / own.sum() if own.any() else np.full(len(own), 1 / len(own)))
    out.compare("the weight after 'cohorts'", told, sites, again)


def _robust(method: Any, decision: Mapping[str, Any], sites: list[str], last: Any, _: Any, out: Reweighed) -> None:
    """What a robust rule made of the weights, where its signals say enough."""
    rule, signals = method.robust.rule, decision["signals"]
    told = next(s["weights"] for s in decision["stages"] if s["part"] == "robust")
    if decision["cohorts"]:
        out.unchecked.append(f"weights after robust rule '{rule}': it judged each cohort by itself")
    elif rule in BLIND:
        out.unchecked.append(f"weights after robust rule '{rule}': {BLIND[rule]}")
    else:
        usable = np.ones(len(sites), bool)
        if "left_out" in signals:
            usable = column(signals["left_out"], sites) == 0
        again = np.zeros(len(sites))
        if usable.any():
            found = {
                name: column(values, sites)[usable] for name, values in signals.items() if set(sites) <= set(values)
            }
            given = column(last, sites)
            given = given if usable.all() else on_simplex(given[usable])
            again[usable] = _judged(method.robust, found, given)
        out.compare("the weight after 'robust'", told, sites, again)


def _judged(settings: Any, signals: Mapping[str, Array], weights: Array) -> Array:
    """The weights that a robust rule gives by its own signals."""
    if settings.rule == "fltrust":
        return on_simplex(trust_scores(signals["similarity"]))
    if settings.rule == "foolsgold":
        return on_simplex(signals["trust"] * weights)
    if settings.rule == "krum":
        return lowest(signals["krum_score"], keep=1)
    if settings.rule == "multi-krum":
        keep = settings.keep or len(weights) - settings.attackers - 2
        return on_simplex(lowest(signals["krum_score"], keep=keep) * weights)
    return weights  # clip cuts updates, not weights


def _by_cluster(signals: Mapping[str, Mapping[str, float]], sites: list[str]) -> Array:
    """Clustered models: a site's share of its cluster's rows."""
    rows, of = column(signals["data_size"], sites), column(signals["cluster"], sites)
    out: Array = rows / np.array([rows[of == c].sum() for c in of])
    return out


_PARTS = {"weigh": _weigh, "cohorts": _cohorts, "robust": _robust}
