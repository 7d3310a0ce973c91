"""Decision trees as plain arrays: checked once, voted on with NumPy alone.

A forest comes from another hospital, so it is checked before use: children come after their only parent, so that a walk from the
root ends, and no tree is deeper than `MAX_DEPTH`. Every `Forest` object is valid.

A row is compared in float32, as scikit-learn does. Rounding a threshold down to float32 therefore
changes no decision (for a float32 x, x <= t exactly when x <= the largest float32 not above t), and a forest of such thresholds
is the same after conversion to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

MAX_DEPTH = 256
"""Largest accepted depth: a real tree has a few dozen levels, a chain of a million nodes is an attack."""

DTYPES: dict[str, type[np.generic]] = {
    "feature": np.int32,
    "threshold": np.float64,
    "left": np.int32,
    "right": np.int32,
    "value": np.float32,
    "weight": np.float64,
}
"""The arrays of a forest by name, in their order in the vector, and their types."""

_CELLS = 32768  # (tree, row) pairs walked at once: their working arrays stay in cache
_ROWS = 2048  # rows walked at once, so that a block of the table stays in cache too
_SLACK = 1e-4  # tolerance of sums to one: rounding of float32


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees as arrays: node j of tree t. A row goes left where x[feature] <= threshold; node 0 is the root.

    Anything invalid is refused with `BadInput`. The arrays are copied and cannot be written to.
    """

    feature: Array  # (T, N) int32, -1 at a leaf and in padding
    threshold: Array  # (T, N) float64
    left: Array  # (T, N) int32, -1 at a leaf
    right: Array  # (T, N) int32, -1 at a leaf
    value: Array  # (T, N, C) float32, the class shares at the node
    weight: Array  # (T,) float64, sums to 1: a tree's weight in the vote

    def __post_init__(self) -> None:
        for name, dtype in DTYPES.items():
            array = _convert_exactly(name, getattr(self, name), np.dtype(dtype))
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        _check_shapes(self)
        _check_links(self)
        _check_vote(self)

    @property
    def trees(self) -> int:
        return int(self.feature.shape[0])

    @property
    def nodes(self) -> int:
        """Number of nodes per tree, padded to the largest."""
        return int(self.feature.shape[1])

    @property
    def classes(self) -> int:
        return int(self.value.shape[2])

    @property
    def depth(self) -> int:
        """Levels below the root of the deepest tree."""
        return len(self._levels) - 1

    def probabilities(self, x: Array) -> Array:
        """Compute the vote (n, C): each tree's class shares at the row's leaf, averaged by the trees' weights."""
        if x.ndim != 2 or self.feature.max() >= x.shape[1]:
            raise BadInput(
                f"the forest asks for column {self.feature.max()}, but the rows have shape {x.shape}",
                code="unknown-column",
            )
        out = np.zeros((len(x), self.classes))
        for start in range(0, len(x), _ROWS):
            self._vote(x[start : start + _ROWS], out=out[start : start + _ROWS])
        return out

    def _vote(self, x: Array, *, out: Array) -> None:
        """Add every tree's vote about a block of rows, a block of trees at a time."""
        with np.errstate(over="ignore"):
            columns = np.ascontiguousarray(x.T, np.float32)
        at_once = max(1, _CELLS // (len(x) * max(1, self.classes // 8)))
        for first in range(0, self.trees, at_once):
            roots = np.arange(first, min(first + at_once, self.trees))
            leaf = self._table.walk(roots, columns)
            out += self._table.say.take(leaf, axis=0).sum(axis=0)

    @cached_property
    def _levels(self) -> list[Array]:
        """The nodes that can be reached, level by level, as flat numbers t * N + j; siblings are neighbours."""
        feature, left, right = self.feature.ravel(), self.left.ravel(), self.right.ravel()
        level = np.arange(self.trees) * self.nodes
        out: list[Array] = []
        while level.size:
            _require(len(out) <= MAX_DEPTH, f"a tree is deeper than {MAX_DEPTH} levels")
            out.append(level)
            split = level[feature[level] >= 0]
            tree = split - split % self.nodes
            level = np.stack([left[split] + tree, right[split] + tree], axis=1).ravel()
        return out

    @cached_property
    def _table(self) -> _Table:
        order = np.concatenate(self._levels)
        feature = self.feature.ravel()[order].astype(np.intp)
        leaf = feature < 0
        child = self.trees + 2 * (np.cumsum(~leaf) - 1)
        say = self.value.reshape(-1, self.classes)[order] * self.weight[order // self.nodes, None]
        return _Table(
            feature=np.where(leaf, 0, feature),
            threshold=np.where(leaf, np.float32(np.inf), round_down(self.threshold.ravel()[order])),
            left=np.where(leaf, np.arange(len(order)), child),
            say=say,
            depth=self.depth,
        )


@dataclass(frozen=True, eq=False)
class _Table:
    """All trees in one table for walking, level by level: the roots, then their children, and so on.

    A right child follows its sibling, so one step is `left + (x > threshold)`. A leaf is its own left child and its threshold is
    infinite, so a row stays at its leaf.
    """

    feature: Array
    threshold: Array
    left: Array
    say: Array
    depth: int

    def walk(self, roots: Array, columns: Array) -> Array:
        """Return the leaf (trees, rows) in which each row ends; `columns` is (d, rows), so neighbours are read together."""
        rows = columns.shape[1]
        cells, row = columns.ravel(), np.arange(rows)
        node = np.repeat(roots[:, None], rows, axis=1)
        place, right = np.empty_like(node), np.empty_like(node, bool)
        value, limit = np.empty_like(node, np.float32), np.empty_like(node, np.float32)
        for _ in range(self.depth):  # into buffers: "clip" clips nothing here, but "raise" would copy
            self.feature.take(node, out=place, mode="clip")
            place *= rows
            place += row
            cells.take(place, out=value, mode="clip")
            self.threshold.take(node, out=limit, mode="clip")
            np.greater(value, limit, out=right)
            self.left.take(node, out=place, mode="clip")
            place += right
            node, place = place, node
        return node


def combine(forests: Sequence[Forest], weights: Array) -> Forest:
    """Join forests: tree t of forest k has weights[k] * weight[t] of the vote, all scaled to sum to 1. Its vote is the weighted
    mean of the forests' votes, for any number and size of their trees.
    """
    shares = _shares(weights, count=len(forests))
    if len({f.classes for f in forests}) != 1:
        raise BadInput(
            f"forests of {sorted({f.classes for f in forests})} classes cannot vote together", code="mismatched-classes"
        )
    nodes = max(f.nodes for f in forests)

    def joined(name: str, fill: int) -> Array:
        return np.concatenate([_pad(getattr(f, name), nodes=nodes, fill=fill) for f in forests])

    return Forest(
        feature=joined("feature", -1),
        threshold=joined("threshold", 0),
        left=joined("left", -1),
        right=joined("right", -1),
        value=joined("value", 0),
        weight=np.concatenate([share * f.weight / f.weight.sum() for share, f in zip(shares, forests, strict=True)]),
    )


def single_leaf(shares: Array) -> Forest:
    """Return the forest that gives every row the same class shares: one tree, one node."""
    none = np.full((1, 1), -1, np.int32)
    value = np.asarray(shares, np.float32)[None, None]
    return Forest(feature=none, threshold=np.zeros((1, 1)), left=none, right=none, value=value, weight=np.ones(1))


def round_down(threshold: Array) -> Array:
    """Round each threshold to the largest float32 not above it: the same decisions for every float32 row."""
    with np.errstate(over="ignore"):
        near: Array = threshold.astype(np.float32)
        down: Array = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return down


def _shares(weights: Array, *, count: int) -> Array:
    values: Array = np.asarray(weights, np.float64)
    if count == 0 or values.shape != (count,):
        raise BadInput(
            f"{count} forests cannot be joined with weights of shape {values.shape}; give one for each",
            code="mismatched-shapes",
        )
    if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
        raise BadInput("the weights of forests must be finite, not negative, and not all zero", code="bad-weights")
    shares: Array = values / values.sum()
    return shares


def _pad(array: Array, *, nodes: int, fill: int) -> Array:
    """Pad (T, N, ...) to (T, nodes, ...): room for the nodes of the largest tree."""
    width = [(0, 0), (0, nodes - array.shape[1])] + [(0, 0)] * (array.ndim - 2)
    return np.pad(array, width, constant_values=fill)


def _require(sound: bool | np.bool_, problem: str) -> None:
    if not sound:
        raise BadInput(f"this is not a valid forest: {problem}", code="damaged-model")


def _convert_exactly(name: str, array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return a fresh array of the right type; refuse numbers that are not finite or not whole."""
    array = np.asarray(array)
    _require(array.dtype.kind in "iuf", f"'{name}' holds {array.dtype}, not numbers")
    if dtype.kind == "i":
        valid = (array >= -1) & (array < 2**31) & (array == np.trunc(array))
        _require(valid.all(), f"'{name}' holds something that is no index")
    with np.errstate(over="ignore"):
        out = np.array(array, dtype, order="C")
    _require(np.isfinite(out).all(), f"'{name}' is not finite everywhere")
    return out


def _check_shapes(forest: Forest) -> None:
    shape = forest.feature.shape
    _require(len(shape) == 2 and min(shape) > 0, f"'feature' has shape {shape}, not (trees, nodes)")
    for name in ("threshold", "left", "right"):
        _require(getattr(forest, name).shape == shape, f"'{name}' and 'feature' differ in shape")
    value = forest.value.shape
    _require(len(value) == 3 and value[:2] == shape and value[2] > 0, f"'value' has shape {value}")
    _require(forest.weight.shape == shape[:1], f"'weight' has shape {forest.weight.shape}")


def _check_links(forest: Forest) -> None:
    """Check that every child lies after its parent, inside the tree, and has no other parent: there are no cycles."""
    split = forest.feature >= 0
    tree, parent = np.nonzero(split)
    children = np.stack([forest.left[split], forest.right[split]])
    leaves = np.stack([forest.left[~split], forest.right[~split]])
    _require((leaves == -1).all(), "a leaf has children")
    _require((children < forest.nodes).all(), "a child lies outside its tree")
    _require((children > parent).all(), "a child does not come after its parent")
    parents = np.bincount((children + tree * forest.nodes).ravel(), minlength=1)
    _require(parents.max() <= 1, "a node has two parents")


def _check_vote(forest: Forest) -> None:
    """Check the vote: weights sum to one, and so do the class shares of every node that can be reached."""
    _require((forest.weight >= 0).all(), "a tree has a negative weight")
    _require(abs(forest.weight.sum() - 1) <= _SLACK, "the weights of the trees do not sum to one")
    _require((forest.value >= 0).all(), "a class share is negative")
    total = forest.value.sum(axis=2, dtype=np.float64).ravel()[np.concatenate(forest._levels)]
    _require((np.abs(total - 1) <= _SLACK).all(), "the class shares of a node do not sum to one")
