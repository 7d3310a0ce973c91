"""How well scores put positives above negatives.

Rows that share a bin are read as a tie in random order: half credit in the ROC area, the middle of the
bin in the precision, a linear share of the bin at a given specificity.
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
    """Mean precision at the positives, (...); NaN without both kinds."""
    hits = o.spread(o.positives) - o.below(o.positive) + 0.5
    misses = o.spread(o.negatives) - o.below(o.negative)
    return ratio(o.add(o.positive * hits / (hits + misses)), np.where(o.negatives > 0, o.positives, 0.0))


def recall_at_specificity(o: Occupied, *, specificity: float = 0.9) -> Floats:
    """Most positives found while at least `specificity` of negatives are spared, (...)."""
    above = o.spread(o.negatives) - o.below(o.negative) - 0.5 * o.negative
    left = o.spread(o.negatives) * (1.0 - specificity) + 1e-9 - above
    share = np.where(o.negative > 0, np.clip(left / np.maximum(o.negative, 1.0), 0.0, 1.0), left > 0)
    return ratio(o.add(o.positive * share), np.where(o.negatives > 0, o.positives, 0.0))
