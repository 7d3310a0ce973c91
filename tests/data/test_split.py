"""Splits inside a site and roles of sites: disjoint, in proportion, and each site on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.data.split import SCHEMES, assign_roles, row_keys, split_rows
from grandrounds.data.table import Table
from tests.support import dataset, patients, refused


@st.composite
def sites(draw):
    """Some rows of a table: their numbers, shares and seed, and columns of the table with many equal values."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = np.sort(rng.permutation(80)[: draw(st.integers(1, 60))])
    val, test = draw(st.sampled_from([(0.0, 0.0), (0.15, 0.2), (0.0, 0.3), (0.4, 0.0), (0.45, 0.5), (0.01, 0.01)]))
    wish = {"val": val, "test": test, "seed": draw(st.integers(0, 9)), "site": draw(st.sampled_from("ab"))}
    keys, patient, time = rng.integers(0, draw(st.integers(1, 30)), size=(3, 80))
    return rows, wish, {"keys": keys.astype(np.uint64), "patient": patient, "time": time.astype(float)}


@given(sites(), st.sampled_from(["row", "patient", "time"]))
@settings(max_examples=250, deadline=None)
def test_every_row_has_one_use_and_training_has_one_row(site, by):
    rows, wish, columns = site
    got = split_rows(rows, **columns, unit=by, **wish)
    together = np.concatenate([got.train, got.val, got.test])
    assert np.array_equal(np.sort(together), rows)
    assert len(got.train) >= 1
    patient, time = columns["patient"], columns["time"]
    units = len(np.unique(patient[rows])) if by == "patient" else len(rows)
    for share, part in ((wish["val"], got.val), (wish["test"], got.test)):
        if share == 0:
            assert len(part) == 0
        elif units >= 3:
            assert len(part) >= 1
        if by == "time" and len(rows) >= 20 and share > 0.1:
            assert abs(len(part) - share * len(rows)) <= 1
    if by == "patient":
        sides = [set(patient[part]) for part in (got.train, got.val, got.test)]
        assert sum(map(len, sides)) == units
    if by == "time":
        last = -np.inf
        for part in (got.train, got.val, got.test):
            if len(part):
                assert time[part].min() >= last
                last = time[part].max()


@given(sites(), st.sampled_from(["row", "patient", "time"]))
@settings(max_examples=60, deadline=None)
def test_a_hospital_with_only_its_own_file_finds_the_same_split(site, by):
    rows, wish, columns = site
    full = split_rows(rows, unit=by, **columns, **wish)
    alone = split_rows(np.arange(len(rows)), unit=by, **{name: c[rows] for name, c in columns.items()}, **wish)
    for of_all, of_own in zip(vars(full).values(), vars(alone).values(), strict=True):
        assert np.array_equal(of_all, rows[of_own])


def contents(part: np.ndarray, column: np.ndarray) -> list:
    return sorted(column[part].tolist())


@given(st.integers(0, 10**6), st.integers(1, 500), st.integers(0, 9), st.sampled_from(["row", "patient"]))
@settings(max_examples=100, deadline=None)
def test_taking_out_one_patient_changes_no_others_role(at, kinds, seed, by):
    """Whoever is taken out of 300 rows, all others keep their role; of equal rows it is the contents that stay."""
    column = np.random.default_rng(at).integers(0, kinds + (200 if by == "patient" else 0), 300)
    columns = {"keys": column.astype(np.uint64), "patient": column}
    wish = {"val": 0.15, "test": 0.2, "seed": seed, "site": "a", "unit": by}
    missing = column == column[at % 300] if by == "patient" else np.arange(300) == at % 300
    before = split_rows(np.arange(300), **columns, **wish)
    after = split_rows(np.flatnonzero(~missing), **columns, **wish)
    leaves = column[at % 300]
    for was, now in zip(vars(before).values(), vars(after).values(), strict=True):
        stayed = contents(was, column)
        for _ in range(len(stayed) - len(now)):
            stayed.remove(leaves)
        assert stayed == contents(now, column)


def test_a_patient_of_two_hospitals_has_one_role():
    words = np.array([f"p{k}" for k in range(200)], dtype=object)
    wish = {"val": 0.15, "test": 0.2, "seed": 0, "patient": words, "unit": "patient"}
    one, other = (split_rows(np.arange(a, b), site=site, **wish) for a, b, site in ((0, 150, "a"), (50, 200, "b")))
    both = np.arange(50, 150)
    for part in ("train", "val", "test"):
        assert set(getattr(one, part)) & set(both) == set(getattr(other, part)) & set(both)


def test_shares_and_classes_are_met_on_average():
    y = np.array([0] * 8000 + [1] * 2000)
    got = split_rows(np.arange(10_000), val=0.1, test=0.2, seed=0, site="a", keys=np.arange(10_000, dtype=np.uint64))
    sizes = np.array([len(part) for part in (got.train, got.val, got.test)])
    ill = np.array([int(y[part].sum()) for part in (got.train, got.val, got.test)])
    shares = np.array([0.7, 0.1, 0.2])
    assert (np.abs(sizes - 10_000 * shares) < 4 * np.sqrt(10_000 * shares * (1 - shares))).all()
    assert (np.abs(ill - 2000 * shares) < 4 * np.sqrt(2000 * shares * (1 - shares))).all()


def test_seed_and_purpose_decide_and_the_site_does_not():
    keys = np.arange(100, dtype=np.uint64)

    def tested(seed, site, purpose="split"):
        return split_rows(
            np.arange(100), val=0.1, test=0.2, seed=seed, site=site, keys=keys, purpose=purpose
        ).test.tolist()

    assert tested(0, "a") == tested(0, "b")
    assert tested(0, "a") != tested(1, "a")
    assert tested(0, "a") != tested(0, "a", "tuning")


def test_rows_of_equal_content_are_dealt_one_by_one():
    """A table of two categories has few different rows; each role still gets its share of them."""
    got = split_rows(np.arange(1000), val=0.15, test=0.2, seed=0, site="a", keys=np.zeros(1000, np.uint64))
    assert abs(len(got.test) - 200) < 50 and abs(len(got.val) - 150) < 45


def test_keys_follow_from_content_and_from_nothing_else():
    data = dataset(patients([40, 40]))
    keys = row_keys(data)
    assert len(set(keys.tolist())) == 80
    order = np.random.default_rng(0).permutation(80)
    np.testing.assert_array_equal(row_keys(data.take(order)), keys[order])
    columns = list(data.table.columns)[::-1]
    turned = dataset(Table({name: data.table.columns[name] for name in columns}, "x.csv"))
    np.testing.assert_array_equal(row_keys(turned), keys)
    other = data.numeric.copy()
    other[5, 1] += 1e-9
    changed = row_keys(replace(data, numeric=other))
    assert np.flatnonzero(changed != keys).tolist() == [5]


def test_three_patients_fill_three_sides_even_when_one_has_most_rows():
    patient = np.array([7] * 10 + [8, 9])
    for seed in range(20):
        got = split_rows(np.arange(12), val=0.2, test=0.2, seed=seed, site="a", patient=patient, unit="patient")
        assert {len(got.train), len(got.val), len(got.test)} == {1, 10}


def test_time_trains_on_the_earliest():
    time = np.array(["2020-03-01", "2019-01-01", "2021-05-05", "2018-07-01", "2022-01-01"], dtype=object)
    got = split_rows(np.arange(5), val=0.2, test=0.2, seed=0, site="a", time=time, unit="time")
    assert (got.train.tolist(), got.val.tolist(), got.test.tolist()) == ([0, 1, 3], [2], [4])


@pytest.mark.parametrize(("n", "parts"), [(1, 1), (2, 1), (3, 3), (4, 3), (8, 3)])
def test_small_sites_train_and_fill_every_part_they_can(n, parts):
    for seed in range(30):
        keys = np.arange(n, dtype=np.uint64)
        got = split_rows(np.arange(n), val=0.15, test=0.2, seed=seed, site="a", keys=keys)
        assert len(got.train) >= 1
        assert sum(len(part) > 0 for part in vars(got).values()) >= parts


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"val": 0.5, "test": 0.5}, "out-of-range", None),
        ({"val": -0.1}, "out-of-range", None),
        ({"unit": "pateint"}, "unknown-split", "'patient'"),
        ({"unit": "patient"}, "column-not-set", None),
        ({"unit": "time"}, "column-not-set", None),
        ({"unit": "time", "time": np.array([1.0, np.nan, 3.0])}, "missing-values", "'a'.*1 of 3"),
        ({"unit": "patient", "patient": np.array(["x", None, ""], dtype=object)}, "missing-values", "2 of 3"),
        ({"rows": np.array([], dtype=int)}, "too-few-rows", "'a'"),
    ],
)
def test_what_cannot_be_split_is_said(change, code, value):
    with refused(code, match=value):
        keys = np.arange(3, dtype=np.uint64)
        split_rows(**{"rows": keys, "keys": keys, "val": 0.2, "test": 0.2, "seed": 0, "site": "a", **change})


NAMES = [f"h{k}" for k in range(7)]


def kept_out(**wish):
    return [name for name, role in assign_roles(NAMES, seed=0, **wish).items() if role == "test"]


def test_within_trains_everywhere():
    assert set(assign_roles(NAMES, scheme="within", seed=0).values()) == {"train"}


def test_leave_one_site_out_goes_in_sorted_order():
    assert list(assign_roles(["b", "a"], scheme="leave-one-site-out", seed=0)) == ["a", "b"]
    assert [kept_out(scheme="leave-one-site-out", fold=k) for k in range(7)] == [[name] for name in NAMES]


def test_group_kfold_tests_every_site_once_in_even_groups():
    folds = [kept_out(scheme="group-kfold", fold=k, folds=3) for k in range(3)]
    assert sorted(name for fold in folds for name in fold) == NAMES
    assert sorted(map(len, folds)) == [2, 2, 3]
    other = [
        name for name, role in assign_roles(NAMES, scheme="group-kfold", seed=5, folds=3).items() if role == "test"
    ]
    assert other != folds[0]


def test_group_kfold_does_not_depend_on_the_order_of_names():
    assert assign_roles(NAMES, scheme="group-kfold", seed=0) == assign_roles(NAMES[::-1], scheme="group-kfold", seed=0)


def test_holdout_tests_on_the_named_sites():
    assert kept_out(scheme="holdout", holdout=["h3", "h5"]) == ["h3", "h5"]


@pytest.mark.parametrize(
    ("wish", "code", "value"),
    [
        ({"scheme": "leave-one-out"}, "unknown-scheme", "'leave-one-site-out'"),
        ({"scheme": "holdout"}, "missing-setting", None),
        ({"scheme": "holdout", "holdout": ["h33"]}, "unknown-site", "'h33'.*'h3'"),
        ({"scheme": "holdout", "holdout": NAMES}, "no-training-sites", "7 sites"),
        ({"scheme": "leave-one-site-out", "fold": 7}, "out-of-range", "0 to.*6"),
        ({"scheme": "group-kfold", "fold": 5}, "out-of-range", "0 to.*4"),
        ({"scheme": "group-kfold", "fold": -1}, "out-of-range", "fold = -1"),
        ({"scheme": "group-kfold", "folds": 8}, "too-many-folds", "8 folds.*7 sites"),
        ({"scheme": "group-kfold", "folds": 1}, "too-many-folds", "1 folds"),
    ],
)
def test_roles_that_make_no_sense_are_refused(wish, code, value):
    with refused(code, match=value):
        assign_roles(NAMES, seed=0, **wish)


def test_two_sites_of_one_name_are_refused():
    with refused("repeated-site", match="'a'"):
        assign_roles(["a", "b", "a"], scheme="within", seed=0)


def test_every_scheme_is_tried_here():
    assert SCHEMES == ("within", "leave-one-site-out", "group-kfold", "holdout")
