"""The ONNX graph of a trained model: preparation of raw columns, layers, link."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.models import Dense
from grandrounds.runs.model import TrainedModel


class _Graph:
    """Collects nodes and constants under fresh names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], domain=domain, **attributes))
        return name

    def input(self, name: str, kind: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["n", 1]))
        return name


def build(model: TrainedModel, net: Dense, encoding: Encoding) -> Any:
    """A checked ModelProto. Numbers are double inside, as in the package's own preparation."""
    g = _Graph()
    numeric = [_numeric(g, rule) for rule in encoding.numeric]
    blocks = [x for x, _ in numeric] + [gap for _, gap in numeric if gap]
    blocks += [_categorical(g, rule) for rule in encoding.categorical]
    h = g.node("Concat", *blocks, axis=1)
    p = model.parameters
    last = len(net.widths) - 2
    for i in range(last + 1):
        weight, bias = (g.constant(p[f"layer{i}.{part}"].astype(np.float64)) for part in ("weight", "bias"))
        h = g.node("Add", g.node("MatMul", h, weight), bias)
        if i < last:
            h = g.node("Relu", h)
    if net.outputs == 1:
        risk = g.node("Sigmoid", h)
        h = g.node("Concat", g.node("Sub", g.constant(np.array([1.0])), risk), risk, axis=1)
    else:
        h = g.node("Softmax", h, axis=1)
    g.nodes.append(helper.make_node("Identity", [h], ["probabilities"]))
    out = helper.make_tensor_value_info("probabilities", TensorProto.DOUBLE, ["n", len(encoding.classes)])
    graph = helper.make_graph(g.nodes, "grandrounds", g.inputs, [out], g.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, producer_name="grandrounds", ir_version=8)
    event = [] if model.event is None else [model.event.word]
    for key, value in (("classes", encoding.classes), ("event", event), ("threshold", [model.threshold])):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, ",".join(str(v) for v in value)
    checker.check_model(proto)
    return proto


def _numeric(g: _Graph, rule: Numeric) -> tuple[str, str]:
    raw = g.node("Cast", g.input(rule.name, TensorProto.FLOAT), to=TensorProto.DOUBLE)
    gap = g.node("IsNaN", raw)
    x = g.node("Where", gap, g.constant(np.array([rule.fill])), raw)
    x = g.node("Min", g.node("Max", x, g.constant(np.array([rule.low]))), g.constant(np.array([rule.high])))
    x = g.node("Div", g.node("Sub", x, g.constant(np.array([rule.centre]))), g.constant(np.array([rule.scale])))
    return x, g.node("Cast", gap, to=TensorProto.DOUBLE) if rule.indicator else ""


def _categorical(g: _Graph, rule: Categorical) -> str:
    raw = g.input(rule.name, TensorProto.STRING)
    codes = list(range(len(rule.levels)))
    other = len(rule.levels) if rule.other else -1
    code = g.node(
        "LabelEncoder",
        raw,
        domain="ai.onnx.ml",
        keys_strings=[*rule.levels, ""],
        values_int64s=[*codes, -1],
        default_int64=other,
    )
    wanted = g.constant(np.arange(len(rule.levels) + rule.other, dtype=np.int64)[None, :])
    return g.node("Cast", g.node("Equal", code, wanted), to=TensorProto.DOUBLE)
