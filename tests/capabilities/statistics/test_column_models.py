"""Models of whole columns in runs: pooled equals federated, either class may be the event, odd rows, explanations, exports."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.case_page import value_text
from grandrounds.capabilities.statistics.export_trees import to_lightgbm
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.table import Table
from grandrounds.explain.quality import randomize
from grandrounds.models.dense import class_probabilities
from grandrounds.runs.export import to_onnx
from grandrounds.runs.model import TrainedModel
from grandrounds.runs.run_rows import RunRows
from tests.runs.test_run import frame
from tests.support import patients, refused, slow

SMALL = {"rounds": 3, "depth": 3, "parallel": 2, "columns": 0.6}
HEART = {"data": {"name": "heart"}, "explain": {"sketch": "none"}}


def fit(out, model: str, how: str, table=None, **changes) -> gr.Run:
    sections = {
        **HEART,
        **({"data": {"label": "died", "site": "hospital"}} if table is not None else {}),
        "model": {"name": model},
        "method": {"name": how, **({"trees": SMALL} if model == "trees" else {})},
        **changes,
    }
    return gr.run(gr.Experiment.parse(sections), table=table, out=out)


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> gr.Run:
    return fit(tmp_path_factory.mktemp("heart") / "trees", "trees", "trees")


@pytest.fixture
def odd_rows() -> pd.DataFrame:
    """Gaps, unknown levels, absent columns, a value far outside."""
    return pd.DataFrame(
        {
            "age": [50, np.nan, 70, 1e6],
            "sex": ["male", "female", None, "unknown"],
            "chest_pain": ["asymptomatic", "typical angina", "martian", None],
            "cholesterol": [200, np.nan, 0, 300],
        }
    )


def test_pooled_trees_have_the_bits_of_federated_ones(trees, tmp_path):
    pooled = fit(tmp_path / "pooled", "trees", "pooled")
    assert np.array_equal(pooled.model.theta, trees.model.theta)
    assert pooled.summary["final"]["auroc"] == trees.summary["final"]["auroc"] > 0.8
    assert pooled.summary["rounds"] == 1


def test_pooled_trees_stop_early_where_federated_ones_do(tmp_path):
    table = frame(patients([150, 140, 90], seed=4))
    options = {"trees": {**SMALL, "rounds": 12, "early_stop": 1, "rate": 1.0}}
    runs = [fit(tmp_path / m, "trees", m, table, method={"name": m, **options}) for m in ("trees", "pooled")]
    federated, pooled = (run.model.theta for run in runs)
    assert np.array_equal(federated, pooled)
    assert len(runs[0].model.parameters["value"]) < 24


def test_a_pooled_additive_model_equals_the_federated_one(tmp_path):
    one, other = (fit(tmp_path / method, "gam", method).model for method in ("gam", "pooled"))
    x = np.random.default_rng(0).normal(50, 40, (200, one.net.features))
    np.testing.assert_allclose(one.net.logits(one.theta, x), other.net.logits(other.theta, x), rtol=0, atol=1e-9)


def test_local_models_are_fitted_to_one_site_each(tmp_path):
    table = frame(patients([120, 90, 80]))
    run = fit(tmp_path / "local", "trees", "local", table)
    at_a, at_b = run.model_for("a").theta, run.model_for("b").theta
    assert not np.array_equal(at_a, at_b)
    alone = fit(tmp_path / "alone", "trees", "local", table[table.hospital == "a"].assign(hospital="a"))
    assert alone.model_for("a").net.trees(alone.model_for("a").parameters).trees == 6


@pytest.mark.parametrize("model", ["trees", slow("gam"), slow("card")])
def test_a_site_with_one_class_has_its_share_as_local_model(model, tmp_path):
    table = frame(patients([120, 110, 90], seed=4))
    table = table[(table.hospital != "b") | (table.died == 0)]
    options = {"method": {"name": "local", "card": {"terms": 3}, "trees": SMALL}}
    run = fit(tmp_path / "local", model, "local", table, **options)
    risks = {site: run.model_for(site).predict(table).risk for site in "ab"}
    n = run.summary["rows"]["b"]["train"]
    np.testing.assert_allclose(risks["b"], 0.5 / (n + 1), rtol=1e-9)
    assert len(set(risks["a"])) > 3


def test_a_site_whose_rows_allow_no_fit_is_named(tmp_path):
    table = frame(patients([120, 12, 90], seed=4))
    with refused("no-rows", match="site 'b' by itself: no column"):
        fit(tmp_path / "local", "card", "local", table)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("logistic", "glm"),
        ("trees", "pooled"),
        *(slow(name, name) for name in ("gam", "trees", "card")),
    ],
)
def test_the_event_may_be_the_first_class(model, method, tmp_path):
    table = frame(patients([120, 110, 90], seed=4))
    words = table.assign(died=np.where(table.died == 1, "died", "survived"))
    run = fit(tmp_path / "first", model, method, words)
    assert run.model.encoding.classes == ("died", "survived") and run.model.event.word == "died"
    section = {"label": "died", "site": "hospital", "positive": "died"}  # the event is the last class
    last = fit(tmp_path / "last", model, method, words, data=section)
    np.testing.assert_allclose(run.model.predict(words).risk, last.model.predict(words).risk, atol=1e-9)
    for part in ("auroc", "log_loss"):
        assert run.summary["final"][part] == pytest.approx(last.summary["final"][part], abs=1e-9)
    risk, died = run.model.predict(words).risk, (words.died == "died").to_numpy()
    assert risk[died].mean() > risk[~died].mean() + 0.1


def test_new_rows_with_gaps_unknown_levels_and_absent_columns(trees, odd_rows):
    found = trees.model.predict(odd_rows)
    assert np.isfinite(found.risk).all() and len(set(found.risk)) > 1
    for words in ("'vessels' is absent: it reads as missing", "'martian' of 'chest_pain'", "it reads as missing"):
        assert any(words in note for note in found.notes)
    gap = odd_rows.assign(
        chest_pain=["asymptomatic", "typical angina", None, None]
    )  # an unknown level reads as no value
    assert np.array_equal(found.risk, trees.model.predict(gap).risk)
    filled = odd_rows.assign(age=[50, trees.model.encoding.numeric[0].fill, 70, 1e6])  # no training row lacks the age
    assert np.array_equal(found.risk, trees.model.predict(filled).risk)


def test_a_model_file_is_read_again_and_holds_no_pickle(trees):
    path = trees.folder / "model.safetensors"
    again = TrainedModel.load(path)
    assert np.array_equal(again.theta, trees.model.theta)
    head = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert {"edges", "column", "low", "high", "value", "line"} <= set(head)


def test_a_damaged_model_file_is_refused(trees, tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(trees.folder / "model.safetensors", "np") as file:
        meta, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({**arrays, "column": arrays["column"] + 90}, tmp_path / "model.safetensors", metadata=meta)
    model = TrainedModel.load(tmp_path / "model.safetensors")
    with refused("damaged-model", match="a column has no edges"):
        model.predict(pd.DataFrame({"age": [50.0]}))


@pytest.mark.parametrize("explainer", ["shap", slow("lime")])
def test_a_patient_is_explained(trees, explainer):
    case = gr.explain_case(trees, 400, explainer=explainer)
    if explainer != "lime":
        assert case.base + sum(a.contribution for a in case.attributions) == pytest.approx(case.score, abs=1e-6)
    missing = [a for a in case.attributions if a.value is None]
    assert missing and not any(a.imputed for a in missing) and {value_text(a) for a in missing} == {"missing"}
    assert any(note.kind == "missing" for note in case.quality)
    assert len(case.attributions) == 13


@pytest.mark.parametrize("explainer", ["deep", "coefficients", "integrated_gradients"])
def test_explainers_that_need_layers_are_refused(trees, explainer):
    with refused("explainer-does-not-fit", match="use shap, kernel, lime"):
        gr.explain_case(trees, 5, explainer=explainer)


def test_parameters_of_trees_cannot_be_drawn_anew(trees):
    with refused("no-parameters", match="kind 'trees' has no layers"):
        randomize(trees.model.net, trees.model.theta, 0)


def test_exports_of_a_run_predict_what_it_predicts(trees, odd_rows):
    ort, lightgbm = pytest.importorskip("onnxruntime"), pytest.importorskip("lightgbm")
    model = trees.model
    names = [c.name for c in model.net.columns]
    absent = {c.name: [None if c.is_category else np.nan] * len(odd_rows) for c in model.net.columns}
    rows = pd.DataFrame({**absent, **odd_rows})[names]
    expected = model.predict(rows).risk
    session = ort.InferenceSession(to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {
        c.name: np.array([[v or ""] for v in rows[c.name]], object)
        if c.is_category
        else rows[c.name].to_numpy(np.float32)[:, None]
        for c in model.net.columns
    }
    np.testing.assert_allclose(session.run(None, feed)[0][:, 1], expected, atol=1e-6)
    values = rows.copy()
    for column in (c for c in model.net.columns if c.is_category):
        numbers = {word: k for k, word in enumerate(column.words)}
        values[column.name] = [numbers.get(v, np.nan) for v in rows[column.name]]
    booster = lightgbm.Booster(model_str=to_lightgbm(model))
    np.testing.assert_allclose(booster.predict(values.to_numpy(float)), expected, atol=1e-12)


def test_a_mean_patient_has_the_most_frequent_level(trees):
    ecg = ["normal", "normal", "ST-T abnormality", "left ventricular hypertrophy", None]
    data = read_new_rows(Table.from_mapping({"age": [50.0] * 5, "resting_ecg": ecg}, source="rows"), trees.model.schema)
    mean = trees.model.encoding.encode(data, np.float64).mean(axis=0)[None]
    values = trees.model.net.values(mean)[0]
    place = [c.name for c in trees.model.net.columns].index("resting_ecg")
    assert trees.model.net.columns[place].words[int(values[place])] == "normal"


def test_precision_that_rounds_columns_is_refused(tmp_path):
    with refused("method-does-not-fit", match=r"remove engine\.precision"):
        fit(tmp_path / "r", "trees", "trees", engine={"precision": "float32"})


def test_trees_of_a_number_have_the_same_bits_for_any_division(tmp_path):
    table = frame(patients([120, 110, 90], seed=4)).drop(columns="died").dropna(subset="lactate")
    section = {"label": "lactate", "site": "hospital", "task": "regression"}
    three = fit(tmp_path / "three", "trees", "trees", table, data=section).model
    pooled = fit(tmp_path / "pooled", "trees", "pooled", table, data=section).model
    assert three.encoding.outcome == pooled.encoding.outcome
    assert np.array_equal(three.theta, pooled.theta)


@pytest.mark.data("eicu_demo")
def test_trees_of_104_real_columns_in_onnx_runtime_and_lightgbm(tmp_path):
    ort, lightgbm = pytest.importorskip("onnxruntime"), pytest.importorskip("lightgbm")
    run = fit(tmp_path / "eicu", "trees", "pooled", data={"name": "eicu-demo"})
    model, data = run.model, RunRows.read(run, None).consortium.data
    x = model.encoding.encode(data, np.float64)
    expected = class_probabilities(model.net.logits(model.theta, x))
    feed = {}
    for column in model.net.columns:
        if column.is_category:
            j = data.categorical_names.index(column.name)
            words = ["" if code < 0 else data.vocabulary[j][code] for code in data.codes[:, j].tolist()]
            feed[column.name] = np.array(words, object)[:, None]
        else:
            number = data.numeric[:, data.numeric_names.index(column.name)]
            feed[column.name] = number.astype(np.float32)[:, None]
    session = ort.InferenceSession(to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feed)[0], expected, atol=1e-6)
    booster = lightgbm.Booster(model_str=to_lightgbm(model))
    np.testing.assert_allclose(booster.predict(model.net.values(x)), expected[:, 1], atol=1e-12)
    shares = model.net.shapley(model.theta, x, x[:100]).sum(axis=2)
    logits = model.net.logits(model.theta, x)
    np.testing.assert_allclose(shares, logits - logits[:100].mean(axis=0), atol=1e-10)
