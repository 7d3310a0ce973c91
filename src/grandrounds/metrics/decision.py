"""Decision curves: what acting on a model is worth against treating everybody or nobody."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grandrounds.metrics.arithmetic import Floats, ratio
from grandrounds.metrics.occupied import Occupied
from grandrounds.metrics.tally import Tally


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
    held = Occupied.of(tally.histogram[..., 0, :, :])
    reached = np.array([held.reaching(float(at)) for at in t]).reshape(len(t), 2, *tally.shape)
    false_alarms, caught = np.moveaxis(reached, 0, -1)
    negatives, positives = held.negatives[..., None], held.positives[..., None]
    odds = t / (1.0 - t)
    return DecisionCurve(
        thresholds=t,
        model=ratio(caught - odds * false_alarms, negatives + positives),
        treat_all=ratio(positives - odds * negatives, negatives + positives),
    )
