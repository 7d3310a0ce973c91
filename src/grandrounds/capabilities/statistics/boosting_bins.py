"""Bins of columns for boosted trees, agreed from summed counts of rows between public cuts (kind `trees.counts`).

The first cuts are powers of two of both signs. Each further exchange divides cells with many rows into equal parts, so cuts are
dense where rows are. Counts are whole numbers, so the bins do not depend on the division of rows into sites, and no value of a
row leaves a site as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from grandrounds.capabilities.statistics.models.column_trees import MOST_BINS, PADDING
from grandrounds.capabilities.statistics.models.columns import Column, parse_columns, read_columns, write_columns
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows
from grandrounds.core.arrays import Array

COUNTS = "trees.counts"
"""Kind of the question."""

LEAST_IN_BIN = 5
"""Fewest rows of a bin of a number, over all sites, unless method.exact.least is another; smaller ones are joined."""

CELLS = 256
"""A cell with more than two in so many of a column's rows is divided."""

_LOWEST, _HIGHEST = -40, 40  # powers of two
_REFINEMENTS = 2

_VALUES: WeakKeyDictionary[Rows, tuple[str, Array]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of all columns.

    Attributes:
        edges: (C, E), padded.
        edge_counts: (C,).
        rows: (C, 64) rows of all sites in each bin; bin 0 holds missing values.
        points: (C, 64) a value in the middle of each bin's rows, up to the cells that were counted; 0 for bin 0.
    """

    edges: Array
    edge_counts: Array
    rows: Array
    points: Array

    @property
    def widths(self) -> Array:
        """Number of bins of each column, (C,)."""
        return np.asarray(self.edge_counts) + 2

    @property
    def total(self) -> int:
        """Rows of all sites."""
        return int(self.rows[0].sum()) if len(self.rows) else 0

    @property
    def usable(self) -> Array:
        """Columns with rows in two bins at least."""
        return np.flatnonzero((self.rows > 0).sum(axis=1) >= 2)


def agree_bins(columns: Sequence[Column], *, bins: int, least: int = LEAST_IN_BIN) -> Fit[Bins]:
    """Agree on the bins of all columns. Two or three exchanges.

    Args:
        columns: The columns.
        bins: Most bins of a number, with the one for missing values. A category has one for each level, 63 at most.
        least: Fewest rows of a bin of a number, over all sites.

    Returns:
        The bins.
    """
    powers = np.exp2(np.arange(_LOWEST, _HIGHEST + 1))
    cuts = [
        np.arange(min(len(c.levels), MOST_BINS - 1) - 1.0)
        if c.is_category
        else np.concatenate([-powers[::-1], [0.0], powers])
        for c in columns
    ]
    missing, counts = yield from _ask_counts(columns, cuts, step="ranges of columns")
    for k in range(_REFINEMENTS):
        finer = [a if c.is_category else _divide(a, n) for c, a, n in zip(columns, cuts, counts, strict=True)]
        if all(len(a) == len(b) for a, b in zip(cuts, finer, strict=True)):
            break
        cuts = finer
        missing, counts = yield from _ask_counts(columns, cuts, step=f"bins of columns {k + 1}")
    edges = [
        a if c.is_category else choose_edges(a, n, most=bins - 2, least=least)
        for c, a, n in zip(columns, cuts, counts, strict=True)
    ]
    size = max((len(e) for e in edges), default=0)
    padded = np.full((len(columns), size), PADDING)
    rows, points = np.zeros((len(columns), MOST_BINS), np.int64), np.zeros((len(columns), MOST_BINS))
    for k, (edge, cut, count) in enumerate(zip(edges, cuts, counts, strict=True)):
        padded[k, : len(edge)] = edge
        upper = np.append(cut, np.inf)  # every edge is a cut or lies in an empty stretch
        place = 1 + np.searchsorted(edge, upper)
        np.add.at(rows[k], place, count)
        np.add.at(points[k], place, count * np.append(cut, cut[-1:] if len(cut) else 0.0))
        rows[k, 0] = missing[k]
    return Bins(padded, np.array([len(e) for e in edges], np.int64), rows, points / np.maximum(rows, 1))


def _ask_counts(columns: Sequence[Column], cuts: Sequence[Array], *, step: str) -> Fit[tuple[Array, list[Array]]]:
    """Ask for the rows between cuts; return missing rows (C,) and the counts of each column's cells."""
    sizes = np.array([len(a) for a in cuts], np.int64)
    total = yield Question(
        COUNTS,
        {"columns": write_columns(columns), "cuts": np.concatenate([np.empty(0), *cuts]), "sizes": sizes},
        {"missing": (len(columns),), "between": (int(sizes.sum()) + len(columns),)},
        step=step,
        cells=("missing", "between"),
        whole=True,
    )
    between = np.rint(total["between"]).astype(np.int64)
    return np.rint(total["missing"]).astype(np.int64), np.split(between, np.cumsum(sizes + 1)[:-1])


def answer_counts(question: Question, rows: Rows) -> Blocks:
    """Count a site's rows between the cuts of each column, and those without a value."""
    v = question.values
    sizes = np.asarray(v["sizes"], int)
    cuts = np.split(np.asarray(v["cuts"], np.float64), np.cumsum(sizes)[:-1])
    values = read_values(rows, str(v["columns"]))
    between = []
    for c, cut in enumerate(cuts):
        known = values[~np.isnan(values[:, c]), c]
        between.append(np.bincount(np.searchsorted(cut, known), minlength=len(cut) + 1))
    return {"missing": np.isnan(values).sum(axis=0), "between": np.concatenate([np.empty(0), *between])}


def read_values(rows: Rows, columns: str, *, is_last: bool = False) -> Array:
    """Read the values of a site's rows, (n, C). They are stored until the last reader, who bins them.

    Args:
        rows: The rows.
        columns: The columns, as `write_columns` writes them.
        is_last: True for the last reader.
    """
    stored = _VALUES.get(rows)
    if stored is None or stored[0] != columns:
        stored = _VALUES[rows] = (columns, read_columns(rows.x, parse_columns(columns)))
    if is_last:
        del _VALUES[rows]
    return stored[1]


def _divide(cuts: Array, counts: Array) -> Array:
    """Divide cells with many rows into equal parts, as many as a power of two; leave out cuts between empty cells."""
    n, filled = int(counts.sum()), counts > 0
    out: list[float] = []
    for k in range(len(cuts)):
        if k and filled[k]:
            share = -(-int(counts[k]) * CELLS // max(n, 1))  # rows in 256, rounded up
            parts = 1 << (share - 1).bit_length() if share > 2 else 1
            low, high = float(cuts[k - 1]), float(cuts[k])
            out += [low + (high - low) * j / parts for j in range(1, parts)]
        if filled[k] or filled[k + 1]:
            out.append(float(cuts[k]))
    return np.array(out)


def choose_edges(cuts: Array, counts: Array, *, most: int, least: int = LEAST_IN_BIN) -> Array:
    """Choose the edges of bins with about as many rows each. A value that many rows share has its own bin.

    The rule is LightGBM's: bins are filled from below up to the mean of the rows that are left; a cell with as many rows as a
    mean bin is one by itself.

    Args:
        cuts: Cuts of the counted cells, (k,) ascending.
        counts: Rows of the cells, (k + 1,).
        most: Most edges.
        least: Fewest rows of a bin.

    Returns:
        The edges, ascending. Between cells with empty ones between them, the edge is in the middle.
    """
    filled = np.flatnonzero(counts)
    if len(filled) < 2:
        return np.empty(0)
    low, high = np.append(-np.inf, cuts), np.append(cuts, np.inf)
    rows = counts[filled].astype(float)
    bins = most + 1
    heavy = rows >= rows.sum() / bins if len(filled) > bins else np.ones(len(filled), bool)
    left, room = rows[~heavy].sum(), bins - int(heavy.sum())
    mean = left / max(room, 1)
    closed, inside = [], 0.0
    for k in range(len(filled) - 1):
        inside += rows[k]
        left -= 0.0 if heavy[k] else rows[k]
        if inside < least or not (heavy[k] or inside >= mean or (heavy[k + 1] and inside >= mean / 2)):
            continue
        closed.append(k)
        if not heavy[k]:
            room -= 1
            mean = left / max(room, 1)
        inside = 0.0
        if len(closed) == most:
            break
    if closed and rows[closed[-1] + 1 :].sum() < least:
        closed.pop()
    edges = [
        float(high[filled[k]])
        if high[filled[k]] == low[filled[k + 1]]
        else float((high[filled[k]] + low[filled[k + 1]]) / 2)
        for k in closed
    ]
    return np.array(edges)
