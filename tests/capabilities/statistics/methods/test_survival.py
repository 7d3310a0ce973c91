"""Method 'survival' in runs: curves equal those of pooled rows, in the clear and by secure aggregation, after a crash too."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy.rules import DAYS, Policy
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, fit_kaplan_meier
from grandrounds.capabilities.statistics.methods.site import ask_question
from grandrounds.capabilities.statistics.question import Question, fit_in_memory
from grandrounds.data.table import Table
from grandrounds.protocol.messages import AskId
from tests.capabilities.statistics.cohorts import gbsg2
from tests.engine.hospitals import Hospitals
from tests.support import refused

DATA = {"label": "event", "duration": "days", "task": "survival", "site": "hospital", "features": ["grade"]}


@pytest.fixture(scope="module")
def rows():
    """686 patients at 5 hospitals."""
    cohort = gbsg2()
    words = {
        "hospital": np.array([f"h{k}" for k in cohort.site], object),
        "grade": np.array([f"g{k}" for k in cohort.group], object),
    }
    return Table({**words, "days": cohort.time, "event": cohort.event}, "rows")


PLAN = {
    "data": DATA,
    "split": {"val": 0.0, "test": 0.0},
    "explain": {"sketch": "none"},
    "engine": {"precision": "float64"},
}


METHOD = {"name": "survival", "exact": {"group": "grade"}}


def plan(*, secure: bool = False, **exact) -> gr.Experiment:
    return gr.Experiment.parse(
        {**PLAN, "method": {"name": "survival", "exact": {"group": "grade", **exact}}, "privacy": {"secure": secure}}
    )


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_has_the_curves_of_the_statistic(secure, rows, tmp_path):
    done = gr.run(plan(secure=secure), table=rows, out=tmp_path / "r")
    found = KaplanMeier.from_dict(done.summary["survival"])
    expected = fit_in_memory(fit_kaplan_meier(["g0", "g1", "g2"]), gbsg2().rows(), ANSWERS)
    assert (found.overall, found.groups) == (expected.overall, expected.groups), "counts are whole numbers"
    assert found.log_rank.statistic == pytest.approx(expected.log_rank.statistic, rel=1e-6)
    facts = done.summary["statistic"]
    assert facts["exchanges"]["count"] == len(done.rounds) == 4
    assert len(facts["sites"]) == 5
    assert facts["exchanges"]["numbers_sent"] < len(rows), "fewer than exact.most_ratio allows"
    assert "log-rank test within hospitals" in (tmp_path / "r" / "report.html").read_text()


def test_a_run_by_day_equals_lifelines(rows, tmp_path):
    done = gr.run(plan(secure=True, baseline="days", horizon=2000.0), table=rows, out=tmp_path / "r")
    curve = KaplanMeier.from_dict(done.summary["survival"]).overall
    pooled = KaplanMeierFitter().fit(rows.columns["days"], rows.columns["event"])
    np.testing.assert_allclose(curve.survival, pooled.survival_function_at_times(curve.times), rtol=0, atol=1e-9)
    assert curve.horizon == 2000
    assert curve.restricted_mean.value == pytest.approx(restricted_mean_survival_time(pooled, 2000), rel=1e-9)


def test_days_need_the_policys_word():
    ask = ask_question(Question("counts.time", {}, {"events": (1, 3)}), ("a",), rows=100).numbered(
        AskId("r", 1, 0), ("a",)
    )
    values = {**PLAN, "data": {"table": "x.csv", **DATA}, "method": {"name": "survival", "exact": {"baseline": "days"}}}
    by_day = gr.Experiment.parse(values).plan()
    assert Policy().refuses(ask, by_day) == DAYS
    assert Policy.parse("[exact]\ndays = true\n").refuses(ask, by_day) != DAYS


def test_killed_between_exchanges_it_ends_with_the_same_curves(rows, tmp_path):
    whole = gr.run(plan(), table=rows, out=tmp_path / "whole")

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gr.run(plan(), table=rows, out=tmp_path / "again", progress=stop)
    done = gr.resume(tmp_path / "again", table=rows)
    assert done.summary["survival"] == whole.summary["survival"]


@pytest.mark.slow  # keys and messages of five hospitals take ten seconds
def test_hospitals_with_their_own_files_give_the_same_curves(rows, tmp_path):
    values = {
        **PLAN,
        "data": {"table": "data frame", **DATA},
        "privacy": {"secure": True},
        "method": {"name": "survival"},
    }
    held = Hospitals.of(rows, name="curves", **values)
    here, there = held.simulated(tmp_path / "here", rows), held.deployed(tmp_path / "there")
    assert there.summary["survival"]["overall"] == here.summary["survival"]["overall"]
    assert there.summary["survival"]["groups"] == here.summary["survival"]["groups"]


def test_another_task_is_refused(rows, tmp_path):
    data = {"label": "event", "site": "hospital"}
    with refused("method-does-not-fit", match="needs times to an event"):
        gr.run(
            gr.Experiment.parse({**PLAN, "data": data, "method": {"name": "survival"}}), table=rows, out=tmp_path / "r"
        )
