"""Sentences and the table about personal models, and warnings that refer to the deployed models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.cli.command_line import app
from grandrounds.cli.screen import show_summary
from grandrounds.core.records import RunSummary
from grandrounds.metrics.fairness import deployed_scores, majority_lines
from grandrounds.report.deployed import describe_harm, read_deployed
from grandrounds.report.findings import describe_findings
from grandrounds.runs.run import Run
from tests.methods.test_guard_runs import make_run, table_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("personal") / "run")


def changed(run: Run, **personal: Any) -> RunSummary:
    """The summary with other facts about personal models."""
    values = run.summary.to_dict()
    return RunSummary.from_dict({**values, "personal": {**values["personal"], **personal}})


def harm_of(summary: RunSummary) -> list[str]:
    found = read_deployed(summary)
    assert found is not None
    return describe_harm(found)


def printed(summary: RunSummary) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    show_summary(console, summary)
    return console.export_text()


def test_the_screen_has_scores_of_the_deployed_models_and_one_sentence_on_harm(run: Run) -> None:
    text = printed(run.summary)
    deployed, common = run.summary.personal["final"], run.summary.final
    assert text.count("clearly worse off") == 1 and "models that sites deploy" in text
    assert f"{deployed['log_loss']:.4f}" in text and f"{common['log_loss']:.4f}" not in text


def test_harmed_sites_are_named(run: Run) -> None:
    named = harm_of(changed(run, harmed=["b"]))
    assert named[0].startswith("1 hospital is clearly worse off: ") and named[1].startswith("b deploys ")
    assert harm_of(changed(run, tested=["a"]))[-1].startswith("2 more have too few test rows")
    assert harm_of(changed(run, harmed=None, tested=[]))[0].startswith("Harm to hospitals was not tested")


def test_a_hospital_whose_decisions_are_worse_than_no_model_is_harmed(run: Run) -> None:
    """Nobody is clearly worse off only where no interval against no model excludes zero."""
    per_site = run.summary.personal["per_site"]
    treated = {"count": 400.0, "events": 100.0, "sensitivity": 0.2, "specificity": 0.4, "accuracy": 0.35, "majority": 0.75}
    worse = changed(run, harmed=[], per_site={**per_site, "a": {**per_site["a"], **treated}})
    assert harm_of(worse)[0].startswith("1 hospital is clearly worse off: ")
    assert "clearly worse than no model at 1 of 3" in harm_of(worse)[0]


def test_under_a_budget_nothing_about_choices_is_printed(run: Run) -> None:
    summary = RunSummary.from_dict({**run.summary.to_dict(), "personal": {"stays": True, "guard": True, "part": "none"}})
    assert "worse off" not in printed(summary) and "models that sites deploy" not in printed(summary)


def test_the_mean_outcome_has_the_place_of_the_majority_class(run: Run) -> None:
    other = RunSummary.from_dict({**run.summary.to_dict(), "task": "regression"})
    assert "its mean outcome" in harm_of(other)[0]


def test_warnings_about_the_majority_class_are_about_deployed_models(run: Run) -> None:
    """A site whose common model is worse than a constant answer, and whose deployed model is not, has no warning."""
    worse = {**run.summary.per_site["a"], "accuracy": 0.2, "decision_accuracy": 0.2, "count": 60}
    common = RunSummary.from_dict({**run.summary.to_dict(), "per_site": {**run.summary.per_site, "a": worse}, "personal": {}})
    assert any(line.startswith("a: accuracy 0.20") for line in majority_lines(common))
    assert any("At a the model is worse" in line for line in describe_findings(common))
    deployed = RunSummary.from_dict({**common.to_dict(), "personal": run.summary.personal})
    assert deployed_scores(deployed)["per_site"] == run.summary.personal["per_site"]
    assert not any(line.startswith("a: ") for line in majority_lines(deployed))
    assert not any("At a the model" in line for line in describe_findings(deployed))


def test_predict_uses_the_deployed_model_of_a_site_and_notes_the_common_one(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    pd.DataFrame(dict(table_of().columns)).head(20).to_csv(table, index=False)
    words = ["predict", str(run.folder), "--table", str(table)]
    common, site = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--for", "a"]))
    assert common.exit_code == site.exit_code == 0
    assert "note: this is the common model; sites deploy personal models" in common.stderr
    assert "common model" not in site.stderr and common.stdout != site.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--guard"], (True, "none")),
        (["--no-guard"], (False, "none")),
        (["--personal", "ditto"], (True, "ditto")),
        (["--no-guard", "--personal", "recalibration"], (False, "recalibration")),
    ],
)
def test_options_of_rounds_run_set_the_guard_and_the_part(words: list[str], expected: tuple[bool, str]) -> None:
    """The recipe heart has the guard."""
    made = CliRunner().invoke(app, ["plan", "heart", *words])
    personal = json.loads(made.stdout)["personal"]
    assert (personal["guard"], personal["part"]) == expected


def test_python_has_the_same_words(tmp_path: Path) -> None:
    table = pd.DataFrame(dict(table_of(sizes=[60, 50]).columns))
    words = {"label": "died", "site": "hospital", "rounds": 1, "out": tmp_path / "run", "progress": False}
    made = gr.run(table, guard=True, personal="finetune", **words)
    assert made.summary.personal["guard"] is True and made.summary.personal["part"] == "finetune"
    assert gr.config.Personal(part="ditto", strength=0.5).guard is False
