"""Runs that are resumed: with the keys they began with, after a stop between rounds, and after a killed server."""

from __future__ import annotations

import sqlite3
import threading

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.audit.book import read_keys
from grandrounds.capabilities.hospital.deploy import run_worker
from grandrounds.capabilities.hospital.deploy.run_worker import check_keys
from grandrounds.core.errors import RunFailed
from tests.engine.disturbed import hospitals
from tests.engine.hospitals import final_model
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients, refused


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    experiment = gr.Experiment.parse(
        {
            "name": "x",
            "data": {"table": "p.csv", "label": "died", "site": "hospital"},
            "method": {"name": "fedavg", "rounds": 1},
            "explain": {"sketch": "none"},
        }
    )
    return gr.run(experiment, out=tmp_path_factory.mktemp("runs") / "begun", table=patients([30, 30]))


def test_the_same_keys_go_on_and_a_site_that_joined_since_is_no_matter(begun):
    with begun.ledger as ledger:
        server, sites = read_keys(next(ledger.entries()))
    check_keys(begun.folder, server, sites)
    check_keys(begun.folder, server, {**sites, "joined since": b"k" * 32})


def test_other_keys_are_refused_with_whose_they_are(begun):
    with begun.ledger as ledger:
        server, sites = read_keys(next(ledger.entries()))
    with refused("other-keys", match="keys of b"):
        check_keys(begun.folder, server, {**sites, "b": b"k" * 32})
    with refused("other-keys", match="the server"):
        check_keys(begun.folder, b"k" * 32, sites)


def test_a_run_that_is_asked_to_stop_ends_after_its_round_and_is_resumed_with_the_same_bits(tmp_path, monkeypatch):
    held, stop = hospitals(), threading.Event()
    monkeypatch.setattr(run_worker, "_STOP", stop)
    stop.set()
    transport = MemoryTransport(held.keepers(tmp_path / "state"))
    with refused("run-stopped", match="after round 1", kind=RunFailed):
        held.deployed(tmp_path, transport, progress=run_worker._log_progress("run"))
    assert len((tmp_path / "run" / "checkpoint" / "rounds.jsonl").read_text().splitlines()) == 1
    run = held.deployed(tmp_path, transport, resume=True)
    assert len(run.rounds) == 3
    calm = hospitals().deployed(tmp_path / "calm")
    assert np.array_equal(final_model(run), final_model(calm))


def test_a_run_that_a_killed_server_had_taken_but_not_begun_is_started_again_with_its_plan(tmp_path):
    """The record says queued, and the SuperLink believes that it runs."""
    pytest.importorskip("flwr")
    from grandrounds.capabilities.hospital.deploy.control import PENDING, Control
    from grandrounds.capabilities.hospital.deploy.records import QUEUED, RunRecords
    from grandrounds.capabilities.hospital.deploy.scheduler import RunScheduler, open_client, take_task
    from tests.capabilities.hospital.deploy.flower_support import Consortium

    consortium = Consortium(tmp_path, "north")
    try:
        consortium.superlink.start()
        consortium.answering()
        link, records = consortium.link, RunRecords(consortium.link.state / "runs")
        with Control.local(link) as control:
            records.mark_queued("taken", control.start({"run": "taken", "plan": '{"name": "x"}', "resume": False}))
        with open_client(link, secret=link.secret) as client:
            assert take_task(client, link) is not None
        with Control.local(link) as control:
            records.mark_queued("waiting", control.start({"run": "waiting", "plan": '{"name": "y"}', "resume": False}))
        scheduler = RunScheduler(link)
        assert scheduler.resume_interrupted() == ["taken"], "the other one waits at the SuperLink"
        with Control.local(link) as control:
            pending = [(run.name, run.plan) for run in control.runs() if run.status == PENDING]
        assert sorted(pending) == [("taken", '{"name": "x"}'), ("waiting", '{"name": "y"}')]
        assert [record["state"] for record in records.all()] == [QUEUED, QUEUED]
        scheduler.close()
    finally:
        consortium.close()


@pytest.mark.parametrize("by", ["a jump of the clock", "an operator"])
def test_a_run_that_flower_ended_is_submitted_again_unless_an_operator_stopped_it(tmp_path, by):
    pytest.importorskip("flwr")
    from grandrounds.capabilities.hospital.deploy.control import PENDING, Control
    from grandrounds.capabilities.hospital.deploy.records import QUEUED, RUNNING, STOPPED, RunRecords
    from grandrounds.capabilities.hospital.deploy.scheduler import RunScheduler
    from tests.capabilities.hospital.deploy.flower_support import Consortium
    from tests.capabilities.hospital.deploy.real import until

    consortium = Consortium(tmp_path, "north")
    try:
        consortium.superlink.start()
        consortium.answering()
        link, records = consortium.link, RunRecords(consortium.link.state / "runs")
        with Control.local(link) as control:
            run = control.start({"run": "taken", "plan": '{"name": "x"}', "resume": False})
        scheduler = RunScheduler(link, command=["sleep", "1000"])

        def state() -> str:
            scheduler.tick()
            return str((records.get("taken") or {}).get("state"))

        until(lambda: state() == RUNNING, seconds=60, what="the run to be taken")
        if by == "an operator":
            with Control.local(link) as control:
                control.stop(run)
        else:
            with sqlite3.connect(link.state / "link.db") as database:
                database.execute("UPDATE task SET active_until = '2020-01-01 00:00:00.000000'")
        until(lambda: state() != RUNNING, seconds=60, what="the end of the run")
        with Control.local(link) as control:
            pending = [(other.name, other.plan) for other in control.runs() if other.status == PENDING]
        if by == "an operator":
            assert (records.get("taken") or {})["state"] == STOPPED and pending == []
        else:
            assert (records.get("taken") or {})["state"] == QUEUED and pending == [("taken", '{"name": "x"}')]
        scheduler.close()
    finally:
        consortium.close()
