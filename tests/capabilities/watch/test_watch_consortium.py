"""`rounds watch RUN --simulate` and `--plan`: the table, the report, the console's tables, and sentences for mistakes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.capabilities.console.views import estimates
from grandrounds.core.sources import AT_SITES
from grandrounds.experiment.requests import expected_asks
from grandrounds.report.watch import headline
from tests.command import rounds
from tests.store import copied, finished

SHIFTS = ("--shift", "resting_bp=1.5@va", "--shift", "resting_bp=1.5@hungarian")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A copy, since watches are written beside it."""
    stored = finished("heart", settings={"method.rounds": 2, "personal.guard": False})
    return copied(stored, tmp_path_factory.mktemp("runs") / "heart")


def test_a_planted_shift_is_printed_and_reported(run):
    done = rounds("watch", run, "--simulate", *SHIFTS)
    assert done.returncode == 0, done.stderr
    assert "resting_bp at 2 of 4 sites" in done.stdout and "By site" in done.stdout
    watched = run.with_name("heart-watch")
    assert done.stdout.splitlines()[-1] == f"run: {watched}"
    page = (watched / "report.html").read_text()
    assert "Features that moved, by number of sites" in page and "resting_bp" in page
    assert rounds("audit", "verify", watched).returncode == 0
    shown = rounds("show", watched).stdout
    assert "resting_bp at 2 of 4 sites" in shown
    found = gr.load_run(watched).summary["watch"]
    assert headline(found).startswith("Moved: resting_bp at 2 of 4 sites")
    assert found["run"] == str(run.resolve()), "the plan names the watched run"


def test_secure_sums_and_a_budget_are_options(run, tmp_path):
    told = json.loads(rounds("watch", run, "--simulate", "--secure", "--json", "--out", tmp_path / "w", *SHIFTS).stdout)
    assert told["secure"] and not told["by_site"] and told["features"][0]["moved"] == 2
    noised = rounds("watch", run, "--simulate", "--epsilon", "1", "--out", tmp_path / "n").stdout
    assert "privacy: epsilon 1 at delta 1e-05, charged once" in noised and "noise of standard deviation 21.8" in noised


def test_the_plan_for_hospitals_names_the_model_and_the_bins(run, tmp_path):
    assert rounds("watch", run, "--plan", tmp_path / "watch.toml", "--secure").returncode == 0
    plan = tomllib.loads((tmp_path / "watch.toml").read_text())
    watch = plan["method"]["watch"]
    assert plan["method"]["name"] == "watch" and plan["privacy"]["secure"] and len(watch["model"]) == 64
    pytest.importorskip("flwr")
    from grandrounds.capabilities.hospital.deploy.submit import deployed_plan

    there = deployed_plan(tmp_path / "watch.toml", [])
    assert there["data"]["table"] == AT_SITES and there["method"]["watch"]["edges"].keys() == watch["edges"].keys()
    asked = [(a.task, a.withheld) for a in expected_asks(there) if a.task in ("watch", "summarise", "train", "evaluate")]
    assert asked == [("watch", ("sums",))], "no summary and no model is asked for"
    assert watch["edges"]["age"] == sorted(watch["edges"]["age"]) and watch["run"] == str(run.resolve())


@pytest.mark.parametrize(
    "options, code",
    [
        (("--secure",), "missing-option"),
        (("--simulate", "--shift", "resting_bp=1.5@nowhere"), "unknown-site"),
        (("--simulate", "--shift", "weight=2@va"), "unknown-column"),
        (("--simulate", "--epsilon", "1", "--alarms"), "method-does-not-fit"),
    ],
)
def test_mistakes_are_one_sentence(run, options, code, tmp_path):
    done = rounds("watch", run, *options)
    assert done.returncode == 2 and f"[{code}]" in done.stderr


def test_the_console_shows_the_tables(run, monkeypatch):
    if not run.with_name("heart-watch").exists():
        rounds("watch", run, "--simulate", *SHIFTS)
    summary = gr.load_run(run.with_name("heart-watch")).summary
    monkeypatch.setattr(estimates, "load_record", lambda index, name: type("R", (), {"summary": summary}))
    titles = [view.title for view in estimates.tables(None, "heart-watch")]  # type: ignore[arg-type]
    assert titles == ["Features that moved, by number of sites", "Scores, explanations and calibration", "By site"]
