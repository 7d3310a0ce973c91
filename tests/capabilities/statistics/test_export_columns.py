"""Models of whole columns in ONNX Runtime, LightGBM and XGBoost predict what the product predicts, missing values included."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grandrounds.capabilities.statistics.export_trees import to_lightgbm, to_xgboost
from grandrounds.capabilities.statistics.models.card import CardModel
from grandrounds.capabilities.statistics.models.column_model import ColumnModel
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.capabilities.statistics.models.steps import StepModel
from grandrounds.core.arrays import Array
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.outcome import Outcome
from grandrounds.models.dense import class_probabilities
from grandrounds.runs.export import export, to_json, to_onnx
from grandrounds.runs.model import TrainedModel
from tests.capabilities.statistics.models.random_trees import (
    CATEGORIES,
    FEATURES,
    NUMBERS,
    random_arrays,
    random_rows,
    tree_model,
)
from tests.support import refused

FILL = 0.25
OUTCOMES = {
    "two classes": (2, None),
    "three classes": (3, None),
    "regression": (0, Outcome("regression", 50.0, 3.0)),
    "count": (0, Outcome("count", 0.0, 2.5)),
    "survival": (0, Outcome("survival")),
}


def encoding_of(classes: int, outcome: Outcome | None, *, low: float = -1e300, high: float = 1e300) -> Encoding:
    numbers = tuple(Numeric(c.name, FILL, low, high, 0.0, 1.0, c.missing >= 0) for c in NUMBERS)
    levels = tuple(Categorical(c.name, c.words, other=False) for c in CATEGORIES)
    names = tuple("abc"[:classes])
    return Encoding(numbers, levels, names, (1,) * classes, by_column=True, outcome=outcome)


def trained(
    net: ColumnModel, arrays: dict[str, Array], outcome: Outcome | None = None, **limits: float
) -> TrainedModel:
    theta = net.with_platt(net.pack(arrays), slope=0.6, intercept=0.2)
    encoding = encoding_of(net.classes, outcome, **limits)
    spec = {"name": net.kernel}
    return TrainedModel(net, spec, theta, encoding, None, 0.5)


def trained_trees(kind: str, **limits: float) -> TrainedModel:
    classes, outcome = OUTCOMES[kind]
    net = tree_model(classes=classes, **({} if outcome is None else {"task": outcome.task}))
    return trained(net, random_arrays(net, trees=13, depth=4, edges=12), outcome, **limits)


def recorded(model: TrainedModel, n: int = 2000) -> tuple[Array, Array]:
    """Columns as recorded (n, 5), also without oxygen, which training rows always have; and what the product predicts."""
    net: Any = model.net
    x = random_rows(net, n)
    values = net.values(x)
    values[::7, 2] = np.nan
    x[::7, 2] = FILL
    rule = model.encoding.numeric[0]
    x[:, :3] = np.clip(x[:, :3], rule.low, rule.high)
    z, outcome = net.logits(model.theta, x), model.encoding.outcome
    return values, class_probabilities(z) if outcome is None else outcome.predict(z[:, 0])[:, None]


def run_onnx(model: TrainedModel, values: Array) -> Array:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    feed: dict[str, Array] = {}
    for c, column in enumerate(model.net.columns):
        v = values[:, c]
        words = [["" if np.isnan(level) else column.words[int(level)]] for level in v] if column.is_category else []
        feed[column.name] = np.array(words, object) if column.is_category else v.astype(np.float32)[:, None]
    (got,) = session.run(None, feed)
    return got


@pytest.mark.parametrize("kind", OUTCOMES)
def test_trees_in_onnx_runtime(kind):
    model = trained_trees(kind)
    values, expected = recorded(model)
    np.testing.assert_allclose(run_onnx(model, values), expected, rtol=1e-6, atol=1e-7)
    assert expected.std(axis=0).min() > 0.01


@pytest.mark.parametrize("kind", OUTCOMES)
def test_trees_in_lightgbm_and_xgboost(kind):
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    model = trained_trees(kind)
    values, expected = recorded(model)
    expected = expected[:, 1] if kind == "two classes" else expected if kind == "three classes" else expected[:, 0]
    theirs = lightgbm.Booster(model_str=to_lightgbm(model)).predict(values)
    np.testing.assert_allclose(theirs, expected, rtol=1e-12, atol=1e-12)
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(to_xgboost(model)).encode()))
    names, kinds = [c.name for c in model.net.columns], ["c" if c.is_category else "float" for c in model.net.columns]
    rows = xgboost.DMatrix(values, feature_names=names, feature_types=kinds, enable_categorical=True)
    np.testing.assert_allclose(booster.predict(rows), expected, rtol=1e-5, atol=1e-5)


def test_names_that_other_programs_cannot_read_are_rewritten():
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    model = trained_trees("two classes")
    odd = ("blood pressure [mmHg]", "blood_pressure__mmHg_", 'a<b,"c":=')
    columns = tuple(replace(c, name=n) for c, n in zip(NUMBERS, odd, strict=True)) + CATEGORIES
    numbers = tuple(replace(r, name=n) for r, n in zip(model.encoding.numeric, odd, strict=True))
    renamed = replace(model, net=replace(model.net, columns=columns), encoding=replace(model.encoding, numeric=numbers))
    values, expected = recorded(model)
    booster = lightgbm.Booster(model_str=to_lightgbm(renamed))
    assert len(set(booster.feature_name())) == 5
    np.testing.assert_allclose(booster.predict(values), expected[:, 1], rtol=1e-12)
    other = xgboost.Booster()
    other.load_model(bytearray(json.dumps(to_xgboost(renamed)).encode()))
    assert other.feature_names == booster.feature_name()
    assert json.loads(other.attr("levels"))["ward"] == list("abcd")


def test_agreed_ranges_are_part_of_the_exported_trees():
    model = trained_trees("two classes", low=-0.5, high=0.5)
    values, expected = recorded(model)
    assert np.abs(expected - recorded(trained_trees("two classes"))[1]).max() > 0.01
    np.testing.assert_allclose(run_onnx(model, values), expected, atol=1e-6)
    lightgbm = pytest.importorskip("lightgbm")
    theirs = lightgbm.Booster(model_str=to_lightgbm(model)).predict(values)
    np.testing.assert_allclose(theirs, expected[:, 1], rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_step_scores_in_onnx_runtime(classes):
    rng = np.random.default_rng(0)
    net = StepModel(FEATURES, NUMBERS + CATEGORIES, classes, options={})
    edges = [*(np.sort(np.round(rng.normal(0, 1, 5), 2)) for _ in NUMBERS), *(np.zeros(0) for _ in CATEGORIES)]
    bins = [net.bin_count(c, len(e)) for c, e in zip(net.columns, edges, strict=True)]
    scores = [rng.normal(size=(b, net.outputs)) for b in bins]
    model = trained(net, net.join(edges, scores, rng.normal(size=net.outputs)))
    values, expected = recorded(model)
    np.testing.assert_allclose(run_onnx(model, values), expected, atol=1e-9)


def test_an_additive_model_in_onnx_runtime():
    rng = np.random.default_rng(0)
    net = AdditiveModel(FEATURES, NUMBERS + CATEGORIES, 2, options={})
    knots = np.full((5, 9), np.finfo(float).max)
    ranks = np.ones((5, 9))
    for c, size in ((0, 9), (1, 4)):
        knots[c, :size], ranks[c, :size] = np.sort(rng.normal(size=size)), np.linspace(0.05, 0.95, size)
    knots[2, 0], ranks[2, 0] = 0.31, 0.5  # a column with two values
    arrays = {
        "knots": knots,
        "ranks": ranks,
        "sizes": np.array([9.0, 4, 1, 0, 0]),
        "curve": rng.normal(size=(5, 6)),
        "levels": rng.normal(size=(5, 4)),
        "gaps": rng.normal(size=5),
        "intercept": np.array([-0.4]),
    }
    model = trained(net, arrays)
    values, expected = recorded(model)
    np.testing.assert_allclose(run_onnx(model, values), expected, atol=1e-6)
    assert expected.std(axis=0).min() > 0.05


def test_a_card_in_onnx_runtime():
    net = CardModel(FEATURES, NUMBERS + CATEGORIES, 2, options={})
    terms = {
        "column": [0, 0, 1, 2, 3, 4, 4],
        "kind": [0, 3, 1, 1, 2, 2, 3],  # at most, missing, above, above, level, level, missing
        "value": [0.31, 0, -0.27, 0.25, 1, 2, 0],
        "points": [-2, 1, 3, 4, -1, 2, 1],
        "first": [-3, 0, 2, 3, 6],
        "risk": [0.011, 0.1, 0.25, 0.5, 0.9],
    }
    theta = net.pack({name: np.array(v, float) for name, v in terms.items()})
    model = TrainedModel(net, {"name": "card"}, theta, encoding_of(2, None), None, 0.5)
    values, expected = recorded(model)
    np.testing.assert_allclose(run_onnx(model, values), expected, atol=1e-12)
    assert len(np.unique(expected[:, 1].round(9))) == 5
    empty = replace(model, theta=net.init(0))
    np.testing.assert_allclose(run_onnx(empty, values[:3]), 0.5)


def test_a_model_without_trees_is_exported_as_its_constant():
    net = tree_model()
    model = trained(net, {**net.start(), "start": np.array([1.5])})
    values, expected = recorded(model, 5)
    np.testing.assert_allclose(run_onnx(model, values), expected, atol=1e-9)
    lightgbm = pytest.importorskip("lightgbm")
    np.testing.assert_allclose(
        lightgbm.Booster(model_str=to_lightgbm(model)).predict(values), expected[:, 1], rtol=1e-12
    )


def test_formats_that_do_not_fit_are_refused_with_those_that_do(tmp_path):
    trees = trained_trees("two classes")
    with refused("model-not-exportable", match="use onnx, lightgbm or xgboost"):
        to_json(trees)
    net = StepModel(FEATURES, NUMBERS + CATEGORIES, 2, options={})
    with refused("model-not-exportable", match="this one is 'steps': use onnx"):
        export(trained(net, net.start()), "lightgbm", tmp_path / "m")
    arrays = dict(trees.net.read(trees.theta))
    several = {**arrays, "low": np.where(arrays["column"] == 0, 0b1010, arrays["low"])}
    with refused("model-not-exportable", match="divides 'age' into more than two ranges"):
        export(replace(trees, theta=trees.net.layout.pack(several)), "xgboost", tmp_path / "m")
