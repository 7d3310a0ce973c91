"""Logs of both sides of every exchange, linked by the id of the request."""

from __future__ import annotations

import json
import logging

import pytest

from grandrounds.capabilities.hospital.deploy.counts import CountEvents, Counts
from grandrounds.capabilities.hospital.keeper.runtime.log import SiteLog
from grandrounds.core.event_log import LineFile, append_line
from tests.engine.hospitals import Hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients

SETTINGS = {
    "name": "logged",
    "data": {"table": "data frame", "label": "died", "site": "hospital"},
    "method": {"name": "fedavg", "rounds": 2},
    "explain": {"sketch": "none"},
}


@pytest.fixture
def events(tmp_path):
    """The log and the counts of a run's process."""
    logger = logging.getLogger("grandrounds")
    handlers = [LineFile(tmp_path / "requests.jsonl"), CountEvents(tmp_path / "counts.json")]
    before = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    yield handlers
    for handler in handlers:
        logger.removeHandler(handler)
    logger.setLevel(before)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_of_the_servers_log_is_in_the_log_of_its_site(tmp_path, events):
    table = patients([40, 30, 35])
    hospitals = Hospitals.of(table, **SETTINGS)
    keepers = hospitals.keepers(tmp_path / "state")
    sites = [SiteLog(tmp_path / f"{keeper.me.name}.jsonl", keeper.answer_message) for keeper in keepers]
    transport = MemoryTransport(sites)
    hospitals.deployed(tmp_path, transport)

    server = lines(tmp_path / "requests.jsonl")
    at_sites = {name: {line["request"] for line in lines(tmp_path / f"{name}.jsonl")} for name in hospitals.rows}
    sent = [line for line in server if line["event"] == "request sent"]
    answered = [line for line in server if line["event"] == "answer received"]
    assert len(sent) == len(transport.messages) and len(answered) == len(sent)
    assert {line["request"] for line in sent} == {line["request"] for line in answered}
    for line in answered:
        assert line["request"] in at_sites[line["site"]], line
    assert {request for requests in at_sites.values() for request in requests} == {line["request"] for line in sent}
    assert sum(line["bytes"] for line in sent) == sum(len(data) for _, data in transport.messages)
    assert {line["round"] for line in sent if line["task"] != "hello"} >= {0, 1, 2}
    assert all(line["seconds"] >= 0 for line in answered)


def test_logs_have_no_values_of_patients_and_no_columns(tmp_path, events):
    hospitals = Hospitals.of(patients([40, 30]), **SETTINGS)
    keepers = hospitals.keepers(tmp_path / "state")
    sites = [SiteLog(tmp_path / f"{keeper.me.name}.jsonl", keeper.answer_message) for keeper in keepers]
    hospitals.deployed(tmp_path, MemoryTransport(sites))
    text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert all(word not in text for word in ("lactate", "pressure", "cardiac", "died"))


def test_counts_continue_over_runs_and_name_refusals(tmp_path, events):
    hospitals = Hospitals.of(patients([40, 30, 35]), **SETTINGS)
    transport = MemoryTransport(hospitals.keepers(tmp_path / "state"))
    hospitals.deployed(tmp_path, transport)
    events[1].write()
    counts = Counts.load(tmp_path / "counts.json")
    assert counts.messages["a", "sent"] == counts.messages["a", "received"] > 0
    assert sum(n for (_, way), n in counts.bytes.items() if way == "down") <= sum(len(d) for _, d in transport.messages)
    again = CountEvents(tmp_path / "counts.json")
    again.counts.add({"event": "request refused", "site": "a", "code": "budget-spent"}, 5.0)
    again.write()
    assert Counts.load(tmp_path / "counts.json").messages == counts.messages
    assert Counts.load(tmp_path / "counts.json").refusals["a", "budget-spent"] == 1


def test_damaged_counts_start_from_zero(tmp_path):
    append_line(tmp_path / "counts.json", '{"messages": [["a"]]}')
    assert Counts.load(tmp_path / "counts.json") == Counts()
