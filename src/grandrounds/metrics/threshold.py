"""The probability at which to call a patient positive, chosen from summed histograms."""

from __future__ import annotations

import numpy as np

from grandrounds.core.errors import BadInput, nearest
from grandrounds.metrics.arithmetic import Array
from grandrounds.metrics.grid import BINS, edge_probability
from grandrounds.metrics.tally import Tally


def choose_threshold(tally: Tally, rule: str | None = None, *, specificity: float | None = None) -> float:
    """A threshold on P(y=1) by Youden's rule, or the lowest that keeps at least `specificity`.

    `rule` is "youden" (the default: most sensitivity + specificity, the middle of the stretch that
    attains it) unless a target specificity is given instead. The answer lies on an edge of the grid,
    so `scores` at it counts exactly; it is NaN when the rule has no rows to judge by.
    """
    if not tally.binary or tally.shape:
        found = f"shape {tally.shape}, {tally.classes} classes"
        raise ValueError(f"a threshold is chosen on one two-class tally, sites summed: this has {found}")
    if rule is not None and specificity is not None:
        raise ValueError("choose a threshold by a rule or by a target specificity, not both")
    if rule not in (None, "youden"):
        raise BadInput(f"unknown threshold rule '{rule}': {nearest(str(rule), ['youden'])}")
    if specificity is not None and not 0.0 <= specificity <= 1.0:
        raise BadInput(f"a target specificity lies between 0 and 1, not {specificity}")
    below = np.zeros((2, BINS + 1))
    below[:, 1:] = np.cumsum(tally.histogram[0], axis=-1)
    negatives, positives = below[:, -1]
    if negatives == 0 or (specificity is None and positives == 0):
        return float("nan")
    if specificity is not None:
        return edge_probability(int(np.argmax(below[0] >= specificity * negatives - 1e-9)))
    return edge_probability(_middle_of_best(below[0] / negatives - below[1] / positives))


def _middle_of_best(values: Array) -> int:
    """Index in the middle of the first unbroken stretch that attains the maximum of values (n,)."""
    best = np.flatnonzero(values >= values.max() - 1e-12)
    breaks = np.flatnonzero(np.diff(best) > 1)
    stretch = best[: breaks[0] + 1] if breaks.size else best
    return int(stretch[len(stretch) // 2])
