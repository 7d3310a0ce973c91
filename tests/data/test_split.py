"""Splits inside a site and roles of sites: disjoint, in proportion, and each site on its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.data.split import SCHEMES, roles, split_rows
from grandrounds.errors import BadInput


@st.composite
def sites(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = np.sort(rng.permutation(80)[: draw(st.integers(1, 60))])
    val, test = draw(st.sampled_from([(0.0, 0.0), (0.15, 0.2), (0.0, 0.3), (0.4, 0.0), (0.45, 0.5), (0.01, 0.01)]))
    wish = {"val": val, "test": test, "seed": draw(st.integers(0, 9)), "site": draw(st.sampled_from("ab"))}
    return rows, wish, *rng.integers(0, draw(st.integers(1, 30)), size=(3, 80))


@given(sites(), st.sampled_from(["row", "patient", "time"]))
@settings(max_examples=250, deadline=None)
def test_every_row_has_one_use_and_training_has_one_row(site, by):
    rows, wish, y, patient, time = site
    got = split_rows(rows, y=y, patient=patient, time=time.astype(float), by=by, **wish)
    together = np.concatenate([got.train, got.val, got.test])
    assert np.array_equal(np.sort(together), rows)
    assert len(got.train) >= 1
    units = len(np.unique(patient[rows])) if by == "patient" else len(rows)
    for share, part in ((wish["val"], got.val), (wish["test"], got.test)):
        if share == 0:
            assert len(part) == 0
        elif units >= 3:
            assert len(part) >= 1
        if by != "patient" and len(rows) >= 20 and share > 0.1:
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
    same = split_rows(rows, y=y, patient=patient, time=time.astype(float), by=by, **wish)
    assert all(np.array_equal(a, b) for a, b in zip(vars(got).values(), vars(same).values(), strict=True))


@given(sites(), st.sampled_from(["row", "patient", "time"]))
@settings(max_examples=60, deadline=None)
def test_a_hospital_with_only_its_own_file_finds_the_same_split(site, by):
    rows, wish, y, patient, time = site
    whole = split_rows(rows, y=y, patient=patient, time=time.astype(float), by=by, **wish)
    own = {"y": y[rows], "patient": patient[rows], "time": time[rows].astype(float)}
    alone = split_rows(np.arange(len(rows)), by=by, **own, **wish)
    for of_all, of_own in zip(vars(whole).values(), vars(alone).values(), strict=True):
        assert np.array_equal(of_all, rows[of_own])


def test_classes_stay_in_proportion():
    y = np.array([0] * 80 + [1] * 20)
    got = split_rows(np.arange(100), val=0.1, test=0.2, seed=0, site="a", y=y)
    assert [int(y[part].sum()) for part in (got.train, got.val, got.test)] == [14, 2, 4]
    assert [len(part) for part in (got.train, got.val, got.test)] == [70, 10, 20]


def test_seed_and_site_decide():
    def test_rows(seed, site):
        return split_rows(np.arange(100), val=0.1, test=0.2, seed=seed, site=site).test.tolist()

    assert test_rows(0, "a") == test_rows(0, "a")
    assert test_rows(0, "a") != test_rows(1, "a")
    assert test_rows(0, "a") != test_rows(0, "b")


def test_patients_of_many_rows_keep_the_shares_about_right():
    patient = np.repeat(np.arange(200), np.arange(200) % 5 + 1)
    got = split_rows(np.arange(600), val=0.15, test=0.2, seed=0, site="a", patient=patient, by="patient")
    assert abs(len(got.test) - 120) <= 3 and abs(len(got.val) - 90) <= 3


def test_three_patients_fill_three_sides_even_when_one_has_most_rows():
    patient = np.array([7] * 10 + [8, 9])
    for seed in range(20):
        got = split_rows(np.arange(12), val=0.2, test=0.2, seed=seed, site="a", patient=patient, by="patient")
        assert {len(got.train), len(got.val), len(got.test)} == {1, 10}


def test_time_trains_on_the_earliest():
    time = np.array(["2020-03-01", "2019-01-01", "2021-05-05", "2018-07-01", "2022-01-01"], dtype=object)
    got = split_rows(np.arange(5), val=0.2, test=0.2, seed=0, site="a", time=time, by="time")
    assert (got.train.tolist(), got.val.tolist(), got.test.tolist()) == ([0, 1, 3], [2], [4])


@pytest.mark.parametrize(
    ("n", "sizes"), [(1, (1, 0, 0)), (2, (2, 0, 0)), (3, (1, 1, 1)), (4, (2, 1, 1)), (8, (5, 1, 2)), (10, (6, 2, 2))]
)
def test_small_sites_round_sensibly(n, sizes):
    got = split_rows(np.arange(n), val=0.15, test=0.2, seed=0, site="a")
    assert (len(got.train), len(got.val), len(got.test)) == sizes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"val": 0.5, "test": 0.5}, "leave nothing to train on"),
        ({"val": -0.1}, "leave nothing"),
        ({"by": "pateint"}, "did you mean 'patient'"),
        ({"by": "patient"}, "a split by patient needs a patient column"),
        ({"by": "time"}, "a split by time needs a time column"),
        ({"by": "time", "time": np.array([1.0, np.nan, 3.0])}, "'a' has 1 of 3 rows without a time"),
        ({"by": "patient", "patient": np.array(["x", None, ""], dtype=object)}, "2 of 3 rows without a patient"),
        ({"rows": np.array([], dtype=int)}, "site 'a' has no rows"),
    ],
)
def test_what_cannot_be_split_is_said(change, says):
    with pytest.raises(BadInput, match=says):
        split_rows(**{"rows": np.arange(3), "val": 0.2, "test": 0.2, "seed": 0, "site": "a", **change})


NAMES = [f"h{k}" for k in range(7)]


def kept_out(**wish):
    return [name for name, role in roles(NAMES, seed=0, **wish).items() if role == "test"]


def test_within_trains_everywhere():
    assert set(roles(NAMES, scheme="within", seed=0).values()) == {"train"}


def test_leave_one_site_out_goes_in_sorted_order():
    assert list(roles(["b", "a"], scheme="leave-one-site-out", seed=0)) == ["a", "b"]
    assert [kept_out(scheme="leave-one-site-out", fold=k) for k in range(7)] == [[name] for name in NAMES]


def test_group_kfold_tests_every_site_once_in_even_groups():
    folds = [kept_out(scheme="group-kfold", fold=k, folds=3) for k in range(3)]
    assert sorted(name for fold in folds for name in fold) == NAMES
    assert sorted(map(len, folds)) == [2, 2, 3]
    other = [name for name, role in roles(NAMES, scheme="group-kfold", seed=5, folds=3).items() if role == "test"]
    assert other != folds[0]


def test_group_kfold_does_not_depend_on_the_order_of_names():
    assert roles(NAMES, scheme="group-kfold", seed=0) == roles(NAMES[::-1], scheme="group-kfold", seed=0)


def test_holdout_tests_on_the_named_sites():
    assert kept_out(scheme="holdout", holdout=["h3", "h5"]) == ["h3", "h5"]


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"scheme": "leave-one-out"}, "did you mean 'leave-one-site-out'"),
        ({"scheme": "holdout"}, "needs the names of the test sites; known: h0"),
        ({"scheme": "holdout", "holdout": ["h33"]}, "'h33' is not in the data; did you mean 'h3'"),
        ({"scheme": "holdout", "holdout": NAMES}, "tests on all 7 sites and trains on none"),
        ({"scheme": "leave-one-site-out", "fold": 7}, "numbered 0 to 6"),
        ({"scheme": "group-kfold", "fold": 5}, "numbered 0 to 4"),
        ({"scheme": "group-kfold", "fold": -1}, "fold = -1"),
        ({"scheme": "group-kfold", "folds": 8}, "cannot make 8 folds of 7 sites"),
        ({"scheme": "group-kfold", "folds": 1}, "cannot make 1 folds"),
    ],
)
def test_roles_that_make_no_sense_are_refused(wish, says):
    with pytest.raises(BadInput, match=says):
        roles(NAMES, seed=0, **wish)


def test_two_sites_of_one_name_are_refused():
    with pytest.raises(BadInput, match="two sites are called 'a'"):
        roles(["a", "b", "a"], scheme="within", seed=0)


def test_every_scheme_is_tried_here():
    assert SCHEMES == ("within", "leave-one-site-out", "group-kfold", "holdout")
