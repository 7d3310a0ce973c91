"""The store of finished runs that tests share: made once, never written into, and its failures seen by all."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.core.errors import GrandRoundsWarning
from grandrounds.core.plugins import is_stamped
from tests import store
from tests.support import patients, refused

DATA = {"table": "patients.csv", "label": "died", "site": "hospital"}
PLAN = gr.Experiment.parse({"data": DATA, "method": {"rounds": 1}})


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "STORE", tmp_path / "store")
    monkeypatch.setattr(store, "_given", set())
    store._generation.cache_clear()
    yield
    store._generation.cache_clear()


def test_equal_plans_are_trained_once_and_others_again(tmp_path, monkeypatch):
    table = patients([30, 20, 20])
    folder = store.finished(PLAN, table=table)
    made = (folder / "summary.json").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    assert store.finished(PLAN, table=patients([30, 20, 20])) == folder
    assert (folder / "summary.json").stat().st_mtime_ns == made
    others = [
        store.finished(PLAN, table=patients([30, 20, 20], seed=1)),
        store.finished(PLAN, table=table, seed=1),
        store.finished(PLAN, table=table, settings={"train.lr": 0.2}),
    ]
    assert len({folder, *others}) == 4
    assert is_stamped(folder, gr.load_run(folder).plan)


def test_a_plan_needs_no_name_for_rows_in_memory():
    plan = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}})
    assert gr.load_run(store.finished(plan, table=patients([30, 20]))).summary.rounds == 1


def test_workers_at_once_make_it_once():
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "a").write_text("a")

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: store.shared(make), range(8)))
    assert found == set(made) and len(made) == 1


def test_each_test_sees_the_failure():
    for _ in range(2):
        with refused("unknown-column"):
            store.finished(gr.Experiment.parse({"data": {**DATA, "label": "dead"}}), table=patients([30, 20]))


def test_each_test_sees_the_warnings():
    def make(folder: Path) -> None:
        warnings.warn("few rows", GrandRoundsWarning, stacklevel=1)

    for _ in range(2):
        with pytest.warns(GrandRoundsWarning, match="few rows"):
            store.shared(make)


def test_a_test_that_writes_is_told_and_the_run_is_made_again():
    folder = store.finished(PLAN, table=patients([30, 20, 20]))
    store.check_unchanged()
    (folder / "summary.json").chmod(0o600)
    (folder / "summary.json").write_text("{}")
    with pytest.raises(AssertionError, match=r"summary\.json.*copied"):
        store.check_unchanged()
    again = store.finished(PLAN, table=patients([30, 20, 20]))
    assert gr.load_run(again).summary.final
    again.chmod(0o700)
    (again / "new").touch()
    (again / "new").unlink()
    with pytest.raises(AssertionError, match="run"):
        store.check_unchanged()


def test_a_copy_is_its_own(tmp_path):
    folder = store.finished(PLAN, table=patients([30, 20, 20]))
    assert not (folder / "summary.json").stat().st_mode & 0o222
    copy = store.copied(folder, tmp_path / "copy")
    (copy / "summary.json").write_text("{}")
    (copy / "new").touch()
    store.check_unchanged()


def test_rows_in_a_file_are_refused(tmp_path):
    (tmp_path / "patients.csv").touch()
    with pytest.raises(ValueError, match="shared"):
        store.finished(gr.Experiment.parse({"data": {**DATA, "table": str(tmp_path / "patients.csv")}}))
