"""A run whose event comes first in the order of classes: what is shown is of the event, and what is learnt is the same."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.near_misses import near_misses
from grandrounds.core.arrays import load
from grandrounds.runs.export import score_json, to_json
from grandrounds.runs.readable_model import readable
from tests.command import rounds
from tests.support import patients

SET = ("--set=method.rounds=3", "--set=evaluation.threshold=youden", "--set=evaluation.subgroup=ward")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The same patients with the outcome as died/survived, as 1/0, and in words that nobody knows."""
    folder, held = tmp_path_factory.mktemp("event"), patients([120, 110, 100], classes=3)
    died = np.asarray(held.columns["died"]).astype(float) == 2
    out = {}
    for name, (event, other) in {
        "words": ("died", "survived"),
        "numbers": ("1", "0"),
        "unknown": ("alpha", "beta"),
    }.items():
        columns = {**held.columns, "who": [f"p{i}" for i in range(len(died))], "outcome": np.where(died, event, other)}
        del columns["died"]
        out[name] = folder / f"{name}.csv"
        with out[name].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(["" if v != v else v for v in row] for row in zip(*columns.values(), strict=True))
    return out


def started(table, out, *more):
    done = rounds(
        "run",
        "--table",
        table,
        "--label",
        "outcome",
        "--site",
        "hospital",
        "--patient",
        "who",
        *SET,
        *more,
        "--out",
        out,
    )
    return done, gr.load_run(out) if done.returncode == 0 else None


@pytest.fixture(scope="module")
def pair(tables):
    """The run with died/survived, in which the event is class 0, and the one with 1/0, in which it is class 1."""
    return {name: started(tables[name], tables[name].with_suffix("")) for name in ("words", "numbers")}


def test_the_event_is_stated_when_a_run_starts_and_when_it_ends(pair, tables):
    done, run = pair["words"]
    told = run.summary["event"]
    share = told.pop("share")
    assert told == {"class": "died", "other": "survived", "label": "outcome", "by": "rule"} and 0.25 < share < 0.42
    told["share"] = share
    line = f"event: died ({share:.0%} of rows)"
    assert line in done.stderr and "The event is died: " in done.stdout
    assert run.summary["classes"] == ["died", "survived"]
    assert "The event is outcome = 1: " in pair["numbers"][0].stdout
    checked = rounds("data", "check", tables["words"], "--label", "outcome", "--site", "hospital")
    assert "event: died (33% of rows)" in checked.stdout
    assert "The event is died: " in rounds("show", run.folder).stdout
    page = (run.folder / "report.html").read_text()
    assert line in page


def test_figures_are_those_of_the_event_whichever_class_it_is(pair):
    """1/0 and died/survived are the same rows and the same event: all figures agree, and none is of surviving."""
    ours, theirs = (pair[name][1].summary for name in ("words", "numbers"))
    for part in ("final", "validation", "training"):
        for metric, value in theirs[part].items():
            assert ours[part][metric] == pytest.approx(value, abs=2e-3), metric
    for site, figures in theirs["per_site"].items():
        assert ours["per_site"][site] == pytest.approx(figures, abs=2e-3)
    assert ours["threshold"] == pytest.approx(theirs["threshold"], abs=2e-3)
    for key in ("subgroups", "decision_curve"):
        for name, held in theirs[key].items():
            assert np.asarray(
                list(ours[key][name].values()) if isinstance(held, dict) else ours[key][name], float
            ) == pytest.approx(
                np.asarray(list(held.values()) if isinstance(held, dict) else held, float), abs=5e-3, nan_ok=True
            )
    assert ours["reliability"]["count"] == theirs["reliability"]["count"]
    final = ours["final"]
    assert final["sensitivity"] != pytest.approx(final["specificity"], abs=1e-6)


def test_the_event_changes_no_bit_of_the_model_and_no_order(pair, tables):
    """The other event of the same table: the same parameters, the same classes, the same losses, and turned figures."""
    _, run = pair["words"]
    _, other = started(tables["words"], tables["words"].parent / "other", "--event", "survived")
    ours, theirs = (load(r.folder / "model.safetensors") for r in (run, other))
    assert ours[1]["encoding"]["classes"] == theirs[1]["encoding"]["classes"] == ["died", "survived"]
    assert all(np.array_equal(ours[0][name], theirs[0][name]) for name in ours[0])
    mine, turned = run.summary["final"], other.summary["final"]
    for metric in ("accuracy", "log_loss", "brier", "balanced_accuracy", "macro_f1"):
        assert mine[metric] == turned[metric]
    assert mine["auroc"] == pytest.approx(turned["auroc"], abs=1e-3)
    assert other.summary["event"]["by"] == "data.event"


def test_a_majority_is_warned_of(tables, tmp_path):
    rows = tables["words"].read_text().splitlines()
    kept = [rows[0], *[r for i, r in enumerate(rows[1:]) if r.endswith("survived") or i % 3 == 0]]
    (tmp_path / "few.csv").write_text("\n".join(kept))
    done, _ = started(tmp_path / "few.csv", tmp_path / "run", "--event", "survived")
    assert "the event is 'survived', which" in done.stderr and "--event died shows the other" in done.stdout
    quiet, _ = started(tmp_path / "few.csv", tmp_path / "other")
    assert "shows the other" not in quiet.stdout + quiet.stderr


def test_a_doubt_stops_every_command_that_reads_a_table(tables, tmp_path):
    table = tables["unknown"]
    for command in (
        ["run", "--table", table, "--label", "outcome", "--out", tmp_path / "run"],
        ["data", "check", table, "--label", "outcome"],
    ):
        done = rounds(*command)
        assert done.returncode == 2 and done.stderr.count("error:") == 1
        assert "'alpha' or 'beta'" in done.stderr and "--event alpha" in done.stderr
    assert not (tmp_path / "run").exists()
    done, run = started(table, tmp_path / "stated", "--event", "beta")
    assert done.returncode == 0 and run.summary["event"]["class"] == "beta"


def test_predictions_are_risks_of_the_event(pair, tables):
    _, run = pair["words"]
    done = rounds("predict", run.folder, "--table", tables["words"])
    assert run.event.line in done.stderr and run.event.line.startswith("event: died (")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    other = list(
        csv.DictReader(rounds("predict", pair["numbers"][1].folder, "--table", tables["numbers"]).stdout.splitlines())
    )
    assert set(rows[0]) == {"row", "risk_of_died", "decision"} and set(other[0]) == {
        "row",
        "risk_of_outcome",
        "decision",
    }
    risks = np.array([float(r["risk_of_died"]) for r in rows])
    assert risks == pytest.approx([float(r["risk_of_outcome"]) for r in other], abs=2e-3)
    with tables["words"].open() as file:
        died = np.array([r["outcome"] == "died" for r in csv.DictReader(file)])
    assert risks[died].mean() > risks[~died].mean() + 0.05
    cut = run.summary["threshold"]
    assert [r["decision"] for r in rows] == ["died" if risk >= cut else "survived" for risk in risks]
    judged = json.loads(rounds("evaluate", run.folder, "--table", tables["words"], "--json").stdout)
    called = risks >= cut
    assert judged["overall"]["sensitivity"] == pytest.approx(float(called[died].mean()), abs=5e-3)
    assert judged["overall"]["ppv"] == pytest.approx(float(died[called].mean()), abs=5e-3)
    assert judged["event"]["class"] == "died"


def test_a_case_and_the_models_weights_are_told_for_the_event(pair):
    """Lactate raises the risk of death, in the run in which that is the first class as well."""
    for name in ("words", "numbers"):
        _, run = pair[name]
        weight = next(w for w in readable(run.model).weights if w.feature == "lactate")
        assert weight.weight > 0 and weight.effect == "raises"
        case = gr.explain_case(run, 5)
        assert case.target_class == ("died" if name == "words" else "1")
        total = case.base + sum(r.contribution for r in case.attributions) + case.remainder
        assert total == pytest.approx(case.score)
        assert 1 / (1 + np.exp(-case.score)) == pytest.approx(case.probability, abs=1e-5)
        risk = run.model.predict(run_rows(run)).risk[4]
        assert case.probability == pytest.approx(float(risk), abs=1e-5)
        lactate = next(r for r in case.attributions if r.column == "lactate")
        above = run_rows(run).columns["lactate"].astype(float)
        assert (lactate.contribution > 0) == (above[4] > np.nanmean(above)) or np.isnan(above[4])
    misses = near_misses(pair["words"][1])
    assert misses.event == "outcome = died"


def run_rows(run):
    from grandrounds.data.readers import read_table

    return read_table(run.plan["data"]["table"])


def test_an_export_says_which_class_the_risk_is_of(pair):
    model = pair["words"][1].model
    values = to_json(model)
    assert values["event"] == "died" and values["classes"] == ["died", "survived"]
    row = {c: v[0] for c, v in run_rows(pair["words"][1]).columns.items()}
    row = {c: (None if v != v else float(v)) if c in ("age", "lactate", "pressure") else v for c, v in row.items()}
    risk = score_json(values, row)[values["classes"].index("died")]
    assert risk == pytest.approx(float(model.predict(run_rows(pair["words"][1])).risk[0]), abs=1e-5)


def test_the_model_card_and_the_console_name_the_event(pair):
    from tests.report.summaries import board_page

    run = pair["words"][1]
    assert run.event.line.removeprefix("event: ") in board_page(run)
