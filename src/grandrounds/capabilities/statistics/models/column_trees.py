"""Boosted trees on the bins of clinical columns, as plain arrays.

A column's values fall into at most 64 bins: bin 0 holds missing values, a number v falls into bin 1 + count(edges < v), level l
of a category into bin l + 1. A node sends the bins of a 64-bit mask to its left child. One walk therefore serves numbers,
categories and missing values alike.

Nodes are in heap order: the children of node j are 2j + 1 and 2j + 2, and a tree has 2^(depth + 1) - 1 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from grandrounds.capabilities.statistics.models.column_model import ColumnModel
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.tree_scores import add_scores
from grandrounds.models.tree_shapley import list_leaves, tree_shapley

MOST_BINS = 64
"""Most bins of a column, with the one for missing values: a mask has 64 bits."""

MAX_DEPTH = 8
"""Largest depth of a tree."""

PADDING = float(np.finfo(np.float64).max)
"""Fills the row of a column in `edges` after its last edge."""

TREE_ARRAYS = (
    *(("edges", 2), ("edge_counts", 1)),
    *(("column", 2), ("low", 2), ("high", 2), ("value", 2)),
    *(("output", 1), ("start", 1)),
)
"""Names and numbers of axes of the arrays of trees."""


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees. The score of an output is its start plus the leaves of its trees.

    Attributes:
        edges: (C, E) float64, ascending; v <= edge goes left of it. Padded with the largest finite number. A category with
            L levels has the edges 0, 1, ..., L - 2.
        edge_counts: (C,) number of edges of each column.
        column: (T, N) column of a node; -1 at a leaf.
        low: (T, N) bits 0 to 31 of a node's mask: bit b is set if rows of bin b go left.
        high: (T, N) bits 32 to 63.
        value: (T, N) float64, what a leaf adds to the score.
        output: (T,) the output (class) that a tree adds to.
        start: (outputs,) score before the first tree.
    """

    edges: Array
    edge_counts: Array
    column: Array
    low: Array
    high: Array
    value: Array
    output: Array
    start: Array

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Trees:
        """Build trees from named arrays, which may come from another hospital.

        Args:
            arrays: The arrays of `TREE_ARRAYS`, of any number type.

        Returns:
            The trees.

        Raises:
            BadInput: An array is missing, or the arrays do not fit each other.
        """
        try:
            trees = cls(
                edges=np.asarray(arrays["edges"], np.float64),
                edge_counts=_whole(arrays["edge_counts"], 0, MOST_BINS - 2),
                column=_whole(arrays["column"], -1, 2**15 - 1),
                low=_whole(arrays["low"], 0, 2**32 - 1),
                high=_whole(arrays["high"], 0, 2**32 - 1),
                value=np.asarray(arrays["value"], np.float64),
                output=_whole(arrays["output"], 0, 2**15 - 1),
                start=np.asarray(arrays["start"], np.float64),
            )
        except KeyError as error:
            raise _damaged(f"{error} is missing") from None
        trees.check()
        return trees

    @property
    def arrays(self) -> dict[str, Array]:
        """The named arrays."""
        return {name: getattr(self, name) for name, _ in TREE_ARRAYS}

    @property
    def trees(self) -> int:
        """Number of trees."""
        return len(self.column)

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return int(self.column.shape[1] + 1).bit_length() - 2

    @property
    def outputs(self) -> int:
        """Number of scores."""
        return len(self.start)

    @cached_property
    def masks(self) -> Array:
        """Masks of all nodes, (T, N) uint64."""
        return np.asarray(self.low, np.uint64) | (np.asarray(self.high, np.uint64) << np.uint64(32))

    def check(self) -> None:
        """Check that the arrays fit each other.

        Raises:
            BadInput: They do not.
        """
        t, n = self.column.shape if self.column.ndim == 2 else (-1, -1)
        if n < 1 or (n + 1) & n or self.depth > MAX_DEPTH:
            raise _damaged(f"a tree has {n} nodes")
        for name in ("low", "high", "value"):
            if getattr(self, name).shape != (t, n):
                raise _damaged(f"'{name}' has shape {getattr(self, name).shape}, not {(t, n)}")
        if self.output.shape != (t,) or self.start.ndim != 1 or self.output.max(initial=-1) >= len(self.start):
            raise _damaged("a tree adds to an output that does not exist")
        if self.edges.ndim != 2 or self.edge_counts.shape != (len(self.edges),):
            raise _damaged("the edges of bins do not fit the columns")
        if self.edge_counts.max(initial=0) > self.edges.shape[1] or self.column.max(initial=-1) >= len(self.edges):
            raise _damaged("a column has no edges of bins")
        if (np.diff(self.edges, axis=1) < 0).any():
            raise _damaged("the edges of bins do not ascend")
        if (self.column[:, n // 2 :] >= 0).any():
            raise _damaged("a node of the last level has children")

    def bin(self, values: Array) -> Array:
        """Return the bin of each value, (n, C) uint8.

        Args:
            values: (n, C), as `read_columns` returns them.
        """
        return bin_values(values, self.edges, self.edge_counts)

    def leaves(self, bins: Array) -> Array:
        """Return the leaf of each row in each tree, (T, n) node numbers.

        Args:
            bins: (n, C) uint8.
        """
        out = np.zeros((self.trees, len(bins)), np.int16)
        for t in range(self.trees):
            out[t] = walk_tree(bins, self.column[t], self.masks[t])
        return out

    def scores(self, bins: Array) -> Array:
        """Compute the scores of rows, (n, outputs). Trees are added in order, so a row's score has the same bits everywhere.

        Args:
            bins: (n, C) uint8.
        """
        out = np.repeat(self.start[:, None], len(bins), axis=1)
        add_scores(out, bins, self.column, self.masks, self.value, self.output)
        return np.ascontiguousarray(out.T)


@dataclass(frozen=True)
class TreesModel(ColumnModel):
    """Boosted trees of whole columns behind the `Model` protocol."""

    kernel: ClassVar[str] = "trees"
    arrays: ClassVar[tuple[tuple[str, int], ...]] = TREE_ARRAYS

    def start(self) -> dict[str, Array]:
        """Return the model without a tree: categories have their bins, numbers one bin for all values."""
        levels = [min(len(c.levels), MOST_BINS - 1) for c in self.columns]
        counts = np.array([max(0, n - 1) for n in levels], np.float64)
        most = int(counts.max(initial=1))
        edges = np.where(np.arange(most) < counts[:, None], np.arange(most, dtype=float), PADDING)
        none = np.empty((0, 1))
        return {
            "edges": edges.reshape(len(self.columns), most),
            "edge_counts": counts,
            **{"column": none, "low": none, "high": none, "value": none},
            "output": np.empty(0),
            "start": np.zeros(self.outputs),
        }

    def trees(self, arrays: Mapping[str, Array]) -> Trees:
        """Return the trees of the model's arrays.

        Args:
            arrays: The arrays, which may come from another hospital.

        Raises:
            BadInput: They do not fit each other, the columns or the outputs.
        """
        trees = Trees.from_arrays(arrays)
        if len(trees.edges) != len(self.columns):
            raise _damaged(f"they read {len(trees.edges)} columns, not {len(self.columns)}")
        if trees.outputs != self.outputs:
            raise _damaged(f"they have {trees.outputs} outputs, not {self.outputs}")
        for c, column in enumerate(self.columns):
            count = int(trees.edge_counts[c])
            if column.is_category and not np.array_equal(trees.edges[c, :count], np.arange(count)):
                raise _damaged(f"the levels of '{column.name}' are not its bins")
        inner = trees.column >= 0
        bins = (trees.edge_counts + 2)[trees.column[inner]]
        outside = np.where(bins < MOST_BINS, trees.masks[inner] >> np.minimum(bins, MOST_BINS - 1).astype(np.uint64), 0)
        if outside.any():
            raise _damaged("a mask has bins that its column does not have")
        return trees

    def check(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        self.trees(arrays)
        return arrays

    def scores(self, arrays: Mapping[str, Array], values: Array) -> Array:
        trees = Trees.from_arrays(arrays)
        return trees.scores(trees.bin(values))

    def column_shapley(self, arrays: Mapping[str, Array], values: Array, background: Array) -> Array:
        """Compute exact Shapley values (n, outputs, C) of the scores by interventional TreeSHAP (tree_shapley.py)."""
        trees = Trees.from_arrays(arrays)
        leaves = list(list_leaves(trees.column, trees.masks, trees.value))
        return tree_shapley(leaves, trees.output, trees.bin(values), trees.bin(background), outputs=self.outputs)


def bin_values(values: Array, edges: Array, edge_counts: Array) -> Array:
    """Return the bin of each value: 0 for a missing value, else 1 + count(edges < value).

    Args:
        values: (n, C) numbers and level numbers, NaN where missing.
        edges: (C, E) edges of each column, ascending.
        edge_counts: (C,) number of edges of each column.

    Returns:
        (n, C) uint8.
    """
    out = np.zeros(values.shape, np.uint8, order="F")  # a column's bins lie together: a walk reads columns
    for c, count in enumerate(np.asarray(edge_counts, int).tolist()):
        v = values[:, c]
        out[:, c] = np.where(np.isnan(v), 0, 1 + np.searchsorted(edges[c, :count], v))
    return out


def walk_tree(bins: Array, column: Array, masks: Array) -> Array:
    """Return the leaf of each row in one tree, (n,).

    Args:
        bins: (n, C) uint8.
        column: (N,) column of each node; -1 at a leaf. The last level may be left out, as in a tree that grows.
        masks: (N,) uint64.
    """
    n, rows = len(bins), np.arange(len(bins))
    node = np.zeros(n, np.intp)
    if n == 0:
        return node
    for _ in range(int(len(column) + 1).bit_length() - 1):
        asked = column[node]
        inner = asked >= 0
        if not inner.any():
            break
        left = (masks[node] >> bins[rows, np.maximum(asked, 0)].astype(np.uint64)) & np.uint64(1)
        node = np.where(inner, 2 * node + 2 - left.astype(np.intp), node)
    return node


def _whole(array: Array, least: int, most: int) -> Array:
    """Return whole numbers as int64; refuse others."""
    values = np.asarray(array, np.float64)
    if not ((values >= least) & (values <= most) & (values == np.rint(values))).all():
        raise _damaged("a number is not whole or out of range")
    return values.astype(np.int64)


def _damaged(problem: str) -> BadInput:
    return BadInput(f"these parameters are not boosted trees: {problem}", code="damaged-model")
