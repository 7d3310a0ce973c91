"""Step scores: an additive model with one score for each bin of a number, each level of a category and missing values.

The private additive model has this form (few bins of public ranges), and so has an EBM without pairs that was fitted elsewhere.
Bin 0 of a column holds missing values; a number v is in bin 1 + count(edges < v), so a value equal to an edge belongs to the bin
below it; level l of a category is in bin l + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.models.column_model import ColumnModel
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

LARGEST = float(np.finfo(np.float64).max)
"""Padding after the last edge of a column."""

MOST_BINS = 1 << 16
"""Largest number of bins of a column in a stored model."""


def step_bins(values: Array, edges: Sequence[Array]) -> Array:
    """Find the bin of each value.

    Args:
        values: (n, C) numbers, level numbers, NaN for missing, as `read_columns` returns them.
        edges: For each column the edges of its bins in rising order; empty for a category.

    Returns:
        (n, C) int64: 0 for missing, else 1 + count(edges < v) for numbers and 1 + level for categories.
    """
    out = np.zeros(values.shape, np.int64)
    for c, cuts in enumerate(edges):
        known = ~np.isnan(values[:, c])
        v = values[known, c]
        out[known, c] = 1 + (np.searchsorted(cuts, v, side="left") if len(cuts) else v.astype(np.int64))
    return out


@dataclass(frozen=True)
class StepModel(ColumnModel):
    """A sum of one step function for each column."""

    kernel: ClassVar[str] = "steps"
    arrays: ClassVar[tuple[tuple[str, int], ...]] = (("edges", 2), ("edge_counts", 1), ("score", 3), ("start", 1))

    def start(self) -> dict[str, Array]:
        return self.join([np.zeros(0 if c.is_category else 1) for c in self.columns], [])

    def join(self, edges: Sequence[Array], scores: Sequence[Array], start: Array | None = None) -> dict[str, Array]:
        """Join the bins and scores of columns into the model's arrays.

        Args:
            edges: For each column the edges of its bins in rising order; empty for a category. A number has one at least.
            scores: For each column (bins, outputs) or (bins,), bin 0 for missing values; an empty list for scores of 0.
            start: (outputs,) the intercept; None for 0.

        Returns:
            The arrays, as `pack` takes them.
        """
        width = max((len(e) for e in edges), default=0)
        sizes = [self.bin_count(c, len(e)) for c, e in zip(self.columns, edges, strict=True)]
        out = {
            "edges": np.full((len(edges), width), LARGEST),
            "edge_counts": np.array([len(e) for e in edges], float),
            "score": np.zeros((len(edges), max(sizes, default=0), self.outputs)),
            "start": np.zeros(self.outputs) if start is None else np.asarray(start, float).reshape(self.outputs),
        }
        for c, cuts in enumerate(edges):
            out["edges"][c, : len(cuts)] = cuts
        for c, values in enumerate(scores):
            out["score"][c, : sizes[c]] = np.asarray(values, float).reshape(sizes[c], self.outputs)
        return out

    @staticmethod
    def bin_count(column: Column, edges: int) -> int:
        """Return the number of bins of a column, with that for missing values."""
        return 1 + (len(column.levels) if column.is_category else edges + 1)

    def column_edges(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Return the edges of each column."""
        return [row[: int(n)] for row, n in zip(arrays["edges"], arrays["edge_counts"], strict=True)]

    def column_scores(self, arrays: Mapping[str, Array], values: Array) -> Array:
        """Return the score of each column for rows (n, C), (n, outputs, C)."""
        bins = step_bins(values, self.column_edges(arrays))
        out: Array = np.moveaxis(arrays["score"][np.arange(len(self.columns)), bins], 2, 1)
        return out

    def scores(self, arrays: Mapping[str, Array], values: Array) -> Array:
        out: Array = arrays["start"] + self.column_scores(arrays, values).sum(axis=2)
        return out

    def column_shapley(self, arrays: Mapping[str, Array], values: Array, background: Array) -> Array:
        """Compute Shapley values: of a sum of columns, each column's score less its mean over the background."""
        own = self.column_scores(arrays, values)
        out: Array = own - self.column_scores(arrays, background).mean(axis=0)
        return out

    def check(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        counts, edges, score = arrays["edge_counts"], arrays["edges"], arrays["score"]
        _require(edges.shape[0] == len(counts) == score.shape[0] == len(self.columns), "another number of columns")
        _require(
            score.shape[2] == self.outputs and arrays["start"].shape == (self.outputs,), "another number of outputs"
        )
        whole = (counts >= 0) & (counts <= edges.shape[1]) & (counts == np.trunc(counts))
        _require(bool(whole.all()), "its numbers of edges")
        numbers = np.array([not c.is_category for c in self.columns], bool)
        _require(bool(((counts > 0) == numbers).all()), "its numbers of edges")
        sizes = [self.bin_count(c, int(n)) for c, n in zip(self.columns, counts, strict=True)]
        _require(max(sizes, default=0) == score.shape[1] <= MOST_BINS, "its number of bins")
        _require(all((np.diff(e) > 0).all() for e in self.column_edges(arrays)), "edges that do not rise")
        return arrays

    def shapes(
        self, arrays: Mapping[str, Array], ranges: Mapping[str, tuple[float, float]] | None = None
    ) -> list[dict[str, Any]]:
        """Return the step function of each column, for summary.json (first output, scores before calibration).

        Args:
            arrays: The model's arrays.
            ranges: Lowest and highest value of a numeric column, by name, where they are known.

        Returns:
            For each column `name`, `kind`, `values` (middles of bins, or names of levels), `effect`, `edges` (numbers), and
            `missing` with its effect.
        """
        out: list[dict[str, Any]] = []
        for column, edges, score in zip(self.columns, self.column_edges(arrays), arrays["score"][:, :, 0], strict=True):
            effect = score[1 : self.bin_count(column, len(edges))].tolist()
            shape: dict[str, Any] = {"name": column.name, "kind": "category" if column.is_category else "number"}
            if column.is_category:
                shape["values"] = list(column.words)
            else:
                shape["values"] = _middles(edges, (ranges or {}).get(column.name)).tolist()
                shape["edges"] = edges.tolist()
            has_missing = column.missing >= 0 or column.is_category
            out.append({**shape, "effect": effect, "missing": {"effect": float(score[0])} if has_missing else None})
        return out


def _middles(edges: Array, limits: tuple[float, float] | None) -> Array:
    """Return the middle of each bin; an outer bin without a known limit is as wide as its neighbour."""
    width = np.diff(edges) if len(edges) > 1 else np.array([max(1.0, abs(float(edges[0])))])
    low, high = limits if limits is not None else (float(edges[0] - width[0]), float(edges[-1] + width[-1]))
    bounds = np.array([min(low, float(edges[0])), *edges, max(high, float(edges[-1]))])
    middles: Array = (bounds[1:] + bounds[:-1]) / 2
    return middles


def _require(sound: bool, problem: str) -> None:
    if not sound:
        raise BadInput(f"these parameters are not a model of step scores: {problem}", code="damaged-model")
