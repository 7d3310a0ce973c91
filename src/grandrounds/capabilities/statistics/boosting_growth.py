"""Trees that grow: the nodes of a round, the finished trees, and the nodes whose histograms are asked for or known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from grandrounds.capabilities.statistics.boosting_splits import N
from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Value


@dataclass(eq=False)
class Forest:
    """Finished trees, in the arrays of `Trees` without those of the bins."""

    nodes: int
    column: Array = field(init=False)
    masks: Array = field(init=False)
    value: Array = field(init=False)
    output: Array = field(init=False)

    def __post_init__(self) -> None:
        self.column, self.masks = np.empty((0, self.nodes), np.int16), np.empty((0, self.nodes), np.uint64)
        self.value, self.output = np.empty((0, self.nodes)), np.empty(0, np.int16)

    def add(self, grown: GrowingTrees, value: Array) -> None:
        """Add the trees of a round."""
        self.column = np.concatenate([self.column, grown.column])
        self.masks = np.concatenate([self.masks, grown.masks])
        self.value = np.concatenate([self.value, value])
        self.output = np.concatenate([self.output, grown.output.astype(np.int16)])

    def values(self) -> dict[str, Value]:
        """Return the trees as a question carries them: inner nodes, and the values of the last level.

        A leaf above the last level has its value at all places below it.
        """
        inner = self.nodes // 2
        value, is_leaf = self.value.copy(), self.column < 0
        for node in range(inner):
            for child in (2 * node + 1, 2 * node + 2):
                value[:, child] = np.where(is_leaf[:, node], value[:, node], value[:, child])
        low, high = split_masks(self.masks[:, :inner])
        high = high if high.any() else high[:, :0]  # columns of 32 bins need no second half
        return {
            "column": self.column[:, :inner],
            "low": low,
            "high": high,
            "value": value[:, inner:],
            "output": self.output,
        }


@dataclass(eq=False)
class GrowingTrees:
    """Trees that grow. Nodes are in heap order; entry j of `sums` and `bounds` is node j."""

    columns: Array  # (T, m) columns of each tree
    output: Array  # (T,)
    nodes: int
    column: Array = field(init=False)
    masks: Array = field(init=False)
    sums: Array = field(init=False)
    bounds: Array = field(init=False)

    def __post_init__(self) -> None:
        trees = len(self.output)
        self.column = np.full((trees, self.nodes), -1, np.int16)
        self.masks = np.zeros((trees, self.nodes), np.uint64)
        self.sums = np.zeros((trees, self.nodes, 3), np.int64)
        self.bounds = np.broadcast_to([-np.inf, np.inf], (trees, self.nodes, 2)).copy()

    def join_roots(self, outputs: int) -> GrowingTrees:
        """Return one tree for each output with the columns of all trees: the roots of an output's trees have the same sums."""
        columns = np.unique(self.columns)
        return GrowingTrees(np.tile(columns, (outputs, 1)), np.arange(outputs), self.nodes)

    def share_roots(self, joined: GrowingTrees, roots: Front) -> Front:
        """Return the roots of all trees, with the histograms of their own columns.

        Args:
            joined: What `join_roots` returned.
            roots: Its nodes, with histograms.
        """
        places = np.searchsorted(joined.columns[0], self.columns)
        self.sums[:, 0] = joined.sums[self.output, 0]
        trees = np.arange(len(self.output))
        return Front(trees, np.zeros(len(trees), int), roots.histograms[self.output[:, None], places])


@dataclass(eq=False)
class Front:
    """Nodes with known histograms: (A, m, B, 3) with `tree` and `node` (A,)."""

    tree: Array
    node: Array
    histograms: Array


def choose_smaller(grown: GrowingTrees, parents: Front, least: int) -> Front:
    """Choose the nodes to ask for: the smaller child of each split node, where one of the children may be split again.

    Args:
        grown: The trees.
        parents: The split nodes.
        least: Fewest rows of a leaf.

    Returns:
        The nodes, without histograms. A tree's nodes are together, as sites answer.
    """
    left, right = 2 * parents.node + 1, 2 * parents.node + 2
    rows = np.stack([grown.sums[parents.tree, child][:, N] for child in (left, right)])
    asked = np.where(rows[0] <= rows[1], left, right)
    large = np.flatnonzero(rows.max(axis=0) >= 2 * least)
    order = large[np.argsort(parents.tree[large], kind="stable")]
    return Front(parents.tree[order], asked[order], np.empty(0))


def find_parents(parents: Front, front: Front) -> Array:
    """Return the place of each node's parent among `parents`."""
    place = {(t, j): k for k, (t, j) in enumerate(zip(parents.tree.tolist(), parents.node.tolist(), strict=True))}
    return np.array(
        [place[t, (j - 1) // 2] for t, j in zip(front.tree.tolist(), front.node.tolist(), strict=True)], int
    )


def take_nodes(front: Front, places: Array) -> Front:
    """Return the nodes at these places."""
    return Front(front.tree[places], front.node[places], front.histograms[places])


def split_masks(masks: Array) -> tuple[Array, Array]:
    """Return bits 0 to 31 and bits 32 to 63 of masks, as uint32."""
    return (masks & np.uint64(0xFFFFFFFF)).astype(np.uint32), (masks >> np.uint64(32)).astype(np.uint32)
