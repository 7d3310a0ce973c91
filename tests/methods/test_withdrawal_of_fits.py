"""Exact fits after a withdrawal: equal to a fresh run over the other sites (bar W1), and asked at other coefficients."""

from __future__ import annotations

import re

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.audit.digest import model_digest
from grandrounds.data.table import Table
from grandrounds.runs.kept_setup import can_subtract
from grandrounds.runs.run import Run
from grandrounds.runs.withdraw import withdraw
from tests.support import patients, slow

SITES = [70, 90, 60, 80, 50]


@pytest.fixture(scope="module")
def table() -> Table:
    rows = patients(SITES, gaps=0.0)
    rng = np.random.default_rng(3)
    hazard = np.exp(0.03 * (rows.columns["age"] - 60) + 0.4 * (rows.columns["lactate"] - 1.9))
    days = np.ceil(rng.exponential(400 / hazard))
    late = days > 500
    more = {
        "days": np.where(late, 500.0, days),
        "dead": (~late).astype(float),
        "cost": 5 * days / 10 + rows.columns["age"],
    }
    return rows.with_columns(more)


def run(table: Table, out, method: str, label: str = "died", **changes) -> Run:
    data = {"label": label, "site": "hospital", **changes.pop("data", {})}
    used = {"died", "days", "dead", "cost"} - {label, data.get("duration")}
    values = {"data": {**data, "drop": sorted(used)}, "method": {"name": method}, **changes}
    return gr.run(gr.Experiment.parse(values), table=table, out=out)


def questions(finished: Run) -> set[str]:
    return set(re.findall(r"question ([0-9a-f]{16})", " ".join(r["decision"]["why"] for r in finished.rounds)))


def both(table: Table, tmp_path, method: str, **settings) -> tuple[Run, Run, Run]:
    """The earlier run, the run after the withdrawal of c, and a fresh run of a table without c."""
    earlier = run(table, tmp_path / "a", method, **settings)
    now = withdraw(earlier, "c", table=table).run
    fresh = run(table.take(table.columns["hospital"] != "c"), tmp_path / "f", method, **settings)
    return earlier, now, fresh


def estimates(finished: Run) -> np.ndarray:
    rows = finished.summary["estimates"]["original"]["coefficients"]
    return np.array([[c["estimate"], c["error"]] for c in rows if c["estimate"] is not None], float)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("glm", {}), ("cox", {"label": "dead", "data": {"duration": "days"}})],
)
def test_coefficients_equal_those_of_a_fresh_run_and_no_question_is_asked_twice(table, tmp_path, method, settings):
    earlier, now, fresh = both(table, tmp_path, method, **settings)
    np.testing.assert_allclose(estimates(now), estimates(fresh), rtol=1e-9, atol=1e-12)
    assert not np.allclose(estimates(now), estimates(earlier), rtol=1e-3)
    assert not questions(earlier) & questions(now)
    assert questions(earlier) & questions(fresh)  # a fresh run asks at zero, as the earlier one did
    assert any("can subtract" in line for line in now.summary["warnings"])


def test_boosted_trees_have_the_bits_of_a_fresh_run(table, tmp_path):
    small = {"model": {"name": "trees"}, "method": {"name": "trees", "trees": {"rounds": 2, "depth": 2, "parallel": 2}}}
    data = {"label": "died", "site": "hospital", "drop": ["days", "dead", "cost"]}

    def fit(rows: Table, name: str) -> Run:
        return gr.run(gr.Experiment.parse({"data": data, **small}), table=rows, out=tmp_path / name)

    now = withdraw(fit(table, "a"), "c", table=table).run
    fresh = fit(table.take(table.columns["hospital"] != "c"), "f")
    assert model_digest(now.model.theta) == model_digest(fresh.model.theta)


def test_table_one_is_counted_again_over_the_sites_left(table, tmp_path):
    _, now, fresh = both(table, tmp_path, "table1")
    assert now.summary["statistic"]["rows"] == fresh.summary["statistic"]["rows"]
    assert now.summary["table1"] == fresh.summary["table1"]


def linear(table: Table, out, **changes) -> Run:
    data = {"label": "cost", "site": "hospital", "task": "regression", "drop": ["died", "days", "dead"]}
    data |= {"coding": "reference", "complete": True, "clip": 0.0, **changes.pop("data", {})}
    values = {
        "data": data,
        "method": {"name": "glm", "exact": {"heterogeneity": False, "intercept": "common", **changes.pop("exact", {})}},
    }
    return gr.run(gr.Experiment.parse({**values, "split": {"val": 0.0, "test": 0.0}, **changes}), table=table, out=out)


def test_a_linear_fit_subtracts_the_sums_of_the_site_and_asks_nobody(table, tmp_path):
    run = linear(table, tmp_path / "a")
    done = withdraw(run, "c", table=table)
    fresh = linear(table.take(table.columns["hospital"] != "c"), tmp_path / "f")
    assert done.facts.setup == "subtracted"
    np.testing.assert_allclose(estimates(done.run), estimates(fresh), rtol=1e-11)
    facts = [r.summary["estimates"]["fitted"]["facts"] for r in (done.run, fresh)]
    for name in ("n", "dispersion", "log_likelihood", "deviance"):
        assert facts[0][name] == pytest.approx(facts[1][name], rel=1e-11)
    assert [r["decision"]["asked"] for r in done.run.rounds] == [[]] * len(done.run.rounds)
    assert done.run.summary["estimates"]["exchanges"]["numbers_sent"] == 0
    from grandrounds.engine.checkpoint import Checkpoint

    kept = Checkpoint(run.folder / "checkpoint").read().arrays
    assert not [name for name in kept if name.startswith("method/sums.")]  # nobody can read the sums of c there
    again = withdraw(done.run, "a", table=table)  # sums of the sites left are kept
    rest = linear(table.take(~np.isin(table.columns["hospital"].astype(str), ["a", "c"])), tmp_path / "r")
    np.testing.assert_allclose(estimates(again.run), estimates(rest), rtol=1e-11)


@pytest.mark.parametrize(
    "changes",
    [
        {"exact": {"ridge": 1.0}},
        slow({"exact": {"intercept": "random"}}),
        slow({"data": {"complete": False}}),
        slow({"privacy": {"secure": True}}),
    ],
)
def test_a_linear_fit_whose_setup_depends_on_the_site_is_run_again(table, tmp_path, changes):
    assert not can_subtract(linear(table, tmp_path / "a", **changes), "c")


def test_a_level_that_only_the_site_has_makes_the_fit_run_again(table, tmp_path):
    ward = np.where(table.columns["hospital"] == "c", "burns", table.columns["ward"]).astype(object)
    rows = table.with_columns({"ward": ward})
    done = withdraw(linear(rows, tmp_path / "a"), "c", table=rows)
    fresh = linear(rows.take(rows.columns["hospital"] != "c"), tmp_path / "f")
    assert done.facts.setup == "agreed again"
    np.testing.assert_allclose(estimates(done.run), estimates(fresh), rtol=1e-9)
