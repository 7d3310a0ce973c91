"""Runs that are being written: read as they grow, once for all requests, and refused where they are no plain files."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grandrounds.capabilities.console.cache import ResultCache
from grandrounds.capabilities.console.run_index import RunIndex, Unreadable
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.capabilities.console.views.runs import run_lines
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.journal import JournalReader
from tests.engine.growing import GrowingRun


@pytest.fixture
def growing(runs, tmp_path) -> GrowingRun:
    return GrowingRun(runs / "by-reasons", tmp_path / "runs" / "live")


def test_a_page_of_a_live_run_reads_only_new_rounds(growing):
    run_index = RunIndex(growing.folder.parent)
    growing.append(3)
    assert len(run_index.run("live").rounds) == 3
    (reader,) = run_index._readers.values()
    growing.append(2)
    assert len(run_view.head(run_index, "live").figures) > 3
    assert [r.round for r in run_index.run("live").rounds] == [1, 2, 3, 4, 5]
    assert reader.lines_read == 5


def test_figures_of_a_live_run_equal_those_of_a_whole_read(growing):
    growing.append(3)
    run_index = RunIndex(growing.folder.parent)
    read_in_parts = run_index.run("live").rounds
    whole = JournalReader(Checkpoint(growing.folder / "checkpoint"))
    assert [r.decision for r in read_in_parts] == [r.decision for r in whole.read()]
    for name in [place.name for place in run_view.head(run_index, "live").figures]:
        assert json.dumps(run_view.figure(run_index, "live", name), allow_nan=False)


def test_eight_requests_for_the_same_figure_compute_it_once(runs):
    run_index, computed, together = RunIndex(runs), [], threading.Barrier(8)

    def make(entry):
        computed.append(entry.name)
        time.sleep(0.05)  # others ask meanwhile
        return entry.name

    def ask(_):
        together.wait()
        return run_index.get_cached("plain", "slow", make)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["plain"] * 8
    assert computed == ["plain"]


def test_eight_requests_for_the_same_result_of_other_files_compute_it_once():
    cache, computed, together = ResultCache(), [], threading.Barrier(8)

    def make():
        computed.append(1)
        time.sleep(0.05)

    def ask(_):
        together.wait()
        return cache.get_or_make("kind", "key", 1, make)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [None] * 8
    assert computed == [1]


def test_an_unreadable_run_is_read_once_by_eight_requests(runs):
    run_index, read, together = RunIndex(runs), [], threading.Barrier(8)

    def make(entry):
        read.append(1)
        raise ValueError("damaged")

    def ask(_):
        together.wait()
        with pytest.raises(Unreadable):
            run_index.get_cached("plain", "broken", make)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert read == [1]


@pytest.mark.parametrize("kind", ["link", "pipe", "large"])
def test_a_summary_that_is_no_plain_file_is_listed_as_unreadable(growing, runs, kind):
    growing.append(1)
    summary = growing.folder / "summary.json"
    if kind == "link":
        summary.symlink_to(runs / "plain" / "summary.json")
    elif kind == "pipe":
        os.mkfifo(summary)
    else:
        with summary.open("wb") as f:
            f.truncate(300 * 2**20)  # sparse
    run_index = RunIndex(growing.folder.parent)
    (line,) = run_lines(run_index)
    assert line.state == "unreadable" and "summary.json" in line.wrong and not line.metrics
    with pytest.raises(Unreadable, match=r"summary\.json"):
        run_view.head(run_index, "live")


def test_a_cache_of_runs_is_bounded_by_the_bytes_of_their_files(runs, monkeypatch):
    run_index = RunIndex(runs)
    monkeypatch.setattr("grandrounds.capabilities.console.run_index.CACHED_BYTES", 1)
    for name in ("plain", "trust", "private"):
        run_index.run(name)
    assert list(run_index._cache) == ["private"]
