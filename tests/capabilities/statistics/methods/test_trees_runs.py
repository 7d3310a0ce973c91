"""Runs of boosted trees: every task has the bits of the pooled rows, shapes of depth one, early stopping, and the summary."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.statistics.methods.trees import BoostedTrees
from grandrounds.data.table import Table
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods import METHODS
from tests.support import refused

SIZES = (110, 100, 90)
SMALL = {"rounds": 3, "depth": 2, "parallel": 2, "least": 5}
LABELS = {"classification": "died", "three": "state", "regression": "stay", "count": "visits", "survival": "died"}


@pytest.fixture(scope="module")
def rows() -> Table:
    """Rows of three hospitals with an outcome of every type; age has gaps."""
    rng = np.random.default_rng(3)
    n = sum(SIZES)
    age, sex = rng.uniform(30, 90, n), rng.choice(["f", "m"], n)
    score = (age - 60) / 12 + 0.9 * (sex == "m")
    columns = {
        "hospital": np.repeat([f"h{k}" for k in range(len(SIZES))], SIZES).astype(object),
        "age": np.where(rng.random(n) < 0.15, np.nan, age.round(1)),
        "bmi": rng.normal(27, 4, n).round(1),
        "sex": sex.astype(object),
        "died": (rng.random(n) < 1 / (1 + np.exp(-score))).astype(float),
        "state": np.array(["good", "fair", "poor"], object)[np.searchsorted([-0.8, 0.8], score + rng.normal(size=n))],
        "stay": (6 + 2 * score + rng.normal(size=n)).round(2),
        "visits": rng.poisson(np.exp(0.4 * score + 0.5)).astype(float),
        "days": rng.exponential(200 * np.exp(-score)).round() + 1,
    }
    return Table(columns, "rows")


def run(rows, folder, task="classification", *, name="trees", options=None, **settings):
    kept = {"hospital", "age", "bmi", "sex", LABELS[task], *(["days"] if task == "survival" else [])}
    data = {"label": LABELS[task], "site": "hospital", "task": "classification" if task == "three" else task}
    data |= {"duration": "days"} if task == "survival" else {}
    plan = {
        "data": data,
        "model": {"name": "trees"},
        "method": {"name": name, "trees": {**SMALL, **(options or {})}},
        "explain": {"sketch": "none"},
        **settings,
    }
    table = Table({k: v for k, v in rows.columns.items() if k in kept}, "rows")
    return gr.run(gr.Experiment.parse(plan), table=table, out=folder)


def parameters(done):
    return (done.folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("task", LABELS)
def test_hospitals_and_pooled_rows_have_the_same_model(task, rows, tmp_path):
    across = run(rows, tmp_path / "across", task)
    pooled = run(rows, tmp_path / "pooled", task, name="pooled")
    assert parameters(across) == parameters(pooled)
    trees = across.summary["trees"]
    assert trees["trees"] == 3 * 2 * (3 if task == "three" else 1) and trees["depth"] == 2
    assert 0 <= trees["cells"]["share_single"] < 1 and trees["cells"]["filled"] > 0
    assert 100 < trees["rows"] < sum(SIZES) and len(trees["sites"]) == 3
    sent = trees["exchanges"]["bytes_up"] / trees["exchanges"]["numbers_sent"]
    assert (4 < sent < 5) if task == "survival" else sent == 4, "whole numbers of 32 bits; counts by time have 64"


@pytest.mark.filterwarnings("ignore:column '.*' has no value here")
def test_trees_of_depth_one_write_shapes_whose_sum_is_the_risk(rows, tmp_path):
    done = run(rows, tmp_path / "r", options={"depth": 1, "rounds": 6})
    shapes = done.summary["shapes"]
    age, _, sex = shapes["columns"]
    assert age["values"] == sorted(age["values"]) and age["se"] is None and age["edf"] is None
    assert min(n for n in age["rows"]) >= 5 and sum(age["rows"]) + age["missing"]["rows"] == shapes["rows"]
    weighted = [
        n * e
        for n, e in zip([*age["rows"], age["missing"]["rows"]], [*age["effect"], age["missing"]["effect"]], strict=True)
    ]
    assert sum(weighted) == pytest.approx(0, abs=1e-9)

    def odds(age_value, word):
        cells = {"hospital": "h0", "age": age_value, "bmi": np.nan, "sex": word, "died": 0.0}
        table = Table({k: np.array([v], object if isinstance(v, str) else float) for k, v in cells.items()}, "row")
        risk = gr.predict(done, table)["risk_of_died"].iloc[0]
        return np.log(risk / (1 - risk))

    k = len(age["values"]) // 2
    assert odds(age["values"][k], "f") - odds(np.nan, "f") == pytest.approx(
        age["effect"][k] - age["missing"]["effect"], abs=1e-6
    )
    levels = dict(zip(sex["values"], sex["effect"], strict=True))
    assert odds(60.0, "m") - odds(60.0, "f") == pytest.approx(levels["m"] - levels["f"], abs=1e-6)


def test_early_stopping_reads_the_validation_rows_of_every_site(rows, tmp_path):
    done = run(
        rows, tmp_path / "r", options={"rounds": 30, "rate": 1.0, "early_stop": 2}, split={"val": 0.2, "test": 0.2}
    )
    trees = done.summary["trees"]
    assert trees["rounds"] == int(np.argmin(trees["validation"])) and len(trees["validation"]) == trees["rounds"] + 3
    with refused("no-validation-rows"):
        run(rows, tmp_path / "none", options={"early_stop": 2}, split={"val": 0.0, "test": 0.2})


def test_random_rounding_repeats_in_a_simulation(rows, tmp_path):
    first, again = (run(rows, tmp_path / name, options={"rounding": "stochastic"}) for name in ("a", "b"))
    assert parameters(first) == parameters(again) != parameters(run(rows, tmp_path / "c"))


def test_the_default_allows_the_exchanges_that_a_fit_takes():
    assert METHODS["trees"] is BoostedTrees
    plans = {name: Experiment.parse({"data": {"name": "heart"}, "model": {"name": "trees"}, "method": {"trees": s}}).plan()
             for name, s in {"default": {}, "long": {"rounds": 200}, "quick": {"preset": "quick"}}.items()}  # fmt: skip
    rounds = {name: plan["method"]["rounds"] for name, plan in plans.items()}
    assert rounds["default"] >= 84 and rounds["long"] >= 804 and rounds["quick"] >= 64


def test_the_record_of_a_fit_is_read_back(rows, tmp_path):
    done = run(rows, tmp_path / "r", "three")
    assert json.loads((done.folder / "summary.json").read_text())["trees"]["loss"] == "softmax"
    assert "shapes" not in done.summary
