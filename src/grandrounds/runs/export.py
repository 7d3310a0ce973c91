"""Export of a trained model for other programs, from the raw columns: JSON to score by hand, ONNX for a runtime, and the formats
that capabilities add.

A classifier gives probabilities. Other outcomes give one prediction: a number (identity), an expected count (exp), or for
survival the log hazard relative to inputs of zero, a risk score without a time scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import write_atomic
from grandrounds.core.capability import Export, collect, load
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.core.outcome import COUNT, REGRESSION, SURVIVAL
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.kinds import outcome_of
from grandrounds.data.outcome import Outcome
from grandrounds.data.schema import Schema
from grandrounds.models import Dense
from grandrounds.models.protocol import COLUMN_KERNELS
from grandrounds.runs.model import TrainedModel
from grandrounds.runs.onnx_graph import Graph, finish_graph

_HOW = (
    "For each numeric column: x = value, or `fill` if missing; x = min(max(x, low), high); input = (x - centre) / scale. "
    "Then, for columns with `indicator`: 1 if the value was missing, else 0. Then, for each categorical column, one input "
    "per level: 1 if the value is that level, else 0 (`other`: one more, for every other value). Inputs in the order of "
    "`features`. Layers: h = max(0, h @ weight + bias), the last one without max. One logit z: probability of the second "
    "class = 1 / (1 + exp(-z)); several: softmax. `event`: the class whose probability is the risk; `threshold` is of it."
)
_PRODUCTS = " Then, for each entry of `products`, the product of the inputs at these places, counted from 0."


_HOW_OUTCOME = {
    REGRESSION: "One output z: prediction = `centre` + `scale` * z, in the units of the outcome.",
    COUNT: "One output z: expected count = `scale` * exp(z).",
    SURVIVAL: "One output z: the log hazard relative to a patient whose inputs are all 0. A higher z is a higher risk; it "
    "gives no probability, because the baseline hazard is not part of the model.",
}
"""The last step of scoring, by task."""


def to_json(model: TrainedModel) -> dict[str, Any]:
    """Return the preparation and parameters of a model: enough to score a patient by hand."""
    net, encoding, schema = dense_parts(model, "json")
    layers = len(net.widths) - 1
    p = model.parameters
    values: dict[str, object] = {
        "schema": 1,
        "how_to_score": _HOW,
        "classes": list(encoding.classes),
        "event": None if model.event is None else model.event.word,
        "threshold": model.threshold,
        "temperature": model.temperature,
        "platt": None if model.calibration is None else model.calibration.platt,
        "numeric": encoding.to_dict()["numeric"],
        "categorical": encoding.to_dict()["categorical"],
        "ordinal_levels": {c.name: list(c.order) for c in schema.features if c.order},
        "features": list(encoding.features),
        "layers": [
            {"weight": p[f"layer{i}.weight"].tolist(), "bias": p[f"layer{i}.bias"].tolist()} for i in range(layers)
        ],
    }
    if encoding.products:
        values["how_to_score"] = _HOW + _PRODUCTS
        values["products"] = [list(places) for places in encoding.product_places]
    if layers == 1 and net.outputs == 1:
        weight = p["layer0.weight"][:, 0].astype(float)
        values["intercept"] = float(p["layer0.bias"][0])
        values["coefficients"] = dict(zip(encoding.features, weight.tolist(), strict=True))
    outcome = outcome_of(encoding)
    if outcome is not None:
        inputs = _HOW.partition(" One logit z")[0] + (_PRODUCTS if encoding.products else "")
        how = f"{inputs} {_HOW_OUTCOME[outcome.task]}"
        values |= {"task": outcome.task, "how_to_score": how, "centre": outcome.centre, "scale": outcome.scale}
        for key in ("classes", "event", "threshold", "temperature", "platt"):
            del values[key]
    return values


def dense_parts(model: TrainedModel, kind: str) -> tuple[Dense, Encoding, Schema]:
    """Return the net, encoding and schema of a logistic or linear model or MLP; other models are refused."""
    if not (isinstance(model.net, Dense) and isinstance(model.encoding, Encoding) and model.schema):
        raise BadInput(
            f"only logistic, linear and mlp models are exported to {kind}; this is '{model.spec['name']}'{_instead(model)}",
            code="model-not-exportable",
        )
    return model.net, model.encoding, model.schema


def _instead(model: TrainedModel) -> str:
    """Name the formats of a model that reads whole columns."""
    if model.net.kernel not in COLUMN_KERNELS:
        return ""
    *first, last = ["onnx", *(kind for kind, export in EXPORTS.items() if model.spec["name"] in export.models)]
    return f": use {', '.join(first)} or {last}" if first else f": use {last}"


def to_onnx(model: TrainedModel) -> Any:
    """Build an ONNX graph from raw columns, each an input of shape (n, 1): float (NaN is missing) or string ("" is missing).

    Ordinal columns enter as the number of their level, counted from 0. Output: `probabilities` (n, classes); for other
    outcomes than classes `prediction` (n, 1).
    """
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise BadInput(
            f"export to ONNX needs the package onnx; {install_extra('onnx')}", code="missing-package"
        ) from None

    if model.net.kernel in COLUMN_KERNELS:
        return load(COLUMN_KERNELS[model.net.kernel].onnx)(model)
    net, encoding, _ = dense_parts(model, "onnx")
    return build_graph(model, net, encoding)


EXPORTS: Mapping[str, Export] = collect("exports")
"""Formats of capabilities."""

FILES = {"json": "model.json", "onnx": "model.onnx", **{kind: export.file for kind, export in EXPORTS.items()}}
"""Formats, and the file that each is written to in the run folder."""


def export(model: TrainedModel, kind: str, path: Path) -> None:
    """Write the model to a file.

    Args:
        model: The model.
        kind: A format of `FILES`.
        path: The file.

    Raises:
        BadInput: The format is unknown or does not fit the model, or the file cannot be written.
    """
    if kind not in FILES:
        raise BadInput(f"cannot export to '{kind}'; known: {', '.join(FILES)}", code="unknown-format")
    if kind == "json":
        data = json.dumps(to_json(model), indent=1).encode()
    elif kind == "onnx":
        data = to_onnx(model).SerializeToString()
    else:
        data = load(EXPORTS[kind].write)(model).encode()
    try:
        write_atomic(path, data)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None


def score_json(values: dict[str, Any], row: dict[str, Any]) -> list[float]:
    """Score one patient with an exported JSON model, as `how_to_score` states; None is missing.

    Args:
        values: The exported model.
        row: Values by column.

    Returns:
        The probability of each class; for other outcomes the prediction alone.
    """
    x = []
    for r in values["numeric"]:
        v = row.get(r["name"])
        v = r["fill"] if v is None else v
        x.append((min(max(v, r["low"]), r["high"]) - r["centre"]) / r["scale"])
    x += [float(row.get(r["name"]) is None) for r in values["numeric"] if r["indicator"]]
    for r in values["categorical"]:
        v = row.get(r["name"])
        x += [float(v == level) for level in r["levels"]]
        if r["other"]:
            x.append(float(v is not None and v not in (*r["levels"], r["baseline"])))
    x += [float(np.prod([x[j] for j in places])) for places in values.get("products", ())]
    h = np.array(x)
    for i, layer in enumerate(values["layers"]):
        h = h @ np.array(layer["weight"]) + np.array(layer["bias"])
        if i < len(values["layers"]) - 1:
            h = np.maximum(h, 0)
    if "task" in values:
        return [float(Outcome(values["task"], values["centre"], values["scale"]).predict(h)[0])]
    if len(h) == 1:
        risk = 1 / (1 + np.exp(-h[0]))
        return [1 - risk, risk]
    e = np.exp(h - h.max())
    return [float(v) for v in e / e.sum()]


def build_graph(model: TrainedModel, net: Dense, encoding: Encoding) -> Any:
    """Build a checked ModelProto. It computes in double precision, as the package's own preparation does."""
    g = Graph()
    numeric = [_numeric(g, rule) for rule in encoding.numeric]
    blocks = [x for x, _ in numeric] + [gap for _, gap in numeric if gap]
    blocks += [_categorical(g, rule) for rule in encoding.categorical]
    h = g.node("Concat", *blocks, axis=1)
    if encoding.product_places:
        h = g.node("Concat", h, *(_product(g, h, places) for places in encoding.product_places), axis=1)
    p = model.parameters
    last = len(net.widths) - 2
    for i in range(last + 1):
        weight, bias = (g.constant(p[f"layer{i}.{part}"].astype(np.float64)) for part in ("weight", "bias"))
        h = g.node("Add", g.node("MatMul", h, weight), bias)
        if i < last:
            h = g.node("Relu", h)
    return finish_graph(g, h, model, outputs=net.outputs)


def _numeric(g: Graph, rule: Numeric) -> tuple[str, str]:
    from onnx import TensorProto

    raw = g.node("Cast", g.input(rule.name, TensorProto.FLOAT), to=TensorProto.DOUBLE)
    gap = g.node("IsNaN", raw)
    x = g.node("Where", gap, g.constant(np.array([rule.fill])), raw)
    x = g.node("Min", g.node("Max", x, g.constant(np.array([rule.low]))), g.constant(np.array([rule.high])))
    x = g.node("Div", g.node("Sub", x, g.constant(np.array([rule.centre]))), g.constant(np.array([rule.scale])))
    return x, g.node("Cast", gap, to=TensorProto.DOUBLE) if rule.indicator else ""


def _product(g: Graph, inputs: str, places: tuple[int, ...]) -> str:
    """Multiply the inputs at these places."""
    factors = g.node("Gather", inputs, g.constant(np.array(places, np.int64)), axis=1)
    return g.node("ReduceProd", factors, axes=[1], keepdims=1)


def _categorical(g: Graph, rule: Categorical) -> str:
    from onnx import TensorProto

    raw = g.input(rule.name, TensorProto.STRING)
    codes = list(range(len(rule.levels)))
    other = len(rule.levels) if rule.other else -1
    reference = [rule.baseline] if rule.baseline and rule.other else []  # without "other" it is read as any other value
    code = g.node(
        "LabelEncoder",
        raw,
        domain="ai.onnx.ml",
        keys_strings=[*rule.levels, *reference, ""],
        values_int64s=[*codes, *(-1 for _ in reference), -1],
        default_int64=other,
    )
    wanted = g.constant(np.arange(len(rule.levels) + rule.other, dtype=np.int64)[None, :])
    return g.node("Cast", g.node("Equal", code, wanted), to=TensorProto.DOUBLE)
