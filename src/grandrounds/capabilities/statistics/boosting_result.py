"""Results of boosted trees: the trees, rows in bins, validation losses, and how few rows the cells of histograms hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.models.column_trees import MOST_BINS, Trees
from grandrounds.core.arrays import Array


@dataclass(frozen=True)
class Cells:
    """Counts of the cells of histograms: a cell with one row discloses that row's gradient.

    Attributes:
        asked: Cells that sites were asked for.
        filled: Cells with a row, with those that follow by subtraction.
        single: Cells with one row.
    """

    asked: int = 0
    filled: int = 0
    single: int = 0

    def count(self, rows: Array, *, asked: int = 0) -> Cells:
        """Return the counts with those of further cells."""
        return Cells(self.asked + asked, self.filled + int((rows > 0).sum()), self.single + int((rows == 1).sum()))

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and the share of filled cells that hold one row."""
        return {**vars(self), "share_single": self.single / max(1, self.filled)}


@dataclass(frozen=True, eq=False)
class TreesResult:
    """Fitted trees.

    Attributes:
        trees: The trees.
        rounds: Rounds of boosting that are in them.
        parallel: Trees of a round, for each output.
        cells: Rows in the cells of all histograms.
        rows: (C, 64) rows of all sites in each bin.
        points: (C, 64) a value in the middle of each bin's rows.
        validation: Mean validation loss before the first round and after each; empty without early stopping. NaN for rounds
            before a site dropped out.
        notes: Sentences for the report.
    """

    trees: Trees
    rounds: int
    parallel: int
    cells: Cells
    rows: Array
    points: Array
    validation: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of the model."""
        return self.trees.arrays

    @property
    def losses(self) -> list[float | None]:
        """The validation losses as JSON values."""
        return [None if np.isnan(loss) else loss for loss in self.validation]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "arrays": {name: np.asarray(array).tolist() for name, array in self.arrays.items()},
            "nodes": self.trees.column.shape[1],
            "rounds": self.rounds,
            "parallel": self.parallel,
            "cells": vars(self.cells),
            "rows": np.asarray(self.rows).tolist(),
            "points": np.asarray(self.points).tolist(),
            "validation": self.losses,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TreesResult:
        """Read what `to_dict` wrote."""
        arrays = {name: np.asarray(array, np.float64) for name, array in values["arrays"].items()}
        for name in ("column", "low", "high", "value"):
            arrays[name] = arrays[name].reshape(-1, int(values["nodes"]))
        arrays["edges"] = arrays["edges"].reshape(len(arrays["edge_counts"]), -1)
        return cls(
            Trees.from_arrays(arrays),
            int(values["rounds"]),
            int(values["parallel"]),
            Cells(**values["cells"]),
            np.asarray(values["rows"], np.int64),
            np.asarray(values["points"], np.float64),
            tuple(np.nan if loss is None else float(loss) for loss in values["validation"]),
            tuple(map(str, values["notes"])),
        )


def read_effects(trees: Trees) -> tuple[float, Array]:
    """Read trees of depth one with one output as a sum of one shape for each column.

    Args:
        trees: The trees.

    Returns:
        The intercept, and the effect of each column in each bin, (C, 64).
    """
    intercept, effects = float(trees.start[0]), np.zeros((len(trees.edges), MOST_BINS))
    bits = np.arange(MOST_BINS, dtype=np.uint64)
    for column, mask, value in zip(trees.column[:, 0].tolist(), trees.masks[:, 0], trees.value, strict=True):
        if column < 0:
            intercept += float(value[0])
        else:
            effects[column] += np.where((mask >> bits) & np.uint64(1), value[1], value[2])
    return intercept, effects
