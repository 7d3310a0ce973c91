"""Trees of a trained model as plain nodes, from which they are written for other programs.

A node reads a clinical column as it is recorded: it asks `value <= threshold` of a number, or whether a category is one of a set
of levels, and sends missing values to a stated side. Agreed ranges and values that stand for missing ones are part of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.capabilities.statistics.models.column_model import LINE
from grandrounds.capabilities.statistics.models.column_trees import Trees, TreesModel
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import COUNT, REGRESSION
from grandrounds.data.encoding import Encoding, Numeric
from grandrounds.data.kinds import outcome_of
from grandrounds.runs.model import TrainedModel

LARGEST = float(np.finfo(np.float32).max)
"""Threshold above all values, also in 32 bits."""


@dataclass(frozen=True)
class Split:
    """A node with two children.

    Attributes:
        column: Place of the column.
        threshold: Numbers up to it go left; not used for a category.
        levels: Levels of a category that go left; None for a number.
        others: Levels of a category that go right.
        missing_left: True if missing values go left.
        left: The left child: a split, or the value of a leaf.
        right: The right child.
    """

    column: int
    threshold: float
    levels: frozenset[int] | None
    others: frozenset[int]
    missing_left: bool
    left: Split | float
    right: Split | float


Node = Split | float
"""A split, or the value of a leaf."""


@dataclass(frozen=True)
class PlainTrees:
    """The trees of a model, with the columns that they read.

    Attributes:
        columns: The columns.
        roots: The trees; a leaf has what it adds to the score, calibration included.
        output: Output of each tree.
        constant: (outputs,) what is added to the trees.
    """

    columns: tuple[Column, ...]
    roots: tuple[Node, ...]
    output: tuple[int, ...]
    constant: Array

    @property
    def outputs(self) -> int:
        """Number of scores."""
        return len(self.constant)

    def in_outcome_units(self, model: TrainedModel) -> PlainTrees:
        """Return trees whose sum is the predicted number itself, or the log of the expected count; of other tasks the same."""
        outcome = outcome_of(model.encoding)
        if outcome is None or outcome.task not in (REGRESSION, COUNT):
            return self
        if outcome.task == COUNT:
            return PlainTrees(self.columns, self.roots, self.output, self.constant + np.log(outcome.scale))
        roots = tuple(map_leaves(root, lambda v: v * outcome.scale) for root in self.roots)
        return PlainTrees(self.columns, roots, self.output, self.constant * outcome.scale + outcome.centre)


def plain_trees(model: TrainedModel) -> PlainTrees:
    """Convert the trees of a trained model.

    Args:
        model: A model 'trees'.

    Returns:
        Its trees as nodes of recorded columns.

    Raises:
        BadInput: The model has no such trees.
    """
    net, encoding = model.net, model.encoding
    if not (isinstance(net, TreesModel) and isinstance(encoding, Encoding)):
        raise BadInput(
            f"only models 'trees' are exported as trees of LightGBM and XGBoost; this one is '{model.spec['name']}': use onnx",
            code="model-not-exportable",
        )
    arrays = net.read(model.theta)
    trees = net.trees(arrays)
    slope, intercept = arrays[LINE]
    rules = {rule.name: rule for rule in encoding.numeric}
    convert = [_converter(trees, c, column, rules.get(column.name)) for c, column in enumerate(net.columns)]

    def node(t: int, j: int) -> Node:
        c = int(trees.column[t, j])
        if c < 0:
            return float(trees.value[t, j] * slope)
        return convert[c](int(trees.masks[t, j]), node(t, 2 * j + 1), node(t, 2 * j + 2))

    roots = tuple(node(t, 0) for t in range(trees.trees))
    return PlainTrees(net.columns, roots, tuple(trees.output.tolist()), trees.start * slope + intercept)


def map_leaves(node: Node, change: Callable[[float], float]) -> Node:
    """Return a tree with changed values of leaves."""
    if not isinstance(node, Split):
        return change(node)
    left, right = map_leaves(node.left, change), map_leaves(node.right, change)
    return replace(node, left=left, right=right)


def _converter(trees: Trees, c: int, column: Column, rule: Numeric | None) -> Callable[[int, Node, Node], Split]:
    """Return the function that turns a mask of a column's bins into a split."""
    count = int(trees.edge_counts[c])
    if column.is_category:
        bins = [min(level, count) + 1 for level in range(len(column.levels))]

        def by_levels(mask: int, left: Node, right: Node) -> Split:
            levels = frozenset(level for level, b in enumerate(bins) if mask >> b & 1)
            return Split(c, 0.0, levels, frozenset(range(len(bins))) - levels, bool(mask & 1), left, right)

        return by_levels
    assert rule is not None
    edges = trees.edges[c, :count]
    stand_in = 0 if rule.indicator else 1 + int(np.searchsorted(edges, np.clip(rule.fill, rule.low, rule.high)))

    def by_threshold(mask: int, left: Node, right: Node) -> Split:
        run = (mask | 1) + 1
        if run & (run - 1):
            raise BadInput(
                f"a tree divides '{column.name}' into more than two ranges, which other programs cannot read",
                code="model-not-exportable",
            )
        below = run.bit_length() - 2  # bins of values that go left: 1, ..., below
        threshold = LARGEST if below > count else -LARGEST if below == 0 else float(edges[below - 1])
        threshold = LARGEST if threshold >= rule.high else -LARGEST if threshold < rule.low else threshold
        return Split(c, threshold, None, frozenset(), bool(mask >> stand_in & 1), left, right)

    return by_threshold
