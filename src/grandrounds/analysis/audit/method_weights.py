"""Weights of SSE-AGG and of FedXChain (eq. 7-8), recomputed from the numbers that Decisions record.

Written from the equations and not with the code that weighs, but for the signals themselves (`methods/weigh.py`) and the
arithmetic of trust (`grandrounds.explain.trust`). Inputs come from this round's signals and from earlier rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.trust import CLOSE, TrustInputs, TrustResult, TrustRule, compute_trust
from grandrounds.methods.fedxchain.server import divergence_alarms
from grandrounds.methods.sse_agg.weights import (
    HARM_BY_HALF,
    MIN_COHORT_SITES,
    confirm_harm,
    resolve_lambdas,
    resolve_least_share,
    resolve_sharpness,
)
from grandrounds.methods.weigh import (
    apply_floor,
    blend,
    data_size,
    exponential_weights,
    inverse_weights,
    outlier_ratio_beyond_sampling,
    retained_share,
    smoothed_ratio,
    softmax_signal,
)

OUTLIER = "outlier"


@dataclass
class RecomputedWeights:
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


def recompute_blend(settings: Any, decision: Mapping[str, Any], sites: Sequence[str], counts: Array) -> Array:
    """The blend (eq. 8) of what the Decision records; the rows alone where reasons were not asked for (`every`)."""
    signals, rows = decision["signals"], data_size(counts)
    used = {name: share for name, share in resolve_lambdas(settings).items() if share}
    trust_signal = _trust(settings)
    if "agreement" in used and trust_signal not in signals:
        return rows
    parts: dict[str, Array] = {"data": rows}
    if "agreement" in used:
        trust, flat = column(signals[trust_signal], sites), _flat(signals, sites)
        held = trust * rows if settings.form == OUTLIER else rows if flat.all() else trust
        parts["agreement"] = held / held.sum()
    if "worst_site" in used:
        parts["worst_site"] = softmax_signal(column(signals["val_loss"], sites), settings.beta)
    if "calibration" in used:
        parts["calibration"] = softmax_signal(column(signals["ece"], sites), settings.gamma)
    return apply_floor(blend(parts, used), settings.floor)


def compare_agreement(
    method: Any,
    decision: Mapping[str, Any],
    sites: Sequence[str],
    before: Sequence[Mapping[str, Any]],
    out: RecomputedWeights,
) -> None:
    """Whether the trust in each site's reasons follows from how far they lie from the consensus."""
    settings, signals = method.weigh, decision["signals"]
    if "disagreement" not in signals:
        return
    far, flat, of = column(signals["disagreement"], sites), _flat(signals, sites), _groups(method, decision, sites)
    if flat.all():
        out.compare(f"'{_trust(settings)}'", signals[_trust(settings)], sites, np.ones(len(sites)))
        return
    alone = [sites[k] for k in np.flatnonzero(np.bincount(of)[of] < MIN_COHORT_SITES).tolist()] if len(np.unique(of)) > 1 else []
    for site in alone:
        out.unchecked.append(
            f"trust in {site}: alone in its cohort, it was compared with all others, whose distances to it are not recorded"
        )
    if settings.form == OUTLIER:
        trust = _in_line(settings, signals, sites, far, flat, of, alone, before, out)
    else:
        trust = np.ones(len(sites))
        for mine in _cohorts(of):
            trust[mine] = _nearest_first(
                settings, far[mine], ~flat[mine] if not flat[mine].all() else ~np.zeros(len(mine), bool)
            )
    if flat.any():
        trust[flat] = np.minimum(trust[flat], trust[~flat].min())
    kept = [k for k, s in enumerate(sites) if s not in alone]
    told = signals[_trust(settings)]
    names = [sites[k] for k in kept]
    out.compare(f"'{_trust(settings)}'", {s: told[s] for s in names}, names, trust[kept])


def _in_line(
    settings: Any,
    signals: Mapping[str, Any],
    sites: Sequence[str],
    far: Array,
    flat: Array,
    of: Array,
    alone: Sequence[str],
    before: Sequence[Mapping[str, Any]],
    out: RecomputedWeights,
) -> Array:
    """The outlier form: how far each stands out, with what earlier rounds found, and what that leaves of its trust."""
    standing = column(signals["standing"], sites)
    sampling = np.nan_to_num(column(signals.get("sampling", {}), sites))  # records of earlier versions have none
    neighbours = column(signals["neighbours"], sites) if "neighbours" in signals else np.full(len(sites), np.inf)
    found = np.full(len(sites), np.nan)
    for mine in _cohorts(of):
        speaking = ~flat[mine]
        if speaking.any():
            found[mine] = outlier_ratio_beyond_sampling(
                far[mine], sampling[mine], neighbours[mine], tolerance=settings.tolerance, peers=far[mine][speaking]
            )
    known = smoothed_ratio(found, _last(before, "standing", sites), settings.memory)
    kept = [k for k, s in enumerate(sites) if s not in alone]
    names = [sites[k] for k in kept]
    out.compare("'standing'", {s: signals["standing"][s] for s in names}, names, known[kept])
    harm = column(signals.get("harm", {}), sites)
    halves = np.stack([column(signals.get(name, {}), sites) for name in HARM_BY_HALF])
    confirmed = confirm_harm(settings, halves, column(signals["data_size"], sites))
    least, sharpness = resolve_least_share(settings), resolve_sharpness(settings)
    return retained_share(standing, harm, least=least, sharpness=sharpness, confirmed=confirmed)


def _nearest_first(settings: Any, far: Array, speaking: Array) -> Array:
    """Eq. 5 or 21, as shares of what the nearest has."""
    far = np.maximum(far, far[speaking].min())
    shares = (
        exponential_weights(far, tau=settings.tau)
        if settings.form == "exponential"
        else inverse_weights(far, sharpness=resolve_sharpness(settings))
    )
    most: Array = shares / shares.max()
    return most


def _groups(method: Any, decision: Mapping[str, Any], sites: Sequence[str]) -> Array:
    """The cohort that each site's reasons were compared in, from 0."""
    of = decision["cohorts"].get("of", {}) if method.cohorts.consensus == "cohort" else {}
    return np.array([of.get(s, 1) - 1 for s in sites], np.int64)


def _cohorts(of: Array) -> Iterator[Array]:
    for cohort in np.unique(of):
        yield np.flatnonzero(of == cohort)


def _last(before: Sequence[Mapping[str, Any]], name: str, sites: Sequence[str]) -> Array:
    """What the last round that spoke of each site found of it; NaN where none did."""
    known: dict[str, float | None] = {}
    for decision in before:
        known |= decision["signals"].get(name, {})
    return column(known, sites)


def _flat(signals: Mapping[str, Any], sites: Sequence[str]) -> Array:
    out: Array = column(signals["flat"], sites) > 0 if "flat" in signals else np.zeros(len(sites), bool)
    return out


def _trust(settings: Any) -> str:
    return "in_line" if settings.form == OUTLIER else "agreement"


def column(values: Mapping[str, float | None], sites: Sequence[str]) -> Array:
    """One number a site, (K,); NaN where none is known."""
    return np.array([np.nan if values.get(s) is None else values[s] for s in sites], float)


TAKEN_AS_RECORDED = (
    "what trust is made of (accuracies, NSDS, steadiness and signs of reasons) and contributions: they rest on rows, models and "
    "reasons that the record does not hold"
)
"""What is taken as recorded: only what follows from it is worked out again."""


def recompute_trust(
    method: Any, decision: Mapping[str, Any], before: Sequence[Mapping[str, Any]], out: RecomputedWeights
) -> dict[str, float]:
    """Compare trust and all that follows from it, by the plan's [method]; the weights of all that were weighed, by site.

    Those are more than have a weight where a site refused, or left after it was weighed.
    """
    settings, signals = method.trust, decision["signals"]
    sites = list(signals["nsds"])
    again = _judged(settings, signals, sites, before)
    out.compare("'consistency'", signals["consistency"], sites, again.consistency)
    out.compare("'trust'", signals["trust"], sites, again.trust)
    if settings.reasons:
        compare_agreement(method, decision, sites, before, out)
    _reward(signals, out)
    _alarms(settings, decision, sites, out)
    out.unchecked.append(TAKEN_AS_RECORDED)
    return dict(zip(sites, again.weights.tolist(), strict=True))


def _judged(
    settings: Any, signals: Mapping[str, Any], sites: Sequence[str], before: Sequence[Mapping[str, Any]]
) -> TrustResult:
    told = {name: column(signals[name], sites) for name in ("alignment", "in_line") if name in signals}
    said = TrustInputs(
        rows=column(signals["data_size"], sites),
        accuracies=_accuracies(signals["accuracy"], sites, before, settings.window),
        steadiness=column(signals["steadiness"], sites),
        nsds=column(signals["nsds"], sites),
        **told,
    )
    return compute_trust(TrustRule.from_settings(settings), said)


def _accuracies(
    now: Mapping[str, float | None], sites: Sequence[str], before: Sequence[Mapping[str, Any]], window: int
) -> Array:
    """Each site's accuracies of this round and of the last before it in which it was weighed and went along, (K, window)."""
    out, place, held = (
        np.full((len(sites), window), np.nan),
        {s: k for k, s in enumerate(sites)},
        np.ones(len(sites), int),
    )
    out[:, -1] = column(now, sites)
    for decision in reversed(before):
        if (held == window).all():
            break
        back = [s for s in _went_along(decision) if s in place and held[place[s]] < window]
        rows = [place[s] for s in back]
        held[rows] += 1
        out[rows, -held[rows]] = column(decision["signals"]["accuracy"], back)
    return out


def _went_along(decision: Mapping[str, Any]) -> Mapping[str, float]:
    return next((s["weights"] for s in decision["stages"] if s["part"] == "weigh"), {})


def _reward(signals: Mapping[str, Any], out: RecomputedWeights) -> None:
    """A reward is trust x contribution, of the sites whose contribution is known."""
    if "reward" not in signals and "contribution" not in signals:
        return
    known = list(signals["contribution"])
    again = column(signals["trust"], known) * column(signals["contribution"], known)
    out.compare("'reward'", signals["reward"], known, again)


def _alarms(settings: Any, decision: Mapping[str, Any], sites: Sequence[str], out: RecomputedWeights) -> None:
    """Whoever diverges too far is named in the notes."""
    due = divergence_alarms(sites, column(decision["signals"]["nsds"], sites), most=settings.alarm)
    for site, note in due.items():
        if note not in decision["notes"]:
            out.wrong.append(f"{site} diverges by more than method.trust.alarm, and no note says so")
