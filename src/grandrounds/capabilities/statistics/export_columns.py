"""ONNX graphs of models that read whole columns: additive models, step scores, trees and cards, from the recorded columns.

Numbers are inputs of 32 bits, as in the graphs of other models. So edges of bins are rounded to the nearest number of 32 bits:
a value that equals an edge stays on its side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.models.card import meet_terms
from grandrounds.capabilities.statistics.models.column_model import LINE, ColumnModel
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.plain_trees import Node, Split, plain_trees
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.models.risk_card import ABOVE, AT_MOST, KINDS, LEVEL, MISSING
from grandrounds.runs.model import TrainedModel
from grandrounds.runs.onnx_graph import Graph, finish_graph


@dataclass(frozen=True)
class Input:
    """A column in the graph.

    Attributes:
        column: The column.
        value: Node with the numbers (n, 1) as doubles within the agreed range, missing ones replaced; "" for a category.
        raw: Node with the numbers as doubles, NaN where missing; "" for a category.
        missing: Node that is true where a number is missing and stays so, (n, 1); "" for a category.
        levels: Node with 0/1 doubles (n, 1 + levels): missing, then each level; "" for a number.
    """

    column: Column
    value: str = ""
    raw: str = ""
    missing: str = ""
    levels: str = ""


def build_column_graph(model: TrainedModel) -> Any:
    """Build the checked ModelProto of a model that reads whole columns.

    Args:
        model: The trained model.

    Raises:
        BadInput: There is no graph for a model of this kind.
    """
    net, encoding = model.net, model.encoding
    assert isinstance(net, ColumnModel) and isinstance(encoding, Encoding)
    if net.kernel not in _SCORES:
        raise BadInput(f"models '{net.kernel}' are not exported to onnx", code="model-not-exportable")
    g = Graph()
    rules: dict[str, Numeric | Categorical] = {r.name: r for r in encoding.numeric}
    rules |= {r.name: r for r in encoding.categorical}
    inputs = [_input(g, column, rules[column.name]) for column in net.columns]
    scores = _SCORES[net.kernel](g, inputs, model)
    return finish_graph(g, scores, model, outputs=net.outputs)


def _input(g: Graph, column: Column, rule: Numeric | Categorical) -> Input:
    from onnx import TensorProto

    if isinstance(rule, Categorical):
        words = column.words[: len(rule.levels)]
        code = g.node(
            "LabelEncoder",
            g.input(column.name, TensorProto.STRING),
            domain="ai.onnx.ml",
            keys_strings=[*words, ""],
            values_int64s=[*range(1, len(words) + 1), 0],
            default_int64=len(column.words) if rule.other else 0,
        )
        wanted = g.constant(np.arange(len(column.words) + 1, dtype=np.int64)[None, :])
        return Input(column, levels=g.node("Cast", g.node("Equal", code, wanted), to=TensorProto.DOUBLE))
    raw = g.node("Cast", g.input(column.name, TensorProto.FLOAT), to=TensorProto.DOUBLE)
    gap = g.node("IsNaN", raw)
    x = g.node("Where", gap, g.constant(np.array([rule.fill])), raw)
    x = g.node("Min", g.node("Max", x, g.constant(np.array([rule.low]))), g.constant(np.array([rule.high])))
    never = g.node("And", gap, g.constant(np.array([False])))
    return Input(column, value=x, raw=raw, missing=gap if rule.indicator else never)


def _total(g: Graph, parts: list[str], arrays: Mapping[str, Array], start: Array) -> str:
    """Add the scores of columns, (n, outputs) each, and apply the calibration."""
    slope, intercept = arrays[LINE]
    total = g.node("Sum", *parts, g.constant(np.asarray(start, np.float64)[None, :]))
    return g.node("Add", g.node("Mul", total, g.constant(np.array([slope]))), g.constant(np.array([intercept])))


def _either(g: Graph, source: Input, gap: Array, known: str) -> str:
    """Return `gap` (outputs,) where a number is missing, else the node `known`."""
    return g.node("Where", source.missing, g.constant(np.asarray(gap, np.float64)[None, :]), known)


def _steps(g: Graph, inputs: list[Input], model: TrainedModel) -> str:
    """Add the score of each column's bin."""
    net: Any = model.net
    arrays = net.read(model.theta)
    parts = []
    for source, edges, score in zip(inputs, net.column_edges(arrays), arrays["score"], strict=True):
        if source.column.is_category:
            table = score[: 1 + len(source.column.words)]
            parts.append(g.node("MatMul", source.levels, g.constant(table)))
            continue
        above = _above(g, source.value, edges)
        jumps = g.node("MatMul", above, g.constant(np.diff(score[1 : len(edges) + 2], axis=0)))
        parts.append(_either(g, source, score[0], g.node("Add", jumps, g.constant(score[1][None, :]))))
    return _total(g, parts, arrays, arrays["start"])


def _above(g: Graph, value: str, edges: Array) -> str:
    """Return 0/1 doubles (n, edges): the number lies above the edge."""
    from onnx import TensorProto

    near = np.asarray(edges, np.float32).astype(np.float64)
    return g.node("Cast", g.node("Greater", value, g.constant(near[None, :])), to=TensorProto.DOUBLE)


def _additive(g: Graph, inputs: list[Input], model: TrainedModel) -> str:
    """Add the curve or the level of each column."""
    net: Any = model.net
    arrays = net.read(model.theta)
    parts = []
    for c, source in enumerate(inputs):
        size, curve, gap = int(arrays["sizes"][c]), arrays["curve"][c], arrays["gaps"][c : c + 1]
        if source.column.is_category:
            table = np.concatenate([gap, arrays["levels"][c, : len(source.column.words)]])[:, None]
            parts.append(g.node("MatMul", source.levels, g.constant(table)))
        elif size == 1:
            knot = np.float32(arrays["knots"][c, 0]).astype(np.float64)
            high = g.node("GreaterOrEqual", source.value, g.constant(np.array([[knot]])))
            values = g.node("Where", high, g.constant(np.array([[curve[1]]])), g.constant(np.array([[curve[0]]])))
            parts.append(_either(g, source, gap, values))
        elif size:
            rank = _rank(g, source.value, arrays["knots"][c, :size], arrays["ranks"][c, :size])
            parts.append(_either(g, source, gap, _spline(g, rank, curve)))
        else:
            nothing = g.node("Mul", source.value, g.constant(np.array([[0.0]])))
            parts.append(_either(g, source, gap, nothing))
    return _total(g, parts, arrays, arrays["intercept"])


def _rank(g: Graph, value: str, knots: Array, ranks: Array) -> str:
    """Return the straight lines between (knots, ranks): each segment adds its share of the rise, between 0 and 1."""
    share = g.node("Sub", value, g.constant(knots[None, :-1]))
    share = g.node("Div", share, g.constant(np.diff(knots)[None, :]))
    share = g.node("Clip", share, g.constant(np.array(0.0)), g.constant(np.array(1.0)))
    rise = g.node("MatMul", share, g.constant(np.diff(ranks)[:, None]))
    return g.node("Add", rise, g.constant(np.array([[ranks[0]]])))


def _spline(g: Graph, rank: str, curve: Array) -> str:
    """Return a curve of cubic B-splines: ((2 - d)+^3 - 4 (1 - d)+^3) / 6 at the distance d from each one's middle."""
    splines = len(curve)
    inside = g.node("Clip", rank, g.constant(np.array(0.0)), g.constant(np.array(1.0)))
    place = g.node("Mul", inside, g.constant(np.array([[splines - 3.0]])))
    distance = g.node("Abs", g.node("Sub", place, g.constant(np.arange(splines, dtype=np.float64)[None, :] - 1)))
    cubes = []
    for reach in (2.0, 1.0):
        part = g.node("Relu", g.node("Sub", g.constant(np.array([[reach]])), distance))
        cubes.append(g.node("Mul", g.node("Mul", part, part), part))
    basis = g.node("Sub", cubes[0], g.node("Mul", cubes[1], g.constant(np.array([[4.0]]))))
    return g.node("MatMul", basis, g.constant(curve[:, None] / 6))


def _trees(g: Graph, inputs: list[Input], model: TrainedModel) -> str:
    """Add a tree ensemble. It reads numbers, and a 0/1 input for each set of levels that a split asks for."""
    from onnx import TensorProto, numpy_helper

    trees = plain_trees(model)
    sets: dict[int, dict[tuple[frozenset[int], bool], int]] = {}
    for root in trees.roots:
        _find_sets(root, sets)
    blocks, place = [], {}
    width = 0
    for c, source in enumerate(inputs):
        if not source.column.is_category:
            blocks.append(source.raw)
            place[c] = width
            width += 1
        elif c in sets:
            table = np.zeros((1 + len(source.column.words), len(sets[c])))
            for (levels, missing), k in sets[c].items():
                table[[1 + level for level in levels], k] = 1
                table[0, k] = missing
            blocks.append(g.node("MatMul", source.levels, g.constant(table)))
            place[c] = width
            width += len(sets[c])
    ensemble = _Ensemble(sets, place)
    for root, output in zip((*trees.roots, 0.0), (*trees.output, 0), strict=True):  # the last: a model without trees
        ensemble.add(root, output)
    doubles = {n: numpy_helper.from_array(np.array(v, np.float64), n) for n, v in ensemble.doubles.items()}
    h = g.node(
        "TreeEnsembleRegressor",
        g.node("Concat", *blocks, axis=1),
        domain="ai.onnx.ml",
        n_targets=trees.outputs,
        post_transform="NONE",
        aggregate_function="SUM",
        **ensemble.attributes,
        **doubles,
    )
    return g.node("Add", g.node("Cast", h, to=TensorProto.DOUBLE), g.constant(trees.constant[None, :]))


def _find_sets(node: Node, sets: dict[int, dict[tuple[frozenset[int], bool], int]]) -> None:
    """Number the sets of levels that splits of each category ask for."""
    if isinstance(node, Split):
        if node.levels is not None:
            mine = sets.setdefault(node.column, {})
            mine.setdefault((node.levels, node.missing_left), len(mine))
        _find_sets(node.left, sets)
        _find_sets(node.right, sets)


class _Ensemble:
    """Collect the attributes of a TreeEnsembleRegressor."""

    def __init__(self, sets: dict[int, dict[tuple[frozenset[int], bool], int]], place: dict[int, int]) -> None:
        self._sets, self._place = sets, place
        names = [
            "treeids",
            "nodeids",
            "featureids",
            "modes",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        ]
        self.attributes: dict[str, list[Any]] = {f"nodes_{n}": [] for n in names}
        self.attributes |= {f"target_{n}": [] for n in ("treeids", "nodeids", "ids")}
        self.doubles: dict[str, list[float]] = {"nodes_values_as_tensor": [], "target_weights_as_tensor": []}
        self._trees = 0

    def add(self, root: Node, output: int) -> None:
        """Add a tree."""
        self._count = 0
        self._add_node(root, output)
        self._trees += 1

    def _add_node(self, node: Node, output: int) -> int:
        number, a = self._count, self.attributes
        self._count += 1
        row = len(a["nodes_nodeids"])
        a["nodes_treeids"].append(self._trees)
        a["nodes_nodeids"].append(number)
        for name in ("featureids", "truenodeids", "falsenodeids", "missing_value_tracks_true"):
            a[f"nodes_{name}"].append(0)
        a["nodes_modes"].append("BRANCH_LEQ" if isinstance(node, Split) else "LEAF")
        self.doubles["nodes_values_as_tensor"].append(0.0)
        if not isinstance(node, Split):
            a["target_treeids"].append(self._trees)
            a["target_nodeids"].append(number)
            a["target_ids"].append(output)
            self.doubles["target_weights_as_tensor"].append(float(node))
            return number
        true, false, feature = node.left, node.right, self._place[node.column]
        if node.levels is None:
            limit = float(np.float32(node.threshold))
            a["nodes_missing_value_tracks_true"][row] = int(node.missing_left)
        else:
            true, false, limit = node.right, node.left, 0.5  # the input is 1 in the set, which goes left
            feature += self._sets[node.column][node.levels, node.missing_left]
        a["nodes_featureids"][row] = feature
        self.doubles["nodes_values_as_tensor"][row] = limit
        a["nodes_truenodeids"][row] = self._add_node(true, output)
        a["nodes_falsenodeids"][row] = self._add_node(false, output)
        return number


def _zeros(g: Graph, source: Input) -> str:
    """Return zeros, (n, 1)."""
    from onnx import TensorProto

    if source.column.is_category:
        return g.node("MatMul", source.levels, g.constant(np.zeros((1 + len(source.column.words), 1))))
    return g.node("Mul", g.node("Cast", source.missing, to=TensorProto.DOUBLE), g.constant(np.zeros((1, 1))))


def _card(g: Graph, inputs: list[Input], model: TrainedModel) -> str:
    """Add the points of the terms that a row meets, and look up the log-odds of the printed risk of their sum."""
    from onnx import TensorProto

    net: Any = model.net
    arrays = net.read(model.theta)
    parts = []
    for c, kind, value, points in zip(*(arrays[n] for n in ("column", "kind", "value", "points")), strict=True):
        source, words = inputs[int(c)], KINDS[int(kind)]
        if source.column.is_category:
            levels = np.concatenate([[np.nan], np.arange(len(source.column.words))])[:, None]
            met = meet_terms(levels, np.zeros(1), np.array([kind]), np.array([value])).astype(np.float64)
            parts.append(g.node("MatMul", source.levels, g.constant(met * points)))
            continue
        if words == MISSING:
            met_here = source.missing
        else:
            op = {AT_MOST: "LessOrEqual", ABOVE: "Greater", LEVEL: "Equal"}[words]
            near = np.float32(value).astype(np.float64)
            compared = g.node(op, source.value, g.constant(np.array([[near]])))
            met_here = g.node("And", compared, g.node("Not", source.missing))
        parts.append(g.node("Mul", g.node("Cast", met_here, to=TensorProto.DOUBLE), g.constant(np.array([[points]]))))
    risk = arrays["risk"]
    scores = arrays[LINE][0] * (np.log(risk) - np.log1p(-risk))
    total = g.node("Sum", _zeros(g, inputs[0]), *parts)
    reached = g.node("GreaterOrEqual", total, g.constant(arrays["first"][None, 1:]))
    jumps = g.node("MatMul", g.node("Cast", reached, to=TensorProto.DOUBLE), g.constant(np.diff(scores)[:, None]))
    return g.node("Add", jumps, g.constant(scores[:1][None, :]))


_SCORES: dict[str, Callable[[Graph, list[Input], TrainedModel], str]] = {
    "gam": _additive,
    "steps": _steps,
    "trees": _trees,
    "card": _card,
}
"""The scores of a graph, by kernel."""
