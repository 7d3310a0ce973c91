"""Answers whose large columns lie in a file are the answers that they would be in memory, and methods make the same of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.audit.digest import row_digests
from grandrounds.core import averaging
from grandrounds.core.averaging import average
from grandrounds.core.errors import RunFailed
from grandrounds.core.rng import generator
from grandrounds.data.table import Table
from grandrounds.engine import answer_store
from grandrounds.engine.answer_store import join_on_disk
from grandrounds.methods import robust_kernels as differing
from grandrounds.methods.robust import RULES, RobustRule, aggregate_robust
from grandrounds.methods.robust_kernels import model_updates
from grandrounds.protocol.messages import Answers
from tests.engine.hospitals import Hospitals, final_model
from tests.engine.test_hospitals import DATA, SIZES, write_csv
from tests.support import patients, refused


@pytest.fixture
def in_files(monkeypatch):
    """Every array of a few bytes is large."""
    monkeypatch.setattr(answer_store, "LARGE_COLUMN", 8)


def blocks(sites: int, size: int, *, seed: int = 0, dtype=np.float32) -> list[Answers]:
    rng = generator(seed, purpose="stacked")
    return [
        Answers.from_rows([(f"s{k}", {"model": rng.standard_normal(size).astype(dtype), "count": k, "word": "w"})])
        for k in range(sites)
    ]


def same(found: Answers, expected: Answers) -> None:
    assert found.sites == expected.sites
    assert found.missing == expected.missing
    assert list(found.columns) == list(expected.columns)
    for name, column in expected.columns.items():
        np.testing.assert_equal(found[name], column)
        assert type(found[name]) is list or found[name].dtype == column.dtype


def test_rows_lie_in_a_file_without_a_name_and_are_the_same(in_files, tmp_path):
    given = [*blocks(5, 40), Answers((), {}, missing={"away": "dropped out"})]
    given.insert(2, given[1].only([], {"s1": "sent nonsense"}))
    found = join_on_disk(given, 7, tmp_path)
    same(found, Answers.join(given))
    assert isinstance(found["model"], np.memmap)
    assert list(tmp_path.iterdir()) == []
    assert not found["model"].flags.writeable


def test_small_columns_stay_in_memory(tmp_path):
    assert not isinstance(join_on_disk(blocks(5, 40), 5, tmp_path)["model"], np.memmap)


def test_how_many_may_answer_decides_and_not_how_many_did(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_store, "LARGE_COLUMN", 40 * 4 * 100)
    given = blocks(2, 40)
    assert isinstance(join_on_disk(given, 100, tmp_path)["model"], np.memmap)
    assert not isinstance(join_on_disk(given, 99, tmp_path)["model"], np.memmap)


@pytest.mark.parametrize("types", [("f4", "f8", "f4"), ("f8", "f4"), ("f2", "f4", "f8"), ("i4", "f4")])
def test_rows_of_several_types_are_in_the_type_that_holds_all(in_files, tmp_path, types):
    """So a site cannot coarsen the models of others by sending its own in half precision first."""
    given = [blocks(1, 9, seed=k, dtype=t)[0] for k, t in enumerate(types)]
    same(join_on_disk(given, 3, tmp_path), Answers.join(given))


def test_rows_of_several_shapes_are_a_list(in_files, tmp_path):
    given = [blocks(1, size, seed=size)[0] for size in (9, 7, 9, 0)]
    same(join_on_disk(given, 4, tmp_path), Answers.join(given))


def test_nobody_answered(tmp_path):
    assert len(join_on_disk([], 0, tmp_path)) == 0
    gone = Answers((), {}, missing={"a": "dropped out"})
    same(join_on_disk([gone, gone], 2, tmp_path), Answers.join([gone, gone]))


def test_totals_are_those_of_the_blocks_that_count(in_files, tmp_path):
    given = [b.summed(("model",)) for b in blocks(4, 30)]
    given[1] = given[1].only([], {"s1": "sent nonsense"})
    found, expected = join_on_disk(given, 4, tmp_path), Answers.join(given)
    same(found, expected)
    np.testing.assert_array_equal(found.totals["model"], expected.totals["model"])


def test_a_disk_that_cannot_be_written_is_one_sentence(in_files, tmp_path):
    with refused("cannot-write", kind=RunFailed):
        join_on_disk(blocks(2, 40), 2, tmp_path / "nowhere")


def test_commitments_to_answers_in_a_file_are_the_same(in_files, tmp_path):
    given = [Answers.from_rows([(s, {"model": v["model"], "count": v["count"]})]) for b in blocks(4, 50) for s, v in b]
    found, expected = join_on_disk(given, 4, tmp_path), Answers.join(given)
    assert row_digests(found.columns, 4) == row_digests(expected.columns, 4)


@settings(max_examples=40, deadline=None)
@given(sites=st.integers(1, 150), size=st.integers(2, 40), stretch=st.integers(1, 39), seed=st.integers(0, 99))
def test_a_mean_in_stretches_has_the_same_bits(sites, size, stretch, seed):
    rng = generator(seed, purpose="stretches")
    models, weights = rng.standard_normal((sites, size)).astype(np.float32), rng.random(sites)
    expected = average(models, weights)
    np.testing.assert_allclose(expected, weights @ models.astype(float), rtol=1e-12, atol=1e-12)
    was, averaging._STRETCH = averaging._STRETCH, stretch
    try:
        np.testing.assert_array_equal(average(models, weights), expected)
    finally:
        averaging._STRETCH = was


@pytest.mark.parametrize("rule", [r for r in RULES if r != "foolsgold"])
def test_a_robust_rule_makes_the_same_of_updates_that_are_worked_out_as_they_are_read(rule, monkeypatch):
    rng = generator(3, purpose="differences")
    models, start = rng.standard_normal((12, 700)).astype(np.float32), rng.standard_normal(700).astype(np.float32)
    models[4] += 1e3
    weights, root = rng.random(12), rng.standard_normal(700)
    weights /= weights.sum()
    for rows in (np.arange(12), np.array([0, 2, 3, 4, 7, 8, 11])):
        for begun in (start, rng.standard_normal((len(rows), 700)).astype(np.float32)):
            monkeypatch.setattr(differing, "LAZY_SIZE", 1)
            lazy = model_updates(models, rows, begun)
            assert not isinstance(lazy, np.ndarray)
            told = RobustRule(rule, trim=0.2)
            found = aggregate_robust(lazy, weights[rows], told, root=root)
            expected = aggregate_robust(models[rows] - begun, weights[rows], told, root=root)
            np.testing.assert_array_equal(found.update, expected.update)
            np.testing.assert_array_equal(found.weights, expected.weights)
            assert found.update.dtype == expected.update.dtype
            assert found.why == expected.why


def test_an_update_of_no_finite_length_is_left_out_of_those_too(monkeypatch):
    monkeypatch.setattr(differing, "LAZY_SIZE", 1)
    models = generator(4, purpose="differences").standard_normal((6, 30))
    models[2, 5] = np.inf
    start = np.zeros(30)
    found = aggregate_robust(model_updates(models, np.arange(6), start), np.full(6, 1 / 6), RobustRule("median"))
    expected = aggregate_robust(models - start, np.full(6, 1 / 6), RobustRule("median"))
    np.testing.assert_array_equal(found.update, expected.update)
    np.testing.assert_array_equal(found.signals["left_out"], [0, 0, 1, 0, 0, 0])


def test_leaving_out_the_last_sites_copies_nothing():
    held = Answers.join(blocks(5, 40))
    assert np.shares_memory(held.only([1, 2, 3], {})["model"], held["model"])
    np.testing.assert_array_equal(held.only([0, 2], {})["model"], held["model"][[0, 2]])
    assert held.only([], {})["model"].shape == (0, 40)


SPECIAL = {
    "fedavg": {},
    "krum": {"robust": {"rule": "krum"}},
    "median": {"robust": {"rule": "median"}},
    "trimmed mean": {"robust": {"rule": "trimmed-mean", "trim": 0.3}},
    "sse-agg": {"name": "sse-agg"},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", SPECIAL)
def test_a_run_of_hospitals_ends_with_the_same_model(case, tmp_path, monkeypatch):
    """Twice over messages: with answers in memory, and with every array in a file and every difference worked out late."""
    table: Table = patients(SIZES)
    more = {"method": {"name": "fedavg", "rounds": 2, **SPECIAL[case]}}
    if case == "sse-agg":
        write_csv(tmp_path / "public.csv", patients([30], seed=7))
        more["reference"] = {"rows": {"rows": 25, "source": str(tmp_path / "public.csv")}}
    held = Hospitals.of(table, name="twice", data=DATA, **more)
    before = held.deployed(tmp_path / "memory")
    mapped = []
    read = answer_store._RowFile.read
    monkeypatch.setattr(answer_store._RowFile, "read", lambda file: mapped.append(read(file)) or mapped[-1])
    monkeypatch.setattr(answer_store, "LARGE_COLUMN", 1)
    monkeypatch.setattr(differing, "LAZY_SIZE", 1)
    monkeypatch.setattr(averaging, "_STRETCH", 3)
    after = held.deployed(tmp_path / "files")
    assert any(isinstance(rows, np.memmap) and rows.ndim == 2 for rows in mapped), "models did lie in files"
    np.testing.assert_array_equal(final_model(after), final_model(before))
    assert [r["decision"]["weights"] for r in after.rounds] == [r["decision"]["weights"] for r in before.rounds]
