"""Scores of many rows by boosted trees, with operations on whole columns of bins.

The decisions of the seven nodes of three levels are bits of one byte, which a small table turns into the leaf below them. Deeper
trees go through several such tables. No row is followed from node to node, which is what takes time in a plain walk.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from grandrounds.core.arrays import Array

_ROWS = 8192  # rows at once: their bytes stay in cache
_LEVELS = 3  # of one table: 7 nodes are 7 bits


def add_scores(out: Array, bins: Array, column: Array, masks: Array, value: Array, output: Array) -> None:
    """Add the leaves of all trees to scores, in the order of the trees.

    Args:
        out: Scores (outputs, n), which are added to.
        bins: Bins of the rows, (n, C) uint8.
        column: Column of each node in heap order, (T, N); -1 at a leaf.
        masks: Bins that go left, (T, N) uint64.
        value: What a leaf adds, (T, N).
        output: Output that each tree adds to, (T,).
    """
    depth = int(column.shape[1] + 1).bit_length() - 2
    bottom = _push_down(column, value, depth)
    splits = [
        {j: _Split(c, m) for j, (c, m) in enumerate(zip(columns, mine, strict=True)) if c >= 0}
        for columns, mine in zip(column.tolist(), masks.tolist(), strict=True)
    ]
    for first in range(0, len(bins), _ROWS):
        block = _Block(np.ascontiguousarray(bins[first : first + _ROWS].T))
        for t, nodes in enumerate(splits):
            out[int(output[t]), first : first + _ROWS] += block.leaf_values(nodes, bottom[t], depth)


def _push_down(column: Array, value: Array, depth: int) -> Array:
    """Return the value of each place of the last level, (T, 2^depth): that of the leaf above it."""
    full, is_leaf = value.copy(), column < 0
    for node in range(2**depth - 1):
        leaf = is_leaf[:, node]
        for child in (2 * node + 1, 2 * node + 2):
            full[leaf, child] = full[leaf, node]
            is_leaf[leaf, child] = True
    return full[:, 2**depth - 1 :]


class _Split:
    """The decision of a node: rows go right where their bin, or their bin less one, is above a limit; else by a table."""

    def __init__(self, column: int, mask: int) -> None:
        self.column = column
        self.with_missing = bool(mask & 1)
        run = mask | 1
        self.limit = run.bit_length() - 1 if run & (run + 1) == 0 else -1
        self.table = None if self.limit >= 0 else np.array([~mask >> b & 1 for b in range(64)], np.uint8)


class _Block:
    """A block of rows by column, (C, n) uint8."""

    def __init__(self, bins: Array) -> None:
        self.bins = bins
        self.less_one = bins - np.uint8(1)  # missing values, bin 0, become 255
        self.rows = np.arange(bins.shape[1])
        self.right = np.empty(bins.shape[1], bool)

    def leaf_values(self, nodes: dict[int, _Split], bottom: Array, depth: int) -> Array:
        """Return the value of each row's leaf in one tree, (n,)."""
        place, pattern, levels = self._descend(nodes, depth)
        table = bottom.reshape(-1, 2**levels)[:, _leaf_of_pattern(levels)].ravel()
        return table.take(pattern if place is None else place * (1 << (2**levels - 1)) + pattern)

    def _descend(self, nodes: dict[int, _Split], depth: int) -> tuple[Array | None, Array, int]:
        """Return the place of each row `levels` above `depth` (None: the root), the bits of its decisions below, and `levels`."""
        levels = min(depth, _LEVELS)
        above = depth - levels
        if above == 0:
            return None, self._pattern(nodes, 0, levels), levels
        place, pattern, top = self._descend(nodes, above)
        leaf = _leaf_of_pattern(top).take(pattern)
        here = leaf if place is None else place * 2**top + leaf
        roots = range(2**above - 1, 2 ** (above + 1) - 1)
        below = np.concatenate([self._pattern(nodes, root, levels) for root in roots])
        return here, below.take(here * len(self.rows) + self.rows), levels

    def _pattern(self, nodes: dict[int, _Split], root: int, levels: int) -> Array:
        """Return the decisions of the nodes of a subtree as bits, (n,) uint8: bit i is set where node i sends a row right."""
        out = np.zeros(len(self.rows), np.uint8)
        for i in reversed(range(2**levels - 1)):
            level = (i + 1).bit_length() - 1
            split = nodes.get(root * 2**level + i)
            np.add(out, out, out=out)  # twice, and then the lowest bit: faster than a shift
            if split is not None:
                np.bitwise_or(out, self._goes_right(split), out=out)
        return out

    def _goes_right(self, split: _Split) -> Array:
        if split.table is not None:
            goes: Array = split.table.take(self.bins[split.column])
            return goes
        if split.with_missing:
            np.greater(self.bins[split.column], split.limit, out=self.right)
        else:
            np.greater_equal(self.less_one[split.column], split.limit, out=self.right)
        return self.right.view(np.uint8)


@cache
def _leaf_of_pattern(levels: int) -> Array:
    """Return the place among the 2^levels leaves that each pattern of decisions leads to."""
    out = np.zeros(1 << (2**levels - 1), np.intp)
    for pattern in range(len(out)):
        node = 0
        for _ in range(levels):
            node = 2 * node + 1 + (pattern >> node & 1)
        out[pattern] = node - (2**levels - 1)
    out.flags.writeable = False
    return out
