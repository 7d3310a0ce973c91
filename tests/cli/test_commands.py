"""The command line as a new user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import grandrounds as gr
from grandrounds.cli import app
from grandrounds.cli.groups import panels
from grandrounds.cli.screen import runs_bar
from grandrounds.data.table import Table
from tests.command import rounds, rounds_in_a_process
from tests.store import shared_folder
from tests.support import patients


def write_csv(table: Table, path) -> None:
    with path.open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(table.names)
        for row in zip(*table.columns.values(), strict=True):
            writer.writerow(["" if v is None or v != v else v for v in row])


@shared_folder
def home(folder: Path) -> None:
    """A user's folder: their CSV, and one finished run on it."""
    write_csv(patients([80, 60, 50]), folder / "patients.csv")
    done = rounds_in_a_process(
        "run", "--table", "patients.csv", "--label", "died", "--site", "hospital", "--set", "method.rounds=6",
        "--set", "evaluation.calibrate=temperature", "--out", "run", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)


def refused(done: subprocess.CompletedProcess, *words: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def test_help_teaches(home):
    top = rounds("--help").stdout
    for command in (
        "run",
        "resume",
        "plan",
        "compare",
        "list",
        "show",
        "init",
        "predict",
        "evaluate",
        "export",
        "data",
    ):
        assert command in top
    text = rounds("run", "--help").stdout
    for flag in ("--table", "--label", "--site", "--drop", "--set", "--seed", "--out", "--json", "--quiet"):
        assert flag in text
    assert "The folder of a finished run." in rounds("attack", "--help").stdout, "what an argument means"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['rounds', '--help']\n"
        "from grandrounds.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'pandas', 'sklearn', 'scipy', 'torch', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_run_on_an_own_file_prints_the_result_and_where_it_is(home):
    text = (home / "printed.txt").read_text()
    for words in (
        "accuracy",
        "AUROC",
        "each hospital's most common class",
        "lowest AUROC first",
        "run folder: run",
        "report: run/report.html",
    ):
        assert words in text
    assert {p.name for p in (home / "run").iterdir()} == {
        "experiment.toml", "schema.json", "environment.json", "round_logs.json", "summary.json", "model.safetensors",
        "report.html", "explanations.json", "checkpoint", "ledger.db", "ledger.head.json", "server.pub", "percentiles.json",
    }  # fmt: skip


def test_json_is_json_and_quiet_is_quiet(home, tmp_path):
    done = rounds_in_a_process("run", "--set", "method.rounds=2", "--json", "--out", tmp_path / "a")
    assert json.loads(done.stdout) == json.loads((tmp_path / "a" / "summary.json").read_text())
    assert done.stderr == ""
    done = rounds("run", "--set", "method.rounds=2", "--quiet", "--out", tmp_path / "b")
    assert done.stdout.strip() == str(tmp_path / "b")
    assert done.stderr == ""


def test_progress_and_faults_are_shown(tmp_path):
    done = rounds("run", "--set", "engine.faults.nan=['site-03']", "--set", "method.rounds=2", "--out", tmp_path / "r")
    assert done.returncode == 0
    assert "without site-03 (sent values that are not finite numbers)" in done.stderr
    assert "10 sites, 30 features" in done.stderr


def test_predict_scores_rows_in_order(home, tmp_path):
    table = patients([25], seed=5)
    write_csv(table.without(["died", "hospital"]), tmp_path / "new.csv")
    done = rounds("predict", home / "run", "--table", tmp_path / "new.csv")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [r["row"] for r in rows] == [str(i) for i in range(1, 26)]
    risk = np.array([float(r["risk_of_died"]) for r in rows])
    assert ((risk > 0) & (risk < 1)).all()
    assert all((float(r["risk_of_died"]) >= 0.5) == (r["decision"] == "1") for r in rows)
    to_file = rounds("predict", home / "run", "--table", tmp_path / "new.csv", "--out", tmp_path / "scored.csv")
    assert to_file.returncode == 0
    assert (tmp_path / "scored.csv").read_text() == done.stdout


def test_whose_model_scores_where_models_stay_separate(tmp_path):
    asked = ("--set", "method.rounds=1", "--set", "method.cohorts={count=2, models='separate'}", "--quiet")
    assert rounds("run", *asked, "--out", tmp_path / "r").returncode == 0
    held = gr.load_run(tmp_path / "r")
    np.testing.assert_array_equal(held.model_for("7").theta, held.model_for("site-07").theta)
    said = "note: sites have separate models in this run; this is their mean (choose a site's with --for SITE)"
    mean = rounds("export", held.folder, "--to", "json", "--out", tmp_path / "mean.json")
    own = rounds("export", held.folder, "--to", "json", "--out", tmp_path / "own.json", "--for", "7")
    assert mean.returncode == own.returncode == 0
    assert said in mean.stderr and said not in own.stderr
    assert (tmp_path / "mean.json").read_text() != (tmp_path / "own.json").read_text()
    refused(rounds("export", held.folder, "--to", "json", "--for", "77"), "no site '77'", "known: site-01")


def test_evaluate_is_external_validation(home, tmp_path):
    write_csv(patients([400], seed=77), tmp_path / "other.csv")
    done = rounds("evaluate", home / "run", "--table", tmp_path / "other.csv", "--json")
    overall = json.loads(done.stdout)["overall"]
    assert overall["count"] == 400
    assert overall["auroc"] > 0.6
    assert "in the run's own test" in rounds("evaluate", home / "run", "--table", tmp_path / "other.csv").stdout


def test_show_tells_why(home):
    assert "AUROC" in rounds("show", home / "run").stdout
    text = rounds("show", home / "run", "--round", 2, "--site", "a").stdout
    assert "round 2, a: weight" in text
    assert "number 1 of 3" in text
    assert "share of the training rows" in text
    assert "3 sites asked, 3 answered" in rounds("show", home / "run", "--round", 1).stdout
    course = rounds("show", home / "run", "--site", "b").stdout
    assert len(course.splitlines()) == 7
    assert "numeric" in rounds("show", home / "run", "--schema").stdout
    refused(rounds("show", home / "run", "--round", 99), "has no round 99", "1 to 6")
    refused(rounds("show", home / "run", "--site", "zz"), "no site 'zz'")
    refused(rounds("show", home), "[not-a-run-folder]")


def test_init_writes_a_file_that_runs(tmp_path):
    assert rounds("init", cwd=tmp_path).returncode == 0
    assert tomllib.loads((tmp_path / "experiment.toml").read_text())["data"]["name"] == "breast-cancer"
    done = rounds("run", "experiment.toml", "--set", "method.rounds=2", "--quiet", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused(rounds("init", cwd=tmp_path), "[file-exists]", "experiment.toml", "--force")
    lines = (tmp_path / "experiment.toml").read_text().splitlines()
    assert sum(bool(line.strip()) and not line.startswith("#") for line in lines) <= 10, "lines that matter"
    assert rounds("init", "all.toml", "--all", cwd=tmp_path).returncode == 0
    assert "[engine.faults]" in (tmp_path / "all.toml").read_text()


def test_list_without_a_kind_counts_what_can_be_listed():
    text = rounds("list").stdout
    counts = json.loads(rounds("list", "--json").stdout)
    methods = json.loads(rounds("list", "methods", "--json").stdout)
    assert counts["methods"] == len(methods) > 10
    assert any(line.split()[:2] == ["methods", str(len(methods))] for line in text.splitlines())


def test_run_takes_a_table_as_it_takes_a_recipe(home, tmp_path):
    table = home / "patients.csv"
    done = rounds("plan", table, "--label", "died", "--site", "hospital", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same = rounds("plan", "--table", table, "--label", "died", "--site", "hospital", cwd=tmp_path)
    assert json.loads(done.stdout) == json.loads(same.stdout)
    refused(rounds("run", table, cwd=tmp_path), "[label-not-set]", f"rounds run {table} --label COLUMN")
    refused(rounds("run", "sqlite:///nowhere.db", "--label", "died", cwd=tmp_path), "[file-not-found]")


def test_commands_are_in_panels():
    text = rounds("--help").stdout
    titles = ["Train", "Inspect", "Use", "Trust", "Data", "Deploy", "Research"]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("╭─")] == ["Options", *titles]
    shown = {name for names in panels().values() for name in names}
    assert set(get_command(app).commands) == shown


def test_sub_commands_of_a_command_with_arguments(home):
    assert "Sub-commands" in (text := rounds("explain", "--help").stdout) and "rounds explain maps" in text
    refused(rounds("explain", home / "nowhere", "--case", 1), "[not-a-run-folder]")
    refused(rounds("explain", "maps", "show", home / "nowhere"), "[not-a-run-folder]")
    refused(rounds("privacy", "budget", home / "nowhere"), "[file-not-found]")
    refused(rounds("privacy", home / "nowhere"), "[not-a-run-folder]")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--set", "privacy.secure=true", "--set", "method.robust=krum"], "--set privacy.secure=true|false"),
        (["plan", "--set", "data.shortcut.p=2"], "--set data.shortcut.p=X"),
        (["compare", "--methods", "fedavg", "--set", "method.rounds=0"], "--set method.rounds=N"),
    ],
)
def test_an_error_that_names_a_setting_shows_how_to_change_it(arguments, line, tmp_path):
    done = rounds(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert any(text.startswith("change ") and line in text for text in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("what", ["methods", "models", "data", "recipes"])
def test_lists(what):
    assert len(rounds("list", what).stdout.splitlines()) >= 2
    assert isinstance(json.loads(rounds("list", what, "--json").stdout), dict)


def test_data_list_and_check(home):
    assert "included" in rounds("data", "list").stdout
    text = rounds("data", "check", home / "patients.csv", "--label", "died", "--site", "hospital").stdout
    assert "lactate" in text
    assert "numeric" in text
    assert "classes: 0" in text


def test_an_interrupted_run_is_shown_and_resumed(tmp_path):
    failed = rounds(
        "run", "--set", "engine.faults.drop=0.5", "--set", "engine.min_sites=7", "--set", "method.rounds=20",
        "--out", tmp_path / "r", "--quiet",
    )  # fmt: skip
    assert failed.returncode == 1
    assert "engine.min_sites is 7" in failed.stderr
    assert "Failed after 0 of 20 rounds. Round 1: only 6 of 10 sites" in rounds("show", tmp_path / "r").stdout
    done = rounds("resume", tmp_path / "r", "--set", "engine.min_sites=1", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["rounds"] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "brest-cancer"], ["no recipe 'brest-cancer'", "did you mean 'breast-cancer'"]),
        (["run", "nowhere.toml"], ["cannot read nowhere.toml"]),
        (["run", "--set", "method.nme=x"], ["unknown key 'method.nme'", "did you mean 'name'"]),
        (["run", "--table", "none.csv", "--label", "y"], ["none.csv"]),
        (["run", "--table", "{home}/patients.csv"], ["[label-not-set]", "lactate", "rounds run", "--label COLUMN"]),
        (["run", "--table", "{home}/patients.csv", "--label", "dead"], ["column 'dead' not found in", "(use --label)"]),
        (
            ["run", "--table", "{home}/patients.csv", "--label", "died", "--site", "hopital"],
            ["did you mean 'hospital'"],
        ),
        (["run", "--table", "{home}/patients.csv", "--label", "died", "--drop", "agee"], ["agee"]),
        (["run", "heart", "--table", "x.csv"], ["[conflicting-options]", "'heart'"]),
        (["list", "method"], ["[unknown-list]", "did you mean 'methods'"]),
        (["resume", "nowhere"], ["[not-a-run-folder]"]),
        (["compare", "one"], ["[too-few-runs]"]),
        (["export", "{home}/run", "--to", "pickle"], ["cannot export to 'pickle'", "json, onnx"]),
        (["predict", "{home}/run", "--table", "{home}/run/summary.json"], ["summary.json"]),
        (["data", "get", "hart"], ["did you mean 'heart'"]),
        (["data", "check", "{home}/patients.csv"], ["[label-not-set]", "--label"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(home, arguments, words, tmp_path):
    done = rounds(*[str(a).replace("{home}", str(home)) for a in arguments], cwd=tmp_path)
    refused(done, *words)
    assert not list(tmp_path.glob("runs/*")), "a refused run leaves no folder"


def test_a_shell_is_told_of_bad_input_too(tmp_path):
    refused(rounds_in_a_process("run", "nowhere.toml", cwd=tmp_path), "cannot read nowhere.toml")


def test_prediction_on_a_strange_table_is_refused(home, tmp_path):
    (tmp_path / "strange.csv").write_text("x,y\n1,2\n3,4\n")
    refused(rounds("predict", home / "run", "--table", tmp_path / "strange.csv"), "none of the model's columns")


def test_risks_without_important_columns_need_a_flag_and_the_file_names_the_columns(home, tmp_path):
    table = patients([25], seed=5).without(["died", "hospital"])
    write_csv(table.without(["age", "lactate"]), tmp_path / "few.csv")
    arguments = ("predict", home / "run", "--table", tmp_path / "few.csv", "--out", tmp_path / "scored.csv")
    refused(rounds(*arguments), "missing-columns", "2 of the model's 4 inputs", "'lactate'", "--allow-missing")
    assert not (tmp_path / "scored.csv").exists()
    done = rounds(*arguments, "--allow-missing")
    assert done.returncode == 0 and "note: column 'age' is absent" in done.stderr
    rows = list(csv.DictReader((tmp_path / "scored.csv").read_text().splitlines()))
    assert {row["missing_inputs"] for row in rows} == {"age; lactate"}


def test_heart_hospitals_come_with_the_package(tmp_path):
    listed = rounds("data", "list").stdout
    assert re.search("^heart +included ", listed, re.M)
    done = rounds("run", "heart", "--json", "--out", tmp_path / "r")
    summary = json.loads(done.stdout)
    assert set(summary["per_site"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert summary["final"]["auroc"] > 0.85
    assert "column 'cholesterol' has no value here" in summary["notes"]["switzerland"][0]


def test_progress_over_runs_is_lines_in_a_file(capsys):
    """A reproduction of seven minutes wrote nothing to a redirected log."""
    clock = iter(range(1000))
    for quiet in (False, True):
        with runs_bar(quiet=quiet) as bar:
            bar.get_time = lambda: float(next(clock))
            task = bar.add_task("", total=20)
            for k in range(20):
                bar.update(task, advance=1, description=f"run {k + 1}")
        lines = [line for line in capsys.readouterr().err.splitlines() if " of 20 runs after " in line]
        if quiet:
            assert not lines
        else:
            assert lines[0].startswith("1 of 20 runs") and lines[-1].endswith("run 20") and 4 < len(lines) < 20
