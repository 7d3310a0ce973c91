"""Searches on real small runs: what is best, what is judged by, what goes on after a kill, what is said of privacy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.tuning.privacy_cost import privacy_cost
from grandrounds.capabilities.tuning.rows import prepare_rows
from grandrounds.capabilities.tuning.trial import Outcome, Trial
from grandrounds.capabilities.tuning.tune import tune
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import Settings
from grandrounds.data.row_files import read_bundle
from grandrounds.data.table import Table
from grandrounds.experiment.experiment import Experiment
from grandrounds.privacy.accounting import Event, epsilon_of
from grandrounds.runs.federation import assemble
from tests.support import patients, refused

SPACE = {"train.lr": {"low": 1e-3, "high": 1.0, "log": True}, "train.epochs": {"low": 1, "high": 4}}


def small(**sections) -> Experiment:
    values = {"data": {"name": "breast-cancer"}, "method": {"rounds": 2}, "split": {"sites": 4}}
    return Experiment.parse({"name": "small", **values, **sections})


def tried(tuned) -> list:
    return [(t.number, dict(t.settings), t.value) for t in tuned.trials]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished search of three trials."""
    out = tmp_path_factory.mktemp("tune") / "whole"
    return tune(small(), trials=3, space=SPACE, out=out)


def test_the_best_is_the_best_of_the_list(done):
    values = [t.value for t in done.trials]
    assert len(values) == 3
    assert len(set(values)) > 1
    assert done.best.value == max(values)
    assert [t.value for t in done.ranking] == sorted(values, reverse=True)
    assert done.goal.metric == "auroc"


def test_the_first_trial_is_the_experiment_as_it_is(done, tmp_path):
    assert done.trials[0].settings == {"train.lr": 0.1, "train.epochs": 2}
    run = gr.run(small(), out=tmp_path / "run")
    assert run.summary["validation"]["auroc"] == done.trials[0].value


@pytest.mark.slow
def test_the_first_trial_is_the_experiment_even_where_it_is_outside_the_space(tmp_path):
    experiment = small(method={"name": "fedadam", "rounds": 2})
    space = {"train.lr": [0.5, 1.0], "method.server.lr": {"low": 0.01, "high": 0.1}}  # it has 0.1, and none set
    found = tune(experiment, trials=2, space=space, out=tmp_path / "tune")
    assert found.trials[0].settings == {"train.lr": 0.1}
    assert found.searched == ("train.lr", "method.server.lr")
    assert gr.run(experiment, out=tmp_path / "run").summary["validation"]["auroc"] == found.trials[0].value


def test_best_toml_runs_and_gives_the_same_figure(done, tmp_path):
    run = gr.run(Experiment.load(done.folder / "best.toml"), out=tmp_path / "run")
    assert run.summary["validation"]["auroc"] == done.best.value
    assert run.plan["train"]["lr"] == done.best.settings["train.lr"]


def test_results_hold_every_trial_and_no_run_is_left_behind(done):
    values = json.loads((done.folder / "results.json").read_text())
    assert [(t["number"], t["settings"], t["value"]) for t in values["trials"]] == tried(done)
    assert values["best"]["number"] == done.best.number
    assert values["metric"] == "auroc"
    assert values["direction"] == "maximize"
    assert [p.name for p in (done.folder / "trials").iterdir()] == ["lock"]


@pytest.mark.slow
def test_a_killed_search_goes_on_as_if_nothing_had_happened(done, tmp_path):
    out = tmp_path / "killed"
    code = (
        "import sys; from tests.capabilities.tuning.test_tune import SPACE, small\n"
        "from grandrounds.capabilities.tuning.tune import tune\n"
        "def said(text, ended, total): print(text or 'told', flush=True)\n"
        "tune(small(), trials=3, space=SPACE, out=sys.argv[1], progress=said)"
    )
    command = [sys.executable, "-c", code, str(out)]
    home = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=home)
    for line in process.stdout:
        if line.startswith("trial 1:"):  # it ended; whether the study has been told is left to chance
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (out / "results.json").exists()
    assert tried(tune(small(), trials=3, space=SPACE, out=out)) == tried(done)


@pytest.mark.slow
def test_more_trials_go_on_and_none_is_run_again(done, tmp_path):
    first = tune(small(), trials=2, space=SPACE, out=tmp_path / "a")
    said = []
    more = tune(small(), trials=3, space=SPACE, out=tmp_path / "a", progress=lambda *a: said.append(a[0]))
    assert tried(more)[:2] == tried(first)
    assert tried(more) == tried(done)[:3]
    assert [text.partition(":")[0] for text in said if text] == ["trial 2"]


def test_another_search_in_the_same_folder_is_refused(done):
    with refused("another-search"):
        tune(small(), trials=3, space=SPACE, out=done.folder, metric="log_loss")
    with refused("another-search"):
        tune(small(method={"rounds": 3}), trials=3, space=SPACE, out=done.folder)


@pytest.mark.slow
def test_settings_that_were_tried_are_not_run_again_and_lower_may_be_better(tmp_path):
    found = tune(small(), trials=5, space={"train.lr": [0.01, 0.3]}, out=tmp_path / "a", metric="log_loss", jobs=2)
    assert found.goal.maximize is False
    assert found.best.value == min(t.value for t in found.trials)
    again = [t for t in found.trials if t.same_as is not None]
    assert again
    for t in again:
        assert t.settings == found.trials[t.same_as].settings
        assert t.value == found.trials[t.same_as].value
    assert len(found.ranking) == len(found.trials) - len(again)


@pytest.mark.slow
def test_what_fails_counts_as_worst_and_is_said(tmp_path):
    # right each alone and not together: SCAFFOLD takes neither a forest nor Adam
    space = {"model.name": ["logistic", "forest"], "train.optimizer": ["sgd", "adam"]}
    experiment = small(method={"rounds": 2, "name": "scaffold"})
    found = tune(experiment, trials=6, space=space, out=tmp_path / "a")
    assert found.best.settings == {"model.name": "logistic", "train.optimizer": "sgd"}
    assert found.failures
    assert all(t.value is None and t.failed for t in found.failures)
    assert {t.number for t in found.failures}.isdisjoint(t.number for t in found.ranking)


def test_an_experiment_that_is_refused_stops_the_search_at_once(tmp_path):
    experiment = small(method={"rounds": 2, "name": "scaffold"}, train={"optimizer": "adam"})
    with pytest.raises(BadInput, match="sgd"):
        tune(experiment, trials=5, space=SPACE, out=tmp_path / "a")


@pytest.mark.slow
def test_where_every_trial_fails_the_search_fails(tmp_path):
    experiment = small(engine={"min_sites": 4, "faults": {"nan": ["site-01"]}})
    with refused("all-trials-failed", kind=RunFailed):
        tune(experiment, trials=2, space={"train.lr": [0.01, 0.1]}, out=tmp_path / "a")


def test_without_validation_rows_nothing_is_begun(tmp_path):
    with refused("no-validation-rows"):
        tune(small(split={"sites": 4, "val": 0.0}), trials=2, space=SPACE, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_metric_of_several_classes_is_accuracy_and_a_frame_may_be_given(tmp_path):
    table = patients([60, 50, 40], classes=3)
    experiment = Experiment.parse(
        {"name": "own", "data": {"label": "died", "site": "hospital"}, "method": {"rounds": 2}}
    )
    found = tune(experiment, trials=1, space=SPACE, out=tmp_path / "a", table=table)
    assert found.goal.metric == "accuracy"
    assert not (tmp_path / "a" / "rows").exists()


def numbered(sizes: list[int]) -> Table:
    table = patients(sizes, gaps=0.0)
    return table.with_columns({"row": np.arange(len(table), dtype=float)})


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", ["within", "group-kfold"])
@pytest.mark.parametrize("budget", [{}, {"mechanism": "dp-sgd", "epsilon": 2.0}])
def test_trials_see_a_share_of_each_site_and_never_a_test_row(tmp_path, scheme, budget):
    table = numbered([90, 70, 60, 50, 40])
    experiment = Experiment.parse(
        {
            "data": {"table": "data frame", "label": "died", "site": "hospital", "drop": ["row"]},
            "split": {"scheme": scheme, "folds": 5},
            "reference": {"probe": {"rows": 20}},
            "privacy": budget,
        }
    )
    plan = experiment.plan()
    held = assemble(Settings(plan), table)
    tested = {int(r) for rows in held.stack.rows for r in rows.test}
    trained = {
        s: len(r.train) + len(r.val) for s, r in zip(held.stack.names, held.stack.rows, strict=True) if len(r.train)
    }
    rows = prepare_rows(plan, tmp_path, share=0.5, secret=None, table=table)
    drawn = read_bundle(str(rows.file))
    seen = {int(r) for r in drawn.column("row")}
    assert seen.isdisjoint(tested)
    assert len(seen) == len(drawn)
    there = assemble(Settings(rows.plan(plan)))
    assert set(there.stack.names) == set(trained)
    assert len(there.reference["probe"].rows) == 10
    for site, r in zip(there.stack.names, there.stack.rows, strict=True):
        assert len(r.train) + len(r.val) + len(r.test) == pytest.approx(trained[site] / 2, abs=2 * np.sqrt(trained[site]))
    judged = sum(len(r.test if budget else r.val) for r in there.stack.rows)
    assert rows.part == ("final" if budget else "validation")
    assert judged == pytest.approx(0.15 * len(drawn), abs=2 * np.sqrt(0.5 * len(drawn)))
    assert rows.file.parent.stat().st_mode & 0o077 == 0
    rows.remove()
    assert not rows.file.parent.exists()


@pytest.mark.slow
def test_another_set_costs_the_experiments_patients_nothing(tmp_path):
    found = tune(small(), trials=1, space=SPACE, out=tmp_path / "a", data="digits", metric="accuracy")
    assert found.experiment.data.name == "breast-cancer"
    assert found.privacy["elsewhere"] == "digits"
    assert "cost those nothing" in found.privacy["statement"]
    with refused("unknown-data-set"):
        tune(small(), trials=2, space=SPACE, out=tmp_path / "b", data="digit")


def test_trials_without_noise_are_not_called_private(done):
    assert done.privacy["epsilon"] is None
    assert done.privacy["statement"].startswith("Not private: 3 trials")
    assert "validation rows" in done.privacy["statement"]


@pytest.mark.slow
def test_private_trials_spend_again_and_the_total_is_the_accountants(tmp_path):
    private = {"mechanism": "dp-sgd", "epsilon": 2.0, "min_rows": 10}
    found = tune(small(privacy=private), trials=2, space=SPACE, out=tmp_path / "a")
    events = [[Event.from_dict(e) for e in t.outcome.privacy["events"]] for t in found.trials]
    each = [epsilon_of(e, 1e-5) for e in events]
    assert all(1.9 < e <= 2.0 for e in each)
    told = found.privacy
    assert told["epsilon_added"] == pytest.approx(sum(each))
    assert told["epsilon"] == pytest.approx(epsilon_of([*events[0], *events[1]], 1e-5))
    assert 2.0 < told["epsilon"] < told["epsilon_added"]
    assert told["epsilon"] < told["epsilon_with_final"]
    assert "none of it is in the epsilon that the final run states" in told["statement"]
    assert "delta = 2e-5 by adding up" in told["statement"]


def gaussian(number: int, *, sigma: float, same_as: int | None = None, failed: str = "") -> Trial:
    event = Event("gaussian", "a model", sigma=sigma).to_dict()
    figure = Event("raw", "a figure", of="validation").to_dict()
    outcome = Outcome(None if failed else 0.9, failed, privacy={"delta": 1e-5, "events": [event, figure]})
    return Trial(number, {"train.lr": 0.1}, outcome, same_as)


def test_what_failed_has_spent_and_what_was_not_run_has_not():
    one, broken, again = gaussian(0, sigma=4.0), gaussian(1, sigma=3.0, failed="no"), gaussian(2, sigma=4.0, same_as=0)
    told = privacy_cost([one, broken, again], one, validation=50)
    both = [Event("gaussian", "a model", sigma=4.0), Event("gaussian", "a model", sigma=3.0)]
    assert told["trials"] == 2
    assert told["epsilon"] == pytest.approx(epsilon_of(both, 1e-5))


def test_a_raw_release_of_training_rows_leaves_no_epsilon():
    raw = Event("raw", "signs", of="training").to_dict()
    trial = Trial(0, {}, Outcome(0.8, privacy={"delta": 1e-5, "events": [raw]}))
    told = privacy_cost([trial], trial, validation=50)
    assert told["epsilon"] is None
    assert told["statement"].startswith("Not private: 1 trial told something of patients as it is (epsilon = infinity)")
