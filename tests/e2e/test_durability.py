"""Killed at any instant, out of disk, or run twice: the run ends with the same bits, or says why not."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.core.errors import RunFailed
from grandrounds.core.rng import generator
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.resources import MACHINE
from grandrounds.job import main as job
from grandrounds.runs.folder import RunFolder
from tests.support import refused

BASE = {
    "name": "durable",
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 10},
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"rounds": 40, "select": {"rule": "random", "fraction": 0.7}},
    "train": {"epochs": 1, "optimizer": "adam", "lr": 0.01, "keep_optimizer": True},
    "engine": {"faults": {"drop": 0.1}},
    "evaluation": {"calibrate": "temperature"},
    "explain": {"every": 1},
}


def plan(**changes) -> dict:
    return gr.Experiment.parse({**BASE, **changes}).plan()


def start(plan_file: Path, out: Path, **kwargs) -> subprocess.Popen:
    command = [sys.executable, "-m", "grandrounds.job", str(plan_file), "--out", str(out), "--quiet"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **kwargs)


def finish(plan_file: Path, out: Path) -> None:
    """The same in this process, from where it stands to its end."""
    assert job([str(plan_file), "--out", str(out), "--quiet"]) == 0


def without_seconds(folder: Path) -> list:
    rounds = json.loads((folder / "round_logs.json").read_text())["rounds"]
    for r in rounds:
        r["decision"]["cost"].pop("seconds")
    return rounds


def test_kill_9_at_random_instants_then_resume_gives_identical_bits(tmp_path):
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(json.dumps(plan()))
    whole = tmp_path / "whole"
    finish(plan_file, whole)
    rng = generator(0, purpose="kill")
    broken, killed_in_rounds = tmp_path / "broken", 0
    for _ in range(6):
        process = start(plan_file, broken)
        until = rng.integers(1, 5) + len(_done(broken))
        deadline = time.monotonic() + 20
        while process.poll() is None and len(_done(broken)) < until and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(float(rng.uniform(0, 0.01)))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed_in_rounds += 1
    assert killed_in_rounds >= 4, "the run was too quick to be killed often enough"
    finish(plan_file, broken)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert without_seconds(broken) == without_seconds(whole)
    assert (broken / "explanations.json").read_bytes() == (whole / "explanations.json").read_bytes()
    summaries = [json.loads((f / "summary.json").read_text()) for f in (whole, broken)]
    for s in summaries:
        s["cost"] = {k: v for k, v in s["cost"].items() if k not in MACHINE}
    assert summaries[0] == summaries[1]


def _done(folder: Path) -> list[bytes]:
    journal = folder / "checkpoint" / "rounds.jsonl"
    return journal.read_bytes().splitlines() if journal.exists() else []


def test_a_crash_between_journal_and_state_leaves_no_trace(tmp_path):
    """The journal has gained a line whose round never counted: resume cuts it off and does the round again."""
    short = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 5}}), out=tmp_path / "short")
    journal = tmp_path / "short" / "checkpoint" / "rounds.jsonl"
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"round": 6, "half a li')
    assert len(Checkpoint(short.folder / "checkpoint").records()) == 5
    gone_on = gr.resume(short.folder, settings=["method.rounds=8"])
    straight = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 8}}), out=tmp_path / "straight")
    assert without_seconds(gone_on.folder) == without_seconds(straight.folder)
    assert (gone_on.folder / "model.safetensors").read_bytes() == (straight.folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_full_disk_is_said_and_finished_rounds_survive(tmp_path):
    """A file size limit stands in for a full disk: the write fails in the same way, in the middle of the run."""
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(json.dumps(plan()))
    out = tmp_path / "run"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, 80_000))

    process = start(plan_file, out, preexec_fn=small_files)
    _, error = process.communicate()
    assert process.returncode == 1
    assert "cannot write to" in error
    assert "rounds resume" in error
    assert "Traceback" not in error
    finished = len(Checkpoint(out / "checkpoint").records())
    assert 0 < finished < 40
    finish(plan_file, out)
    straight = tmp_path / "straight"
    finish(plan_file, straight)
    assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_a_real_full_file_system(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        with refused("cannot-write-folder", kind=RunFailed):
            gr.run(gr.Experiment.parse(BASE), out=mount / "run")
        assert Checkpoint(mount / "run" / "checkpoint").records()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with refused("folder-in-the-way", match="--out"):
        gr.run(gr.Experiment.parse(BASE), out=tmp_path / "file")
    with refused("cannot-make-folder"):
        gr.run(gr.Experiment.parse(BASE), out=tmp_path / "file" / "below")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.doc").write_text("precious")
    with refused("folder-in-use"):
        gr.run(gr.Experiment.parse(BASE), out=tmp_path / "used")
    assert (tmp_path / "used" / "thesis.doc").read_text() == "precious"


def test_two_processes_cannot_run_one_folder(tmp_path):
    held = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 2}}), out=tmp_path / "run")
    lock = Checkpoint(held.folder / "checkpoint")
    lock.lock()
    try:
        with refused("run-in-use"):
            gr.resume(held.folder, settings=["method.rounds=3"])
    finally:
        lock.unlock()


def test_too_few_sites_stop_the_run_with_its_state_saved(tmp_path):
    settings = {**BASE, "engine": {"min_sites": 9, "faults": {"drop": 0.2}}, "method": {"rounds": 30}}
    out = tmp_path / "run"
    with refused("too-few-sites", match=r"engine\.min_sites", kind=RunFailed):
        gr.run(gr.Experiment.parse(settings), out=out)
    held = gr.load_run(out)
    assert not held.finished
    done = len(held.rounds)
    assert done < 30
    assert json.loads((out / "round_logs.json").read_text())["rounds"] == held.rounds
    gone_on = gr.resume(out, settings=["engine.min_sites=1"])
    assert len(gone_on.rounds) == 30
    assert gone_on.plan["engine"]["min_sites"] == 1
    assert gr.Experiment.load(out / "experiment.toml").engine.min_sites == 1
    assert gone_on.rounds[:done] == held.rounds


def test_resume_may_not_rewrite_history(tmp_path):
    held = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 2}}), out=tmp_path / "run")
    with refused("setting-is-fixed", match=r"method\.rounds"):
        gr.resume(held.folder, settings=["train.lr=1"])
    assert gr.resume(held.folder).folder == held.folder


def test_damaged_checkpoints_are_refused_in_words(tmp_path):
    held = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 2}}), out=tmp_path / "run")
    state = held.folder / "checkpoint" / "state.safetensors"
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    with refused("damaged-file", match=r"state\.safetensors"):
        gr.resume(held.folder, settings=["method.rounds=3"])
    (held.folder / "checkpoint" / "plan.json").write_text("{")
    with refused("damaged-file", match=r"plan\.json"):
        gr.resume(held.folder)
    with refused("not-a-run-folder"):
        gr.resume(tmp_path)


def test_secrets_of_the_environment_are_not_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET_TOKEN", "hunter2-hunter2")
    held = gr.run(gr.Experiment.parse({**BASE, "method": {"rounds": 1}}), out=tmp_path / "run")
    for path in held.folder.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes()
    assert os.environ["A_SECRET_TOKEN"]


@pytest.mark.parametrize(
    "left", [(), ("experiment.toml",), ("experiment.toml", ".environment.json.part"), ("schema.json",)]
)
def test_a_run_that_died_before_its_plan_was_written_leaves_room_for_another(tmp_path, left):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for name in left:
        (folder.path / name).write_text("half a sent")
    folder.release()  # as the end of a process does
    folder.create()
    assert [p.name for p in folder.path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("held", ["checkpoint/plan.json", "notes.txt", "round_logs.json"])
def test_what_may_be_somebodys_is_never_written_over(tmp_path, held):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.path / held).write_text("mine")
    folder.release()
    with refused("folder-in-use"):
        folder.create()
    assert (folder.path / held).read_text() == "mine"
