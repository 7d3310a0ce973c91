"""The bins of histograms that hold rows, in order of score: few of the grid's in a small site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.metrics.arithmetic import Array, Floats, sum_by
from grandrounds.metrics.grid import BINS, place_of


@dataclass(frozen=True, eq=False)
class Occupied:
    """Histograms (..., 2, BINS) without their empty bins; a cell is one histogram, flattened over (...).

    cell, column          (m,) where each occupied bin lies; cells in order, columns rising within each.
    negative, positive    (m,) rows of each kind in that bin.
    negatives, positives  (...) rows of each kind in the cell.
    """

    cell: Array
    column: Array
    negative: Floats
    positive: Floats
    negatives: Floats
    positives: Floats

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
    def from_rows(cls, cell: Array, column: Array, positive: Array, *, lead: tuple[int, ...]) -> Occupied:
        """The occupied bins of rows (n,), given the cell, the bin and the kind of each; cells are numbered over `lead`.

        What `of` finds in histograms of these rows, without histograms: many small sites are mostly empty bins.
        """
        places, number = np.unique(cell * BINS + column, return_inverse=True)
        kinds = [sum_by(number, kind, cells=len(places)) for kind in (~positive, positive)]
        at, column = np.divmod(places, BINS)
        cells = int(np.prod(lead, dtype=np.int64))
        totals = [sum_by(at, kind, cells=cells).reshape(lead) for kind in kinds]
        return cls(at, column, kinds[0], kinds[1], totals[0], totals[1])

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

        A threshold inside a bin takes the matching share of that bin; on an edge the count is exact.
        """
        share = np.clip(self.column + 1.0 - place_of(probability), 0.0, 1.0)
        return self.add(self.negative * share), self.add(self.positive * share)
