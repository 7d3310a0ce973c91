"""A quantile sketch that adds up: counts on a fixed logarithmic grid (DDSketch, Masson et al. 2019).

The grid does not depend on the data, so sketches of different sites merge by adding counts, and a
quantile is right to a relative error of ACCURACY. A small site's cells are nearly its values: they
hide who has them, not that somebody has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

ACCURACY = 0.001
_LOG_GAMMA = float(np.log((1 + ACCURACY) / (1 - ACCURACY)))
_MIDDLE = float(np.log(2 / (1 + np.exp(_LOG_GAMMA))))  # from the upper end of a cell to the value that stands for it
_LARGEST = float(np.log(np.finfo(np.float64).max))
_TINY = 1e-9
_OFFSET = int(np.ceil(-np.log(_TINY) / _LOG_GAMMA)) + 1
"""Added to a log index so that every index of a non-zero value is positive; the sign is put back after."""

_SPAN = 2**24  # more cells than a double can reach on this grid


def grid_index(x: Array) -> Array:
    """The cell of each value: 0 for |x| under 1e-9, positive and negative cells by magnitude."""
    size = np.abs(x)
    small = size < _TINY
    cell = np.log(np.maximum(size, _TINY, out=size), out=size)
    cell /= _LOG_GAMMA
    np.ceil(cell, out=cell)
    cell += _OFFSET
    np.copysign(cell, x, out=cell)
    cell[small] = 0
    return cell.astype(np.int64)


def grid_value(cell: Array) -> Array:
    """The value that stands for a cell: within ACCURACY of everything that fell in it."""
    power = np.exp(np.minimum((np.abs(cell) - _OFFSET) * _LOG_GAMMA + _MIDDLE, _LARGEST))
    return np.where(cell == 0, 0.0, np.sign(cell) * power)


def _key(column: Array, cell: Array) -> Array:
    """One sortable number for a cell of a column."""
    return column.astype(np.int64) * _SPAN + (cell.astype(np.int64) + _SPAN // 2)


def _parts(key: Array) -> tuple[Array, Array]:
    return (key // _SPAN).astype(np.int32), (key % _SPAN - _SPAN // 2).astype(np.int32)


@dataclass(frozen=True)
class Cells:
    """Sketches of several columns at once, sparse: `count[i]` values of column `column[i]` fell in cell `cell[i]`."""

    column: Array
    cell: Array
    count: Array

    @classmethod
    def of(cls, x: Array) -> Cells:
        """The sketches of the columns of x (n, p); NaN is left out."""
        if np.isnan(x).any():
            row, column = np.nonzero(~np.isnan(x))
            key, count = np.unique(_key(column, grid_index(x[row, column])), return_counts=True)
            return cls(*_parts(key), count.astype(np.int64))
        n, p = x.shape
        cell = grid_index(np.ascontiguousarray(x.T)).astype(np.int32)
        cell.sort(axis=1)  # small sorts, one a column
        new = np.ones((p, n), bool)
        np.not_equal(cell[:, 1:], cell[:, :-1], out=new[:, 1:])
        at = np.flatnonzero(new)
        count = np.diff(at, append=n * p)
        return cls((at // max(n, 1)).astype(np.int32), cell.ravel()[at], count)

    @classmethod
    def merge(cls, parts: list[Cells]) -> Cells:
        """The sketch of all rows of all parts."""
        column, cell, amount = (np.concatenate([getattr(p, n) for p in parts]) for n in ("column", "cell", "count"))
        low, high = (int(cell.min(initial=0)), int(cell.max(initial=0)))
        span = high - low + 1
        if (int(column.max(initial=0)) + 1) * span <= 4 * len(
            cell
        ):  # the cells fill the grid well: add up without sorting
            total = np.bincount(column.astype(np.int64) * span + (cell - low), weights=amount)
            at = np.flatnonzero(total)
            return cls((at // span).astype(np.int32), (at % span + low).astype(np.int32), total[at].astype(np.int64))
        keys = np.concatenate([_key(p.column, p.cell) for p in parts])
        key, place = np.unique(keys, return_inverse=True)
        count = np.bincount(place, weights=np.concatenate([p.count for p in parts]), minlength=len(key))
        return cls(*_parts(key), count.astype(np.int64))

    def distinct(self, columns: int) -> Array:
        """How many cells each column fills: a lower bound on its distinct values."""
        return np.bincount(self.column, minlength=columns)

    def of_column(self, column: int) -> tuple[Array, Array]:
        """The values that stand for the cells of one column, in order, and how many rows each holds."""
        mine = slice(*np.searchsorted(self.column, [column, column + 1]))
        return grid_value(self.cell[mine]), self.count[mine]

    def quantiles(self, q: Array, *, columns: int) -> Array:
        """Quantiles (len(q), columns) by the nearest-rank rule; NaN for a column without values."""
        out = np.full((len(q), columns), np.nan)
        for j in range(columns):
            values, count = self.of_column(j)  # columns lie in order, cells in order within each
            if len(values):
                rank = np.cumsum(count)
                at = np.searchsorted(rank, q * (rank[-1] - 1) + 1 - 1e-9)
                out[:, j] = values[np.minimum(at, len(values) - 1)]
        return out
