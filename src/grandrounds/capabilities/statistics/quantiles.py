"""Medians and quartiles over all sites, by bisection: sites count rows between public cuts, and the sums narrow the cuts.

An order statistic is no sum, but the number of rows at or below a cut is. With 63 cuts an exchange, a range shrinks 64-fold a
time. Recorded values (years, mmHg, tenths) lie on a grid, so the search ends at the value itself. Other values end within
1/64^4 of the range. Quantiles interpolate between the two neighbouring rows, as in NumPy and pandas.

Counts at narrow cuts are counts of few patients: a median is close to the value of one patient, masked sum or not. Ask for
medians of columns that need them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from grandrounds.capabilities.statistics.question import Blocks, Rows, Total
from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Value

CUTS = 63
"""Cuts of one search in one exchange."""
QUARTILES = (0.25, 0.5, 0.75)
DEPTH = 4
"""Exchanges of a search among values without a known resolution."""
MOST_PLACES = 64**5
"""Most values of a recorded grid that are searched one by one; a finer grid counts as no grid."""

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """A part of a question: its public values and the shapes of its answer. Pieces of one exchange are asked together."""

    values: Mapping[str, Value]
    blocks: Mapping[str, tuple[int, ...]]


Inquiry = Generator[Piece, Total, T]
"""A part of a fit that shares its exchanges with other parts."""


@dataclass(frozen=True)
class Grid:
    """The places where a column's values may lie: a recorded grid, or equal cells of a range.

    Attributes:
        low: Lower end of the public range.
        high: Upper end.
        steps: Recorded values per unit: 1 for whole numbers, 10 for tenths; 0 if they are not known.
    """

    low: float
    high: float
    steps: int = 0

    @property
    def is_exact(self) -> bool:
        """True if places are recorded values."""
        return 0 < self.steps * (self.high - self.low) + 1 <= MOST_PLACES and self.steps > 0

    @property
    def places(self) -> int:
        """Number of places."""
        return self._last - self._first + 1 if self.is_exact else (CUTS + 1) ** DEPTH

    @property
    def width(self) -> float:
        """Largest error of a value: 0 on a recorded grid."""
        return 0.0 if self.is_exact else (self.high - self.low) / self.places

    @property
    def _first(self) -> int:
        return int(np.floor(self.low * self.steps + 1e-9))

    @property
    def _last(self) -> int:
        return int(np.ceil(self.high * self.steps - 1e-9))

    def edge(self, place: Array) -> Array:
        """Return the upper edge of places; on a recorded grid halfway to the next value."""
        if self.is_exact:
            return np.asarray((self._first + place + 0.5) / self.steps)
        return np.asarray(self.low + (place + 1) * ((self.high - self.low) / self.places))

    def value(self, place: Array) -> Array:
        """Return the values of places; off a recorded grid the middle of the cell."""
        if self.is_exact:
            return np.asarray((self._first + place) / self.steps)
        return np.asarray(self.low + (place + 0.5) * ((self.high - self.low) / self.places))


@dataclass(frozen=True)
class Sought:
    """A set of rows whose quantiles are sought.

    Attributes:
        column: Column of `Rows.numeric`.
        group: Group of the rows; -1 for all groups that are shown.
        n: Rows with a value.
    """

    column: int
    group: int
    n: int


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        quantiles: For each set of rows that was sought, (q,) the quantiles.
        knots: For each column, (m, 2) places and rows of all groups at or below their upper edges, in order.
    """

    quantiles: tuple[Array, ...]
    knots: Mapping[int, Array]


def find_quantiles(
    sought: Sequence[Sought], grids: Mapping[int, Grid], *, shares: Sequence[float] = QUARTILES, offset: int = 0
) -> Inquiry[Found]:
    """Find quantiles of several columns and groups together.

    Args:
        sought: Sets of rows, each with at least one row.
        grids: The grid of each column.
        shares: The quantiles, such as 0.25.
        offset: Moves the cuts by so many places: a search over other sites repeats no question.

    Returns:
        The quantiles, and the counts that were seen on the way.
    """
    targets = [
        (index, rank)
        for index, rows in enumerate(sought)
        for share in shares
        for rank in (int(np.floor((rows.n - 1) * share)) + 1, int(np.ceil((rows.n - 1) * share)) + 1)
    ]
    brackets = [(0, grids[sought[index].column].places - 1) for index, _ in targets]
    knots: dict[int, dict[int, int]] = {rows.column: {} for rows in sought}
    while open_ones := list(dict.fromkeys((i, *b) for (i, _), b in zip(targets, brackets, strict=True) if b[0] < b[1])):
        places = np.array([_cut_places(low, high, offset) for _, low, high in open_ones])
        total = yield Piece(
            {
                "cut_column": np.array([sought[i].column for i, _, _ in open_ones]),
                "cut_group": np.array([sought[i].group for i, _, _ in open_ones]),
                "cuts": np.array(
                    [grids[sought[i].column].edge(p) for (i, _, _), p in zip(open_ones, places, strict=True)]
                ),
            },
            {"between": (len(open_ones), CUTS)},
        )
        below = np.cumsum(np.rint(total["between"]).astype(int), axis=1)
        for (index, _, _), place, count in zip(open_ones, places, below, strict=True):
            if sought[index].group == -1:
                knots[sought[index].column].update(zip(place.tolist(), count.tolist(), strict=True))
        row = {bracket: k for k, bracket in enumerate(open_ones)}
        brackets = [
            b if b[0] == b[1] else _narrow(b, places[row[i, *b]], below[row[i, *b]], rank)
            for (i, rank), b in zip(targets, brackets, strict=True)
        ]
    values = np.array(
        [grids[sought[i].column].value(np.array(b[0])) for (i, _), b in zip(targets, brackets, strict=True)]
    ).reshape(len(sought), len(shares), 2)
    quantiles = tuple(_interpolate(pair, rows.n, np.asarray(shares)) for rows, pair in zip(sought, values, strict=True))
    return Found(quantiles, {c: np.array(sorted(seen.items())).reshape(-1, 2) for c, seen in knots.items()})


def count_between(values: Mapping[str, Value], rows: Rows, group: Array) -> Blocks:
    """Answer with the rows between each cut and the one before: the site's half of `find_quantiles`.

    These are counts of patients. In the clear a site refuses them where its own are small.

    Args:
        values: Values of the question.
        rows: The site's rows.
        group: (n,) group of each row, -1 for rows that are in no group that is shown.

    Returns:
        Block "between", (m, 63); the first counts all rows up to the first cut.
    """
    assert rows.numeric is not None
    columns, groups, cuts = (np.asarray(values[name]) for name in ("cut_column", "cut_group", "cuts"))
    below = np.empty(cuts.shape)
    for k, (column, wanted) in enumerate(zip(columns, groups, strict=True)):
        chosen = group == wanted if wanted >= 0 else group >= 0
        x = rows.numeric[chosen, column]
        below[k] = np.searchsorted(np.sort(x[~np.isnan(x)]), cuts[k], side="right")
    return {"between": np.diff(below, axis=1, prepend=0)}


def _cut_places(low: int, high: int, offset: int) -> Array:
    """Divide the places of a bracket into 64 parts that are as equal as possible; the last places of 63 of them."""
    size = high - low + 1
    places = low + -(-size * np.arange(1, CUTS + 1) // (CUTS + 1)) - 1
    return np.clip(places + offset if size > CUTS + 1 else places, low, high - 1)


def _narrow(bracket: tuple[int, int], places: Array, below: Array, rank: int) -> tuple[int, int]:
    """Return the part of a bracket in which the row of this rank lies."""
    k = int(np.searchsorted(below, rank))
    low = bracket[0] if k == 0 else int(places[k - 1]) + 1
    return (low, int(places[k]) if k < len(places) else bracket[1])


def _interpolate(pair: Array, n: int, shares: Array) -> Array:
    """Interpolate between neighbouring rows, with NumPy's arithmetic."""
    part = np.mod((n - 1) * shares, 1)
    low, high = pair[:, 0], pair[:, 1]
    return np.asarray(np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part)))
