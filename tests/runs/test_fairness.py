"""evaluation.subgroups from setting to summary: the same figures in the clear, over messages and by secure sums; refusals."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.data.table import Table
from grandrounds.metrics.gaps import GAP_METRICS
from grandrounds.report.fairness import describe_gaps, group_tables
from tests.capabilities.hospital.keeper.test_small_cells import trimming
from tests.support import patients, refused

SETTINGS = {"data": {"label": "died", "site": "hospital"}, "method": {"name": "fedavg", "rounds": 2}}


def with_sex(sizes, seed=0):
    table = patients(sizes, seed=seed)
    sex = np.random.default_rng(seed).choice(["f", "m"], len(table))
    return Table.from_mapping({**table.columns, "sex": sex})


def made(out, table=None, **changes) -> gr.Run:
    evaluation = {"subgroups": ["sex", "age", "lactate"], **changes.pop("evaluation", {})}
    experiment = gr.Experiment.parse({**SETTINGS, "evaluation": evaluation, **changes})
    return gr.run(experiment, table=with_sex([150, 120, 90]) if table is None else table, out=out)


def test_figures_add_up_and_are_the_same_on_every_way(tmp_path):
    runs = {
        "plain": made(tmp_path / "a", evaluation={"least": 1}),
        "wire": made(tmp_path / "b", evaluation={"least": 1}, engine={"wire": True}),
        "secure": made(tmp_path / "c", evaluation={"least": 1}, privacy={"secure": True}),
    }
    plain = runs["plain"].summary.fairness
    assert plain["columns"]["age"]["cuts"] == [45, 65, 80] and len(plain["columns"]["lactate"]["cuts"]) == 3
    for part in plain["columns"].values():
        assert sum(g["count"] for g in part["groups"].values()) == runs["plain"].summary.final["count"]
    for other in ("wire", "secure"):
        fairness = runs[other].summary.fairness
        for column, part in plain["columns"].items():
            for group, figures in part["groups"].items():
                assert fairness["columns"][column]["groups"][group] == pytest.approx(figures, abs=1e-4, nan_ok=True)
        assert [g["flagged"] for g in fairness["gaps"]] == [g["flagged"] for g in plain["gaps"]]
    assert describe_gaps(plain) and [name for name, *_ in group_tables(plain)] == ["sex", "age", "lactate"]
    assert "fairness" not in gr.run(gr.Experiment.parse(SETTINGS), table=patients([60, 50]), out=tmp_path / "d").summary.to_dict()


def test_small_groups_are_hidden_in_the_summary(tmp_path):
    table = with_sex([150, 120, 90])
    sex = table.columns["sex"].copy()
    sex[::60] = "x"
    run = made(tmp_path / "r", table=Table.from_mapping({**table.columns, "sex": sex}))
    groups = run.summary.fairness["columns"]["sex"]["groups"]
    few = groups.get("x", groups.get("all others"))
    assert few == {"count": None, "hidden": "<5"}
    assert sum(g["count"] is None for g in groups.values()) == 2  # a second one, or the total would tell
    assert all("sensitivity" not in g for g in groups.values() if g["count"] is None)
    assert all(g["group"] != "x" for g in run.summary.fairness["gaps"])
    assert "<5" in str(list(group_tables(run.summary.fairness)))


def test_hospitals_with_a_rule_for_small_cells_take_part(tmp_path, monkeypatch):
    trimming(monkeypatch, Policy())
    run = made(tmp_path / "r", engine={"wire": True})
    for part in run.summary.fairness["columns"].values():
        counts = [g["count"] for g in part["groups"].values() if g["count"] is not None]
        assert sum(counts) <= run.summary.final["count"] and all(n >= 5 for n in counts)


def test_three_classes_and_numbers_are_compared_too(tmp_path):
    table = patients([150, 120], classes=3)
    three = made(tmp_path / "a", table=table, evaluation={"subgroups": ["ward"]}).summary.fairness
    assert three["class"] in ("0", "1", "2") and {g["metric"] for g in three["gaps"]} <= set(GAP_METRICS)
    assert len(three["gaps"]) + three["too_few_rows"] == 2 * len(GAP_METRICS)
    data = {"label": "pressure", "site": "hospital", "task": "regression", "drop_unlabelled": True}
    numbers = made(tmp_path / "b", table=table, data=data, evaluation={"subgroups": ["ward"]}).summary.fairness
    assert {g["metric"] for g in numbers["gaps"]} == {"mean_error"}


def test_what_cannot_be_compared_is_refused_in_a_sentence(tmp_path):
    with refused("unknown-column", match="column 'sx' not found"):
        made(tmp_path / "a", evaluation={"subgroups": ["sx"]})
    with refused("conflicting-settings", match="evaluation.bands has 'ag', not named"):
        made(tmp_path / "e", evaluation={"bands": {"ag": [50]}})
    with refused("conflicting-settings", match="names 'sex' twice"):
        made(tmp_path / "f", evaluation={"subgroups": ["sex", "sex"]})
    with refused("missing-setting", match="evaluation.subgroups names no column"):
        made(tmp_path / "b", evaluation={"subgroups": [], "mitigation": "thresholds"})
    with refused("task-does-not-fit", match="there are 3"):
        made(tmp_path / "c", table=patients([80, 60], classes=3), evaluation={"subgroups": ["ward"], "mitigation": "thresholds"})
    private = {"mechanism": "dp-sgd", "epsilon": 8.0, "min_rows": 10}
    with refused("privacy-does-not-fit", match="evaluation.mitigation 'thresholds' is fitted to validation rows"):
        made(tmp_path / "d", privacy=private, evaluation={"mitigation": "thresholds"})


def test_predict_applies_the_correction_and_says_so(tmp_path):
    table = with_sex([700, 600])
    evaluation = {"subgroups": ["sex"], "mitigation": "thresholds", "least": 1}
    run = made(tmp_path / "r", table=table, split={"val": 0.3}, evaluation=evaluation)
    record = run.summary.fairness["mitigation"]
    assert record["column"] == "sex" and all(g["changed"] for g in record["groups"].values())
    frame = gr.load_run(run.folder).model.predict(table, corrected=True)
    limit = np.array([record["groups"][s]["threshold"] for s in table.columns["sex"]])
    np.testing.assert_allclose(frame.columns["threshold"], limit)
    assert ((frame.decisions == frame.event.word) == (frame.risk >= limit)).all()
    assert any(note.startswith("thresholds by sex: f 0.") for note in frame.notes)
    bare = Table.from_mapping({name: c for name, c in table.columns.items() if name != "sex"})
    assert any("was not applied" in note for note in run.model.predict(bare, corrected=True).notes)
    assert "threshold" not in run.model.predict(table).columns  # explanations are of the common rule


def test_recalibrated_risks_are_those_of_the_line(tmp_path):
    table = with_sex([700, 600])
    evaluation = {"subgroups": ["sex"], "mitigation": "recalibration", "threshold": "youden", "least": 1}
    run = made(tmp_path / "r", table=table, split={"val": 0.3}, evaluation=evaluation)
    groups = run.summary.fairness["mitigation"]["groups"]
    before, after = run.model.predict(table).risk, run.model.predict(table, corrected=True).risk
    slope, intercept = (np.array([groups[s][k] for s in table.columns["sex"]]) for k in ("slope", "intercept"))
    expected = 1 / (1 + np.exp(-(slope * np.log(before / (1 - before)) + intercept)))
    np.testing.assert_allclose(after, expected, rtol=1e-5)


def test_groups_are_compared_by_the_models_that_sites_deploy(tmp_path):
    """With personal parts, figures and rules are those of the deployed models; the common one is not corrected by them."""
    table = with_sex([400, 350])
    settings = {"split": {"val": 0.3}, "personal": {"part": "intercept"}}
    evaluation = {"subgroups": ["sex"], "mitigation": "thresholds", "least": 1}
    run = made(tmp_path / "r", table=table, evaluation=evaluation, **settings)
    fairness = run.summary.fairness
    total = sum(g["sensitivity"] * g["events"] for g in fairness["columns"]["sex"]["groups"].values())
    deployed = run.summary.personal["final"]
    assert fairness["model"] == "deployed" and total == pytest.approx(deployed["sensitivity"] * deployed["events"])
    assert any("models that sites deploy" in note for note in run.model.predict(table, corrected=True).notes)
    assert any(n.startswith("thresholds by sex") for n in run.model_for("a").predict(table, corrected=True).notes)
