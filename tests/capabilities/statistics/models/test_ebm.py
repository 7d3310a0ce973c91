"""The EBM baseline: its step scores are InterpretML's own, and it is fitted on rows in one place alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.statistics.models import ebm
from grandrounds.capabilities.statistics.models.columns import Column, write_columns
from grandrounds.capabilities.statistics.models.ebm import EBMModel
from tests.support import refused

pytest.importorskip("interpret")

COLUMNS = (Column("age", 0, 2), Column("constant", 1), Column("ward", levels=(3, 4, 5), words=("a", "b", "c")))


def make_rows(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.zeros((n, 6))
    x[:, 0] = rng.integers(20, 60, n) / 2
    x[: n // 10, 2] = 1
    x[:, 1] = 7.0
    ward = rng.integers(0, 2, n)  # nobody is in ward c
    x[np.arange(n), 3 + ward] = 1
    x[-5:, 3:] = 0  # no ward known
    risk = 0.3 * (x[:, 0] - 20) + ward
    return x, (rng.random(n) < 1 / (1 + np.exp(-risk))).astype(np.int64)


def model(classes: int = 2) -> EBMModel:
    spec = {"name": "ebm", "inputs": [6], "classes": classes, "columns": write_columns(COLUMNS), "options": {}}
    return EBMModel.from_spec(spec)


def quick(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Fit with two bags, to save time, and remember the machines."""
    made: list[object] = []
    glassbox = ebm._interpret()

    class Quick:
        @staticmethod
        def ExplainableBoostingClassifier(**options: object) -> object:  # noqa: N802
            made.append(glassbox.ExplainableBoostingClassifier(outer_bags=2, max_rounds=200, **options))
            return made[-1]

    monkeypatch.setattr(ebm, "_interpret", lambda: Quick)
    return made


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_the_fitted_machine(monkeypatch, classes):
    made = quick(monkeypatch)
    net, (x, y) = model(classes), make_rows()
    y = y + (x[:, 0] > 28) if classes == 3 else y
    theta = net.fit(x, y, seed=3)
    rng = np.random.default_rng(1)
    test = np.concatenate([x, x])
    test[: len(x), 0] = rng.uniform(5, 40, len(x))
    cuts = np.asarray(made[0].bins_[0][0])
    test[len(x) : len(x) + len(cuts), 0] = cuts  # at a cut exactly
    test[-3:, 3:] = [0, 0, 1]  # a level that nobody had in training
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = made[0].predict_proba(net.values(test))
    scores = net.logits(theta, test)
    scores = np.column_stack([np.zeros(len(scores)), scores]) if classes == 2 else scores
    risk = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.abs(risk / risk.sum(axis=1, keepdims=True) - expected).max() < 1e-9
    assert net.fit(x, y, seed=3).tobytes() == theta.tobytes()


def test_shapley_values_add_up_to_the_score(monkeypatch):
    quick(monkeypatch)
    net, (x, y) = model(), make_rows()
    theta = net.fit(x, y, seed=0)
    values = net.shapley(theta, x[:20], x[100:])
    gap = net.logits(theta, x[:20]) - net.logits(theta, x[100:]).mean(axis=0)
    assert np.abs(values.sum(axis=2) - gap).max() < 1e-9


def test_classes_without_rows(monkeypatch):
    quick(monkeypatch)
    x, y = make_rows()
    alone = model()
    scores = alone.logits(alone.fit(x[:8], np.zeros(8, np.int64), seed=0), x)
    assert scores == pytest.approx(np.full((len(x), 1), np.log(1 / 9)))
    net = model(3)
    scores = net.logits(net.fit(x, 2 * y, seed=0), x)  # class 1 has no row
    assert scores[:, 1] == pytest.approx(np.full(len(x), np.log(1 / (len(x) + 3))))
    assert np.ptp(scores[:, 2]) > 0.5 and (scores[:, 0] == 0).all()


def test_a_run_with_pooled_rows_and_its_refusals(monkeypatch, tmp_path):
    quick(monkeypatch)
    base = gr.Experiment.parse({"data": {"name": "heart"}, "model": {"name": "ebm"}, "method": {"rounds": 1, "name": "pooled"}})
    run = gr.run(base, out=tmp_path / "r")
    assert run.summary.final["auroc"] > 0.8
    assert run.model.net.kernel == "ebm"
    for method in ("fedavg", "fedprox"):
        with refused("method-does-not-fit", match="use model 'gam'"):
            gr.run(base.with_settings([f"method.name={method}"]), out=tmp_path / method)
    with refused("conflicting-settings"):
        gr.run(base.with_settings(["data.coding=levels"]), out=tmp_path / "coding")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "interpret", None)
    x, y = make_rows(40)
    with refused("missing-package", match="baselines"):
        model().fit(x, y, seed=0)
