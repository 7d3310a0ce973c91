"""Exact Shapley values of boosted trees with category sets and missing values, with columns as players (interventional TreeSHAP).

A leaf is reached if every column of its path lies in a set of bins. A row and a background row together reach it for a
coalition S if S has all columns X that only the row satisfies, and none of the columns Z that only the background row satisfies.
The value v of the leaf then gives each column of X v (|X|-1)! |Z|! / (|X|+|Z|)!, and takes v |X|! (|Z|-1)! / (|X|+|Z|)! from
each of Z (Lundberg et al. 2020). Both depend only on which columns a row satisfies: a pattern of at most 8 bits. So background
rows are counted by pattern, and the work is leaves x (rows + background rows), not rows x background rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import factorial

import numpy as np

from grandrounds.core.arrays import Array

_ROWS = 4096  # rows at once, so that the working arrays stay in cache
_ALL = 2**64 - 1


@dataclass(frozen=True)
class Leaf:
    """A leaf and what a row must satisfy to reach it.

    Attributes:
        tree: Number of its tree.
        value: What it adds.
        sets: Column and mask of its bins, once for each column of the path: bit b set = bin b passes.
    """

    tree: int
    value: float
    sets: tuple[tuple[int, int], ...]


def list_leaves(column: Array, mask: Array, value: Array) -> Iterator[Leaf]:
    """List the leaves of trees in heap order (children of node j: 2j + 1 and 2j + 2) that some row can reach.

    Args:
        column: Column of each node, (T, N); -1 at a leaf.
        mask: Bins that go left, (T, N) uint64.
        value: What a leaf adds, (T, N).

    Yields:
        The leaves, tree by tree, from left to right.
    """
    for t, (columns, masks, values) in enumerate(zip(column.tolist(), mask.tolist(), value.tolist(), strict=True)):
        stack: list[tuple[int, dict[int, int]]] = [(0, {})]
        while stack:
            node, sets = stack.pop()
            c = columns[node]
            if c < 0:
                yield Leaf(t, values[node], tuple(sets.items()))
                continue
            before = sets.get(c, _ALL)
            for child, passing in ((2 * node + 2, before & ~masks[node]), (2 * node + 1, before & masks[node])):
                if passing:
                    stack.append((child, {**sets, c: passing}))


def tree_shapley(leaves: list[Leaf], output: Array, bins: Array, background: Array, *, outputs: int) -> Array:
    """Compute the Shapley values of the sum of trees.

    Args:
        leaves: The leaves of all trees.
        output: Output that each tree adds to, (T,).
        bins: Bins of the rows, (n, C) uint8.
        background: Bins of the background rows, (m, C) uint8.
        outputs: Number of outputs.

    Returns:
        (n, outputs, C) float64.
    """
    rows, columns = bins.shape
    known: dict[tuple[int, int], int] = {}
    for leaf in leaves:
        for pair in leaf.sets:
            known.setdefault(pair, len(known))
    used = [leaf for leaf in leaves if leaf.sets and leaf.value != 0]
    tables = _leaf_tables(used, known, background)
    out = np.zeros((rows, outputs, columns))
    for first in range(0, rows, _ROWS):
        block = bins[first : first + _ROWS]
        passes = _passes(known, block)
        total = np.zeros((outputs, columns, len(block)))
        for leaf, table in zip(used, tables, strict=True):
            places = [c for c, _ in leaf.sets]
            total[int(output[leaf.tree]), places] += table.take(_pattern(leaf, known, passes), axis=1)
        out[first : first + _ROWS] = total.transpose(2, 0, 1)
    return out


def _passes(known: dict[tuple[int, int], int], bins: Array) -> Array:
    """Tell for each (column, mask) which rows pass, (pairs, n) uint8."""
    by_column = np.ascontiguousarray(bins.T)
    tables = {mask: np.array([mask >> b & 1 for b in range(64)], np.uint8) for _, mask in known}
    return np.array([tables[mask].take(by_column[c]) for c, mask in known], np.uint8).reshape(len(known), len(bins))


def _pattern(leaf: Leaf, known: dict[tuple[int, int], int], passes: Array) -> Array:
    """Return which columns of a leaf each row satisfies, as bits, (n,)."""
    out = np.zeros(passes.shape[1], np.uint8)
    for place, pair in enumerate(leaf.sets):
        out |= passes[known[pair]] << np.uint8(place)
    return out


def _leaf_tables(leaves: list[Leaf], known: dict[tuple[int, int], int], background: Array) -> list[Array]:
    """Compute for each leaf what its columns receive for each pattern of a row, (k, 2^k), averaged over the background."""
    passes = _passes(known, background)
    sizes = np.array([len(leaf.sets) for leaf in leaves], np.int64)
    out: list[Array] = [np.empty((0, 0))] * len(leaves)
    for k in np.unique(sizes).tolist():
        mine = np.flatnonzero(sizes == k)
        weights = _weights(k)
        at_once = max(1, 2**22 // weights.shape[1])
        for first in range(0, len(mine), at_once):
            some = mine[first : first + at_once]
            patterns = [np.bincount(_pattern(leaves[i], known, passes), minlength=2**k) for i in some]
            values = np.array([leaves[i].value for i in some])[:, None] / len(background)
            found = (np.array(patterns) * values) @ weights
            for i, table in zip(some.tolist(), found.reshape(-1, k, 2**k), strict=True):
                out[i] = table
    return out


@cache
def _weights(k: int) -> Array:
    """Return the share of a leaf's value that each of its k columns receives, (2^k of the background, k * 2^k of the row)."""
    patterns = np.arange(2**k)
    row, other = patterns[None, :], patterns[:, None]
    only_row, only_other = row & ~other, other & ~row
    sizes = np.array([pattern.bit_count() for pattern in range(2**k)])
    x, z = sizes[only_row], sizes[only_other]
    possible = (row | other) == 2**k - 1
    gain, loss = np.zeros((2, k + 1, k + 1))
    for a in range(k + 1):
        for b in range(k + 1 - a):
            gain[a, b] = factorial(a - 1) * factorial(b) / factorial(a + b) if a else 0.0
            loss[a, b] = factorial(a) * factorial(b - 1) / factorial(a + b) if b else 0.0
    shares = [
        np.where(possible, gain[x, z] * (only_row >> j & 1) - loss[x, z] * (only_other >> j & 1), 0.0) for j in range(k)
    ]
    out: Array = np.stack(shares, axis=1).reshape(2**k, k * 2**k)
    out.flags.writeable = False
    return out
