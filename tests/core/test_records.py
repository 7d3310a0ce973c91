"""Records of a run: fields by attribute, the same values by key, and back to the same file."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.core.records import Decision, RoundRecord, RunSummary, Stage
from tests.support import refused

EXPERIMENTS = {
    "plain": {"data": {"name": "breast-cancer"}, "method": {"rounds": 2}},
    "private": {
        "data": {"name": "heart"}, "method": {"rounds": 2}, "privacy": {"mechanism": "dp-sgd", "epsilon": 5.0}
    },
    "trust": {"data": {"name": "breast-cancer"}, "split": {"sites": 4}, "method": {"name": "fedxchain", "rounds": 2}},
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Run folders: plain, under a privacy budget, and with trust."""
    place = tmp_path_factory.mktemp("runs")
    for name, values in EXPERIMENTS.items():
        gr.run(gr.Experiment.parse(values), out=place / name)
    return [place / name for name in EXPERIMENTS]


def test_every_stored_summary_is_read_and_written_back_as_it_was(files):
    stored = [json.loads((folder / "summary.json").read_text()) for folder in files]
    for values in stored:
        summary = RunSummary.from_dict(values)
        assert json.dumps(summary.to_dict()) == json.dumps(values)  # the order of keys too
        assert summary.final["auroc"] == summary["final"]["auroc"] == values["final"]["auroc"]
        assert json.dumps(summary) == json.dumps(values)
        assert set(values) <= {f.name for f in fields(RunSummary)}


def test_every_stored_round_is_read_and_written_back_as_it_was(files):
    stored = [r for folder in files for r in json.loads((folder / "round_logs.json").read_text())["rounds"]]
    assert len(stored) == 6
    for values in stored:
        record = RoundRecord.from_dict(values)
        assert json.dumps(record.to_dict()) == json.dumps(values)
        assert record.decision.weights == values["decision"]["weights"]
        assert ("test" in record) == ("test" in values)
        assert set(values) <= {f.name for f in fields(RoundRecord)}
        assert set(values["decision"]) <= {f.name for f in fields(Decision)}


def test_a_key_of_another_version_is_kept():
    values = {"round": 3, "decision": {"weights": {"a": 1.0}, "mood": "good"}, "weather": "rain"}
    record = RoundRecord.from_dict(values)
    assert record["weather"] == "rain" and record.decision["mood"] == "good"
    assert record.to_dict() == values


def test_a_record_equals_the_object_it_was_read_from():
    values = {"weights": {"a": 0.5, "b": 0.5}}
    assert Decision.from_dict(values) == values
    assert Decision.from_dict(values) != {"weights": {"a": 1.0}}


def test_a_decision_made_here_has_all_its_keys():
    told = Decision(weights={"a": 1.0}, stages=(Stage("weigh", "by rows", {"a": 1.0}),)).to_dict()
    assert told["stages"] == [{"part": "weigh", "why": "by rows", "weights": {"a": 1.0}}]
    assert list(told)[:3] == ["signals", "weights", "why"]


@pytest.mark.parametrize("values", [[], None, {"name": "x"}])
def test_a_damaged_summary_is_named(values):
    with refused("damaged-record", match="runs/x/summary.json is damaged"):
        RunSummary.from_dict(values, where="runs/x/summary.json")
