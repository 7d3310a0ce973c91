"""Ranking figures: how well scores put positives above negatives.

Rows that share a bin, or a score, are a tie: half credit in the ROC area, the precision at the tie's end as in
scikit-learn, a linear share at a given specificity. Of scores that lie on a grid all of them are exact. Of other scores the
order within a bin is not known; `roc_resolution` and `precision_resolution` bound the error by every order that is possible.
"""

from __future__ import annotations

import numpy as np

from grandrounds.metrics.arithmetic import Floats, ratio
from grandrounds.metrics.occupied import Occupied

Z_95 = 1.959964


def roc_area(o: Occupied) -> Floats:
    """Chance that a positive scores above a negative, (...); NaN without both kinds."""
    return ratio(o.add(o.positive * o.below(o.negative)), o.positives * o.negatives)


def roc_interval(o: Occupied) -> tuple[Floats, Floats]:
    """DeLong's 95% interval of the ROC area, each end (...), kept within [0, 1].

    The variance is that of the placements (the share of the other kind that a row beats, ties half),
    so it needs two of each kind and is NaN otherwise. A perfect ranking has the interval [1, 1].
    """
    area = roc_area(o)
    beaten = ratio(o.below(o.negative), o.spread(o.negatives))
    beaten_by = 1.0 - ratio(o.below(o.positive), o.spread(o.positives))
    middle = o.spread(area)
    of_positives = o.add(o.positive * (beaten - middle) ** 2)
    of_negatives = o.add(o.negative * (beaten_by - middle) ** 2)
    variance = ratio(of_positives, o.positives * np.maximum(o.positives - 1.0, 0.0))
    variance += ratio(of_negatives, o.negatives * np.maximum(o.negatives - 1.0, 0.0))
    half = Z_95 * np.sqrt(variance)
    return np.clip(area - half, 0.0, 1.0), np.clip(area + half, 0.0, 1.0)


def average_precision(o: Occupied) -> Floats:
    """Average precision, (...): over the positives, the precision at the end of each one's tie; NaN without both kinds."""
    hits, misses = _reached(o)
    return _over_positives(o, hits / (hits + misses))


def roc_resolution(o: Occupied) -> Floats:
    """Largest error (...) that `roc_area` can have because rows share a bin; 0 of exact scores.

    Every pair of a positive and a negative in one bin counts half and could count 0 or 1.
    """
    shared = o.positive * o.negative if o.log_odds is None else np.zeros(len(o.cell))
    return ratio(0.5 * o.add(shared), o.positives * o.negatives)


def precision_resolution(o: Occupied) -> Floats:
    """Largest error (...) that `average_precision` can have because rows share a bin; 0 of exact scores.

    At best a bin's positives come before its negatives, as one tie. At worst they come after them one by one: the
    precision then rises along a concave curve, whose mean is at least that of its two ends.
    """
    hits, misses = _reached(o)
    if o.log_odds is not None:
        return _over_positives(o, np.zeros(len(hits)))
    here, first = hits / (hits + misses), hits - o.positive + 1.0
    best = hits / np.maximum(hits + misses - o.negative, 1.0)
    worst = 0.5 * (here + first / (first + misses))
    up, down = _over_positives(o, best - here), _over_positives(o, here - worst)
    return np.maximum(up, down)


def _reached(o: Occupied) -> tuple[Floats, Floats]:
    """Positives and negatives (m,) with a score as high as that of each group or higher."""
    hits = o.spread(o.positives) - o.below(o.positive) + 0.5 * o.positive
    return hits, o.spread(o.negatives) - o.below(o.negative) + 0.5 * o.negative


def _over_positives(o: Occupied, values: Floats) -> Floats:
    """Mean over the positives of values (m,) of their groups, (...); NaN without both kinds."""
    return ratio(o.add(o.positive * values), np.where(o.negatives > 0, o.positives, 0.0))


def recall_at_specificity(o: Occupied, *, specificity: float = 0.9) -> Floats:
    """Most positives found while at least `specificity` of negatives are spared, (...)."""
    above = o.spread(o.negatives) - o.below(o.negative) - 0.5 * o.negative
    left = o.spread(o.negatives) * (1.0 - specificity) + 1e-9 - above
    share = np.where(o.negative > 0, np.clip(left / np.maximum(o.negative, 1.0), 0.0, 1.0), left > 0)
    return ratio(o.add(o.positive * share), np.where(o.negatives > 0, o.positives, 0.0))
