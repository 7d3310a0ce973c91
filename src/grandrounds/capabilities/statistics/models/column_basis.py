"""Basis of an additive model: splines over the ranks of a number, one input for each level of a category, one for missing values.

A number v becomes its rank u in [0, 1] by the agreed distribution function, which is a straight line between knots and has
mid-ranks at ties. On [0, 1] lie cubic B-splines with equal knots. They add to one, so their coefficients are contrasts to the
constant, which is the intercept's. A missing number has zeros there and an input of its own. A number with two values has one
input, -0.5 or 0.5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

LARGEST = float(np.finfo(np.float64).max)
"""Padding after the last knot of a column."""

FEWEST_SPLINES = 4
"""A cubic B-spline basis has four functions at least."""

BASIS_ARRAYS = (("knots", 2), ("ranks", 2), ("sizes", 1))
"""Names and numbers of axes of the arrays of agreed distribution functions."""


def evaluate_splines(u: Array, coefficients: Array) -> Array:
    """Evaluate a curve of cubic B-splines with equal knots on [0, 1].

    Args:
        u: (n,) ranks; those outside [0, 1] are moved to its ends.
        coefficients: (splines,) of the B-splines.

    Returns:
        (n,) the curve.
    """
    first, weights = _local_splines(u, len(coefficients))
    out: Array = np.zeros(len(u))
    for k in range(4):
        out += weights[k] * coefficients[first + k]
    return out


def spline_matrix(u: Array, splines: int) -> Array:
    """Evaluate all cubic B-splines with equal knots on [0, 1].

    Args:
        u: (n,) ranks; those outside [0, 1] are moved to its ends.
        splines: Number of B-splines.

    Returns:
        (n, splines); every row adds to one.
    """
    first, weights = _local_splines(u, splines)
    out, row = np.zeros((len(u), splines)), np.arange(len(u))
    for k in range(4):
        out[row, first + k] = weights[k]
    return out


def _local_splines(u: Array, splines: int) -> tuple[Array, tuple[Array, ...]]:
    """Return the first of the four B-splines that are not zero at each u, and the four values."""
    place = np.clip(u, 0.0, 1.0) * (splines - 3)
    first = np.minimum(place.astype(np.int64), splines - 4)
    t = place - first
    s = 1 - t
    return first, (s**3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (3 * s**3 - 6 * s**2 + 4) / 6, t**3 / 6)


def contrasts(splines: int) -> Array:
    """Return an orthonormal basis (splines, splines - 1) of coefficients that add to zero (Helmert's contrasts)."""
    out = np.zeros((splines, splines - 1))
    for k in range(1, splines):
        out[:k, k - 1], out[k, k - 1] = 1.0, -float(k)
        out[:, k - 1] /= np.sqrt(k * (k + 1.0))
    return out


@dataclass(frozen=True)
class Span:
    """The coefficients of one part of a column.

    Attributes:
        column: Place of the column.
        part: "curve" (contrasts of splines), "step" (two values), "missing", or "levels" (of a category, missing last).
        first: Its first coefficient, the intercept excepted.
        size: Number of coefficients.
    """

    column: int
    part: str
    first: int
    size: int

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True, eq=False)
class Basis:
    """The inputs of an additive model.

    Attributes:
        columns: The columns.
        splines: B-splines of a number.
        knots: (C, K) values at which a column's distribution function is known, ascending, padded with the largest number. Of
            two values, one knot: the least value that counts as the higher one.
        ranks: (C, K) their ranks, ascending, padded with 1.
        sizes: (C,) number of knots; 0 for categories and columns that are left out.
        levels: For each column the levels that have a coefficient; empty for numbers.
        gaps: (C,) True for columns whose missing values have a coefficient.
    """

    columns: tuple[Column, ...]
    splines: int
    knots: Array
    ranks: Array
    sizes: Array
    levels: tuple[tuple[int, ...], ...]
    gaps: Array

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The parts of columns that have coefficients, in order."""
        out: list[Span] = []
        for c, column in enumerate(self.columns):
            size, gap = int(self.sizes[c]), int(self.gaps[c])
            if column.is_category:
                parts = [("levels", len(self.levels[c]) + gap)]
            else:
                parts = [("curve", self.splines - 1) if size > 1 else ("step", size), ("missing", gap)]
            for part, count in parts:
                if count:
                    out.append(Span(c, part, out[-1].places.stop if out else 0, count))
        return tuple(out)

    @property
    def size(self) -> int:
        """Number of coefficients, the intercept excepted."""
        return self.spans[-1].places.stop if self.spans else 0

    def design(self, values: Array) -> Array:
        """Compute the inputs of rows.

        Args:
            values: (n, C), as `read_columns` returns them.

        Returns:
            (n, size) float64, without the intercept.
        """
        out = np.zeros((len(values), self.size))
        turn = contrasts(self.splines)
        for span in self.spans:
            v, block = values[:, span.column], out[:, span.places]
            known = ~np.isnan(v)
            if span.part == "missing":
                block[~known, 0] = 1.0
            elif span.part == "step":
                block[known, 0] = np.where(v[known] >= self.knots[span.column, 0], 0.5, -0.5)
            elif span.part == "curve":
                block[known] = spline_matrix(self.rank(span.column, v[known]), self.splines) @ turn
            else:
                for k, level in enumerate(self.levels[span.column]):
                    block[v == level, k] = 1.0
                if self.gaps[span.column]:
                    block[~known, -1] = 1.0
        return out

    def rank(self, column: int, v: Array) -> Array:
        """Return the ranks u of values of one numeric column."""
        return rank_values(v, self.knots[column], self.ranks[column], int(self.sizes[column]))

    def without(self, dropped: Collection[int]) -> Basis:
        """Return the basis without single levels or missing values.

        Args:
            dropped: Their coefficients, the intercept excepted.
        """
        levels, gaps = list(self.levels), self.gaps.copy()
        for span in self.spans:
            if span.part in ("levels", "missing"):
                gap = span.places.stop - 1 if self.gaps[span.column] else -1
                gaps[span.column] = gap >= 0 and gap not in dropped
                chosen = enumerate(self.levels[span.column], span.first)
                levels[span.column] = tuple(level for place, level in chosen if place not in dropped)
        return replace(self, levels=tuple(levels), gaps=gaps)


def rank_values(v: Array, knots: Array, ranks: Array, size: int) -> Array:
    """Return the ranks of values by an agreed distribution function with `size` knots."""
    return np.asarray(np.interp(v, knots[:size], ranks[:size]))


def check_basis(arrays: Mapping[str, Array], columns: Sequence[Column]) -> None:
    """Check agreed distribution functions that may come from another hospital.

    Args:
        arrays: The arrays of `BASIS_ARRAYS`.
        columns: The columns.

    Raises:
        BadInput: They do not fit each other or the columns.
    """
    knots, ranks, sizes = arrays["knots"], arrays["ranks"], arrays["sizes"]
    numbers = np.array([not c.is_category for c in columns], bool)
    sound = (
        knots.shape == ranks.shape
        and knots.shape[0] == len(sizes) == len(columns)
        and bool(((sizes >= 0) & (sizes <= knots.shape[1]) & (sizes == np.trunc(sizes))).all())
        and not sizes[~numbers].any()
        and all(
            (np.diff(k[: int(n)]) > 0).all() and (np.diff(r[: int(n)]) >= 0).all()
            for k, r, n in zip(knots, ranks, sizes, strict=True)
        )
    )
    if not sound:
        raise BadInput(
            "these parameters are not an additive model: its distribution functions are damaged", code="damaged-model"
        )
