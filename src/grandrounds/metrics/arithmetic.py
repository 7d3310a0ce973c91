"""Division and averaging in which the undefined is NaN and nothing warns."""

from __future__ import annotations

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
    """Mean over the last axis of the values that are not NaN, (..., K) to (...); NaN when none is."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(axis=-1), defined.sum(axis=-1))


def sum_by(cell: Array, values: Array, *, cells: int) -> Floats:
    """Sum of values (m,) for each index in cell (m,), (cells,): zero for a cell with none."""
    return np.bincount(cell, values, minlength=cells).astype(np.float64, copy=False)
