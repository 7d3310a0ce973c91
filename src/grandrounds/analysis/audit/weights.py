"""Recompute the weights of a round from the signals that its Decision records.

Each part of the method is recomputed as far as its signals allow: the rule of [method.weigh], cohorts, robust rules. What
rests on numbers the record does not hold (every parameter of every model, for a median) is listed as unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.analysis.audit.method_weights import (
    DecisionEntry,
    RecomputedWeights,
    Signals,
    column,
    compare_agreement,
    recompute_blend,
    recompute_trust,
)
from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import MethodSettings, RobustSettings
from grandrounds.core.plugins import is_path
from grandrounds.methods import is_exact
from grandrounds.methods.asynchronous import staleness_weight
from grandrounds.methods.cohorts import cohort_shares
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.robust_kernels import normalise, select_lowest, trust_scores
from grandrounds.methods.select import count_sites
from grandrounds.methods.weigh import EXPLANATIONS, data_size, distance_weights, uniform_weights
from grandrounds.methods.xfed.ranking import rank_weights

_SECURE = "secure"

BLIND = {
    "median": "it follows from every parameter of every model",
    "trimmed-mean": "it follows from every parameter of every model",
    "geometric-median": "it is found step by step from the updates themselves",
}
"""Robust rules whose weights do not follow from their signals."""


def recompute_weights(
    method: MethodSettings, decision: DecisionEntry, before: Sequence[DecisionEntry]
) -> RecomputedWeights:
    """Recompute one round's weights and compare them with its Decision.

    Args:
        method: The plan's [method].
        decision: The Decision of the round.
        before: The Decisions of earlier rounds.
    """
    out = RecomputedWeights()
    weights: Mapping[str, float] = decision["weights"]
    signals: Signals = decision["signals"]
    sites = list(weights)
    if is_path(method.name):
        out.unchecked.append("weights: the method is a plug-in")
    elif method.name == "fedasync":
        late = [int(signals["staleness"][s]) for s in sites]
        mixed = np.array([method.mixing * staleness_weight(n, method.staleness) for n in late])
        out.compare("the weight", weights, sites, mixed)
    elif method.name == "local":
        out.compare("the weight", weights, sites, np.ones(len(sites)))
    elif method.name in ("private-gam", "watch", "quality"):
        out.compare("the weight", weights, sites, np.full(len(sites), 1 / len(sites)))
    elif method.name == "veil":
        reported_rows = signals.get("rows_said")
        roots = np.ones(len(sites)) if reported_rows is None else np.sqrt(column(reported_rows, sites))
        out.compare("the weight", weights, sites, roots / roots.sum())
    elif decision.get("privacy", {}).get("mechanism") == "client":
        _compare_client_level(method, decision, sites, out)
    elif is_exact(method.name):
        out.compare("the weight", weights, sites, data_size(column(signals["data_size"], sites)))
    elif method.name == "clustered":
        out.compare("the weight", weights, sites, _cluster_shares(signals, sites))
    else:
        _compare_stages(method, decision, sites, before, out)
    return out


def _compare_client_level(
    method: MethodSettings, decision: DecisionEntry, sites: list[str], out: RecomputedWeights
) -> None:
    """Compare weights under client-level privacy: 1 / sites of the plan, whoever answered."""
    if method.weigh.rule == "uniform":
        planned = int(decision["privacy"]["sites"])
        if method.select.rule != "all":
            planned = count_sites(method.select.fraction, planned)
        out.compare("the weight", decision["weights"], sites, np.full(len(sites), 1 / planned))
    else:
        out.unchecked.append(
            "weights: they are shares of the rows of all that were asked, which the record does not hold"
        )


def _compare_stages(
    method: MethodSettings,
    decision: DecisionEntry,
    sites: list[str],
    before: Sequence[DecisionEntry],
    out: RecomputedWeights,
) -> None:
    """Compare part by part: each one's weights from those of the part before and its own signals."""
    stages = {stage["part"]: stage for stage in decision["stages"] if stage["weights"]}
    weighed = list(stages["weigh"]["weights"]) if _SECURE in stages else sites
    last: Mapping[str, float] = {}
    for part in ("weigh", "cohorts", "robust"):
        if part in stages:
            _STAGES[part](method, decision, weighed, last, before, out)
            last = stages[part]["weights"]
    if _SECURE in stages:  # those that stayed in the sum, by the same weights
        remaining = column(last, sites)
        last = dict(zip(sites, (remaining / remaining.sum()).tolist(), strict=True))
        out.compare("the weight after the secure sum", stages[_SECURE]["weights"], sites, column(last, sites))
    out.compare("the weight", decision["weights"], sites, column(last, sites))


def _compare_weighing(
    method: MethodSettings,
    decision: DecisionEntry,
    sites: list[str],
    _: object,
    before: Sequence[DecisionEntry],
    out: RecomputedWeights,
) -> None:
    settings, signals = method.weigh, decision["signals"]
    recorded = next(s["weights"] for s in decision["stages"] if s["part"] == "weigh")
    counts = column(signals["data_size"], sites)
    earned: dict[str, float] = {}
    if method.name == "fedxchain":
        decision = {**decision, "cohorts": {}}  # it weighs before sites are grouped
        earned = recompute_trust(method, decision, before, out)
    if settings.rule == TRUST:  # of all weighed sites, those that accepted the weights
        shown = column(earned, sites)
        recomputed = shown / shown.sum()
    elif settings.rule == EXPLANATIONS:
        recomputed = recompute_blend(settings, decision, sites, counts)
        compare_agreement(method, decision, sites, before, out)
    elif method.name == "xfed" and method.xfed.weights == "rank" and "place" in signals:
        recomputed = rank_weights(column(signals["place"], sites))
    elif settings.rule == "uniform":
        recomputed = uniform_weights(len(sites))
    elif settings.rule == "distance":
        recomputed = distance_weights(column(signals["distance"], sites))
    elif settings.rule == "reference_accuracy":
        right = column(signals["reference_accuracy"], sites)
        recomputed = data_size(right) if right.any() else uniform_weights(len(right))
    else:
        recomputed = data_size(counts)
    out.compare("the weight after 'weigh'", recorded, sites, recomputed)


def _compare_cohorts(
    method: MethodSettings,
    decision: DecisionEntry,
    sites: list[str],
    last: Mapping[str, float],
    _: object,
    out: RecomputedWeights,
) -> None:
    recorded = next(s["weights"] for s in decision["stages"] if s["part"] == "cohorts")
    cohorts = np.array([decision["cohorts"]["of"][s] - 1 for s in sites])
    weights = column(last, sites)
    each = cohort_shares(method.cohorts.weight, cohorts, weights, column(decision["signals"]["data_size"], sites))
    recomputed = np.zeros(len(sites))
    for cohort in np.unique(cohorts):
        mine = cohorts == cohort
        member_weights = weights[mine]
        recomputed[mine] = each[cohort] * (
            member_weights / member_weights.sum()
            if member_weights.any()
            else np.full(len(member_weights), 1 / len(member_weights))
        )
    out.compare("the weight after 'cohorts'", recorded, sites, recomputed)


def _compare_robust(
    method: MethodSettings,
    decision: DecisionEntry,
    sites: list[str],
    last: Mapping[str, float],
    _: object,
    out: RecomputedWeights,
) -> None:
    """Compare the weights after a robust rule, where its signals say enough."""
    rule, signals = method.robust.rule, decision["signals"]
    recorded = next(s["weights"] for s in decision["stages"] if s["part"] == "robust")
    if decision["cohorts"]:
        out.unchecked.append(f"weights after robust rule '{rule}': it judged each cohort by itself")
    elif rule in BLIND:
        out.unchecked.append(f"weights after robust rule '{rule}': {BLIND[rule]}")
    else:
        usable = np.ones(len(sites), bool)
        if "left_out" in signals:
            usable = column(signals["left_out"], sites) == 0
        recomputed = np.zeros(len(sites))
        if usable.any():
            usable_signals = {
                name: column(values, sites)[usable] for name, values in signals.items() if set(sites) <= set(values)
            }
            weights = column(last, sites)
            weights = weights if usable.all() else normalise(weights[usable])
            recomputed[usable] = _robust_weights(method.robust, usable_signals, weights)
        out.compare("the weight after 'robust'", recorded, sites, recomputed)


def _robust_weights(settings: RobustSettings, signals: Mapping[str, Array], weights: Array) -> Array:
    """Compute the weights that a robust rule gives by its own signals."""
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


def _cluster_shares(signals: Signals, sites: list[str]) -> Array:
    """Compute each site's share of its cluster's rows, for clustered models."""
    rows, clusters = column(signals["data_size"], sites), column(signals["cluster"], sites)
    out: Array = rows / np.array([rows[clusters == c].sum() for c in clusters])
    return out


_STAGES = {"weigh": _compare_weighing, "cohorts": _compare_cohorts, "robust": _compare_robust}
