"""`rounds fit km` and `gr.kaplan_meier`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_lung
from statsmodels.duration.survfunc import survdiff

import grandrounds as gr
from tests.command import rounds
from tests.support import refused


@pytest.fixture(scope="module")
def frame():
    d = load_lung()
    return pd.DataFrame(
        {
            "days": d["time"],
            "died": d["status"],
            "hospital": d["inst"].fillna(99).astype(int).astype(str),
            "sex": d["sex"].map({1: "male", 2: "female"}),
        }
    )


@pytest.fixture(scope="module")
def path(frame, tmp_path_factory):
    where = tmp_path_factory.mktemp("km") / "patients.csv"
    frame.to_csv(where, index=False)
    return where


def test_curves_are_printed_and_written(path, frame, tmp_path):
    done = rounds(
        *("fit", "km", "--table", path, "--time", "days", "--event", "died", "--site", "hospital", "--group", "sex"),
        *("--grid", "days", "--at", "365", "--csv", tmp_path / "km.csv", "--latex", tmp_path / "km.tex"),
        *("--plot", tmp_path / "km.html"),
    )
    assert done.returncode == 0, done.stderr
    pooled = KaplanMeierFitter().fit(frame["days"], frame["died"])
    assert f"{pooled.predict(365):.4f}" in done.stdout
    assert "310 (284 to 361)" in done.stdout
    assert "The time of every single event and censoring can be read" in done.stdout
    rows = [r for r in csv.DictReader((tmp_path / "km.csv").open()) if r["group"] == "all"]
    survival = pooled.survival_function_at_times([float(r["time"]) for r in rows]).to_numpy()
    assert [float(r["survival"]) for r in rows] == pytest.approx(survival, abs=1e-9)
    assert (tmp_path / "km.tex").read_text().startswith("\\begin{tabular}")
    assert "Survival" in (tmp_path / "km.html").read_text()


def test_curves_as_json_on_bins(path):
    done = rounds(
        *("fit", "km", "--table", path, "--time", "days", "--event", "died", "--site", "hospital", "--json"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert min(result["overall"]["died"]) >= 5
    assert result["facts"]["exchanges"] == 3
    assert result["facts"]["ratio"] < 1


def test_python_returns_curves_and_the_test_of_groups(frame, tmp_path):
    result = gr.kaplan_meier(frame, time="days", event="died", site="hospital", group="sex")
    statistic, p = survdiff(frame["days"], frame["died"], frame["sex"], strata=frame["hospital"])
    assert result.log_rank.statistic == pytest.approx(statistic, rel=1e-9)
    assert result.log_rank.p == pytest.approx(p, rel=1e-9)
    assert set(result.groups) == {"female", "male"}
    table = result.to_frame()
    assert set(table["group"]) == {"all", "female", "male"}
    assert "log-rank test within hospitals" in str(result)
    assert result.plot(unit="days").title == "Survival"
    assert result.to_csv(tmp_path / "c.csv") == (tmp_path / "c.csv").read_text()
    with refused("cannot-write"):
        result.to_latex(tmp_path / "no" / "such" / "folder.tex")


def test_words_of_the_event_column(frame):
    words = frame.assign(died=frame["died"].map({1: "relapse", 0: "calm"}))
    with refused("unclear-event"):
        gr.kaplan_meier(words, time="days", event="died", site="hospital")
    named = gr.kaplan_meier(words, time="days", event="died", site="hospital", event_value="relapse")
    assert named.overall == gr.kaplan_meier(frame, time="days", event="died", site="hospital").overall


@pytest.mark.parametrize(
    "options, code",
    [
        (["--time", "days", "--event", "died"], "site-not-set"),
        (["--time", "day", "--event", "died", "--site", "hospital"], "unknown-column"),
        (["--event", "died", "--site", "hospital"], "missing-option"),
        (["--time", "days", "--event", "died", "--site", "sex"], "too-few-sites"),
        (["--time", "days", "--event", "died", "--site", "hospital", "--grid", "weeks"], "unknown-choice"),
        (["--time", "days", "--event", "died", "--site", "hospital", "--at", "soon"], "bad-value"),
        (["--time", "days", "--event", "died", "--site", "hospital", "--group", "days"], "conflicting-roles"),
    ],
)
def test_mistakes_are_one_sentence(path, options, code):
    done = rounds("fit", "km", "--table", path, *options)
    assert done.returncode == 2
    assert f"[{code}]" in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("group", ["sex", None])
def test_a_run_with_secure_aggregation_gives_the_same_curves(frame, tmp_path, group):
    columns = {"time": "days", "event": "died", "site": "hospital", "group": group}
    here = gr.kaplan_meier(frame, **columns)
    run = gr.kaplan_meier(frame, **columns, secure=True, out=tmp_path / "run")
    assert (run.overall, run.groups) == (here.overall, here.groups)
    assert run.curves.facts["exchanges"] == here.curves.facts["exchanges"]
    assert (run.run.folder / "ledger.db").exists() and (run.run.folder / "report.html").exists()
    with refused("conflicting-options"):
        gr.kaplan_meier(frame, **columns, secure=True, unit=0.5)


def test_events_after_the_end_of_a_curve_are_not_counted_and_a_note_says_so():
    """The last events of a group are fewer than 5: their number would follow from the group's total."""
    rng = np.random.default_rng(5)
    n = 180
    days = np.ceil(rng.exponential(300, n))
    died = (rng.random(n) < 0.7).astype(int)
    frame = pd.DataFrame({"days": days, "died": died, "hospital": np.repeat(["a", "b", "c"], 60)})
    found = gr.kaplan_meier(frame, time="days", event="died", site="hospital").curves
    hidden = found.overall.events < int(died.sum())
    assert hidden == any("counted up to the end of each curve" in note for note in found.notes)
    assert hidden, "choose another seed: every event is shown"
