"""Percentiles under a privacy budget: patients counted in cells that were agreed beforehand, with noise on every count.

The cells of each column do not depend on data: equal parts of its usual range (`data.ranges`), or its listed levels. A patient
is in one cell per column, so the counts of c columns have L2 sensitivity sqrt(c) to one patient. The method that requests the
counts charges their cost (`methods.veil.budget`). The rest is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.public import BEYOND
from grandrounds.explain.percentiles import NoisedSpread, Population, Shares

INNER = 24
"""Number of cells within a column's usual range; there is one more below and one above."""

NOISE_QUANTILE = 1.96
"""Margin in standard deviations of the noise: 95 %."""

COLUMNS, COUNTS, NOISE, ROWS = "counted_columns", "counts", "count_noise", "counted_rows"
"""Names of noisy counts in a method's state."""


@dataclass(frozen=True)
class ColumnCells:
    """The cells of one column: `edges` of a number, `levels` of a category. `inputs`: the model's inputs that read it."""

    name: str
    edges: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Cells of a number and those below and above; levels and all others; and in either case missing values."""
        return len(self.edges) + 2 if self.edges else len(self.levels) + 2

    def count(self, data: Dataset, rows: Array) -> Array:
        """Count the rows in each cell, (size,): every row is in one. Without the column, all values are missing."""
        if self.edges:
            cells = self._numbers(data, rows)
        else:
            cells = self._words(data, rows)
        return np.bincount(cells, minlength=self.size)

    def _numbers(self, data: Dataset, rows: Array) -> Array:
        if self.name not in data.numeric_names:
            return np.full(len(rows), self.size - 1)
        x = data.numeric[rows, data.numeric_names.index(self.name)]
        return np.where(np.isnan(x), self.size - 1, np.searchsorted(self.edges, x, side="right"))

    def _words(self, data: Dataset, rows: Array) -> Array:
        if self.name not in data.categorical_names:
            return np.full(len(rows), self.size - 1)
        j = data.categorical_names.index(self.name)
        place = {level: i for i, level in enumerate(self.levels)}
        cell_of_word = [place.get(word, len(self.levels)) for word in data.vocabulary[j]]
        cells: Array = np.array([*cell_of_word, self.size - 1], np.int64)[
            data.codes[rows, j]
        ]  # -1, missing, takes the last entry
        return cells

    def to_dict(self) -> dict[str, object]:
        """Convert to the form that an Ask carries."""
        cells = {"edges": list(self.edges)} if self.edges else {"levels": list(self.levels)}
        return {"name": self.name, **cells}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ColumnCells:
        """Read what `to_dict` wrote; refuse cells that do not tell values apart."""
        column = cls(str(values["name"]), tuple(map(float, values.get("edges", ()))), tuple(values.get("levels", ())))
        rising = np.isfinite(column.edges).all() and all(a < b for a, b in pairwise(column.edges))
        if bool(column.edges) == bool(column.levels) or not rising:
            raise BadInput(f"the cells of column '{column.name}' must be rising edges, or levels", code="bad-cells")
        return column


def column_cells(encoding: Encoding) -> tuple[ColumnCells, ...]:
    """Return the cells of every column of an encoding that was agreed beforehand (`data.encoding = "public"`)."""
    reads: dict[str, list[int]] = {}
    for j, name in enumerate(encoding.sources):
        reads.setdefault(name, []).append(j)
    out = []
    for rule in encoding.numeric:
        width = (rule.high - rule.low) / (1 + 2 * BEYOND)
        low = rule.low + BEYOND * width
        edges = tuple(float(v) for v in np.linspace(low, low + width, INNER + 1))
        out.append(ColumnCells(rule.name, edges=edges, inputs=tuple(reads[rule.name])))
    for cat in encoding.categorical:
        levels = (*cat.levels, *([cat.baseline] if cat.baseline else []))
        out.append(ColumnCells(cat.name, levels=levels, inputs=tuple(reads[cat.name])))
    return tuple(out)


def select_columns(columns: Sequence[ColumnCells], weights: Array, count: int) -> Array:
    """Return the numbers, rising, of the `count` columns with the largest weight on any of their inputs."""
    size = np.array([np.abs(weights[list(c.inputs)]).max() for c in columns])
    return np.sort(np.argsort(-size, kind="stable")[:count])


def max_cell_count(columns: Sequence[ColumnCells], count: int) -> int:
    """Return the largest number of cells that any `count` of the columns have together."""
    return sum(sorted((c.size for c in columns), reverse=True)[:count])


def estimate_population(encoding: Encoding, remembered: Mapping[str, Array], *, share: float) -> Population | None:
    """Estimate the training patients' distribution from noisy counts; None if a method has none.

    `share`: the share of the budget, for the description.
    """
    if COUNTS not in remembered:
        return None
    cells = column_cells(encoding)
    columns = [cells[j] for j in np.asarray(remembered[COLUMNS], np.int64).tolist()]
    noise = float(np.asarray(remembered[NOISE]).ravel()[0])
    parts = np.split(np.asarray(remembered[COUNTS], float), np.cumsum([c.size for c in columns])[:-1])
    numeric = {c.name: estimate_spread(c.edges, part, noise) for c, part in zip(columns, parts, strict=True) if c.edges}
    shares = {
        c.name: estimate_shares(c.levels, part, noise) for c, part in zip(columns, parts, strict=True) if c.levels
    }
    note = (
        f"every count has noise of deviation {noise:.3g}, for {100 * share:.3g}% of the budget; a margin covers 95% of it; "
        f"values count as alike in one of {INNER} cells of the usual range"
    )
    return Population(int(np.asarray(remembered[ROWS]).ravel()[0]), numeric, shares, note)


def estimate_spread(edges: Sequence[float], counts: Array, noise: float) -> NoisedSpread:
    """Estimate a numeric column from its noised counts (cells and, last, missing values); `noise`: the deviation of one count.

    The share below each edge is made to rise (isotonic regression, which brings no edge farther from the truth than the worst
    was). A margin is of the percentile in the middle of a cell: of a share A / (A + B) of noised sums.
    """
    inside, total = counts[:-1], max(1.0, float(counts.sum()))
    valid = max(1.0, float(inside.sum()))
    below = np.clip(isotonic(np.cumsum(inside)[:-1] / valid), 0.0, 1.0)
    ends = np.concatenate([[0.0], below, [1.0]])
    p, lower = (ends[1:] + ends[:-1]) / 2, np.arange(len(inside))
    upper = len(inside) - 1 - lower
    spread = np.sqrt(lower * (1 - p) ** 2 + (0.5 - p) ** 2 + upper * p**2) * noise / valid
    return NoisedSpread(
        edges=tuple(edges),
        below=tuple(round(float(v), 6) for v in below),
        margins=tuple(round(float(v), 3) for v in 100 * NOISE_QUANTILE * spread),
        missing=round(float(np.clip(counts[-1] / total, 0.0, 1.0)), 6),
        missing_margin=_share_margin(counts, noise)[-1],
    )


def estimate_shares(levels: Sequence[str], counts: Array, noise: float) -> Shares:
    """Estimate a category from its noised counts (levels, all others, missing values)."""
    shares = np.clip(counts / max(1.0, float(counts.sum())), 0.0, 1.0)
    return Shares(
        {level: round(float(v), 6) for level, v in zip(levels, shares, strict=False)},
        round(float(shares[-1]), 6),
        margin=max(_share_margin(counts, noise)),
    )


def _share_margin(counts: Array, noise: float) -> list[float]:
    """Return by how many points noise may have moved each count's share of all."""
    total = max(1.0, float(counts.sum()))
    p = np.clip(counts / total, 0.0, 1.0)
    margins = 100 * NOISE_QUANTILE * noise / total * np.sqrt((1 - p) ** 2 + (len(counts) - 1) * p**2)
    return [round(float(v), 3) for v in margins]


def isotonic(values: Array) -> Array:
    """Fit the nearest sequence, in squares, that never falls: neighbours in the wrong order get their mean."""
    means: list[float] = []
    sizes: list[int] = []
    for v in np.asarray(values, float).tolist():
        means.append(v)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size = sizes[-2] + sizes[-1]
            means[-2:] = [(means[-2] * sizes[-2] + means[-1] * sizes[-1]) / size]
            sizes[-2:] = [size]
    return np.repeat(means, sizes)
