"""A run from Python: the same bits again, honest figures, early stop, splits, reference sets, subgroups."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.data.table import Table
from grandrounds.report.figure import packed_script
from grandrounds.runs.federation import assemble
from tests.command import rounds
from tests.support import patients, refused, without_ledger

QUICK = {"data": {"name": "breast-cancer"}, "method": {"rounds": 3}}


def frame(table: Table):
    import pandas as pd

    return pd.DataFrame({name: list(column) for name, column in table.columns.items()})


def own(table, out, **changes) -> gr.Run:
    experiment = gr.Experiment.parse(
        {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 5}, **changes}
    )
    return gr.run(experiment, table=table, out=out)


def test_the_python_api_in_three_lines(tmp_path):
    run = gr.run(gr.Experiment(data={"name": "breast-cancer"}, method={"rounds": 10}), out=tmp_path / "r")
    assert run.summary["final"]["auroc"] > 0.97
    assert [r["round"] for r in run.rounds] == list(range(1, 11))
    assert set(run.model.parameters) == {"layer0.weight", "layer0.bias"}
    weights = run.rounds[0]["decision"]["weights"]
    assert sum(weights.values()) == pytest.approx(1)


def test_running_experiment_toml_again_gives_the_same_bits(tmp_path):
    first = own(frame(patients([40, 50, 30])), tmp_path / "a", train={"optimizer": "adam", "lr": 0.01})
    assert first.summary["data"] == "data frame"
    recipe = gr.Experiment.parse({**QUICK, "seed": 3, "train": {"class_weights": "balanced"}})
    one = gr.run(recipe, out=tmp_path / "b")
    again = gr.run(gr.Experiment.load(one.folder / "experiment.toml"), out=tmp_path / "c")
    assert (one.folder / "model.safetensors").read_bytes() == (again.folder / "model.safetensors").read_bytes()
    assert (one.folder / "experiment.toml").read_bytes() == (again.folder / "experiment.toml").read_bytes()
    other = gr.run(recipe.with_settings(["seed=4"]), out=tmp_path / "d")
    assert (one.folder / "model.safetensors").read_bytes() != (other.folder / "model.safetensors").read_bytes()


def test_other_data_than_before_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    frame(patients([40, 40])).to_csv(path, index=False)
    experiment = gr.Experiment.parse(
        {"data": {"table": str(path), "label": "died", "site": "hospital"}, "method": {"rounds": 2}}
    )
    one = gr.run(experiment, out=tmp_path / "a")
    frame(patients([40, 40], seed=1)).to_csv(path, index=False)
    with refused("data-changed", match=r"rows\.csv"):
        gr.run(gr.Experiment.load(one.folder / "experiment.toml"), out=tmp_path / "b")
    assert not (tmp_path / "b").exists(), "bad input leaves no empty folder behind"


def test_a_table_run_imports_no_torch_and_no_scikit_learn(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, grandrounds as gr; "
        f"gr.run(gr.Experiment.parse({QUICK!r}), out={str(tmp_path / 'r')!r}); "
        "print([m for m in ('torch', 'sklearn', 'scipy', 'shap', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_accuracy_comes_with_its_majority_baseline_and_the_worst_site(tmp_path):
    s = own(frame(patients([160, 140, 150, 20])), tmp_path / "r", evaluation={"threshold": "youden"}).summary
    worst, small = s["worst_site"], min(s["per_site"], key=lambda site: s["per_site"][site]["count"])
    ranked = {site: m for site, m in s["per_site"].items() if site != small}
    assert s["per_site"][small]["count"] < 20 <= worst["count"]
    assert worst["auroc"] == min(m["auroc"] for m in ranked.values()) and worst["auroc_low"] <= worst["auroc"]
    total = sum(m["count"] for m in s["per_site"].values())
    assert s["final"]["count"] == total
    pooled = sum(m["accuracy"] * m["count"] for m in s["per_site"].values()) / total
    assert s["final"]["accuracy"] == pytest.approx(pooled)
    decided = sum(m["decision_accuracy"] * m["count"] for m in s["per_site"].values()) / total
    assert s["threshold"] != 0.5 and s["final"]["decision_accuracy"] == pytest.approx(decided)
    below = {site for site, m in s["per_site"].items() if m["decision_accuracy"] < m["majority"]}
    assert {b["site"] for b in s["below_majority"]} == below
    assert s["generalisation_gap"]["accuracy"] == pytest.approx(s["training"]["accuracy"] - s["final"]["accuracy"])


def test_consortium_figures_equal_the_pooled_computation(tmp_path):
    """The summed histograms against scikit-learn on the pooled test rows, which only this test may look at."""
    from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

    table = patients([300, 200, 250, 80], gaps=0.02)
    run = own(frame(table), tmp_path / "r", method={"rounds": 15})
    plan = Settings({**run.plan, "data": {**run.plan["data"], "sha256": None}})
    held = assemble(plan, table)
    rows = np.concatenate([r.test for r in held.stack.rows])
    risk = run.model.predict(table.take(rows)).risk
    y = table.columns["died"][rows]
    final = run.summary["final"]
    assert final["auroc"] == pytest.approx(roc_auc_score(y, risk), abs=1e-3)
    assert final["auprc"] == pytest.approx(average_precision_score(y, risk), abs=1e-3)
    assert final["brier"] == pytest.approx(brier_score_loss(y, risk), abs=1e-6)
    assert final["log_loss"] == pytest.approx(log_loss(y, risk), abs=1e-6)


def test_early_stop_keeps_the_best_round(tmp_path):
    run = own(
        frame(patients([50, 60, 40])),
        tmp_path / "r",
        method={"rounds": 200},
        train={"lr": 0.5, "epochs": 5, "early_stop": 3},
        model={"name": "mlp", "hidden": [32]},
    )
    losses = [r["val"]["log_loss"] for r in run.rounds]
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 3 < 200
    assert run.summary["stopped"] == f"validation loss did not improve for 3 rounds; round {best} is kept"
    assert run.summary["validation"]["log_loss"] == pytest.approx(losses[best - 1], rel=1e-6)
    with refused("no-validation-rows"):
        own(frame(patients([50, 60])), tmp_path / "s", train={"early_stop": 3}, split={"val": 0.0})


def test_a_temperature_lowers_the_validation_loss_and_predictions_use_it(tmp_path):
    base = {"model": {"name": "mlp", "hidden": [64]}, "train": {"lr": 0.5, "epochs": 10}, "method": {"rounds": 20}}
    table = frame(patients([60, 80, 70]))
    raw = own(table, tmp_path / "raw", **base)
    cool = own(table, tmp_path / "cool", **base, evaluation={"calibrate": "temperature"})
    t = cool.summary["temperature"]
    assert t > 1.2, "an overfitted net is overconfident"
    assert cool.summary["validation"]["log_loss"] < raw.summary["validation"]["log_loss"]
    assert cool.summary["final"]["auroc"] == pytest.approx(raw.summary["final"]["auroc"], abs=2e-3)
    p, q = (r.model.predict(table).risk for r in (raw, cool))
    np.testing.assert_allclose(np.log(q / (1 - q)), np.log(p / (1 - p)) / t, rtol=1e-3, atol=1e-3)


def test_leave_one_site_out_trains_on_the_others_only(tmp_path):
    run = own(frame(patients([50, 60, 40])), tmp_path / "r", split={"scheme": "leave-one-site-out", "fold": 1})
    assert run.summary["sites"] == {"all": 3, "training": 2}
    assert run.summary["rows"]["b"] == {"train": 0, "val": 0, "test": 60}
    assert run.summary["final"]["count"] == 60
    assert all("b" not in r["decision"]["asked"] for r in run.rounds)


def test_reference_rows_are_in_no_part_of_any_site():
    table = patients([60, 60])
    experiment = gr.Experiment.parse(
        {
            "data": {"table": "x.csv", "label": "died", "site": "hospital"},
            "reference": {"probe": {"rows": 20}, "anchor": {"rows": 10}},
        }
    )
    held = assemble(Settings(experiment.plan()), table)
    sets = {name: set(r.rows.tolist()) for name, r in held.reference.items()}
    assert {n: len(s) for n, s in sets.items()} == {"probe": 20, "anchor": 10}
    assert not sets["probe"] & sets["anchor"]
    used = {int(i) for r in held.stack.rows for part in (r.train, r.val, r.test) for i in part}
    assert not used & (sets["probe"] | sets["anchor"])
    assert len(used) == 90
    assert len({r.sha256 for r in held.reference.values()}) == 2


def test_subgroups_add_up(tmp_path):
    run = own(frame(patients([80, 70])), tmp_path / "r", evaluation={"subgroup": "ward"})
    groups = run.summary["subgroups"]
    assert set(groups) <= {"medical", "surgical", "cardiac", "unseen in training"}
    assert sum(g["count"] for g in groups.values()) == run.summary["final"]["count"]
    hits = sum(g["accuracy"] * g["count"] for g in groups.values())
    assert hits / run.summary["final"]["count"] == pytest.approx(run.summary["final"]["accuracy"])


def test_thresholds_follow_the_validation_rows(tmp_path):
    table = frame(patients([300, 300]))
    plain = own(table, tmp_path / "half").summary
    strict = own(table, tmp_path / "spec", evaluation={"threshold": "specificity", "specificity": 0.95}).summary
    youden = own(table, tmp_path / "youden", evaluation={"threshold": "youden"}).summary
    assert plain["threshold"] == 0.5
    assert strict["validation"]["specificity"] >= 0.95
    j = {n: s["validation"]["sensitivity"] + s["validation"]["specificity"] for n, s in (("y", youden), ("h", plain))}
    assert j["y"] >= j["h"]


def test_class_weights_move_the_model_to_the_rare_class(tmp_path):
    table = patients([200, 200])
    rare = table.take(np.flatnonzero((table.columns["died"] == 0) | (np.arange(len(table)) % 8 == 0)))
    even = own(frame(rare), tmp_path / "even").summary["final"]
    weighted = own(frame(rare), tmp_path / "weighted", train={"class_weights": "balanced"}).summary["final"]
    given = own(frame(rare), tmp_path / "given", train={"class_weights": {"0": 1.0, "1": 9.0}}).summary["final"]
    assert weighted["sensitivity"] > even["sensitivity"]
    assert given["sensitivity"] > even["sensitivity"]
    with refused("bad-class-weights", match="train.class_weights must name every class: 0, 1"):
        own(frame(rare), tmp_path / "bad", train={"class_weights": {"yes": 2.0}})


def test_the_folder_names_versions_and_hardware_and_speaks_json(tmp_path):
    run = own(frame(patients([40, 40, 40], classes=3)), tmp_path / "r")
    where = json.loads((run.folder / "environment.json").read_text())
    assert where["packages"]["numpy"] == np.__version__
    assert where["cores"] >= 1
    for name in ("summary.json", "round_logs.json"):
        text = (run.folder / name).read_text()
        assert json.loads(text)["schema"] == 1
        assert "NaN" not in text
    assert {"final", "per_site", "cost", "privacy", "explanation"} <= set(run.summary)
    assert run.summary["privacy"]["epsilon"] is None
    page = (run.folder / "report.html").read_text()
    assert "data-figure=" in page
    assert "://" not in page.replace(packed_script(), "")


def test_a_folder_of_another_format_is_refused(tmp_path):
    run = gr.run("breast-cancer", rounds=1, out=tmp_path / "run")
    file = without_ledger(run.folder) / "summary.json"
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    with refused("other-version", match="summary.json was written by another version"):
        _ = gr.load_run(run.folder).summary
    done = rounds("show", run.folder)
    assert done.returncode == 2 and done.stderr.count("[other-version]") == 1


def test_names_from_data_are_escaped_in_the_report(tmp_path):
    table = patients([40, 40])
    evil = np.where(np.array(table.columns["hospital"]) == "a", "<script>alert(1)</script>", "b").tolist()
    run = own(frame(table.with_columns({"hospital": evil})), tmp_path / "r")
    page = (run.folder / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_divergence_is_said_with_the_way_out(tmp_path):
    with pytest.raises(gr.RunFailed, match=r"training diverged at every site: lower train\.lr"):
        own(frame(patients([40, 40])), tmp_path / "r", model={"name": "mlp"}, train={"lr": 1e12})


def test_a_run_made_from_memory_says_how_to_go_on(tmp_path):
    table = frame(patients([40, 40]))
    held = own(table, tmp_path / "r")
    with refused("data-frame-needed"):
        gr.resume(held.folder, settings=["method.rounds=6"])
    assert len(gr.resume(held.folder, settings=["method.rounds=6"], table=table_of(table)).rounds) == 6


def table_of(df) -> Table:
    return Table.from_pandas(df)


def test_faults_naming_no_site_are_refused(tmp_path):
    with refused("unknown-site", match="engine.faults names 'zz', which is no site; sites are: a, b"):
        own(frame(patients([40, 40])), tmp_path / "r", engine={"faults": {"nan": ["zz"]}})


def test_a_pooled_run_does_not_say_that_rows_stayed_and_counts_hospitals_alone(tmp_path):
    from grandrounds.report.document import sites_line

    started = []
    experiment = gr.Experiment.parse(
        {"data": {"label": "died", "site": "hospital"}, "method": {"name": "pooled", "rounds": 2}}
    )
    run = gr.run(experiment, table=frame(patients([60, 40, 50])), out=tmp_path / "r", progress=started.append)
    statement = run.summary["privacy"]["statement"]
    assert "stay" not in statement and "one place" in statement
    assert run.summary["sites"]["all"] == 3
    assert sites_line(run.summary) == "3 sites, their training rows pooled in one place"
    assert next(e["sites"] for e in started if e["event"] == "start") == 3
