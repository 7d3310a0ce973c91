"""Rows grouped by score, in order of score: by the bins of histograms that hold rows, or by the scores themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.metrics.arithmetic import Array, Floats, sum_by
from grandrounds.metrics.grid import bin_centres, exact_place, place_of

_TIE = 3e-7
"""Relative distance within which two scores are a tie: a few roundings of a score in single precision, which give
equal rows unequal last digits."""


@dataclass(frozen=True, eq=False)
class Occupied:
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
    def of(cls, histogram: Array) -> Occupied:
        """The occupied bins of histograms (..., 2, BINS)."""
        lead = histogram.shape[:-2]
        negative, positive = np.moveaxis(histogram, -2, 0).reshape(2, -1, histogram.shape[-1])
        cell, column = np.nonzero(negative + positive)
        kinds = [kind[cell, column].astype(np.float64) for kind in (negative, positive)]
        totals = [sum_by(cell, kind, cells=len(negative)).reshape(lead) for kind in kinds]
        return cls(cell, column, kinds[0], kinds[1], totals[0], totals[1])

    @classmethod
    def from_rows(cls, cell: Array, log_odds: Floats, positive: Array, *, lead: tuple[int, ...]) -> Occupied:
        """Group rows (n,) by their exact scores, given the cell, the log-odds and the kind of each; cells are numbered
        over `lead`. Figures of such groups are those of the rows, without the error of a grid.
        """
        order = np.lexsort((log_odds, cell))
        cell, score, positive = cell[order], log_odds[order], positive[order]
        starts = np.ones(len(order), bool)
        starts[1:] = (np.diff(cell) > 0) | (np.diff(score) > _TIE * (1.0 + np.abs(score[1:])))
        number, at = np.cumsum(starts) - 1, cell[starts]
        kinds = [sum_by(number, kind, cells=len(at)) for kind in (~positive, positive)]
        cells = int(np.prod(lead, dtype=np.int64))
        totals = [sum_by(at, kind, cells=cells).reshape(lead) for kind in kinds]
        return cls(at, np.arange(len(at)), kinds[0], kinds[1], totals[0], totals[1], score[starts])

    @property
    def scores(self) -> Floats:
        """Log-odds (m,) of each group: exact, or the middle of its bin."""
        return bin_centres()[self.column] if self.log_odds is None else self.log_odds

    def add(self, values: Array) -> Floats:
        """Sum of values (m,) over the bins of each cell, (...)."""
        return sum_by(self.cell, values, cells=self.negatives.size).reshape(self.negatives.shape)

    def spread(self, values: Array) -> Floats:
        """Values (...) of the cells, given to each of their bins, (m,)."""
        given: Floats = values.reshape(-1)[self.cell]
        return given

    def below(self, kind: Floats) -> Floats:
        """Rows of `negative` or `positive` at lower scores in the same cell, (m,), the same bin half."""
        running = np.cumsum(kind)
        earlier = np.cumsum(self.add(kind).reshape(-1))
        start = np.concatenate([[0.0], earlier[:-1]]) if earlier.size else earlier
        under: Floats = running - 0.5 * kind - start[self.cell]
        return under

    def reaching(self, probability: float) -> tuple[Floats, Floats]:
        """Negatives and positives (...) whose probability is at least this one.

        A threshold inside a bin takes the matching share of that bin; on an edge, and of exact scores, the count is exact.
        """
        place = place_of(probability)
        if self.log_odds is None:
            share = np.clip(self.column + 1.0 - place, 0.0, 1.0)
        else:
            share = np.where(np.isnan(place), np.nan, exact_place(self.log_odds) >= place)
        return self.add(self.negative * share), self.add(self.positive * share)
