"""Features of an explanation: the clinical columns of a table, or the tiles of an image.

A model's inputs are not clinical concepts: a categorical column is several inputs, and a missing-value indicator belongs to its
column. So inputs are explained in groups. An image is explained by the tiles of a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array


@dataclass(frozen=True)
class Features:
    """Names of F features; `feature_index` (d,) is the feature of each of the d inputs (or pixels of an image)."""

    names: tuple[str, ...]
    feature_index: Array
    grid: tuple[int, int] | None = None  # tiles of an image: rows and columns
    size: tuple[int, int] | None = None  # pixels of an image: height and width

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_inputs(cls, names: Sequence[str]) -> Features:
        """Make every input a feature of its own."""
        return cls(tuple(names), np.arange(len(names)))

    @classmethod
    def from_columns(cls, sources: Sequence[str]) -> Features:
        """Group inputs by the clinical column they come from (`Encoding.sources`)."""
        names = tuple(dict.fromkeys(sources))
        place = {name: f for f, name in enumerate(names)}
        return cls(names, np.array([place[s] for s in sources], np.int64))

    @classmethod
    def from_tiles(cls, height: int, width: int, grid: tuple[int, int]) -> Features:
        """Group an image's pixels (height * width, row by row) by tiles; uneven sizes differ by one pixel."""
        down, across = grid
        rows = np.arange(height) * down // height
        columns = np.arange(width) * across // width
        names = tuple(f"tile ({r + 1}, {c + 1})" for r in range(down) for c in range(across))
        return cls(names, (rows[:, None] * across + columns).ravel(), grid, (height, width))

    @cached_property
    def groups(self) -> tuple[Array, ...]:
        """The inputs of each feature."""
        return tuple(np.flatnonzero(self.feature_index == f) for f in range(len(self)))

    @cached_property
    def single(self) -> bool:
        """True if every feature is one input, in order."""
        return len(self) == len(self.feature_index) and bool((self.feature_index == np.arange(len(self))).all())

    def sum_inputs(self, values: Array) -> Array:
        """Sum values (..., d) of inputs or pixels within each feature: (..., F)."""
        if self.single:
            return values
        member = np.zeros((len(self.feature_index), len(self)), values.dtype)
        member[np.arange(len(self.feature_index)), self.feature_index] = 1
        out: Array = values @ member
        return out


def build_features(encoding: Any, *, grid: int) -> Features:
    """Build the features of data prepared by this encoding: columns of a table, or grid x grid tiles of images."""
    if len(encoding.inputs) == 1:
        return Features.from_columns(encoding.sources)
    _, height, width = encoding.inputs
    return Features.from_tiles(height, width, (min(grid, height), min(grid, width)))
