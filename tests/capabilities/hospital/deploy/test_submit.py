"""`rounds server submit`, `status` and `stop-run` without a process: refusals, and runs that only the server's own disk knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.deploy.control import Control, FlowerRun, Node
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.records import QUEUED, STOPPED, RunRecords
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.core.names import folder_name
from tests.capabilities.hospital.deploy.consortia import free_port, provisioned
from tests.command import rounds

ZURICH = "St. Mary Zürich"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Folders:
    """A consortium whose server is not started."""
    return provisioned(tmp_path_factory.mktemp("made"), "cleveland", ZURICH, port=free_port(), link=free_port())


class Superlink:
    """Answers in the place of a SuperLink."""

    def __init__(self, *runs: FlowerRun) -> None:
        self.known, self.started = list(runs), []

    def __enter__(self) -> Superlink:
        return self

    def __exit__(self, *error: object) -> None: ...

    def runs(self) -> list[FlowerRun]:
        return self.known

    def nodes(self) -> list[Node]:
        return [Node(1, folder_name(ZURICH), b"", "online"), Node(2, "cleveland", b"", "offline"), Node(3, "", b"", "online")]

    def start(self, config: dict) -> int:
        self.started.append(config)
        return 77


@pytest.fixture
def answering(monkeypatch):
    """A SuperLink that knows these runs."""

    def here(*runs: FlowerRun) -> Superlink:
        found = Superlink(*runs)
        for way in ("local", "operator"):
            monkeypatch.setattr(Control, way, lambda _: found)
        return found

    return here


def refused(*words: object) -> str:
    """The one sentence of a command that ends with exit code 2."""
    done = rounds(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    said = done.stderr.strip()
    assert said.startswith("error: ") and "Traceback" not in said and len(said.splitlines()) == 1, said
    return said


@pytest.fixture
def experiment(tmp_path) -> Path:
    file = tmp_path / "e.toml"
    file.write_text('name = "e"\n[method]\nname = "fedavg"\nrounds = 2\n')
    return file


# Bad input ------------------------------------------------------------------------------------------------------------


def commands(experiment: Path) -> list[list[str]]:
    words = [["submit", str(experiment)], ["submit", "--resume", "first"], ["status"], ["stop-run", "first"]]
    return [["server", *line] for line in words]


def test_a_server_that_is_not_started_is_said_with_the_command_that_starts_it(made, experiment):
    for words in commands(experiment):
        assert f"`rounds server start {made.server.resolve()}` starts it" in refused(*words, "--server", made.out)
        assert "no server answers at 127.0.0.1" in refused(*words, "--operator", made.operator("operator"))


def test_a_folder_that_is_no_servers_or_operators_is_refused(made, experiment, tmp_path):
    for words in commands(experiment):
        assert "is not a server's folder" in refused(*words, "--server", tmp_path)
        assert "is not an operator's folder" in refused(*words, "--operator", tmp_path)
        assert "--server OUT on its own host, or --operator FOLDER" in refused(*words)
        assert "or --operator FOLDER" in refused(*words, "--server", made.out, "--operator", made.operator("operator"))
    assert "is not a server's folder" in refused("server", "start", tmp_path)
    assert "no server of" in refused("server", "stop", made.out)


def test_a_run_that_nobody_knows_is_named_with_those_that_are_known(made, answering):
    answering(FlowerRun(1, "first", "running"), FlowerRun(2, "second", "finished:completed"))
    for words in (["server", "submit", "--resume", "frist"], ["server", "stop-run", "frist"]):
        assert "there is no run 'frist'; did you mean 'first'?" in refused(*words, "--server", made.out)
        assert "--server OUT also searches its folders" in refused(*words, "--operator", made.operator("operator"))
    assert "is not running, so it cannot be stopped" in refused("server", "stop-run", "second", "--server", made.out)
    active = refused("server", "submit", "--resume", "first", "--server", made.out)
    assert "is still running: stop it first with `rounds server stop-run first`" in active
    answering()
    assert "there is none" in refused("server", "stop-run", "first", "--server", made.out)


def test_experiments_and_names_that_make_no_sense_are_refused_before_anybody_is_asked(made, answering, experiment):
    superlink = answering(FlowerRun(1, "first", "finished:completed"))
    at = ["--server", made.out]
    assert "give the file of an experiment, or --resume RUN" in refused("server", "submit", *at)
    assert "give the file of an experiment, or --resume RUN" in refused("server", "submit", experiment, "--resume", "x", *at)
    assert "is not a valid name of a run" in refused("server", "submit", experiment, "--name", "../x", *at)
    assert "is not a valid name of a run" in refused("server", "submit", "--resume", "../x", *at)
    assert "there is already a run first" in refused("server", "submit", experiment, "--name", "first", *at)
    assert "nowhere.toml" in refused("server", "submit", experiment.parent / "nowhere.toml", *at)
    assert "rouns" in refused("server", "submit", experiment, "--set", "method.rouns=3", *at)
    assert "pools the rows of all sites" in refused("server", "submit", experiment, "--set", "method.name=pooled", *at)
    assert superlink.started == []


# A SuperLink that has lost its database ---------------------------------------------------------------------------------


@pytest.fixture
def restored(tmp_path) -> Link:
    """A server's folder in which the runs were brought back from a copy: one begun, one done, and no state at all."""
    link = Link.from_folder(provisioned(tmp_path, "a", "b").out)
    for name in ("begun", "over"):
        folder = link.runs / name / "checkpoint"
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
    (link.runs / "over" / "summary.json").write_text("{}")
    return link


def test_a_run_is_gone_on_with_that_only_its_folder_knows(restored, answering):
    superlink = answering()
    done = rounds("server", "submit", "--resume", "begun", "--server", restored.folder)
    assert done.returncode == 0, done.stderr
    assert superlink.started == [{"run": "begun", "plan": "{}", "resume": True}]
    record = RunRecords(restored.state / "runs").get("begun")
    assert record is not None and (record["state"], record["flower"]) == (QUEUED, [77])
    assert "known: " in refused("server", "submit", "--resume", "gone", "--server", restored.folder)
    assert "run over is done" in refused("server", "submit", "--resume", "over", "--server", restored.folder)
    assert "is not running" in refused("server", "stop-run", "over", "--server", restored.folder)


def test_a_name_is_taken_also_where_only_a_folder_has_it(restored, answering, experiment):
    answering()
    assert "there is already a run begun" in refused(
        "server", "submit", experiment, "--name", "begun", "--server", restored.folder
    )


def test_a_run_that_was_only_queued_is_to_be_submitted_again(restored, answering):
    answering()
    RunRecords(restored.state / "runs").update("queued", state=QUEUED, flower=1)
    assert "has not begun" in refused("server", "submit", "--resume", "queued", "--server", restored.folder)


def test_runs_that_were_brought_back_are_in_the_status(restored, answering):
    answering()
    done = rounds("server", "status", "--server", restored.folder, "--json")
    assert {r["run"]: r["state"] for r in json.loads(done.stdout)["runs"]} == {"begun": STOPPED, "over": "done"}


# Names ------------------------------------------------------------------------------------------------------------------


def test_sites_have_the_names_that_people_gave_them(made, answering):
    answering(FlowerRun(1, "first", "finished:completed"))
    for where in (["--server", made.out], ["--operator", made.operator("operator")]):
        done = rounds("server", "status", "--json", *where)
        assert {r["site"]: r["there"] for r in json.loads(done.stdout)["sites"]} == {
            ZURICH: "online", "cleveland": "offline", "(node 3)": "online",
        }  # fmt: skip


def test_an_operator_is_told_where_the_record_of_runs_is(made, answering):
    answering(FlowerRun(1, "first", "finished:completed"))
    said = rounds("server", "status", "--operator", made.operator("operator")).stdout
    assert "Flower's status" in said and "`rounds server status --server OUT`" in said
    assert "Flower's status" not in rounds("server", "status", "--server", made.out).stdout


def test_a_run_needs_a_site_that_has_joined(answering, tmp_path):
    folders = provisioned(tmp_path, "a", "b", make_keys=False)
    (tmp_path / "x.toml").write_text('name = "x"\n')
    link = answering()
    done = rounds("server", "submit", tmp_path / "x.toml", "--server", folders.out, "--name", "x")
    assert done.returncode == 2 and "rounds site join" in done.stderr and link.started == []
