"""Weights of SSE-AGG and of FedXChain (eq. 7-8), recomputed from the numbers that Decisions record.

Written from the equations and not with the code that weighs, but for the signals themselves (`methods/sse_agg/printed.py`) and
the arithmetic of trust (`grandrounds.explain.trust`). Inputs come from this round's signals and from earlier rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import MethodSettings, TrustSettings, WeighSettings
from grandrounds.explain.trust import CLOSE, TrustInputs, TrustResult, TrustRule, compute_trust
from grandrounds.methods.fedxchain.server import divergence_alarms
from grandrounds.methods.sse_agg.agreement import MIN_COHORT_SITES, resolve_sharpness
from grandrounds.methods.sse_agg.harm import HARM_BY_HALF, confirm_harm, resolve_least_share, retained_share
from grandrounds.methods.sse_agg.outliers import outlier_ratio_beyond_sampling, smoothed_ratio
from grandrounds.methods.sse_agg.printed import (
    agreement_weights,
    apply_floor,
    blend,
    calibration_weights,
    exponential_weights,
    worst_site_weights,
)
from grandrounds.methods.sse_agg.weights import resolve_lambdas
from grandrounds.methods.weigh import data_size

OUTLIER = "outlier"

Signals = Mapping[str, Mapping[str, float]]
"""Signal, then site: its value; a signal that is not known of a site is null."""


class StageEntry(TypedDict):
    """One part of a method in a Decision, as a ledger or a journal has it."""

    part: str
    weights: Mapping[str, float]


class DecisionEntry(TypedDict, total=False):
    """The fields of a Decision that weights follow from, as a ledger or a journal has them; nothing in it is believed."""

    weights: Mapping[str, float]
    signals: Signals
    stages: Sequence[StageEntry]
    cohorts: Mapping[str, Any]
    privacy: Mapping[str, Any]
    asked: Sequence[str]
    notes: Sequence[str]


@dataclass
class RecomputedWeights:
    """Recomputed numbers that differ from the record, and those that could not be recomputed."""

    wrong: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def compare(self, name: str, recorded: Mapping[str, float], sites: Sequence[str], recomputed: Array) -> None:
        """Note every site whose recorded number differs from the recomputed one."""
        if set(recorded) != set(sites):
            self.wrong.append(f"{name}: it names other sites than its signals")
            return
        for site, value in zip(sites, recomputed.tolist(), strict=True):
            number = np.nan if recorded[site] is None else float(recorded[site])
            if not np.isclose(number, value, rtol=CLOSE, atol=CLOSE, equal_nan=True):
                self.wrong.append(f"{name} of {site} is recorded as {number:.6g}, its signals give {value:.6g}")


def recompute_blend(settings: WeighSettings, decision: DecisionEntry, sites: Sequence[str], counts: Array) -> Array:
    """Recompute the blend (eq. 8) from a Decision; the rows alone where explanations were not asked for (`every`)."""
    signals, rows = decision["signals"], data_size(counts)
    used = {name: share for name, share in resolve_lambdas(settings).items() if share}
    trust_signal = _trust_signal(settings)
    if "agreement" in used and trust_signal not in signals:
        return rows
    parts: dict[str, Array] = {"data": rows}
    if "agreement" in used:
        trust, flat = column(signals[trust_signal], sites), _flat_sites(signals, sites)
        agreement = trust * rows if settings.form == OUTLIER else rows if flat.all() else trust
        parts["agreement"] = agreement / agreement.sum()
    if "worst_site" in used:
        parts["worst_site"] = worst_site_weights(column(signals["val_loss"], sites), beta=settings.beta)
    if "calibration" in used:
        parts["calibration"] = calibration_weights(column(signals["ece"], sites), gamma=settings.gamma)
    return apply_floor(blend(parts, used), settings.floor)


def compare_agreement(
    method: MethodSettings,
    decision: DecisionEntry,
    sites: Sequence[str],
    before: Sequence[DecisionEntry],
    out: RecomputedWeights,
) -> None:
    """Check that the trust in each site's explanations follows from their distance to the consensus."""
    settings, signals = method.weigh, decision["signals"]
    if "disagreement" not in signals:
        return
    far, flat, cohorts = (
        column(signals["disagreement"], sites),
        _flat_sites(signals, sites),
        _groups(method, decision, sites),
    )
    if flat.all():
        out.compare(f"'{_trust_signal(settings)}'", signals[_trust_signal(settings)], sites, np.ones(len(sites)))
        return
    alone = (
        [sites[k] for k in np.flatnonzero(np.bincount(cohorts)[cohorts] < MIN_COHORT_SITES).tolist()]
        if len(np.unique(cohorts)) > 1
        else []
    )
    for site in alone:
        out.unchecked.append(
            f"trust in {site}: alone in its cohort, it was compared with all others, whose distances to it are not recorded"
        )
    if settings.form == OUTLIER:
        trust = _outlier_trust(settings, signals, sites, far, flat, cohorts, alone, before, out)
    else:
        trust = np.ones(len(sites))
        for mine in _cohort_members(cohorts):
            trust[mine] = _distance_trust(
                settings, far[mine], ~flat[mine] if not flat[mine].all() else ~np.zeros(len(mine), bool)
            )
    if flat.any():
        trust[flat] = np.minimum(trust[flat], trust[~flat].min())
    compared = [k for k, s in enumerate(sites) if s not in alone]
    recorded = signals[_trust_signal(settings)]
    names = [sites[k] for k in compared]
    out.compare(f"'{_trust_signal(settings)}'", {s: recorded[s] for s in names}, names, trust[compared])


def _outlier_trust(
    settings: WeighSettings,
    signals: Signals,
    sites: Sequence[str],
    far: Array,
    flat: Array,
    cohorts: Array,
    alone: Sequence[str],
    before: Sequence[DecisionEntry],
    out: RecomputedWeights,
) -> Array:
    """Recompute trust in the outlier form, from the outlier ratios of this round and of earlier ones."""
    standing = column(signals["standing"], sites)
    sampling = np.nan_to_num(column(signals.get("sampling", {}), sites))  # not every sketch has a sampling error
    neighbours = column(signals["neighbours"], sites) if "neighbours" in signals else np.full(len(sites), np.inf)
    ratios = np.full(len(sites), np.nan)
    for mine in _cohort_members(cohorts):
        speaking = ~flat[mine]
        if speaking.any():
            ratios[mine] = outlier_ratio_beyond_sampling(
                far[mine], sampling[mine], neighbours[mine], tolerance=settings.tolerance, peers=far[mine][speaking]
            )
    smoothed = smoothed_ratio(ratios, _last_known(before, "standing", sites), settings.memory)
    compared = [k for k, s in enumerate(sites) if s not in alone]
    names = [sites[k] for k in compared]
    out.compare("'standing'", {s: signals["standing"][s] for s in names}, names, smoothed[compared])
    harm = column(signals.get("harm", {}), sites)
    halves = np.stack([column(signals.get(name, {}), sites) for name in HARM_BY_HALF])
    confirmed = confirm_harm(settings, halves, column(signals["data_size"], sites))
    least, sharpness = resolve_least_share(settings), resolve_sharpness(settings)
    return retained_share(standing, harm, least=least, sharpness=sharpness, confirmed=confirmed)


def _distance_trust(settings: WeighSettings, far: Array, speaking: Array) -> Array:
    """Recompute trust by eq. 5 or 21, as shares of the nearest site's."""
    far = np.maximum(far, far[speaking].min())
    shares = (
        exponential_weights(far, tau=settings.tau)
        if settings.form == "exponential"
        else agreement_weights(far, eps=settings.eps, sharpness=resolve_sharpness(settings))
    )
    most: Array = shares / shares.max()
    return most


def _groups(method: MethodSettings, decision: DecisionEntry, sites: Sequence[str]) -> Array:
    """Number the cohort in which each site's explanations were compared, from 0."""
    cohort_by_site = decision["cohorts"].get("of", {}) if method.cohorts.consensus == "cohort" else {}
    return np.array([cohort_by_site.get(s, 1) - 1 for s in sites], np.int64)


def _cohort_members(cohorts: Array) -> Iterator[Array]:
    for cohort in np.unique(cohorts):
        yield np.flatnonzero(cohorts == cohort)


def _last_known(before: Sequence[DecisionEntry], name: str, sites: Sequence[str]) -> Array:
    """Return each site's value in the last round that has one; NaN where none has."""
    latest: dict[str, float | None] = {}
    for decision in before:
        latest |= decision["signals"].get(name, {})
    return column(latest, sites)


def _flat_sites(signals: Signals, sites: Sequence[str]) -> Array:
    out: Array = column(signals["flat"], sites) > 0 if "flat" in signals else np.zeros(len(sites), bool)
    return out


def _trust_signal(settings: WeighSettings) -> str:
    return "in_line" if settings.form == OUTLIER else "agreement"


def column(values: Mapping[str, float | None], sites: Sequence[str]) -> Array:
    """Return one number a site, (K,); NaN where none is known."""
    return np.array([np.nan if values.get(s) is None else values[s] for s in sites], float)


TAKEN_AS_RECORDED = (
    "inputs of trust (accuracies, NSDS, consistency and signs of attributions) and contributions: they depend on rows, models "
    "and attributions that the record does not hold"
)
"""Inputs that are taken as recorded; only their consequences are recomputed."""


def recompute_trust(
    method: MethodSettings, decision: DecisionEntry, before: Sequence[DecisionEntry], out: RecomputedWeights
) -> dict[str, float]:
    """Recompute trust and compare all that follows from it, by the plan's [method].

    Returns:
        The weight of every site that was weighed, with those that refused or left afterwards.
    """
    settings, signals = method.trust, decision["signals"]
    sites = list(signals["nsds"])
    recomputed = _recompute_trust_weights(settings, signals, sites, before)
    out.compare("'consistency'", signals["consistency"], sites, recomputed.consistency)
    out.compare("'trust'", signals["trust"], sites, recomputed.trust)
    if settings.reasons:
        compare_agreement(method, decision, sites, before, out)
    _compare_reward(signals, out)
    _compare_alarms(settings, decision, sites, out)
    out.unchecked.append(TAKEN_AS_RECORDED)
    return dict(zip(sites, recomputed.weights.tolist(), strict=True))


def _recompute_trust_weights(
    settings: TrustSettings, signals: Signals, sites: Sequence[str], before: Sequence[DecisionEntry]
) -> TrustResult:
    optional = {name: column(signals[name], sites) for name in ("alignment", "in_line") if name in signals}
    inputs = TrustInputs(
        rows=column(signals["data_size"], sites),
        accuracies=_accuracy_window(signals["accuracy"], sites, before, settings.window),
        steadiness=column(signals["steadiness"], sites),
        nsds=column(signals["nsds"], sites),
        **optional,
    )
    return compute_trust(TrustRule.from_settings(settings), inputs)


def _accuracy_window(
    current: Mapping[str, float | None], sites: Sequence[str], before: Sequence[DecisionEntry], window: int
) -> Array:
    """Collect each site's accuracies, (K, window): this round's and those of the last rounds in which it accepted the weights."""
    out, place, filled = (
        np.full((len(sites), window), np.nan),
        {s: k for k, s in enumerate(sites)},
        np.ones(len(sites), int),
    )
    out[:, -1] = column(current, sites)
    for decision in reversed(before):
        if (filled == window).all():
            break
        back = [s for s in _weighed(decision) if s in place and filled[place[s]] < window]
        rows = [place[s] for s in back]
        filled[rows] += 1
        out[rows, -filled[rows]] = column(decision["signals"]["accuracy"], back)
    return out


def _weighed(decision: DecisionEntry) -> Mapping[str, float]:
    return next((s["weights"] for s in decision["stages"] if s["part"] == "weigh"), {})


def _compare_reward(signals: Signals, out: RecomputedWeights) -> None:
    """Check that a reward is trust x contribution, for the sites whose contribution is known."""
    if "reward" not in signals and "contribution" not in signals:
        return
    sites = list(signals["contribution"])
    recomputed = column(signals["trust"], sites) * column(signals["contribution"], sites)
    out.compare("'reward'", signals["reward"], sites, recomputed)


def _compare_alarms(
    settings: TrustSettings, decision: DecisionEntry, sites: Sequence[str], out: RecomputedWeights
) -> None:
    """Check that every site that diverges too far is named in the notes."""
    due = divergence_alarms(sites, column(decision["signals"]["nsds"], sites), most=settings.alarm)
    for site, note in due.items():
        if note not in decision["notes"]:
            out.wrong.append(f"{site} diverges by more than method.trust.alarm, and no note says so")
