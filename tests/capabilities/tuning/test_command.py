"""`rounds tune` as a user meets it: a file with [tune], flags, what is printed, how it refuses, how it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.test_commands import refused
from tests.command import rounds
from tests.store import copied, shared_folder

FILE = """
name = "mine"
[data]
name = "breast-cancer"
[split]
sites = 4
[method]
rounds = 2
[tune]
trials = 3
[tune.space]
"train.lr" = { low = 1e-3, high = 1.0, log = true }
train.batch = { choices = [16, 32] }
"""


@shared_folder
def tuned(folder: Path) -> None:
    """A user's folder with an experiment, tuned as its file says."""
    (folder / "mine.toml").write_text(FILE)
    done = rounds("tune", "mine.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)


@pytest.fixture(scope="module")
def home(tuned, tmp_path_factory):
    return copied(tuned, tmp_path_factory.mktemp("home"))


def test_it_prints_the_best_the_cost_and_what_to_do_next(home):
    text = (home / "printed.txt").read_text()
    for words in (
        "mine: best of 3 trials, by AUROC of ",
        "train.lr",
        "train.batch",
        "privacy: Not private: 3 trials trained on patients without noise",
        "rounds run runs/tune/mine/best.toml",
    ):
        assert words in text


def test_the_best_is_run_as_printed_with_the_same_figure(home):
    found = json.loads((home / "runs/tune/mine/results.json").read_text())
    done = rounds("run", "runs/tune/mine/best.toml", "--json", "--out", "best", cwd=home)
    assert json.loads(done.stdout)["validation"]["auroc"] == found["best"]["value"]
    assert found["best"]["value"] == max(t["value"] for t in found["trials"])


def test_a_file_with_a_search_in_it_runs_as_without(home):
    done = rounds("run", "mine.toml", "--quiet", "--out", "plain", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "[tune" not in (home / "plain" / "experiment.toml").read_text()


def test_json_is_json_and_a_finished_search_is_not_run_again(home):
    done = rounds("tune", "mine.toml", "--json", cwd=home)
    assert done.stderr == ""
    assert json.loads(done.stdout) == json.loads((home / "runs/tune/mine/results.json").read_text())
    quiet = rounds("tune", "mine.toml", "--quiet", cwd=home)
    assert (quiet.stdout.strip(), quiet.stderr) == ("runs/tune/mine/best.toml", "")


@pytest.mark.slow
def test_flags_add_to_the_file(home):
    flags = ("--space", "train.epochs=1..2", "--trials", "2", "--metric", "brier", "--share", "0.6", "--json")
    found = json.loads(rounds("tune", "mine.toml", *flags, "--out", "other", cwd=home).stdout)
    assert set(found["space"]) == {"train.lr", "train.batch", "train.epochs"}
    assert (found["metric"], found["direction"], found["share"], len(found["trials"])) == ("brier", "minimize", 0.6, 2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--space", "train.lrr=1..2"), ("unknown key 'train.lrr'", "'lr'")),
        (("--space", "train.lr=0..1"), ("train.lr is 0.0", "greater than 0")),
        (("--space", "split.val=0.1,0.2"), ("cannot be tuned",)),
        (("--metric", "aurocc"), ("did you mean 'auroc'",)),
        (("--metric", "calibration_slope"), ("--direction",)),
        (("--direction", "up"), ("tune.direction is 'up'",)),
        (("--share", "1.5"), ("tune.share is 1.5",)),
        (("--data", "nowhere"), ("no such set",)),
        (("--label", "died"), ("[missing-option]", "--set data.label")),
        (("--set", "data.label=nothing"), ("column 'nothing' not found",)),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(home, flags, words):
    refused(rounds("tune", "mine.toml", *flags, "--out", "never", cwd=home), *words)
    assert not (home / "never").exists()


def test_a_damaged_study_is_refused_in_words(home):
    (home / "broken").mkdir()
    (home / "broken" / "study.db").write_bytes(b"this is no database" * 100)
    refused(rounds("tune", "mine.toml", "--out", "broken", cwd=home), "study.db", "remove it")


def held_trial(search: subprocess.Popen) -> psutil.Process:
    """A trial of the search, held up in the middle of its work: until it goes on the search cannot end."""
    while search.poll() is None:
        for trial in psutil.Process(search.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                trial.suspend()
                if "grandrounds.job" in trial.cmdline() and trial.status() == psutil.STATUS_STOPPED:
                    return trial
                trial.resume()
        time.sleep(0.01)
    raise AssertionError(f"the search ended without a trial: {search.communicate()[1]}")


@pytest.mark.slow
def test_interrupted_it_says_so_and_the_same_command_goes_on(home):
    code = "from grandrounds.cli import main; main()"
    command = [sys.executable, "-c", code, "tune", "mine.toml", "--trials", "3", "--out", "stopped"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=home)
    trial = held_trial(process)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the search and its trial
    trial.resume()
    _, said = process.communicate()
    assert process.returncode == 130
    assert "the same command continues the search" in said
    assert "Traceback" not in said
    again = rounds("tune", "mine.toml", "--trials", "3", "--out", "stopped", "--json", cwd=home)
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    whole = json.loads((home / "runs/tune/mine/results.json").read_text())
    for key in ("number", "settings", "value"):
        assert [t[key] for t in found["trials"]] == [t[key] for t in whole["trials"]]
