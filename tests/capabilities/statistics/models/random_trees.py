"""Random trees of whole columns, for tests of explanations and exports."""

from __future__ import annotations

import numpy as np

from grandrounds.capabilities.statistics.models.column_trees import PADDING, TreesModel
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.arrays import Array

NUMBERS = (Column("age", 0, 3), Column("pressure", 1, 4), Column("oxygen", 2))
CATEGORIES = (Column("sex", levels=(5, 6), words=("f", "m")), Column("ward", levels=(7, 8, 9, 10), words=tuple("abcd")))
FEATURES = 11


def tree_model(columns: tuple[Column, ...] = NUMBERS + CATEGORIES, *, classes: int = 2, **kw: str) -> TreesModel:
    return TreesModel(FEATURES, columns, classes, options={}, **kw)


def random_arrays(
    model: TreesModel, *, trees: int = 6, depth: int = 3, edges: int = 6, seed: int = 0
) -> dict[str, Array]:
    """Grow trees at random: thresholds of numbers, sets of levels, missing values on either side, leaves at any level."""
    rng = np.random.default_rng(seed)
    counts = np.array([max(0, len(c.levels) - 1) if c.is_category else edges for c in model.columns])
    cuts = np.full((len(counts), int(counts.max())), PADDING)
    for c, column in enumerate(model.columns):
        many = (
            np.arange(counts[c], dtype=float)
            if column.is_category
            else np.sort(np.round(rng.normal(0, 1, counts[c]), 2))
        )
        cuts[c, : counts[c]] = many
    nodes = 2 ** (depth + 1) - 1
    out = {name: np.zeros((trees, nodes)) for name in ("column", "low", "high", "value")}
    out["column"][:] = -1
    for t in range(trees):
        for j in range(nodes):
            out["value"][t, j] = rng.normal()
            parent = (j - 1) // 2
            if j >= nodes // 2 or (j and (out["column"][t, parent] < 0 or rng.random() < 0.15)):
                continue
            c = int(rng.integers(len(counts)))
            bins = int(counts[c]) + 2
            if model.columns[c].is_category:
                mask = int(rng.integers(1, 2**bins - 1))
            else:
                mask = (1 << int(rng.integers(2, bins))) - 2 + int(rng.integers(2))
            out["column"][t, j], out["low"][t, j], out["high"][t, j] = c, mask & (2**32 - 1), mask >> 32
    return {
        **out,
        "edges": cuts,
        "edge_counts": counts,
        "output": np.arange(trees) % model.outputs,
        "start": rng.normal(size=model.outputs),
    }


def random_rows(model: TreesModel, n: int, *, seed: int = 1) -> Array:
    """Draw inputs (n, d) with missing numbers, missing categories and values on edges."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, FEATURES))
    for column in model.columns:
        if column.is_category:
            level = rng.integers(-1, len(column.levels), n)
            for k, place in enumerate(column.levels):
                x[:, place] = level == k
        else:
            x[:, column.place] = np.round(rng.normal(0, 1, n), 2)
            if column.missing >= 0:
                x[:, column.missing] = rng.random(n) < 0.3
    return x
