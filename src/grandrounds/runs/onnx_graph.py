"""An ONNX graph under construction: nodes, constants and inputs, and the steps from scores to predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grandrounds.core.outcome import COUNT, SURVIVAL
from grandrounds.data.kinds import outcome_of
from grandrounds.data.outcome import Outcome
from grandrounds.runs.model import TrainedModel


class Graph:
    """Collect nodes and constants under fresh names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], domain=domain, **attributes))
        return name

    def input(self, name: str, kind: int) -> str:
        from onnx import helper

        self.inputs.append(helper.make_tensor_value_info(name, kind, ["n", 1]))
        return name


def finish_graph(g: Graph, scores: str, model: TrainedModel, *, outputs: int) -> Any:
    """Add the steps from scores to predictions, and return the checked ModelProto.

    Args:
        g: The graph.
        scores: The node with the scores, (n, outputs) of doubles.
        model: The trained model.
        outputs: Number of scores.

    Returns:
        The model: output `probabilities` (n, classes), or `prediction` (n, 1) for other outcomes than classes.
    """
    from onnx import TensorProto, checker, helper

    outcome, classes, h = outcome_of(model.encoding), model.encoding.classes, scores
    if outcome is not None:
        h = _predict_outcome(g, h, outcome)
    elif outputs == 1:
        risk = g.node("Sigmoid", h)
        h = g.node("Concat", g.node("Sub", g.constant(np.array([1.0])), risk), risk, axis=1)
    else:
        h = g.node("Softmax", h, axis=1)
    name, width = ("probabilities", len(classes)) if outcome is None else ("prediction", 1)
    g.nodes.append(helper.make_node("Identity", [h], [name]))
    out = helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", width])
    graph = helper.make_graph(g.nodes, "grandrounds", g.inputs, [out], g.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, producer_name="grandrounds", ir_version=8)
    facts: dict[str, Sequence[object]] = {"task": [] if outcome is None else [outcome.task]}
    if outcome is None:
        event = [] if model.event is None else [model.event.word]
        facts = {"classes": classes, "event": event, "threshold": [model.threshold]}
    for key, value in facts.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, ",".join(str(v) for v in value)
    checker.check_model(proto)
    return proto


def _predict_outcome(g: Graph, z: str, outcome: Outcome) -> str:
    """Convert the output of a model to a prediction: identity, exp, or the risk score itself."""
    if outcome.task == SURVIVAL:
        return z
    scale = g.constant(np.array([outcome.scale]))
    if outcome.task == COUNT:
        return g.node("Mul", g.node("Exp", z), scale)
    return g.node("Add", g.node("Mul", z, scale), g.constant(np.array([outcome.centre])))
