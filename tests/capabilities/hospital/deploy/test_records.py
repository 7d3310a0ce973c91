"""The record of a run: written by who submits and who conducts, at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from grandrounds.capabilities.hospital.deploy.records import QUEUED, RUNNING, RunRecords


def test_nothing_is_lost_where_several_write_at_once(tmp_path):
    """Each has a handle of its own on the lock, as processes have."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: RunRecords(tmp_path).update("one", state=f"s{k}", flower=k), range(120)))
    record = RunRecords(tmp_path).get("one")
    assert {state for state, _ in record["history"]} == {f"s{k}" for k in range(120)}
    assert sorted(record["flower"]) == list(range(120))
    assert [r["run"] for r in RunRecords(tmp_path).all()] == ["one"]


def test_a_run_that_is_conducted_already_is_not_queued_again(tmp_path):
    records = RunRecords(tmp_path)
    records.update("one", state=RUNNING, flower=7)
    records.mark_queued("one", 7)  # its submitter comes to write only now
    assert records.get("one")["state"] == RUNNING
    records.mark_queued("one", 8)  # gone on with as another run of Flower's
    assert (records.get("one")["state"], records.get("one")["flower"]) == (QUEUED, [7, 8])
