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
from grandrounds.report.findings import describe_findings
from grandrounds.report.personal import deployed_table, harm_line, personal_lines
from grandrounds.runs.run import Run
from tests.methods.test_guard_runs import make_run, table_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("personal") / "run")


def changed(run: Run, **personal: Any) -> RunSummary:
    """The summary with other facts about personal models."""
    values = run.summary.to_dict()
    return RunSummary.from_dict({**values, "personal": {**values["personal"], **personal}})


def printed(summary: RunSummary) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    show_summary(console, summary)
    return console.export_text()


def test_the_screen_names_deployed_models_and_always_the_number_of_harmed_sites(run: Run) -> None:
    text = printed(run.summary)
    assert "deployed at a and c: the common model with its own intercept" in text
    assert "harmed sites: 0 of 3" in text and "models that sites deploy" in text
    about = [line for line in text.splitlines() if line.startswith(("deployed", "with the deployed", "harmed"))]
    assert len(about) >= 3 and max(map(len, about)) <= 80


def test_harmed_sites_are_named(run: Run) -> None:
    assert harm_line(changed(run, harmed=["b"])).startswith("harmed sites: 1 of 3: b (the deployed model is clearly worse")
    assert harm_line(changed(run, harmed=None, tested=[])).startswith("harmed sites: not tested")
    assert harm_line(changed(run, guard=False)) == ""


def test_under_a_budget_nothing_about_choices_is_printed(run: Run) -> None:
    summary = RunSummary.from_dict({**run.summary.to_dict(), "personal": {"stays": True, "guard": True, "part": "none"}})
    assert len(personal_lines(summary)) == 1 and "stay at the site" in personal_lines(summary)[0]
    assert harm_line(summary) == "" and deployed_table(summary)[1] == []
    assert "harmed" not in printed(summary)


def test_many_sites_are_counted(run: Run) -> None:
    lines = personal_lines(changed(run, choices={f"s{i}": "own" for i in range(9)}))
    assert lines[0] == "deployed at 9 sites: a model of its own rows alone"


def test_the_mean_outcome_has_the_place_of_the_majority_class(run: Run) -> None:
    summary = changed(run, choices={"a": "majority"})
    assert "deployed at a: its most common class" in personal_lines(summary)
    numbers = {"mse": 1.0, "r2": 0.2, "mae": 0.3, "rmse": 1.0}
    personal = {**summary.personal, "final": numbers}
    other = RunSummary.from_dict({**summary.to_dict(), "task": "regression", "final": numbers, "personal": personal})
    assert "deployed at a: its mean outcome" in personal_lines(other) and "mean outcome" in harm_line(other)


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
