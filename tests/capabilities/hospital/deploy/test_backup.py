"""Backups of a server: consistent while a run is active, encrypted, verified, and never half a file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from grandrounds.audit.ledger import ledger_at
from grandrounds.capabilities.hospital.deploy.archive import CHUNK
from grandrounds.capabilities.hospital.deploy.backup import back_up, check_backup, restore
from grandrounds.capabilities.hospital.deploy.records import RUNNING, RunRecords
from grandrounds.capabilities.hospital.deploy.status import verify_all
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.runner import execute_plan
from tests.capabilities.hospital.deploy.consortia import provisioned
from tests.engine.hospitals import Hospitals, final_model
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients, refused

PHRASE = "correct horse battery"
SETTINGS = {
    "name": "kept",
    "data": {"table": "data frame", "label": "died", "site": "hospital"},
    "method": {"name": "fedavg", "rounds": 4},
    "explain": {"sketch": "none"},
}


@pytest.fixture
def server(tmp_path):
    """A provisioned server with one earlier run."""
    provisioned(tmp_path, "cleveland", "hungary")
    run = tmp_path / "out" / "server" / "runs" / "old"
    (run / "checkpoint").mkdir(parents=True)
    (run / "model.safetensors").write_bytes(np.random.default_rng(0).bytes(3 * CHUNK))
    (run / "checkpoint" / "plan.json").write_text("{}")
    return tmp_path / "out"


class Watched(MemoryTransport):
    """Keepers in this process; `at` is called once, when this many messages were sent."""

    def __init__(self, keepers, number, at):
        super().__init__(keepers)
        self.number, self.at = number, at

    def send(self, messages):
        tickets = super().send(messages)
        if self.at is not None and len(self.messages) >= self.number:
            at, self.at = self.at, None
            at()
        return tickets


class Killed(Exception):
    """The server's process ends at once."""


def run_at(hospitals, folder, transport, *, resume=False):
    run = RunFolder(folder)
    if not resume:
        run.create()
    execute_plan(hospitals.at_sites, run, resume=resume, venue=hospitals.venue(transport, checkpoint=run.checkpoint))
    return Run(folder)


@pytest.fixture(scope="module")
def hospitals():
    return Hospitals.of(patients([40, 30, 35]), **SETTINGS)


@pytest.fixture(scope="module")
def whole(hospitals, tmp_path_factory):
    """The run without interruption, and the number of its messages."""
    folder = tmp_path_factory.mktemp("whole")
    transport = MemoryTransport(hospitals.keepers(folder / "state"))
    return run_at(hospitals, folder / hospitals.run_name, transport), len(transport.messages)


@pytest.mark.parametrize("share", [0.4, 0.65, 0.85])
@pytest.mark.parametrize("later", [0, 3])
def test_restored_run_resumes_with_the_same_bits(share, later, hospitals, whole, server, tmp_path):
    """The backup is made in the middle of a round; the server is killed `later` messages after it."""
    expected, messages = whole
    name = hospitals.run_name
    keepers = hospitals.keepers(tmp_path / "state")
    number = int(share * messages)

    def kill():
        raise Killed("killed")

    def save():
        back_up(server, tmp_path / "file.backup", PHRASE)
        transport.number, transport.at = number + later, kill
        if not later:
            kill()

    RunRecords(server / "server" / "state" / "runs").update(name, state=RUNNING, flower=17)
    transport = Watched(keepers, number, save)
    with pytest.raises(Killed):
        run_at(hospitals, server / "server" / "runs" / name, transport)
    found = restore(tmp_path / "file.backup", PHRASE, tmp_path / "new")
    assert found.open_runs == sorted(["old", name])
    record = RunRecords(tmp_path / "new" / "server" / "state" / "runs").get(name)
    assert record["state"] == "stopped" and record["flower"] == []
    resumed = run_at(
        hospitals, tmp_path / "new" / "server" / "runs" / name, MemoryTransport(keepers), resume=True
    )
    assert final_model(resumed).tobytes() == final_model(expected).tobytes()
    assert resumed.summary["final"] == expected.summary["final"] and resumed.summary["rounds"] == 4
    with ledger_at(resumed.folder) as ledger:
        assert ledger.verify() == []
    assert all(not check.faults for check in verify_all(tmp_path / "new"))


def test_backups_during_a_run_are_states_that_a_crash_could_leave(hospitals, server, tmp_path):
    name, made, over = hospitals.run_name, [], threading.Event()

    def repeat():
        while (not over.is_set() or len(made) < 2) and len(made) < 12:
            made.append(tmp_path / f"{len(made)}.backup")
            back_up(server, made[-1], PHRASE)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        run_at(hospitals, server / "server" / "runs" / name, MemoryTransport(hospitals.keepers(tmp_path / "state")))
    finally:
        over.set()
        thread.join()
    assert len(made) > 1
    for file in made:
        out = file.with_suffix("")
        restore(file, PHRASE, out)
        folder = out / "server" / "runs" / name
        if not (folder / "checkpoint" / "plan.json").exists():
            continue
        snapshot = Checkpoint(folder / "checkpoint").read()
        rounds = 0 if snapshot is None else snapshot.facts["round"]
        assert len(Checkpoint(folder / "checkpoint").records()) == rounds
        if (folder / "ledger.db").exists():
            with ledger_at(folder) as ledger:
                entries = list(ledger.entries())
                assert not entries or ledger.verify() == []
            assert max((e["round"] for e in entries if e["kind"] == "round"), default=0) <= rounds
        if (folder / "summary.json").exists():
            assert Run(folder).summary["rounds"] == 4


def test_restored_folder_is_the_same_with_modes(server, tmp_path):
    made = back_up(server, tmp_path / "file.backup", PHRASE)
    assert (tmp_path / "file.backup").stat().st_mode & 0o777 == 0o600
    assert made.open_runs == ["old"] and made.files > 20 and not made.warnings
    restore(tmp_path / "file.backup", PHRASE, tmp_path / "new")

    def files(root: Path):
        skipped = ("server/state", "server/logs", "server/run/")
        return {
            p.relative_to(root).as_posix(): (p.read_bytes(), p.stat().st_mode & 0o777)
            for p in root.rglob("*")
            if p.is_file() and not p.relative_to(root).as_posix().startswith(skipped) and p.suffix != ".db"
        }

    assert files(tmp_path / "new") == files(server)
    assert all(not check.faults for check in verify_all(tmp_path / "new"))
    assert Link.from_folder(tmp_path / "new").state.stat().st_mode & 0o777 == 0o700


def test_authorities_are_left_out_on_request(server, tmp_path):
    back_up(server, tmp_path / "file.backup", PHRASE, authorities=False)
    found = restore(tmp_path / "file.backup", PHRASE, tmp_path / "new")
    keys = {p.name for p in (tmp_path / "new" / "server" / "pki").glob("*.key")}
    assert not found.authorities and keys == {"superlink.key", "gateway.key"}


def test_nothing_is_overwritten(server, tmp_path):
    back_up(server, tmp_path / "file.backup", PHRASE)
    before = (tmp_path / "file.backup").read_bytes()
    with refused("file-exists"):
        back_up(server, tmp_path / "file.backup", PHRASE)
    with refused("folder-not-empty"):
        restore(tmp_path / "file.backup", PHRASE, server)
    with refused("backup-inside-folder"):
        back_up(server, server / "server" / "file.backup", PHRASE)
    assert (tmp_path / "file.backup").read_bytes() == before


def test_changed_or_truncated_backup_is_refused_and_leaves_nothing(server, tmp_path):
    back_up(server, tmp_path / "file.backup", PHRASE)
    data = (tmp_path / "file.backup").read_bytes()
    head = data.index(b"\n") + 1 + 23
    chunk = CHUNK + 16
    first, second = data[head : head + chunk], data[head + chunk : head + 2 * chunk]
    bad = {
        "cut in a chunk": data[:-100],
        "cut between chunks": data[: head + 2 * chunk],
        "one bit": data[:-50] + bytes([data[-50] ^ 1]) + data[-49:],
        "two chunks exchanged": data[:head] + second + first + data[head + 2 * chunk :],
        "a chunk left out": data[: head + chunk] + data[head + 2 * chunk :],
        "more at the end": data + b"x" * 40,
    }  # fmt: skip
    for name, content in bad.items():
        (tmp_path / "bad.backup").write_bytes(content)
        code = "wrong-passphrase" if name == "two chunks exchanged" else "damaged-backup"
        with refused(code):
            check_backup(tmp_path / "bad.backup", PHRASE)
        with refused(code):
            restore(tmp_path / "bad.backup", PHRASE, tmp_path / "new")
        assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".new*")), name
    with refused("wrong-passphrase"):
        check_backup(tmp_path / "file.backup", "another passphrase")
    (tmp_path / "bad.backup").write_bytes(b"PK" + data[2:])
    with refused("not-a-backup"):
        check_backup(tmp_path / "bad.backup", PHRASE)


FULL = """
import resource, signal, sys
from pathlib import Path
from grandrounds.core.errors import BadInput
from grandrounds.capabilities.hospital.deploy.backup import back_up, restore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    {"back_up": back_up, "restore": restore}[sys.argv[1]](ARGUMENTS)
except BadInput as e:
    print(e.code)
"""


@pytest.mark.parametrize("act", ["back_up", "restore"])
def test_full_disk_leaves_no_half_file(act, server, tmp_path):
    """Files that grow beyond two mebibytes fail in the system, as on a full disk."""
    back_up(server, tmp_path / "whole.backup", PHRASE)
    order = {"back_up": "Path(sys.argv[2]), Path(sys.argv[3]), PHRASE", "restore": "Path(sys.argv[2]), PHRASE, Path(sys.argv[3])"}
    code = FULL.replace("ARGUMENTS", order[act]).replace("PHRASE", repr(PHRASE))
    source, target = (server, tmp_path / "file.backup") if act == "back_up" else (tmp_path / "whole.backup", tmp_path / "new")
    done = subprocess.run(
        [sys.executable, "-c", code, act, str(source), str(target), str(2 * CHUNK)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "cannot-write", done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["consortium.toml", "out", "whole.backup"]
    assert not list((server / "server" / "state").glob("backup-*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_damaged_ledger_of_one_run_does_not_stop_a_backup(server, tmp_path):
    (server / "server" / "runs" / "old" / "ledger.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    made = back_up(server, tmp_path / "file.backup", PHRASE)
    assert any("ledger.db" in sentence for sentence in made.warnings)
    restore(tmp_path / "file.backup", PHRASE, tmp_path / "new")
    assert (tmp_path / "new" / "server" / "runs" / "old" / "ledger.db").read_bytes().endswith(b"\xff")


def test_command_says_what_to_do_next(server, tmp_path):
    from typer.testing import CliRunner

    from grandrounds.cli.command_line import app

    (tmp_path / "phrase").write_text(f"{PHRASE}\n")
    phrase, file = ["--passphrase-file", str(tmp_path / "phrase")], str(tmp_path / "file.backup")
    runner = CliRunner()
    made = runner.invoke(app, ["server", "backup", str(server), "--to", file, *phrase])
    assert made.exit_code == 0 and "complete" in made.output, made.output
    checked = runner.invoke(app, ["server", "restore", file, "--check", *phrase])
    assert checked.exit_code == 0 and "open: old" in checked.output
    restored = runner.invoke(app, ["server", "restore", file, "--out", str(tmp_path / "new"), *phrase])
    assert f"rounds server submit --resume old --server {tmp_path / 'new'}" in restored.output.replace("\n", "")
    assert json.loads((tmp_path / "new" / "server" / "runs" / "old" / "checkpoint" / "plan.json").read_text()) == {}
