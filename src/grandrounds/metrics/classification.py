"""Arithmetic of scored rows: a row's losses, the grid on which scores are counted, and ranking figures of the counts.

One grid for all sites, models and rounds is what makes histograms add up. Its edges are even in asinh(log-odds / SOFTNESS),
which is a plain ruler near zero and a logarithmic one far out: young models, whose scores all lie close together, and
saturated ones, whose probabilities round to 0 and 1, are both resolved. Zero (probability one half) is exactly an edge. The
two end bins also hold what lies beyond +-LIMIT. A bin is 0.003 wide at zero, 0.014 at -2.3 (one in eleven) and 0.06 at 10.

Ranking figures say how well scores put positives above negatives. Rows that share a bin, or a score, are a tie: half credit
in the ROC area, the precision at the tie's end as in scikit-learn, a linear share at a given specificity. Of scores that
lie on a grid all of them are exact. Of other scores the order within a bin is not known; `roc_resolution` and
`precision_resolution` bound the error by every order that is possible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


def ratio(top: Array, bottom: Array) -> Floats:
    """`top / bottom` (broadcast), NaN where the bottom is zero: a share of nothing is not a number."""
    out: Floats = np.full(np.broadcast_shapes(np.shape(top), np.shape(bottom)), np.nan)
    np.divide(top, bottom, out=out, where=np.asarray(bottom) != 0)
    return out


def mean_defined(values: Array) -> Floats:
    """Compute the mean over the last axis of the values that are not NaN, (..., K) to (...); NaN when none is."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(axis=-1), defined.sum(axis=-1))


def sum_by_cell(cell: Array, values: Array, *, cells: int) -> Floats:
    """Compute the sum of values (m,) for each index in cell (m,), (cells,): zero for a cell with none."""
    return np.bincount(cell, values, minlength=cells).astype(np.float64, copy=False)


BINS = 2048
LIMIT = 100.0
SOFTNESS = 0.5
_PER_UNIT = BINS / (2.0 * float(np.arcsinh(LIMIT / SOFTNESS)))


def bin_centres() -> Floats:
    """Compute the log-odds at the middle of each bin, (BINS,)."""
    return _log_odds(np.arange(BINS, dtype=np.float64) + 0.5)


def bin_edges() -> Floats:
    """Compute the log-odds between the bins from -LIMIT to LIMIT, (BINS + 1,)."""
    return _log_odds(np.arange(BINS + 1, dtype=np.float64))


def bin_index(log_odds: Array) -> Array:
    """Compute the index of the bin `[edge, next edge)` that holds each log-odds, any shape."""
    position = np.floor(np.arcsinh(log_odds * (1.0 / SOFTNESS)) * _PER_UNIT)
    return np.clip(position, -(BINS // 2), BINS // 2 - 1).astype(np.intp) + BINS // 2


def edge_probability(edge: int) -> float:
    """Compute the probability at the lower edge of bin `edge`: 0 for the first and 1 past the last, as these are open."""
    if edge <= 0:
        return 0.0
    if edge >= BINS:
        return 1.0
    return float(0.5 + 0.5 * np.tanh(0.5 * bin_edges()[edge]))


def grid_position(probability: float) -> float:
    """Compute the place of a probability on the grid, in units of bins within [0, BINS]; NaN stays NaN."""
    if probability < 0.0 or probability > 1.0:
        raise ValueError(f"a threshold is a probability between 0 and 1, not {probability}")
    p = np.float64(probability)
    with np.errstate(divide="ignore"):
        log_odds = np.log(p) - np.log1p(-p)
    place = np.arcsinh(log_odds / SOFTNESS) * _PER_UNIT + BINS // 2
    return float(np.clip(place, 0.0, BINS).round(6))


def exact_grid_position(log_odds: Floats) -> Floats:
    """Place of each log-odds on the grid, as `grid_position` has it for probabilities, within [0, BINS): none is beyond 1."""
    place: Floats = (np.arcsinh(log_odds / SOFTNESS) * _PER_UNIT + BINS // 2).round(6)
    return np.clip(place, 0.0, np.nextafter(BINS, 0.0))


def _log_odds(place: Floats) -> Floats:
    """Compute the log-odds at a place on the grid, the inverse of what `bin_index` computes; any shape."""
    unbent: Floats = SOFTNESS * np.sinh((place - BINS // 2) / _PER_UNIT)
    return unbent


_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class RowScores:
    """Per-row statistics: log_loss, brier, predicted, confidence, hit (n,) and log_odds (H, n)."""

    log_loss: Array
    brier: Array
    predicted: Array
    confidence: Array
    hit: Array
    log_odds: Array


def score_two_classes(logits: Array, y: Array) -> RowScores:
    """Compute the rows of a two-class model, in the form that neither overflows nor rounds a small loss to zero."""
    z = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    small = np.exp(-np.abs(z))
    p = np.where(z >= 0, 1.0, small) / (1.0 + small)
    wrong_way = np.where(y == 1, -z, z)
    return RowScores(
        log_loss=np.maximum(wrong_way, 0.0) + np.log1p(small),
        brier=(p - y) ** 2,
        predicted=(z >= 0).astype(np.intp),
        confidence=p,
        hit=y,
        log_odds=z[None],
    )


def swap_event(rows: RowScores) -> RowScores:
    """Return the same rows of a two-class model with the other class as the event: losses stay as they are, to the last bit."""
    return replace(
        rows, predicted=1 - rows.predicted, confidence=1.0 - rows.confidence, hit=1 - rows.hit, log_odds=-rows.log_odds
    )


def score_several_classes(logits: Array, y: Array) -> RowScores:
    """Compute the rows of a softmax model; the top class's rivals are summed apart, as 1 - p would cancel."""
    z = np.ascontiguousarray(logits.T)
    rows = np.arange(z.shape[1])
    top = z.argmax(axis=0)
    z -= z[top, rows]
    weight = np.exp(z)
    weight[top, rows] = 0.0
    rivals = weight.sum(axis=0)
    weight[top, rows] = 1.0
    total = 1.0 + rivals
    rest = total - weight
    rest[top, rows] = np.maximum(rivals, _TINY)
    p = weight / total
    return RowScores(
        log_loss=np.log1p(rivals) - z[y, rows],
        brier=(p * p).sum(axis=0) - 2.0 * p[y, rows] + 1.0,
        predicted=top,
        confidence=p[top, rows],
        hit=top == y,
        log_odds=z - np.log(rest),
    )


_TIE = 3e-7
"""Relative distance within which two scores are a tie: a few roundings of a score in single precision, which give
equal rows unequal last digits."""


@dataclass(frozen=True, eq=False)
class OccupiedBins:
    """Histograms (..., 2, BINS) without their empty bins; a cell is one histogram, flattened over (...).

    cell, column          (m,) where each occupied bin lies; cells in order, columns rising within each.
    negative, positive    (m,) rows of each kind in that bin.
    negatives, positives  (...) rows of each kind in the cell.
    log_odds              (m,) the score that the rows of each group share, where it is known and not only its bin;
                          columns then number the groups.
    """

    cell: Array
    column: Array
    negative: Floats
    positive: Floats
    negatives: Floats
    positives: Floats
    log_odds: Floats | None = None

    @classmethod
    def from_histogram(cls, histogram: Array) -> OccupiedBins:
        """Return the occupied bins of histograms (..., 2, BINS)."""
        lead = histogram.shape[:-2]
        negative, positive = np.moveaxis(histogram, -2, 0).reshape(2, -1, histogram.shape[-1])
        cell, column = np.nonzero(negative + positive)
        kinds = [kind[cell, column].astype(np.float64) for kind in (negative, positive)]
        totals = [sum_by_cell(cell, kind, cells=len(negative)).reshape(lead) for kind in kinds]
        return cls(cell, column, kinds[0], kinds[1], totals[0], totals[1])

    @classmethod
    def from_rows(cls, cell: Array, log_odds: Floats, positive: Array, *, lead: tuple[int, ...]) -> OccupiedBins:
        """Group rows (n,) by their exact scores, given the cell, the log-odds and the kind of each; cells are numbered
        over `lead`. Figures of such groups are those of the rows, without the error of a grid.
        """
        order = np.lexsort((log_odds, cell))
        cell, score, positive = cell[order], log_odds[order], positive[order]
        starts = np.ones(len(order), bool)
        starts[1:] = (np.diff(cell) > 0) | (np.diff(score) > _TIE * (1.0 + np.abs(score[1:])))
        number, group_cell = np.cumsum(starts) - 1, cell[starts]
        kinds = [sum_by_cell(number, kind, cells=len(group_cell)) for kind in (~positive, positive)]
        cells = int(np.prod(lead, dtype=np.int64))
        totals = [sum_by_cell(group_cell, kind, cells=cells).reshape(lead) for kind in kinds]
        return cls(group_cell, np.arange(len(group_cell)), kinds[0], kinds[1], totals[0], totals[1], score[starts])

    @property
    def scores(self) -> Floats:
        """Compute the log-odds (m,) of each group: exact, or the middle of its bin."""
        return bin_centres()[self.column] if self.log_odds is None else self.log_odds

    def add(self, values: Array) -> Floats:
        """Compute the sum of values (m,) over the bins of each cell, (...)."""
        return sum_by_cell(self.cell, values, cells=self.negatives.size).reshape(self.negatives.shape)

    def spread(self, values: Array) -> Floats:
        """Values (...) of the cells, given to each of their bins, (m,)."""
        spread_values: Floats = values.reshape(-1)[self.cell]
        return spread_values

    def below(self, kind: Floats) -> Floats:
        """Compute the rows of `negative` or `positive` at lower scores in the same cell, (m,), the same bin half."""
        running = np.cumsum(kind)
        earlier = np.cumsum(self.add(kind).reshape(-1))
        start = np.concatenate([[0.0], earlier[:-1]]) if earlier.size else earlier
        under: Floats = running - 0.5 * kind - start[self.cell]
        return under

    def count_at_least(self, probability: float) -> tuple[Floats, Floats]:
        """Compute the negatives and positives (...) whose probability is at least this one.

        A threshold inside a bin takes the matching share of that bin; on an edge, and of exact scores, the count is exact.
        """
        place = grid_position(probability)
        if self.log_odds is None:
            share = np.clip(self.column + 1.0 - place, 0.0, 1.0)
        else:
            share = np.where(np.isnan(place), np.nan, exact_grid_position(self.log_odds) >= place)
        return self.add(self.negative * share), self.add(self.positive * share)


Z_95 = 1.959964


def roc_area(o: OccupiedBins) -> Floats:
    """Compute the chance that a positive scores above a negative, (...); NaN without both kinds."""
    return ratio(o.add(o.positive * o.below(o.negative)), o.positives * o.negatives)


def roc_interval(o: OccupiedBins) -> tuple[Floats, Floats]:
    """Compute DeLong's 95% interval of the ROC area, each end (...), kept within [0, 1].

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


def average_precision(o: OccupiedBins) -> Floats:
    """Average precision, (...): over the positives, the precision at the end of each one's tie; NaN without both kinds."""
    hits, misses = _cumulative_counts(o)
    return _mean_over_positives(o, hits / (hits + misses))


def roc_resolution(o: OccupiedBins) -> Floats:
    """Compute the largest error (...) that `roc_area` can have because rows share a bin; 0 of exact scores.

    Every pair of a positive and a negative in one bin counts half and could count 0 or 1.
    """
    shared = o.positive * o.negative if o.log_odds is None else np.zeros(len(o.cell))
    return ratio(0.5 * o.add(shared), o.positives * o.negatives)


def precision_resolution(o: OccupiedBins) -> Floats:
    """Compute the largest error (...) that `average_precision` can have because rows share a bin; 0 of exact scores.

    At best a bin's positives come before its negatives, as one tie. At worst they come after them one by one: the
    precision then rises along a concave curve, whose mean is at least that of its two ends.
    """
    hits, misses = _cumulative_counts(o)
    if o.log_odds is not None:
        return _mean_over_positives(o, np.zeros(len(hits)))
    precision, first = hits / (hits + misses), hits - o.positive + 1.0
    best = hits / np.maximum(hits + misses - o.negative, 1.0)
    worst = 0.5 * (precision + first / (first + misses))
    up, down = _mean_over_positives(o, best - precision), _mean_over_positives(o, precision - worst)
    return np.maximum(up, down)


def _cumulative_counts(o: OccupiedBins) -> tuple[Floats, Floats]:
    """Compute the positives and negatives (m,) with a score as high as that of each group or higher."""
    hits = o.spread(o.positives) - o.below(o.positive) + 0.5 * o.positive
    return hits, o.spread(o.negatives) - o.below(o.negative) + 0.5 * o.negative


def _mean_over_positives(o: OccupiedBins, values: Floats) -> Floats:
    """Compute the mean over the positives of values (m,) of their groups, (...); NaN without both kinds."""
    return ratio(o.add(o.positive * values), np.where(o.negatives > 0, o.positives, 0.0))


def recall_at_specificity(o: OccupiedBins, *, specificity: float = 0.9) -> Floats:
    """Compute the most positives found while at least `specificity` of negatives are spared, (...)."""
    above = o.spread(o.negatives) - o.below(o.negative) - 0.5 * o.negative
    allowed = o.spread(o.negatives) * (1.0 - specificity) + 1e-9 - above
    share = np.where(o.negative > 0, np.clip(allowed / np.maximum(o.negative, 1.0), 0.0, 1.0), allowed > 0)
    return ratio(o.add(o.positive * share), np.where(o.negatives > 0, o.positives, 0.0))
