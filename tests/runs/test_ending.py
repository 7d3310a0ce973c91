"""A run that does not finish keeps its cause in the run folder; commands show it with the command that continues it."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.core.ending import FAILED, INTERRUPTED, STOPPED, Ending
from grandrounds.core.errors import BadInput, RunFailed, reading_rows
from grandrounds.data.readers import read_table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods.fedavg import FedAvg
from grandrounds.report.overview import FINISHED, RUNNING
from grandrounds.runs import federation
from grandrounds.runs.ending import describe_error, read_ending, read_state, record_ending
from grandrounds.runs.overview import run_overview
from grandrounds.runs.run import Run
from grandrounds.site.host import SiteHost
from tests.command import rounds
from tests.support import refused

LONG = {"name": "long", "data": {"name": "breast-cancer"}, "method": {"rounds": 400}, "explain": {"every": 1}}
SHORT = {**LONG, "name": "short", "method": {"rounds": 3}}


def start(folder: Path, out: Path, **options) -> subprocess.Popen:
    """Start a run in a process of its own."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps(gr.Experiment.parse(LONG).plan()))
    command = [sys.executable, "-m", "grandrounds.job", str(plan), "--out", str(out), "--quiet"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def wait_for_rounds(process: subprocess.Popen, out: Path, number: int) -> None:
    journal, deadline = out / "checkpoint" / "rounds.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and len(journal.read_bytes().splitlines()) >= number:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {number} rounds: {process.stderr.read() if process.stderr and process.poll() else ''}")


def test_ctrl_c_is_recorded_and_the_run_is_resumed(tmp_path):
    out = tmp_path / "run"
    process = start(tmp_path, out)
    wait_for_rounds(process, out, 2)
    assert read_state(out) == (RUNNING, None)
    process.send_signal(signal.SIGINT)
    process.communicate()
    state, ending = read_state(out)
    assert state == STOPPED and ending is not None and ending.code == "stopped-by-user"
    assert ending.round >= 1 and ending.time.endswith("+00:00") and ending.version
    view = run_overview(Run(out))
    assert view.next_command == f"rounds resume {out}" and view.rounds == ending.round
    shown = rounds("show", out)
    assert shown.returncode == 0 and "Ctrl-C" in shown.stdout and f"continue: rounds resume {out}" in shown.stdout
    record = json.loads(rounds("show", out, "--json").stdout)
    assert record["state"] == STOPPED and record["end"]["code"] == "stopped-by-user"
    finished = gr.resume(out, settings=[f"method.rounds={view.rounds + 1}"])
    assert finished.finished and not (out / "failure.json").exists() and read_state(out) == (FINISHED, None)


def test_a_killed_process_leaves_no_record_and_counts_as_interrupted(tmp_path):
    out = tmp_path / "run"
    process = start(tmp_path, out)
    wait_for_rounds(process, out, 3)
    process.kill()
    process.communicate()
    assert not (out / "failure.json").exists()
    view = run_overview(Run(out))
    assert view.state == INTERRUPTED and view.rounds >= 1 and "No process works on this run" in view.state_text


def test_a_disk_that_is_full_is_the_cause(tmp_path):
    """A limit of the size of files stands for a full disk: writes fail in the same way, in the middle of the run."""
    out = tmp_path / "run"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # noqa: E731
    process = start(tmp_path, out, preexec_fn=limit)
    process.communicate()
    assert process.returncode == 1
    ending = read_ending(out)
    assert ending is not None and (ending.state, ending.code) == (FAILED, "cannot-write-folder")
    assert ending.sentence.startswith("Cannot write to run: ") and str(tmp_path) not in ending.sentence


def test_a_record_that_cannot_be_written_hides_no_error(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "plan.json").write_text("{}")
    (tmp_path / "failure.json").mkdir()  # no file can be written there, also not as root
    record_ending(tmp_path, Ending(FAILED, "x", "y"))
    assert read_ending(tmp_path) is None


def test_an_error_of_the_run_keeps_its_sentence_and_code(tmp_path):
    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise RunFailed("2 of 4 sites answered, 3 are needed: raise engine.timeout", code="too-few-sites")

    with pytest.raises(RunFailed):
        gr.run(gr.Experiment.parse(SHORT), out=tmp_path / "r", progress=stop)
    state, ending = read_state(tmp_path / "r")
    assert ending is not None and (state, ending.code, ending.round) == (FAILED, "too-few-sites", 2)
    assert ending.sentence == "2 of 4 sites answered, 3 are needed: raise engine.timeout."
    assert "too-few-sites" in rounds("show", tmp_path / "r").stdout
    assert gr.resume(tmp_path / "r").finished and read_ending(tmp_path / "r") is None


def test_too_few_sites_lead_to_a_command_that_gets_past_the_round(tmp_path):
    """Sites of a simulation drop out in the same rounds again, so that resuming without a change fails again."""
    wanted = {**SHORT, "engine": {"faults": {"drop": 0.5}, "min_sites": 7}}
    with pytest.raises(RunFailed, match="only 6 of 10 sites answered"):
        gr.run(gr.Experiment.parse(wanted), out=tmp_path / "few")
    ending = read_ending(tmp_path / "few")
    assert ending is not None and ending.fix == "Change it with --set engine.min_sites=N."
    assert ending.settings == ("engine.min_sites=6",)
    command = f"rounds resume {tmp_path / 'few'} --set engine.min_sites=6"
    assert run_overview(Run(tmp_path / "few")).next_command == command
    shown = rounds("show", tmp_path / "few").stdout
    assert ending.fix in shown and f"continue: {command}" in shown
    assert json.loads(rounds("show", tmp_path / "few", "--json").stdout)["end"]["settings"] == ["engine.min_sites=6"]
    rounds("report", tmp_path / "few")
    page = (tmp_path / "few" / "report.html").read_text()
    assert ending.fix in page and command in page
    rounds(*command.split()[1:])
    again = read_ending(tmp_path / "few")
    assert again is not None and again.round >= 1  # the next round has fewer sites still


@pytest.mark.parametrize(
    ("sentence", "code", "at_hospitals", "fix"),
    [
        ("lower train.lr", "x", False, "A resumed run keeps it: change it with --set train.lr=X in a new run (rounds run ...)."),
        ("lower engine.faults.drop", "x", False, "Change it with --set engine.faults.drop=X."),
        (
            *("lower engine.faults.drop", "x", True),
            "A resumed run keeps it: change it with --set engine.faults.drop=X in a new run (rounds server submit ...).",
        ),
        ("only 0 of 4 sites answered, engine.min_sites is 1", "too-few-sites", False, "Resume it when more sites can answer."),
        ("only 2 of 4 sites answered, engine.min_sites is 3", "too-few-sites", True, "Resume it when more sites can answer."),
        ("no such file", "x", False, ""),
        ("data.label is changed", "code-not-run", False, ""),
    ],
)  # fmt: skip
def test_a_fix_names_only_settings_that_can_still_change(sentence, code, at_hospitals, fix):
    ending = describe_error(RunFailed(sentence, code=code), rounds=0, at_hospitals=at_hospitals)
    assert (ending.fix, ending.settings) == (fix, ())


@pytest.mark.parametrize("setting", ["engine.min_sites=6; rm -rf x", "$(x)=1", 3, "engine.x=\u202e"])
def test_a_record_with_a_command_of_somebody_else_is_not_read(tmp_path, setting):
    record = Ending(FAILED, "x", "y").to_dict() | {"settings": [setting]}
    (tmp_path / "failure.json").write_text(json.dumps(record))
    assert read_ending(tmp_path) is None


def test_an_unexpected_error_is_recorded_by_type_and_place_without_values(tmp_path):
    def fail(event):
        if event["event"] == "round":
            raise ValueError("patient 4711 has lactate 9.87")

    with pytest.raises(ValueError, match="4711"):
        gr.run(gr.Experiment.parse(SHORT), out=tmp_path / "r", progress=fail)
    text = (tmp_path / "r" / "failure.json").read_text()
    assert "4711" not in text and "9.87" not in text and "Traceback" not in text
    ending = read_ending(tmp_path / "r")
    assert ending is not None and ending.code == "unexpected-error" and "ValueError in grandrounds." in ending.sentence


def test_a_sentence_that_can_quote_cells_is_not_stored(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('age,died\n63,"0\n')
    with pytest.raises(BadInput) as caught, reading_rows():
        read_table(path)
    ending = describe_error(caught.value, rounds=3)
    assert ending.code == caught.value.code and str(caught.value) not in ending.sentence
    assert (ending.state, ending.round) == (FAILED, 3)


@pytest.mark.parametrize("place", ["read", "site"])
def test_no_reader_can_forget_that_its_sentence_quotes_cells(place, tmp_path, monkeypatch):
    """The run marks all errors of these steps, whichever module raises them: here this one."""
    with pytest.raises(RunFailed):
        gr.run(gr.Experiment.parse(SHORT), out=tmp_path / "r", progress=_fail_in_a_round)
    target = (federation, "load_data") if place == "read" else (SiteHost, "_train")
    monkeypatch.setattr(*target, _quote_a_cell)
    with refused("not-a-number", match="Muster"):
        gr.resume(tmp_path / "r")
    text, ending = (tmp_path / "r" / "failure.json").read_text(), read_ending(tmp_path / "r")
    assert "Muster" not in text and ending is not None and ending.code == "not-a-number"


def _quote_a_cell(*arguments, **named):
    raise BadInput("row 3: age is 'Muster, 4711', no number", code="not-a-number")


@pytest.mark.parametrize("own", ["metric", "method"])
def test_words_of_own_code_are_not_stored(own, tmp_path):
    """An exception of a metric or a method of one's own can quote anything that the code has seen."""
    metric, method = {"evaluation": {"metrics": [f"{__name__}:quoting"]}}, {"method": {"name": f"{__name__}:Quoting"}}
    settings = metric if own == "metric" else method
    with refused("own-code-failed", match="4711", kind=RunFailed):
        gr.run(gr.Experiment.parse({**SHORT, **settings}), out=tmp_path / "r")
    text, ending = (tmp_path / "r" / "failure.json").read_text(), read_ending(tmp_path / "r")
    assert "4711" not in text and ending is not None and ending.code == "own-code-failed"


def quoting(tally):
    raise ValueError("patient 4711")


class Quoting(FedAvg):
    """A method that fails in its first round."""

    def step(self, server, model):
        raise ValueError("patient 4711")


def test_a_plan_that_is_refused_leaves_no_folder(tmp_path):
    wrong = gr.Experiment.parse({**SHORT, "split": {"val": 0.0}, "evaluation": {"calibrate": "temperature"}})
    with pytest.raises(BadInput):
        gr.run(wrong, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_damaged_record_counts_as_interrupted(tmp_path):
    with pytest.raises(RunFailed):
        gr.run(gr.Experiment.parse(SHORT), out=tmp_path / "r", progress=_fail_in_a_round)
    for text in ("{", "[]", '{"state": "happy"}', '{"state": "failed", "sentence": 3}'):
        (tmp_path / "r" / "failure.json").write_text(text)
        assert read_state(tmp_path / "r")[0] == INTERRUPTED
    (tmp_path / "r" / "failure.json").unlink()
    (tmp_path / "elsewhere").write_text(json.dumps(Ending(FAILED, "x", "of another folder").to_dict()))
    (tmp_path / "r" / "failure.json").symlink_to(tmp_path / "elsewhere")
    assert read_ending(tmp_path / "r") is None
    assert Checkpoint(tmp_path / "r" / "checkpoint").read() is not None


def _fail_in_a_round(event):
    if event["event"] == "round":
        raise RunFailed("stopped here", code="x")
