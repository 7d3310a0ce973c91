"""Keeper and worker that share a folder and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.runtime.answers import AnsweredAsk, AnsweredMessage
from grandrounds.capabilities.hospital.keeper.runtime.exchange_folder import (
    FolderWorker,
    WorkerJob,
    is_alive,
    read_exchange,
    serve_folder,
)
from grandrounds.protocol.codec import decode_answer
from grandrounds.protocol.envelope import peek
from grandrounds.protocol.identity import Identity
from tests.command import rounds
from tests.support import patients, refused

ME = Identity.simulated(0, "b")
ECHO = AnsweredAsk("run", 1, 2, "train", "")


def echo(message: bytes) -> AnsweredMessage:
    return AnsweredMessage(b"answer to " + message, (ECHO,))


@contextmanager
def at_work(folder: Path, handler=echo):
    """A worker in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=serve_folder, args=(folder, handler, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)


@pytest.fixture
def keeper(tmp_path):
    made = FolderWorker(tmp_path, ME, "b", seconds=20.0)
    made.start()
    return made


def code(answered: AnsweredMessage) -> str:
    return decode_answer(peek(answered.message).body, "b", None).error


def test_messages_and_answers_pass_and_nothing_stays(keeper, tmp_path):
    with at_work(tmp_path):
        for message in (b"one", b"", os.urandom(2_000_000)):
            assert keeper.handle(message) == AnsweredMessage(b"answer to " + message, (ECHO,))
        assert is_alive(tmp_path)
    assert not is_alive(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["worker.lock"]


def test_without_a_worker_a_code_leaves_and_a_job_is_submitted_once(tmp_path):
    submitted = tmp_path / "submitted"
    command = f"{sys.executable} -c \"open({str(submitted)!r}, 'a').write('x')\""
    keeper = FolderWorker(tmp_path, ME, "b", seconds=0.3, job=WorkerJob(command))
    keeper.start()
    assert [code(keeper.handle(b"one")) for _ in range(2)] == [codes.NO_WORKER] * 2
    assert submitted.read_text() == "x", "not for every message"
    assert not list(tmp_path.glob("request-*"))


def test_a_job_that_cannot_be_submitted_is_logged_and_the_code_leaves(tmp_path, caplog):
    keeper = FolderWorker(tmp_path, ME, "b", seconds=0.2, job=WorkerJob("/no/such/program"))
    keeper.start()
    assert code(keeper.handle(b"one")) == codes.NO_WORKER
    assert "cannot be submitted" in caplog.text


def test_a_message_that_takes_too_long_is_late_and_its_answer_is_not_kept(tmp_path, keeper):
    done = threading.Event()

    def slow(message: bytes) -> AnsweredMessage:
        if message == b"slow":
            done.wait(20)
        return echo(message)

    keeper._seconds = 0.5
    with at_work(tmp_path, slow):
        assert code(keeper.handle(b"slow")) == codes.LATE
        done.set()
        keeper._seconds = 20.0
        assert keeper.handle(b"next").message == b"answer to next"
    assert not list(tmp_path.glob("answer-*"))


def test_what_a_worker_left_is_answered_by_the_next_one(tmp_path, keeper):
    answers = []
    asking = threading.Thread(target=lambda: answers.append(keeper.handle(b"one")))
    asking.start()
    while not list(tmp_path.glob("request-*")):
        time.sleep(0.01)
    with at_work(tmp_path):
        asking.join(20)
    assert answers == [echo(b"one")]


def test_a_second_worker_is_refused(tmp_path):
    """POSIX locks belong to a process, so the other worker is one."""
    program = (
        "import sys, threading; from pathlib import Path; "
        "from grandrounds.capabilities.hospital.keeper.runtime.exchange_folder import serve_folder; "
        "stop = threading.Event(); threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start(); "
        "print('ready', flush=True); serve_folder(Path(sys.argv[1]), None, stop)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "ready\n"
    while not is_alive(tmp_path):
        time.sleep(0.01)
    with refused("worker-running"):
        serve_folder(tmp_path, echo, threading.Event(), idle=0.1)
    other.communicate(timeout=20)
    assert serve_folder(tmp_path, echo, threading.Event(), idle=0.1) == 0


def put(kind: str, path: Path) -> None:
    """Put something at a path that is no message."""
    if kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "endless link":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        path.touch()
        os.truncate(path, 2**34)
    else:
        text = b"[" * 100_000
        path.write_bytes(len(text).to_bytes(4, "big") + text)


ODD = ["folder", "pipe", "link", "endless link", "large"]


@pytest.mark.parametrize("kind", ODD)
def test_a_request_that_is_no_file_is_ignored_and_others_are_answered(tmp_path, keeper, kind, caplog):
    put(kind, tmp_path / "request-000007")
    with at_work(tmp_path):
        assert [keeper.handle(message) for message in (b"one", b"two")] == [echo(b"one"), echo(b"two")]
    assert caplog.text.count("request-000007") == 1


@pytest.mark.parametrize("kind", [*ODD, "deep"])
def test_an_answer_that_is_no_file_or_no_answer_is_a_code(tmp_path, kind, caplog):
    keeper = FolderWorker(tmp_path, ME, "b", seconds=20.0)
    keeper.start()
    put(kind, tmp_path / "answer-000000")
    assert code(keeper.handle(b"one")) == codes.CRASHED
    assert "exchange folder" in caplog.text


@pytest.mark.parametrize("kind", ODD)
def test_a_keeper_starts_although_something_lies_in_the_folder(tmp_path, kind):
    put(kind, tmp_path / "request-000007")
    put("link", tmp_path / f"request-{'9' * 240}")
    keeper = FolderWorker(tmp_path, ME, "b", seconds=20.0)
    keeper.start()
    with at_work(tmp_path):
        assert keeper.handle(b"one") == echo(b"one")


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_into_is_refused(tmp_path, keeper, mode):
    tmp_path.chmod(mode)
    with refused("folder-not-private"):
        keeper.start()
    with refused("folder-not-private"):
        serve_folder(tmp_path, echo, threading.Event(), idle=0.1)


@pytest.mark.parametrize(
    ("section", "why"),
    [({}, "missing-key"), ({"folder": 3}, "unknown-key"), ({"folder": "x", "sumbit": "sbatch"}, "unknown-key")],
    ids=["none", "a number", "a typing error"],
)
def test_a_wrong_section_is_refused(tmp_path, section, why):
    with refused(why, match=r"site\.toml"):
        read_exchange({"worker": section} if section else {}, tmp_path)


def test_the_batch_script_runs_this_command(consortium, tmp_path):
    site = consortium / "out" / "sites" / "a"
    done = rounds("site", "work", site, "--data", consortium / "a.csv", "--device", "cpu", "--sbatch")
    assert done.returncode == 0, done.stderr
    assert f"site work {site} --data {consortium / 'a.csv'} --device cpu --idle 30" in done.stdout
    assert done.stdout.startswith("#!/bin/sh\n") and "#SBATCH --signal=TERM@60" in done.stdout
    (tmp_path / "job").write_text(done.stdout)
    subprocess.run(["sh", "-n", tmp_path / "job"], check=True)


# A whole run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def consortium(tmp_path_factory) -> Path:
    """Three hospitals with their files, whose workers are elsewhere."""
    pytest.importorskip("flwr")
    from grandrounds.capabilities.hospital.deploy.provision import provision
    from grandrounds.core.toml import dumps
    from grandrounds.data.agreement.draft import draft_schema
    from tests.capabilities.hospital.deploy.real import write_csv

    folder = tmp_path_factory.mktemp("cluster")
    table = patients([60, 50, 40])
    site = np.asarray(table.columns["hospital"]).astype(str)
    agreed = draft_schema(table, label="died", site="hospital").to_dict()
    said = {
        "name": "cluster",
        "server": {"address": "127.0.0.1"},
        "sites": [{"name": name} for name in "abc"],
        "data": {n: v for n, v in agreed.items() if n != "schema"},
    }
    (folder / "consortium.toml").write_text(dumps(said))
    provision(folder / "consortium.toml", folder / "out", make_keys=True, policy="research")
    for name in "abc":
        write_csv(folder / f"{name}.csv", table.take(np.flatnonzero(site == name)), without="hospital")
        with (folder / "out" / "sites" / name / "site.toml").open("a") as f:
            f.write('\n[worker]\nfolder = "exchange"\n')
    (folder / "study.toml").write_text('name = "study"\n[method]\nname = "fedavg"\nrounds = 2\n[explain]\nsketch = "none"\n')
    return folder


def _no_network() -> list[str]:
    """A command that starts another without any network."""
    tool = shutil.which("unshare")
    words = [tool or "", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if tool is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here: `unshare --net` is absent or not allowed")
    return words


class Through:
    """A keeper whose worker is elsewhere."""

    def __init__(self, folder: Path) -> None:
        site = SiteFolder(folder)
        self._worker = FolderWorker(folder / "exchange", site.identity(), site.name, seconds=240.0)
        self._worker.start()

    def handle(self, message: bytes) -> bytes:
        return self._worker.handle(message).message


def conduct(folder: Path, run: str, keepers) -> str:
    from grandrounds.audit.digest import model_digest
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.run_worker import _run_at_sites
    from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
    from grandrounds.engine.transport import FlowerTransport
    from grandrounds.runs.run import Run
    from tests.engine.grid import keeper_grid

    server = Folders(folder / "out").server
    plan = deployed_plan(folder / "study.toml", [])
    _run_at_sites(plan, server / "runs" / run, FlowerTransport(keeper_grid(keepers), interval=20.0), server, False)
    return model_digest(Run(server / "runs" / run).model.theta)


def test_workers_without_a_network_give_the_same_model(consortium):
    """Each worker is a process in a network namespace of its own, where not even loopback is up."""
    alone = _no_network()
    program = "from grandrounds.cli import main; main()"
    sites = {name: consortium / "out" / "sites" / name for name in "abc"}
    there = [Through(path) for path in sites.values()]
    jobs = []
    try:
        for name, path in sites.items():
            words = [*alone, sys.executable, "-c", program, "site", "work", str(path), "--data", str(consortium / f"{name}.csv")]
            jobs.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        far = conduct(consortium, "far", there)
    finally:
        for job in jobs:
            job.terminate()
        said = [job.communicate(timeout=30)[0] for job in jobs]
    assert all("has ended after" in text for text in said), said
    near = conduct(consortium, "near", [SiteFolder(p).keeper(str(consortium / f"{n}.csv")) for n, p in sites.items()])
    assert far == near
