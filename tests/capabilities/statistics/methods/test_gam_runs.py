"""Runs of the additive model: shapes in summary.json, the same in the clear and by secure aggregation, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table

SIZES = (90, 80, 70)
PLAN = {"data": {"label": "died", "site": "hospital", "task": "classification"}, "model": {"name": "gam"},
        "explain": {"sketch": "none"}}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> Table:
    """Rows of three hospitals: a number with gaps, a number without effect, a category, and a label of two classes."""
    rng = np.random.default_rng(3)
    n = sum(SIZES)
    age, bmi, sex = rng.uniform(30, 90, n), rng.normal(27, 4, n).round(1), rng.choice(["f", "m"], n)
    risk = 1 / (1 + np.exp(-(np.abs(age - 60) / 8 - 2 + 0.9 * (sex == "m"))))
    hospital = np.repeat([f"h{k}" for k in range(len(SIZES))], SIZES).astype(object)
    died = (rng.random(n) < risk).astype(float)
    age[rng.random(n) < 0.15] = np.nan
    return Table({"hospital": hospital, "age": age, "bmi": bmi, "sex": sex.astype(object), "died": died}, "rows")


def run(rows, folder, **settings):
    return gr.run(gr.Experiment.parse({**PLAN, **settings}), table=rows, out=folder)


@pytest.fixture(scope="module")
def done(rows, tmp_path_factory):
    return run(rows, tmp_path_factory.mktemp("gam") / "clear")


@pytest.mark.filterwarnings("ignore:column 'age' has no value here")
def test_a_run_writes_shapes_and_its_risks_are_their_sum(done, rows):
    shapes = done.summary["shapes"]
    assert [c["name"] for c in shapes["columns"]] == ["age", "bmi", "sex"]
    age, _, sex = shapes["columns"]
    assert age["missing"]["rows"] > 10 and age["used"] and min(age["rows"]) >= 5
    assert sum(age["rows"]) + age["missing"]["rows"] == shapes["rows"]
    effect = np.array(age["effect"])
    assert effect[0] > effect[len(effect) // 2] < effect[-1], "risk is lowest in the middle"
    row = {"hospital": "h0", "age": age["values"][3], "bmi": 27.0, "sex": sex["values"][1], "died": 0.0}
    table = Table({k: np.array([v], object if isinstance(v, str) else float) for k, v in row.items()}, "row")
    missing = Table({**table.columns, "age": np.array([np.nan])}, "row")
    odds = [np.log(r / (1 - r)) for r in (gr.predict(done, t)["risk_of_died"].iloc[0] for t in (table, missing))]
    assert odds[0] - odds[1] == pytest.approx(effect[3] - age["missing"]["effect"], abs=1e-6)


def test_it_is_the_same_by_secure_aggregation(done, rows, tmp_path):
    masked = run(rows, tmp_path / "masked", privacy={"secure": True})
    for one, other in zip(done.summary["shapes"]["columns"], masked.summary["shapes"]["columns"], strict=True):
        assert one["values"] == other["values"] and one["rows"] == other["rows"]
        np.testing.assert_allclose(one["effect"], other["effect"], atol=1e-6)
    exchanges = done.summary["shapes"]["exchanges"]
    assert exchanges["count"] == len(done.rounds) <= 9
    assert (
        f"{exchanges['numbers_sent']:,} numbers in {exchanges['count']} exchanges"
        in done.summary["privacy"]["statement"]
    )
    assert "no site's own" in masked.summary["privacy"]["statement"]


def test_pooled_rows_have_the_same_model(done, rows, tmp_path):
    pooled = run(rows, tmp_path / "pooled", method={"name": "pooled"})
    found, expected = (gr.predict(d, rows)["risk_of_died"].to_numpy() for d in (done, pooled))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_constraint_is_kept_and_told(rows, tmp_path):
    done = run(rows, tmp_path / "r", method={"gam": {"monotone": {"age": "up"}}})
    age = done.summary["shapes"]["columns"][0]
    assert (np.diff(age["effect"]) >= -1e-12).all() and age["monotone"] == "up"
    assert (
        "the curve of 'age' was made to rise only after the fit"
        in json.loads((done.folder / "summary.json").read_text())["shapes"]["notes"]
    )


@pytest.mark.parametrize(
    ("method", "words"),
    [({"gam": {"monotone": {"sex": "up"}}}, "a category"), ({"gam": {"monotone": {"agee": "up"}}}, "no column")],
)
def test_a_wrong_constraint_is_refused_before_the_first_exchange(rows, tmp_path, method, words):
    with pytest.raises(BadInput, match=words):
        run(rows, tmp_path / "r", method=method)
