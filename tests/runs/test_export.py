"""Exported models give the same risks as the run itself: by hand from JSON, and in ONNX Runtime."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.runs.export import export, score_json, to_json
from tests.runs.test_run import frame
from tests.support import patients, refused


@pytest.fixture(scope="module", params=[("logistic", 2), ("logistic", 3), ("mlp", 2), ("mlp", 3)])
def run(request, tmp_path_factory) -> gr.Run:
    model, classes = request.param
    table = patients([70, 50], classes=classes)
    nyha = ["I", "II", "III"] * 40
    smoker = ["yes", "no"] * 60
    experiment = gr.Experiment.parse(
        {
            "data": {"label": "died", "site": "hospital", "kinds": {"nyha": ["I", "II", "III"]}, "max_categories": 2},
            "model": {"name": model, "hidden": [6]},
            "method": {"rounds": 4},
            "engine": {"precision": "float64"},
        }
    )
    held = table.with_columns({"nyha": nyha, "smoker": smoker})
    return gr.run(experiment, table=frame(held), out=tmp_path_factory.mktemp("export") / "r")


@pytest.fixture
def rows(run):
    """New patients: gaps, an unseen category, a value far outside."""
    table = patients([12], seed=3, classes=len(run.model.encoding.classes))
    ward = ["medical", "surgical", "cardiac", "heliport", None, "medical"] * 2
    lactate = np.array(table.columns["lactate"])
    lactate[:3] = [np.nan, 1e5, -4.0]
    changed = {"ward": ward, "lactate": lactate, "nyha": ["I", None, "III"] * 4, "smoker": ["yes", "no", None] * 4}
    return table.with_columns(changed)


def test_json_scored_by_hand_equals_predict(run, rows, tmp_path):
    export(run.model, "json", tmp_path / "m.json")
    values = json.loads((tmp_path / "m.json").read_text())
    levels = values["ordinal_levels"]["nyha"]
    expected = run.model.predict(rows).probabilities
    for i in range(len(rows)):
        row = {n: c[i] for n, c in rows.columns.items()}
        row = {n: None if v is None or v != v else v for n, v in row.items()}
        row["nyha"] = None if row["nyha"] is None else float(levels.index(row["nyha"]))
        np.testing.assert_allclose(score_json(values, row), expected[i], rtol=1e-9)


def test_a_logistic_model_reads_as_intercept_and_coefficients(run, rows):
    values = to_json(run.model)
    if len(values["classes"]) > 2 or len(values["layers"]) > 1:
        assert "coefficients" not in values
        return
    from grandrounds.data.dataset import read_new_rows

    x = run.model.encoding.encode(read_new_rows(rows, run.model.schema), np.float64)
    z = values["intercept"] + sum(
        values["coefficients"][f] * x[0, j] for j, f in enumerate(run.model.encoding.features)
    )
    assert 1 / (1 + math.exp(-z)) == pytest.approx(run.model.predict(rows).risk[0], rel=1e-9)


def test_onnx_runtime_equals_predict(run, rows, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    export(run.model, "onnx", tmp_path / "m.onnx")
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    feed = {}
    for item in session.get_inputs():
        column = rows.columns[item.name]
        if item.type == "tensor(string)":
            feed[item.name] = np.array([[v or ""] for v in column], object)
        elif item.name == "nyha":
            feed[item.name] = np.array(
                [[np.nan if v is None else ["I", "II", "III"].index(v)] for v in column], np.float32
            )
        else:
            feed[item.name] = column.astype(np.float32)[:, None]
    (got,) = session.run(["probabilities"], feed)
    np.testing.assert_allclose(got, run.model.predict(rows).probabilities, rtol=1e-4, atol=1e-6)


def test_unknown_formats_and_unwritable_paths_are_refused(run, tmp_path):
    with refused("unknown-format", match="cannot export to 'pkl'; known: json, onnx"):
        export(run.model, "pkl", tmp_path / "m")
    with refused("cannot-write"):
        export(run.model, "json", tmp_path / "no" / "such" / "m.json")
