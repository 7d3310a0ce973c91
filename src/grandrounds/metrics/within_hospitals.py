"""AUROC within hospitals: of two patients of the same hospital, does the one with the event have the higher risk?

The AUROC of all patients pooled also counts pairs of patients of two hospitals. Where hospitals differ in how common the event
is, a model that knows the hospital alone ranks these pairs well. A decision is taken at one hospital, so the headline is within
them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.metrics.classification import Z_95, Array, Floats
from grandrounds.metrics.fairness import MIN_PER_CLASS, is_defined
from grandrounds.metrics.outcomes import OutcomeTally
from grandrounds.metrics.scores import scores
from grandrounds.metrics.tally import ExactTally, Tally

WITHIN, GAP = "auroc_within", "auroc_gap"
"""The AUROC within hospitals, and the pooled AUROC less that one; both have ends `_low` and `_high`."""


def score_sites(
    tally: Tally | ExactTally | OutcomeTally, *, threshold: float, only: Collection[str]
) -> dict[str, Array]:
    """Compute metrics of each site; with two classes, a site with fewer than `MIN_PER_CLASS` rows of one has no AUROC."""
    found = scores(tally, threshold=threshold, only=only)
    if isinstance(tally, OutcomeTally) or not tally.binary:
        return found
    few = np.minimum(tally.bins.positives, tally.bins.negatives)[..., 0] < MIN_PER_CLASS
    return {name: np.where(few, np.nan, values) if name.startswith("auroc") else values for name, values in found.items()}


def mean_auroc(per_site: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Compute the AUROC within hospitals with its 95% interval, and the number of hospitals that it is of.

    Hospitals count by their pairs of a patient with and one without the event. The variance is that of DeLong's intervals.
    Hospitals with an AUROC that hold fewer than half of the test patients tell too little of the others.

    Args:
        per_site: Figures of each hospital's test rows.

    Returns:
        The figures by name; empty for one hospital, for three classes or more, and where too few hospitals have an AUROC.
    """
    tested = [m for m in per_site.values() if is_defined(m.get("count")) and m["count"] > 0]
    known = [m for m in tested if all(is_defined(m.get(key)) for key in ("events", "auroc", "auroc_low", "auroc_high"))]
    patients = math.fsum(float(m["count"]) for m in known)
    if len(tested) < 2 or not known or 2 * patients < math.fsum(float(m["count"]) for m in tested):
        return {}
    pairs = [float(m["events"]) * (float(m["count"]) - float(m["events"])) for m in known]
    shares = [n / sum(pairs) for n in pairs]
    value = math.fsum(w * float(m["auroc"]) for w, m in zip(shares, known, strict=True))
    halves = [max(m["auroc"] - m["auroc_low"], m["auroc_high"] - m["auroc"]) for m in known]  # an end may be cut at 0 or 1
    half = math.hypot(*(w * h for w, h in zip(shares, halves, strict=True)))
    ends = {f"{WITHIN}_low": max(0.0, value - half), f"{WITHIN}_high": min(1.0, value + half)}
    return {WITHIN: value, **ends, f"{WITHIN}_hospitals": float(len(known))}


def gap_margin(hospitals: Sequence[Tally]) -> float:
    """Compute half the width of the 95% interval of the pooled AUROC less that within hospitals.

    Each patient's effect on the difference follows from the share of the others that the patient beats (DeLong's placements). The
    variance is that of patients drawn within hospitals, as in a bootstrap of patients. Hospitals without an AUROC of their own
    are one stratum.

    Args:
        hospitals: The tally of two classes of each hospital's test rows.

    Returns:
        The half width; NaN where no hospital has an AUROC.
    """
    counts = np.array([np.asarray(t.histogram, np.float64).reshape(2, -1) for t in hospitals])  # (K, 2, bins)
    rows = counts.sum(axis=-1)
    has_area = rows.min(axis=-1) >= MIN_PER_CLASS
    if not has_area.any():
        return float("nan")
    pairs = rows[has_area].prod(axis=-1).sum()
    pooled = _effects(counts.sum(axis=0), rows.sum(axis=0).prod())
    own = {k: _placements(counts[k]) for k in np.flatnonzero(has_area)}
    mean = sum(float((counts[k][1] * own[k][1]).sum() * rows[k][0]) for k in own) / pairs
    variance = sum(_spread(counts[k], pooled - rows[k][::-1, None] * (own[k] - mean) / pairs) for k in own)
    if not has_area.all():
        variance += _spread(counts[~has_area].sum(axis=0), pooled)
    return Z_95 * math.sqrt(variance)


def _effects(counts: Floats, pairs: float) -> Floats:
    """Compute the effect of a row of each class (2, bins) on the AUROC of these rows."""
    placements, rows = _placements(counts), counts.sum(axis=-1)
    area = float((counts[1] * placements[1]).sum() / rows[1])
    effects: Floats = rows[::-1, None] * (placements - area) / pairs
    return effects


def _placements(counts: Floats) -> Floats:
    """Compute the share of the other class that a row of each class (2, bins) beats (events) or is beaten by (others)."""
    others, events = counts
    below = np.cumsum(others) - 0.5 * others
    above = events.sum() - np.cumsum(events) + 0.5 * events
    return np.stack([above / max(1.0, events.sum()), below / max(1.0, others.sum())])


def _spread(counts: Floats, effect: Floats) -> float:
    """Compute the variance of a sum of effects (2, bins) over the rows of one stratum."""
    size = float(counts.sum())
    if size < 2:
        return 0.0
    return size / (size - 1) * float((counts * (effect - float((counts * effect).sum()) / size) ** 2).sum())
