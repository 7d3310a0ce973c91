"""Parts of the Flower layer that need no Flower process: letters in messages, the transport on any grid, records, programs."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support import refused

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.supercore.auth.superexec_secret import load_superexec_auth_secret
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from grandrounds.capabilities.hospital.deploy.control import gateway_address
from grandrounds.capabilities.hospital.deploy.processes import Program, SupervisedProgram, end_leftover
from grandrounds.capabilities.hospital.deploy.records import DONE, QUEUED, RUNNING, RunRecords
from grandrounds.capabilities.hospital.deploy.site_plan import plan_at_sites
from grandrounds.capabilities.hospital.deploy.status import list_runs
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.capabilities.hospital.deploy.superlink import Link, flower_environment, superlink_program
from grandrounds.capabilities.hospital.keeper.flower import launcher
from grandrounds.capabilities.hospital.keeper.flower.node import runtime_secret
from grandrounds.core.sources import AT_SITES
from grandrounds.engine.transport import BATCH, FAILED, GONE, UNAVAILABLE, FlowerTransport
from grandrounds.protocol import flower_message as flower_letters
from grandrounds.protocol.flower_message import SMALL, NotAMessage, pack, unpack


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1])
def test_a_letter_comes_out_of_a_message_as_it_went_in(size):
    letter = os.urandom(size)
    assert unpack(pack(letter)) == letter


@pytest.mark.parametrize(
    "record", [{}, {"letter": ConfigRecord({"other": b"x"})}, {"letter": ConfigRecord({"sealed": 3})}]
)
def test_what_carries_no_letter_is_told_apart(record):
    with pytest.raises(NotAMessage):
        unpack(RecordDict(record))


def test_parts_of_a_message_are_rebuilt_if_their_hash_is_the_announced_one(monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", 3)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 2)
    message = Message(pack(b"body"), 7, flower_letters.MESSAGE_TYPE, ttl=60.0, group_id="1")
    message.metadata.src_task_id = None
    message.metadata.__dict__["_message_id"] = message.object_id
    head, tree = message_to_proto(remove_content_from_message(message)), get_object_tree(message)
    objects = {id: part.deflate() for id, part in get_all_nested_objects(message).items()}
    rebuilt = flower_letters.rebuild_parts(head, tree)
    assert len(rebuilt) == 2 and rebuilt.items() <= objects.items(), "all but the record"
    head.metadata.group_id = "2"
    assert list(flower_letters.rebuild_parts(head, tree)) == [tree.children[0].object_id], "other metadata, another hash"
    assert flower_letters.rebuild_parts(head, tree.children[0]) == {}


class Grid:
    """A grid of Flower's public interface in which nodes reply when told to."""

    def __init__(self, nodes=(2, 1)):
        self.nodes, self.pushed, self.replies = nodes, [], {}

    def get_node_ids(self):
        return self.nodes

    def push_messages(self, messages):
        messages = list(messages)
        self.pushed.append(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        return [None if m.metadata.dst_node_id == 9 else m.metadata.message_id for m in messages]

    def pull_messages(self, tickets):
        return [self.replies.pop(t) for t in list(tickets) if t in self.replies]

    def reply(self, content):
        for message in self.pushed[-1]:
            self.replies[message.metadata.message_id] = Message(content, reply_to=message)


@pytest.fixture
def grid():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return Grid()


def test_a_post_gives_every_letter_a_ticket_and_its_answer_once(grid):
    transport = FlowerTransport(grid, interval=0.01)
    assert transport.addresses() == ("1", "2")
    tickets = transport.send([("1", b"same"), ("1", b"same"), ("2", b"other")])
    assert len(set(tickets)) == 3
    assert transport.collect(tickets, wait=0.05) == []
    grid.reply(pack(b"yes"))
    got = transport.collect(tickets, wait=5)
    while len(got) < 3:
        got += transport.collect([t for t in tickets if t not in {r.ticket for r in got}], wait=5)
    assert {r.ticket: (r.data, r.error) for r in got} == dict.fromkeys(tickets, (b"yes", ""))
    assert transport.collect(tickets, wait=0.05) == []


@pytest.mark.parametrize(
    ("code", "word"), [(5, UNAVAILABLE), (3, UNAVAILABLE), (4, UNAVAILABLE), (2, FAILED), (8, FAILED), (0, FAILED)]
)
def test_flowers_errors_become_words_without_their_reason(grid, code, word):
    transport = FlowerTransport(grid, interval=0.01)
    [ticket] = transport.send([("1", b"x")])
    grid.reply(Error(code, "a patient's value"))
    [reply] = transport.collect([ticket], wait=5)
    assert (reply.ticket, reply.data, reply.error) == (ticket, None, word)


def test_a_letter_that_flower_does_not_take_is_gone_and_a_reply_without_a_letter_failed(grid):
    transport = FlowerTransport(grid, interval=0.01)
    refused, sent = transport.send([("9", b"x"), ("1", b"x")])
    assert [(r.ticket, r.error) for r in transport.collect([refused], wait=5)] == [(refused, GONE)]
    grid.reply(RecordDict())
    assert [r.error for r in transport.collect([sent], wait=5)] == [FAILED]


def test_large_letters_are_announced_alone_and_small_ones_together(grid):
    transport = FlowerTransport(grid, interval=0.01)
    large = bytes(BATCH)
    transport.send([("1", b"a"), ("2", b"b"), ("1", large), ("2", large), ("1", b"c")])
    assert [len(batch) for batch in grid.pushed] == [2, 1, 1, 1]


@pytest.mark.parametrize(
    "secret", [b"0f" * 32, b"0f\n", b" 0f", b"\n", b"\x00\x0a\x20\xff\x0d", bytes(range(32)) + b"\t"]
)
def test_a_secret_is_the_same_bytes_to_us_and_to_flower(tmp_path, secret):
    file = tmp_path / "runtime.secret"
    file.write_bytes(secret)
    assert runtime_secret(file) == load_superexec_auth_secret(str(file)) == secret


def test_a_secret_that_is_lost_or_empty_is_said_in_words(tmp_path):
    with refused("cannot-read"):
        runtime_secret(tmp_path / "runtime.secret")
    (tmp_path / "runtime.secret").touch()
    with refused("empty-secret"):
        runtime_secret(tmp_path / "runtime.secret")


def test_another_flower_is_refused_in_words(monkeypatch, capsys):
    for unread in ("1.43.0", "1.4.1", "2.0"):
        monkeypatch.setattr("flwr.__version__", unread)
        with refused("unsupported-version", match=unread):
            flower_letters.require_flower()
    monkeypatch.setattr("flwr.__version__", "1.41.1")
    flower_letters.require_flower()
    assert not flower_letters.is_reviewed(), "its own pace is kept"
    assert "flwr 1.41.1 keeps its own polling intervals" in capsys.readouterr().err


def test_a_node_starts_nothing_listens_on_loopback_and_dials_with_tls():
    said = launcher.command(
        superlink="fl.example.org:9443", authority=Path("ca.pem"), key=Path("node"), port=9500, secret=Path("s")
    )
    text = " ".join(said)
    assert "--isolation process --superexec-auth-secret-file s" in text and "--host 127.0.0.1" in text
    assert "--root-certificates ca.pem --auth-supernode-private-key node" in text and "--insecure" not in text


def link(folder: Path, *, insecure: bool = False) -> Link:
    (folder / "server").mkdir()
    text = 'name = "t"\n[server]\naddress = "127.0.0.1"\nsuperlink_port = 9192\n[[sites]]\nname = "a"\n'
    (folder / "server" / "consortium.toml").write_text(text)
    return Link.from_folder(folder, insecure=insecure)


def test_a_superlink_keeps_to_loopback_tls_keys_and_a_secret(tmp_path):
    text = " ".join(superlink_program(link(tmp_path)).command)
    for part in (
        "--host 127.0.0.1 --port 9192", "--enable-supernode-auth", "--ssl-certfile", "--isolation process",
        "--superexec-auth-secret-file", "--disable-runtime-dependency-installation", "link.db",
    ):  # fmt: skip
        assert part in text
    assert "--insecure" not in text
    with refused("not-server-folder"):
        Link.from_folder(tmp_path / "elsewhere")


def test_flower_programs_call_nobody_and_have_homes_of_their_own(tmp_path):
    found = flower_environment(tmp_path, {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_ACCESS_TOKEN": "x", "PATH": "/bin"})
    assert (found["FLWR_TELEMETRY_ENABLED"], found["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert "FLWR_ACCESS_TOKEN" not in found and found["FLWR_HOME"] == str(tmp_path)


def gone(pid: int, *, seconds: float) -> bool:
    """Whether a process that was killed is no more, or waits for nothing but its parent, within some time."""
    with suppress(psutil.NoSuchProcess):
        process, end = psutil.Process(pid), time.monotonic() + seconds
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
    return True


def test_a_program_that_dies_is_started_again_and_stopped_with_its_children(tmp_path):
    script = (
        "import os,subprocess,sys,time; p=subprocess.Popen(['sleep','100']); print(p.pid,flush=True); time.sleep(100)"
    )
    program = Program("it", [sys.executable, "-c", script], dict(os.environ), tmp_path / "it.log", script)
    kept = SupervisedProgram(program, _wait=0.01)
    assert kept.tend() and kept.alive and not kept.tend()
    end = time.monotonic() + 10
    while not program.log.read_text().split() and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(kept.process.pid, signal.SIGKILL)
    while kept.starts < 2 and time.monotonic() < end:
        kept.tend()
        time.sleep(0.01)
    assert kept.alive and kept.starts == 2
    while len((tmp_path / "it.log").read_text().split()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    child = int((tmp_path / "it.log").read_text().split()[-1])
    process = kept.process
    SupervisedProgram(program).start()  # a server that was killed and starts anew ends what it left behind
    assert process.wait(10) is not None
    end_leftover(kept.pid_file, program.mark)
    assert not kept.pid_file.exists()
    assert gone(child, seconds=10)


def test_a_missing_program_is_said_in_words(tmp_path):
    program = Program("it", ["/no/such/program"], {}, tmp_path / "it.log", "it")
    with refused("missing-program", match="/no/such/program"):
        SupervisedProgram(program).start()


def test_a_run_is_done_when_its_folder_says_so_and_not_when_a_process_does(tmp_path):
    here = link(tmp_path)
    records = RunRecords(here.state / "runs")
    records.update("a", state=QUEUED, flower=1)
    records.update("a", state=RUNNING, flower=2)
    records.update("b", state=DONE)
    folder = here.runs / "a" / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text('{"decision": {"missing": {"north": "late"}}}\n{"decision": {"mis')
    first, second = list_runs(here)
    assert (first["run"], first["state"], first["rounds"], first["flower"]) == ("a", RUNNING, 1, 2)
    assert first["missing_in_last_round"] == "north"
    assert (second["run"], second["state"]) == ("b", "failed")
    (here.runs / "a" / "summary.json").write_text("{}")
    assert list_runs(here)[0]["state"] == DONE
    with refused("invalid-name"):
        records.update("../a", state=DONE)


def test_a_submitted_experiment_says_nothing_of_tables(tmp_path):
    file = tmp_path / "e.toml"
    data = '[data]\ntable = "mine.csv"\nlabel = "y"\nscale = "none"\n'
    file.write_text(f'name = "x"\n{data}[method]\nname = "fedavg"\nrounds = 2\n')
    plan = deployed_plan(file, ["method.rounds=5"])
    assert (plan["data"]["table"], plan["data"]["scale"], plan["method"]["rounds"]) == (AT_SITES, "none", 5)
    agreed = {"label": "disease", "positive": "1", "columns": {"age": {"kind": "number"}}}
    told = plan_at_sites(plan, agreed)["data"]
    assert (told["label"], told["kinds"], told["site"]) == ("disease", {"age": "numeric"}, None)
    with refused("no-agreed-data"):
        plan_at_sites(plan, {})


def test_an_operators_folder_names_its_gateway(tmp_path):
    with refused("not-operator-folder"):
        gateway_address(tmp_path)
    (tmp_path / "nginx.conf").write_text("location /v1/control/ { proxy_pass https://fl.example.org:9443; }")
    assert gateway_address(tmp_path) == "fl.example.org:9443"
