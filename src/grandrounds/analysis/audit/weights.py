"""The weights of a round again, from the signals that its Decision records: does one follow from the other?

Every part that had a say is done over as far as its signals allow: the rule of [method.weigh], cohorts, robust rules. What
rests on numbers the record does not hold (every parameter of every model, for a median) is named as unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.analysis.audit.method_weights import (
    RecomputedWeights,
    column,
    compare_agreement,
    recompute_blend,
    recompute_trust,
)
from grandrounds.core.arrays import Array
from grandrounds.core.plugins import is_path
from grandrounds.methods.asynchronous import staleness_weight
from grandrounds.methods.cohorts import cohort_shares
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.robust_kernels import normalise, select_lowest, trust_scores
from grandrounds.methods.select import count_sites
from grandrounds.methods.weigh import EXPLANATIONS, data_size, distance_weights, uniform_weights
from grandrounds.methods.xfed.server import rank_weights

_SECURE = "secure"

BLIND = {
    "median": "it follows from every parameter of every model",
    "trimmed-mean": "it follows from every parameter of every model",
    "geometric-median": "it is found step by step from the updates themselves",
}
"""Robust rules whose weights do not follow from their signals."""


def recompute_weights(
    method: Any, decision: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> RecomputedWeights:
    """One round's weights again, by the plan's [method]; `before`: the Decisions of earlier rounds."""
    out = RecomputedWeights()
    weights: Mapping[str, float] = decision["weights"]
    signals: Mapping[str, Mapping[str, float]] = decision["signals"]
    sites = list(weights)
    if is_path(method.name):
        out.unchecked.append("weights: the method is of the user's own")
    elif method.name == "fedasync":
        late = [int(signals["staleness"][s]) for s in sites]
        mixed = np.array([method.mixing * staleness_weight(n, method.staleness) for n in late])
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


def _client(method: Any, decision: Mapping[str, Any], sites: list[str], out: RecomputedWeights) -> None:
    """Of client-level privacy: one over the sites that the plan is for, whoever answered; in version 0.1 over those asked."""
    if method.weigh.rule == "uniform":
        planned = int(decision["privacy"].get("sites", 0)) or len(decision["asked"])
        if method.select.rule != "all" and "sites" in decision["privacy"]:
            planned = count_sites(method.select.fraction, planned)
        out.compare("the weight", decision["weights"], sites, np.full(len(sites), 1 / planned))
    else:
        out.unchecked.append(
            "weights: they are shares of the rows of all that were asked, which the record does not hold"
        )


def _stages(
    method: Any,
    decision: Mapping[str, Any],
    sites: list[str],
    before: Sequence[Mapping[str, Any]],
    out: RecomputedWeights,
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
    out: RecomputedWeights,
) -> None:
    settings, signals = method.weigh, decision["signals"]
    told = next(s["weights"] for s in decision["stages"] if s["part"] == "weigh")
    counts = column(signals["data_size"], sites)
    earned: dict[str, float] = {}
    if method.name == "fedxchain":
        decision = {**decision, "cohorts": {}}  # it weighs before sites are grouped
        earned = recompute_trust(method, decision, before, out)
    if settings.rule == TRUST:  # of all that were weighed, those that went along
        shown = column(earned, sites)
        again = shown / shown.sum()
    elif settings.rule == EXPLANATIONS:
        again = recompute_blend(settings, decision, sites, counts)
        compare_agreement(method, decision, sites, before, out)
    elif method.name == "xfed" and method.xfed.weights == "rank" and "place" in signals:
        again = rank_weights(column(signals["place"], sites))
    elif settings.rule == "uniform":
        again = uniform_weights(len(sites))
    elif settings.rule == "distance":
        again = distance_weights(column(signals["distance"], sites))
    elif settings.rule == "reference_accuracy":
        right = column(signals["reference_accuracy"], sites)
        again = data_size(right) if right.any() else uniform_weights(len(right))
    else:
        again = data_size(counts)
    out.compare("the weight after 'weigh'", told, sites, again)


def _cohorts(
    method: Any, decision: Mapping[str, Any], sites: list[str], last: Any, _: Any, out: RecomputedWeights
) -> None:
    told = next(s["weights"] for s in decision["stages"] if s["part"] == "cohorts")
    of = np.array([decision["cohorts"]["of"][s] - 1 for s in sites])
    weights = column(last, sites)
    each = cohort_shares(method.cohorts.weight, of, weights, column(decision["signals"]["data_size"], sites))
    again = np.zeros(len(sites))
    for cohort in np.unique(of):
        mine = of == cohort
        own = weights[mine]
        again[mine] = each[cohort] * (own / own.sum() if own.any() else np.full(len(own), 1 / len(own)))
    out.compare("the weight after 'cohorts'", told, sites, again)


def _robust(
    method: Any, decision: Mapping[str, Any], sites: list[str], last: Any, _: Any, out: RecomputedWeights
) -> None:
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
            given = given if usable.all() else normalise(given[usable])
            again[usable] = _judged(method.robust, found, given)
        out.compare("the weight after 'robust'", told, sites, again)


def _judged(settings: Any, signals: Mapping[str, Array], weights: Array) -> Array:
    """The weights that a robust rule gives by its own signals."""
    if settings.rule == "fltrust":
        return normalise(trust_scores(signals["similarity"]))
    if settings.rule == "foolsgold":
        return normalise(signals["trust"] * weights)
    if settings.rule == "krum":
        return select_lowest(signals["krum_score"], keep=1)
    if settings.rule == "multi-krum":
        keep = settings.keep or len(weights) - settings.attackers - 2
        return normalise(select_lowest(signals["krum_score"], keep=keep) * weights)
    return weights  # clip cuts updates, not weights


def _by_cluster(signals: Mapping[str, Mapping[str, float]], sites: list[str]) -> Array:
    """Clustered models: a site's share of its cluster's rows."""
    rows, of = column(signals["data_size"], sites), column(signals["cluster"], sites)
    out: Array = rows / np.array([rows[of == c].sum() for c in of])
    return out


_PARTS = {"weigh": _weigh, "cohorts": _cohorts, "robust": _robust}
