"""The journal of a run that is being written, read in parts."""

from __future__ import annotations

import json

import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.journal import JournalReader
from tests.engine.growing import GrowingRun
from tests.store import finished
from tests.support import patients

DATA = {"table": "patients.csv", "label": "died", "site": "hospital"}


@pytest.fixture(scope="module")
def stored():
    settings = {"method": {"name": "sse-agg", "rounds": 3}, "reference": {"rows": {"rows": 25}}, "explain": {"every": 1}}
    experiment = gr.Experiment.parse({"name": "r", "data": DATA, **settings})
    return finished(experiment, table=patients([30, 20, 20, 20, 20, 20, 20, 20]))


@pytest.fixture
def growing(stored, tmp_path) -> GrowingRun:
    return GrowingRun(stored, tmp_path / "live")


def whole(growing: GrowingRun) -> list[object]:
    return list(Checkpoint(growing.folder / "checkpoint").records())


def test_rounds_read_in_parts_equal_a_whole_read(growing):
    reader = JournalReader(growing.checkpoint)
    assert reader.read() == []
    for appended in (1, 4, 0, 2):
        growing.append(appended)
        assert reader.read() == whole(growing)
    assert reader.lines_read == 7
    assert json.dumps(reader.read()[-1].to_dict()["decision"]["why"])


def test_a_torn_last_line_waits_until_it_is_committed(growing):
    growing.append(2)
    reader = JournalReader(growing.checkpoint)
    line = json.dumps(growing.record()).encode() + b"\n"
    with growing.checkpoint.journal.open("ab") as f:
        f.write(line[:100])
    assert reader.read() == whole(growing) and len(reader.read()) == 2
    with growing.checkpoint.journal.open("ab") as f:
        f.write(line[100:])
    growing.commit()
    assert reader.read() == whole(growing) and reader.lines_read == 3


@pytest.mark.parametrize("replaced", [True, False], ids=["another file", "the same file"])
def test_a_journal_that_was_written_anew_is_read_from_its_beginning(growing, stored, tmp_path, replaced):
    growing.append(5)
    reader = JournalReader(growing.checkpoint)
    reader.read()
    other = GrowingRun(stored, tmp_path / "other")
    other.append(2)
    other.append(6, virtual_seconds=77.0)
    if replaced:
        other.checkpoint.journal.replace(growing.checkpoint.journal)
    else:
        growing.checkpoint.journal.write_bytes(other.checkpoint.journal.read_bytes())
    other.checkpoint.state_file.replace(growing.checkpoint.state_file)
    assert reader.read() == whole(growing)
    assert [r.virtual_seconds for r in reader.read()][2:] == [77.0] * 6


def test_a_truncated_journal_is_read_again(growing):
    growing.append(4)
    reader = JournalReader(growing.checkpoint)
    reader.read()
    two = b"".join(growing.checkpoint.journal.read_bytes().splitlines(keepends=True)[:2])
    growing.checkpoint.journal.write_bytes(two)
    growing.commit()
    assert reader.read() == whole(growing) and len(reader.read()) == 2


def test_late_scores_change_rounds_that_were_read_before(growing):
    growing.append(2)
    reader = JournalReader(growing.checkpoint)
    reader.read()
    growing.append(1, late=[{"round": 1, "test": {"accuracy": 0.25}}, {"round": 9, "test": {}}])
    assert reader.read() == whole(growing)
    assert reader.read()[0].test == {"accuracy": 0.25}


@pytest.mark.parametrize("line", [b"{}\n", b"not json\n", b'{"round": 1e400}\n', b'{"round": NaN}\n'])
def test_a_damaged_line_is_refused_each_time(growing, line):
    growing.append(1)
    reader = JournalReader(growing.checkpoint)
    reader.read()
    with growing.checkpoint.journal.open("ab") as f:
        f.write(line)
    growing.commit()
    for _ in range(2):
        with pytest.raises(BadInput, match="damaged"):
            reader.read()


def test_an_infinite_score_is_refused(growing):
    growing.append(1)
    record = json.dumps(growing.record(virtual_seconds=12345.5)).replace("12345.5", "1e400")
    with growing.checkpoint.journal.open("a") as f:
        f.write(record + "\n")
    growing.commit()
    with pytest.raises(BadInput, match="infinite"):
        JournalReader(growing.checkpoint).read()


def test_records_of_many_sites_need_little_memory(growing):
    growing.append(1)
    packed = JournalReader(growing.checkpoint).read()[0].decision.weights
    plain = whole(growing)[0].decision.weights
    assert type(packed) is not dict and packed == plain and dict(packed) == dict(plain)
    assert list(packed.items()) == list(plain.items()) and packed | {"x": 1} == plain | {"x": 1}
    assert packed.get("nobody") is None and "nobody" not in packed and packed.get("nobody", 3) == 3
