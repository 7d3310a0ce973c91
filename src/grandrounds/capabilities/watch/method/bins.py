"""Agreed bins of a watch: every patient is in one bin of each column, and in one of the scores.

Numbers have bins between agreed edges, categories one for each agreed level. Further bins take missing values, values out of
range and categories that training never saw. The bins follow from the plan and the encoding, so that they tell nothing of the
patients that are counted in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.explain.percentiles import Population, Spread

MISSING, BELOW, ABOVE, UNSEEN = "missing", "below the range of training", "above the range of training", "another category"
"""Bins beside those of values."""

RISKS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Edges of predicted risks."""

NUMBERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Edges of other predictions, in units of training."""

_CODES = 10  # columns with at most so many values have a bin for each
_WIDE = 1e299  # limits of a column without an agreed range are larger


@dataclass(frozen=True)
class ColumnBins:
    """Bins of one column: `edges` of a number, or `levels` of a category. The first bin is that of missing values."""

    name: str
    edges: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name each bin."""
        if self.levels:
            return (MISSING, *self.levels, UNSEEN)
        between = [f"{a:.4g} to {b:.4g}" for a, b in pairwise(self.edges)]
        return (MISSING, BELOW, *between, ABOVE)

    def place_numbers(self, values: Array) -> Array:
        """Return the bin of each number (n,); NaN is missing."""
        place = 1 + np.searchsorted(self.edges, values, side="right")
        place[values == self.edges[-1]] = len(self.edges)
        return np.where(np.isnan(values), 0, place)

    def place_words(self, codes: Array, vocabulary: Sequence[str]) -> Array:
        """Return the bin of each category (n,), given as a place in a vocabulary; -1 is missing."""
        places = {level: i + 1 for i, level in enumerate(self.levels)}
        table = np.array([*(places.get(word, len(self.levels) + 1) for word in vocabulary), 0], np.int64)
        return np.asarray(table[codes])


@dataclass(frozen=True)
class WatchBins:
    """Bins of all columns and of the scores."""

    columns: tuple[ColumnBins, ...]
    scores: tuple[float, ...] = RISKS

    @classmethod
    def from_encoding(cls, encoding: Encoding, edges: Mapping[str, Sequence[float]]) -> WatchBins:
        """Build the bins of a plan.

        Args:
            encoding: The encoding of the watched model.
            edges: The plan's edges by numeric column.

        Raises:
            BadInput: A numeric column has no edges, or they do not rise.
        """
        columns = []
        for rule in encoding.numeric:
            own = tuple(float(e) for e in edges.get(rule.name, ()))
            if len(own) < 2 or not (np.isfinite(own).all() and (np.diff(own) > 0).all()):
                raise BadInput(
                    f"method.watch.edges has no valid bins for column '{rule.name}': give two or more rising numbers, or make "
                    "the plan with `rounds watch RUN --plan FILE`",
                    code="bad-bins",
                )
            columns.append(ColumnBins(rule.name, edges=own))
        for category in encoding.categorical:
            known = {*category.levels, *([category.baseline] if category.baseline else [])}
            columns.append(ColumnBins(category.name, levels=tuple(sorted(known)) or (UNSEEN,)))
        return cls(tuple(columns), RISKS if encoding.task == CLASSIFICATION else NUMBERS)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Name the bins of scores."""
        ends = [f"{e:g}" for e in self.scores]
        return (f"below {ends[0]}", *(f"{a} to {b}" for a, b in pairwise(ends)), f"{ends[-1]} and above")

    def place(self, data: Dataset) -> list[Array]:
        """Return the bin of each patient in each column; a column that the data lack is missing."""
        numeric = {name: j for j, name in enumerate(data.numeric_names)}
        categorical = {name: j for j, name in enumerate(data.categorical_names)}
        out = []
        for column in self.columns:
            if column.edges and column.name in numeric:
                out.append(column.place_numbers(data.numeric[:, numeric[column.name]]))
            elif column.levels and column.name in categorical:
                j = categorical[column.name]
                out.append(column.place_words(data.codes[:, j], data.vocabulary[j]))
            else:
                out.append(np.zeros(len(data), np.int64))
        return out

    def place_scores(self, scores: Array) -> Array:
        """Return the bin of each score."""
        return np.searchsorted(self.scores, scores, side="right")

    def edges_json(self) -> str:
        """Return the edges as an Ask carries them."""
        return edges_json({c.name: c.edges for c in self.columns if c.edges})


def edges_json(edges: Mapping[str, Sequence[float]]) -> str:
    """Return edges by column as text, with sorted names."""
    return json.dumps({name: [float(e) for e in edges[name]] for name in sorted(edges)})


def agree_edges(encoding: Encoding, population: Population | None, *, bins: int = 5) -> dict[str, list[float]]:
    """Choose the edges of numeric columns: quantiles of all training patients, within the range that training agreed on.

    Args:
        encoding: The encoding of the watched model.
        population: The distribution of training patients; None where the run has none: bins of equal width.
        bins: Number of bins between the ends of the range.
    """
    return {rule.name: _edges(rule, population, bins) for rule in encoding.numeric}


def _edges(rule: Any, population: Population | None, bins: int) -> list[float]:
    low, high = float(rule.low), float(rule.high)
    spread = None if population is None else population.numeric.get(rule.name)
    quantiles = np.array(spread.quantiles if isinstance(spread, Spread) else (), float)
    if abs(low) > _WIDE or abs(high) > _WIDE:
        low, high = (
            (quantiles[0], quantiles[-1]) if len(quantiles) else (rule.fill - 4 * rule.scale, rule.fill + 4 * rule.scale)
        )
    if high <= low:
        low, high = low - max(1.0, abs(low)) / 2, low + max(1.0, abs(low)) / 2
    shares = np.arange(1, bins) / bins
    inner = np.quantile(quantiles, shares, method="nearest") if len(quantiles) else low + (high - low) * shares
    distinct = np.unique(quantiles)
    if 1 < len(distinct) <= _CODES:
        inner = (distinct[1:] + distinct[:-1]) / 2
    elif len(distinct) > 1:
        inner = np.where(inner <= distinct[0], (distinct[0] + distinct[1]) / 2, inner)  # many patients at the lowest value
    inside = np.unique(np.array([float(f"{v:.6g}") for v in inner]))
    return [low, *inside[(inside > low) & (inside < high)].tolist(), high]
