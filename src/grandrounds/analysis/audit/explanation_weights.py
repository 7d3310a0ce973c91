"""SSE-AGG's weights again: the blend from the recorded trust, and the trust from the recorded distances of reasons.

Written from the equations and not with the code that weighs, but for the signals themselves (`methods/weigh.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.sse_agg.weights import FEWEST, HALVES, confirm_harm, lambdas, least_share, sharpness
from grandrounds.methods.weigh import (
    blend,
    data_size,
    exponential,
    floored,
    inverse,
    keep,
    kept_in_mind,
    softmax_signal,
    stand_out,
)

if TYPE_CHECKING:
    from grandrounds.analysis.audit.weights import Reweighed

OUTLIER = "outlier"


def explained_again(settings: Any, decision: Mapping[str, Any], sites: Sequence[str], counts: Array) -> Array:
    """The blend (eq. 8) of what the Decision records; the rows alone where reasons were not asked for (`every`)."""
    signals, rows = decision["signals"], data_size(counts)
    used = {name: share for name, share in lambdas(settings).items() if share}
    trusted = _trust(settings)
    if "agreement" in used and trusted not in signals:
        return rows
    parts: dict[str, Array] = {"data": rows}
    if "agreement" in used:
        trust, flat = column(signals[trusted], sites), _flat(signals, sites)
        held = trust * rows if settings.form == OUTLIER else rows if flat.all() else trust
        parts["agreement"] = held / held.sum()
    if "worst_site" in used:
        parts["worst_site"] = softmax_signal(column(signals["val_loss"], sites), settings.beta)
    if "calibration" in used:
        parts["calibration"] = softmax_signal(column(signals["ece"], sites), settings.gamma)
    return floored(blend(parts, used), settings.floor)


def agreement_again(
    method: Any, decision: Mapping[str, Any], sites: Sequence[str], before: Sequence[Mapping[str, Any]], out: Reweighed
) -> None:
    """Whether the trust in each site's reasons follows from how far they lie from the consensus."""
    settings, signals = method.weigh, decision["signals"]
    if "disagreement" not in signals:
        return
    far, flat, of = column(signals["disagreement"], sites), _flat(signals, sites), _groups(method, decision, sites)
    if flat.all():
        out.compare(f"'{_trust(settings)}'", signals[_trust(settings)], sites, np.ones(len(sites)))
        return
    alone = [sites[k] for k in np.flatnonzero(np.bincount(of)[of] < FEWEST).tolist()] if len(np.unique(of)) > 1 else []
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
    out: Reweighed,
) -> Array:
    """The outlier form: how far each stands out, with what earlier rounds found, and what that leaves of its trust."""
    standing = column(signals["standing"], sites)
    sampling = np.nan_to_num(column(signals.get("sampling", {}), sites))  # records of earlier versions have none
    neighbours = column(signals["neighbours"], sites) if "neighbours" in signals else np.full(len(sites), np.inf)
    found = np.full(len(sites), np.nan)
    for mine in _cohorts(of):
        speaking = ~flat[mine]
        if speaking.any():
            found[mine] = stand_out(
                far[mine], sampling[mine], neighbours[mine], tolerance=settings.tolerance, among=far[mine][speaking]
            )
    known = kept_in_mind(found, _last(before, "standing", sites), settings.memory)
    kept = [k for k, s in enumerate(sites) if s not in alone]
    names = [sites[k] for k in kept]
    out.compare("'standing'", {s: signals["standing"][s] for s in names}, names, known[kept])
    harm = column(signals.get("harm", {}), sites)
    halves = np.stack([column(signals.get(name, {}), sites) for name in HALVES])
    confirmed = confirm_harm(settings, halves, column(signals["data_size"], sites))
    return keep(standing, harm, least=least_share(settings), sharpness=sharpness(settings), confirmed=confirmed)


def _nearest_first(settings: Any, far: Array, speaking: Array) -> Array:
    """Eq. 5 or 21, as shares of what the nearest has."""
    far = np.maximum(far, far[speaking].min())
    shares = (
        exponential(far, tau=settings.tau)
        if settings.form == "exponential"
        else inverse(far, sharpness=sharpness(settings))
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
