"""Decisions by a probability: the threshold at which to call a patient positive, and decision curves.

A decision curve says what acting on a model is worth against treating everybody or nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grandrounds.core.errors import BadInput, nearest
from grandrounds.metrics.classification import BINS, Array, Floats, OccupiedBins, edge_probability, ratio
from grandrounds.metrics.tally import Tally


def choose_threshold(tally: Tally, rule: str | None = None, *, specificity: float | None = None) -> float:
    """Return a threshold on P(y=1) by Youden's rule, or the lowest that keeps at least `specificity`.

    `rule` is "youden" (the default: most sensitivity + specificity, the middle of the stretch that
    attains it) unless a target specificity is given instead. The answer lies on an edge of the grid,
    so `scores` at it counts exactly; it is NaN when the rule has no rows to judge by.
    """
    if not tally.binary or tally.shape:
        description = f"shape {tally.shape}, {tally.classes} classes"
        raise ValueError(f"a threshold is chosen on one two-class tally, sites summed: this has {description}")
    if rule is not None and specificity is not None:
        raise ValueError("choose a threshold by a rule or by a target specificity, not both")
    if rule not in (None, "youden"):
        raise BadInput(f"unknown threshold rule '{rule}': {nearest(str(rule), ['youden'])}", code="unknown-rule")
    if specificity is not None and not 0.0 <= specificity <= 1.0:
        raise BadInput(f"a target specificity lies between 0 and 1, not {specificity}", code="setting-out-of-range")
    below = np.zeros((2, BINS + 1))
    below[:, 1:] = np.cumsum(tally.histogram[0], axis=-1)
    negatives, positives = below[:, -1]
    if negatives == 0 or (specificity is None and positives == 0):
        return float("nan")
    if specificity is not None:
        return edge_probability(int(np.argmax(below[0] >= specificity * negatives - 1e-9)))
    return edge_probability(_middle_of_best(below[0] / negatives - below[1] / positives))


def _middle_of_best(values: Array) -> int:
    """Compute the index in the middle of the first unbroken stretch that attains the maximum of values (n,)."""
    best = np.flatnonzero(values >= values.max() - 1e-12)
    breaks = np.flatnonzero(np.diff(best) > 1)
    stretch = best[: breaks[0] + 1] if breaks.size else best
    return int(stretch[len(stretch) // 2])


@dataclass(frozen=True, eq=False)
class DecisionCurve:
    """Net benefit per patient at each threshold: `model` and `treat_all` (..., T) over `thresholds` (T,).

    Treating nobody is worth 0 at every threshold.
    """

    thresholds: Floats
    model: Floats
    treat_all: Floats


def decision_curve(tally: Tally, thresholds: npt.ArrayLike) -> DecisionCurve:
    """True positives less false positives at the odds t / (1 - t), per row (Vickers and Elkin, 2006).

    The threshold is the probability at which harm and benefit of treating break even, so it lies
    strictly between 0 and 1. NaN for a tally without rows.
    """
    if not tally.binary:
        raise ValueError(f"a decision curve is for two classes, not {tally.classes}")
    t = np.atleast_1d(np.asarray(thresholds, np.float64))
    if t.ndim != 1 or not np.all((t > 0) & (t < 1)):
        raise ValueError("decision thresholds are probabilities strictly between 0 and 1")
    bins = OccupiedBins.from_histogram(tally.histogram[..., 0, :, :])
    reached = np.array([bins.count_at_least(float(threshold)) for threshold in t]).reshape(len(t), 2, *tally.shape)
    false_alarms, caught = np.moveaxis(reached, 0, -1)
    negatives, positives = bins.negatives[..., None], bins.positives[..., None]
    odds = t / (1.0 - t)
    return DecisionCurve(
        thresholds=t,
        model=ratio(caught - odds * false_alarms, negatives + positives),
        treat_all=ratio(positives - odds * negatives, negatives + positives),
    )
