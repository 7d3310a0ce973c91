"""`rounds watch` and `gr.watch` on a hospital of heart: screen, exit codes, JSON, loop, refusals."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.watch.at_sites.state import WatchState
from grandrounds.capabilities.watch.commands import watch as command
from grandrounds.capabilities.watch.statistics import calibrate
from tests.command import rounds
from tests.store import copied, finished, shared_folder

SITE = "cleveland"


@shared_folder
def root(folder: Path) -> None:
    """A run, tables of one hospital, and a watch whose baseline is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grandrounds.capabilities.watch.at_sites.baseline.calibrate", partial(calibrate, streams=5))
        quick = {"method.rounds": 2, "explain.sketch": "none", "evaluation.every": 100}
        copied(finished("heart", settings=quick), folder / "run")
        assert rounds("data", "split", "heart", "--out", "tables", cwd=folder).returncode == 0
        said = rounds("watch", "run", "--site", SITE, "--table", f"tables/{SITE}.csv", cwd=folder)
    assert said.returncode == 0, said.stderr
    assert "setting the alarm levels of cleveland by resampling" in said.stderr
    assert "cleveland: 303 new patients, 303 new outcomes" in said.stdout and "no alarm" in said.stdout
    assert "at most 1 in 5,000 patients" in " ".join(said.stdout.split())
    table = pd.read_csv(folder / "tables" / f"{SITE}.csv")
    table.assign(cholesterol=table["cholesterol"] / 38.67).to_csv(folder / "tables" / "next.csv", index=False)


@pytest.fixture
def copy(root, tmp_path):
    return copied(root, tmp_path / "copy")


def test_an_alarm_in_sentences_with_exit_code_3(copy):
    said = rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", cwd=copy)
    assert said.returncode == 3, said.stderr
    text = " ".join(said.stdout.split())
    assert "alarm A1 (open): Column cholesterol is outside the range of training in 100% of patients" in text
    assert "Since patient 304 (" in text and "labelled patients since then" in text
    assert "(mg/dL to mmol/L, as of cholesterol is a factor of 38.67): check the unit of column cholesterol" in text
    assert "files: run/at_sites/cleveland/watch" in text
    again = rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", cwd=copy)
    assert again.returncode == 0 and "1 earlier alarm is open" in again.stdout

    shown = rounds("watch", "show", "run", cwd=copy)
    assert shown.returncode == 0 and "606 patients, 606 of them with their outcome" in shown.stdout
    assert "alarm A1 (open)" in shown.stdout and "In the newest patients: 100%, in the reference: 0%." in shown.stdout
    assert json.loads(rounds("watch", "show", "run", "--json", cwd=copy).stdout)["patients"] == 606
    assert rounds("audit", "verify", "run/at_sites/cleveland/watch", cwd=copy).returncode == 0


@pytest.mark.parametrize(("key", "value"), [("watched", None), ("checks", ["text"]), ("patients", "many"), ("alarms", [{}])])
def test_a_damaged_status_is_refused_with_one_sentence(copy, key, value):
    file = copy / "run" / "at_sites" / SITE / "watch" / "watch.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    shown = rounds("watch", "show", "run", cwd=copy)
    assert shown.returncode == 2 and "[damaged-file]" in shown.stderr


def test_a_head_that_is_no_file_is_not_read(copy):
    head = copy / "run" / "at_sites" / SITE / "watch" / "ledger.head.json"
    head.unlink()
    head.symlink_to("/dev/zero")
    said = rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", cwd=copy)
    assert said.returncode == 2 and "[not-a-plain-file]" in said.stderr


def test_json_has_the_status_and_new_alarms(copy):
    said = rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", "--json", cwd=copy)
    values = json.loads(said.stdout)
    assert said.returncode == 3 and values["new"] == 303 and values["new_alarms"] == ["A1"]
    assert {"checks", "timeline", "alarms", "reference", "rate", "folder"} <= set(values)
    assert rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", "-q", cwd=copy).stdout == ""


def test_a_command_is_called_and_a_silenced_check_changes_no_exit_code(copy):
    silence = ("watch", "silence", "run", "--check", "range up: cholesterol", "--patients", "1000", "--by", "IT")
    assert rounds(*silence, cwd=copy).returncode == 0
    hook = ("--on-alarm", "tee taken.json")
    said = rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", *hook, cwd=copy)
    assert said.returncode == 0 and "A1 (silenced)" in said.stdout and not (copy / "taken.json").exists()
    rounds("watch", "silence", "run", "--check", "range up: cholesterol", "--end", "--by", "IT", cwd=copy)
    rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", *hook, cwd=copy)
    assert json.loads((copy / "taken.json").read_text())["id"] == "A1"


def test_it_reads_again_and_again_until_it_is_stopped(copy, monkeypatch):
    inbox = copy / "inbox"
    inbox.mkdir()
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 1:
            (inbox / "bad.csv").write_text("colour\nred\n")
        elif len(pauses) == 2:
            (inbox / "bad.csv").unlink()
            shutil.copy(copy / "tables" / "next.csv", inbox)
        elif len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    said = rounds("watch", "run", "--site", SITE, "--table", "inbox", "--every", "5", cwd=copy)
    assert said.returncode == 3 and pauses == [300] * 4
    assert said.stdout.count("closest to an alarm") == 2  # a reading without anything new has one line
    assert f" {SITE}: nothing new, alarms open: 1" in said.stdout
    assert "has none of the model's columns" in said.stderr and "the next reading tries again" in said.stderr
    assert "alarm A1 (open)" in said.stdout and "stopped; patients that were read are counted" in said.stderr


def test_python_returns_the_alarms(copy):
    frame = pd.read_csv(copy / "tables" / "next.csv")
    result = gr.watch(copy / "run", SITE, frame)
    assert result.new == 303 and [a["column"] for a in result.alarms] == ["cholesterol"]
    assert gr.watch(copy / "run", SITE, frame).new == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--site", "nowhere", "--table", "tables/next.csv"), "unknown-site"),
        (("--table", "tables/next.csv"), "site-required"),
        (("--site", SITE), "missing-option"),
        (("--site", SITE, "--table", "tables/absent.csv"), "file-not-found"),
        (("--site", SITE, "--table", "tables/next.csv", "--label", "outcome"), "unknown-column"),
        (("--site", SITE, "--table", "tables/next.csv", "--time", "age"), "unreadable-dates"),
        (("--site", SITE, "--table", "tables/next.csv", "--labels", "tables/next.csv"), "missing-option"),
        (("--site", SITE, "--table", "tables/next.csv", "--on-alarm", "'"), "bad-hook"),
    ],
)
def test_refusals_are_one_sentence(copy, options, code):
    said = rounds("watch", "run", *options, cwd=copy)
    assert said.returncode == 2 and f"[{code}]" in said.stderr and len(said.stderr.strip().splitlines()) == 1, said.stderr


def test_a_withdrawn_run_is_refused(copy):
    valid = {"folder": "run-without-va", "run": "heart-0", "model": "ab" * 32, "root": "", "entries": 0}
    mark = {"schema": 1, "site": "va", "date": "2026-01-01T00:00:00+00:00", "valid": valid, "setup": "agreed again"}
    (copy / "run" / "withdrawn.json").write_text(json.dumps(mark))
    said = rounds("watch", "run", "--site", SITE, "--table", "tables/next.csv", "--unverified", cwd=copy)
    assert said.returncode == 2 and "[withdrawn-run]" in said.stderr


@pytest.mark.slow
def test_killed_at_any_instant_it_loses_nothing_and_counts_nobody_twice(copy):
    line = [sys.executable, "-c", "from grandrounds.cli import main; main()", "watch", "run", "--site", SITE, "--table", "inbox"]
    inbox = copy / "inbox"
    inbox.mkdir()
    table = pd.read_csv(copy / "tables" / "next.csv")
    for part in range(30):
        table[part * 10 : part * 10 + 10].to_csv(inbox / f"{part:02}.csv", index=False)
    folder, counted = copy / "run" / "at_sites" / SITE / "watch", [303]
    while len(counted) < 5:
        process = subprocess.Popen(line, cwd=copy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and WatchState.read(folder).patients < counted[-1] + 30:
            time.sleep(0.01)
        process.kill()
        process.wait()
        counted.append(WatchState.read(folder).patients)
    assert sum(n < 603 for n in counted) > 2, f"it was killed while it read: {counted}"
    said = rounds("watch", "run", "--site", SITE, "--table", "inbox", "--json", cwd=copy)
    values = json.loads(said.stdout)
    assert values["patients"] == 303 + 300 and len(values["alarms"]) == 1, counted
    assert rounds("audit", "verify", "run/at_sites/cleveland/watch", cwd=copy).returncode == 0


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "watch.md").read_text()
    commands = [line for block in re.findall(r"```bash\n(.*?)```", page, re.S)[:2] for line in block.strip().splitlines()]
    printed = ""
    for line in commands:
        if line.startswith("awk"):
            subprocess.run(line, shell=True, check=True, cwd=tmp_path)
        else:
            printed += rounds(*shlex.split(line)[1:], cwd=tmp_path, env={"COLUMNS": "120"}).stdout
    plain = " ".join(re.sub(r"\(\d{4}-\d\d-\d\d\)|[│┃]", " ", printed).split())
    for block in re.findall(r"```text\n(.*?)```", page, re.S)[:2]:
        for line in block.strip().splitlines():
            shown = " ".join(re.sub(r"\(\d{4}-\d\d-\d\d\)|[│┃]", " ", line).removesuffix("...").split())
            assert shown in plain, shown
