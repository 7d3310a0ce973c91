"""Partitions cover every row once, keep patients whole, and look as their names say."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.errors import BadInput
from grandrounds.data.partition import KINDS, majority_class, partition, partition_by_column
from grandrounds.data.row_files import split_table
from grandrounds.data.table import Table
from grandrounds.data.warnings import alike_sites_warnings
from tests.support import refused


@st.composite
def wishes(draw):
    n = draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    shares = rng.dirichlet(np.full(draw(st.integers(1, 5)), 0.7))
    patients = draw(st.sampled_from([None, 2, 5]))  # rows a patient, on average
    return {
        "kind": draw(st.sampled_from(sorted(KINDS))),
        "y": rng.choice(len(shares), size=n, p=shares),
        "sites": draw(st.integers(1, 12)),
        "seed": draw(st.integers(0, 99)),
        "alpha": draw(st.sampled_from([0.05, 0.5, 5.0])),
        "min_rows": draw(st.integers(1, 8)),
        "groups": None if patients is None else rng.integers(0, n // patients + 1, size=n),
    }


@given(wishes())
@settings(max_examples=250, deadline=None)
def test_disjoint_cover_with_enough_rows_and_whole_groups_or_a_refusal(wish):
    try:
        parts = partition(**wish)
    except BadInput as e:
        assert "site" in str(e) and ("fewer" in str(e) or "min_rows" in str(e))
        return
    assert list(parts) == [f"site-{k:02d}" for k in range(1, wish["sites"] + 1)]
    together = np.concatenate(list(parts.values()))
    assert np.array_equal(np.sort(together), np.arange(len(wish["y"])))
    for rows in parts.values():
        assert len(rows) >= wish["min_rows"]
        assert np.all(np.diff(rows) > 0)
    if wish["groups"] is not None:
        data = [set(wish["groups"][rows]) for rows in parts.values()]
        assert sum(map(len, data)) == len(set(wish["groups"]))
    again = partition(**wish)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)


def labels(counts):
    return np.repeat(np.arange(len(counts)), counts)


def table(y, parts):
    return np.array([np.bincount(y[rows], minlength=int(y.max()) + 1) for rows in parts.values()])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_seed_decides(kind):
    y = labels([300, 200, 100])
    one, same, other = (partition(kind, y, sites=5, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(one[k], same[k]) for k in one)
    assert any(not np.array_equal(one[k], other[k]) for k in one)


def test_equal_sizes_differ_by_one_and_classes_are_iid():
    y = labels([5001, 5002])
    parts = partition("equal", y, sites=4, seed=0)
    assert sorted(map(len, parts.values())) == [2500, 2501, 2501, 2501]
    assert np.abs(table(y, parts)[:, 0] / 2501 - 0.5).max() < 0.05  # five deviations


def test_random_has_many_sizes_but_iid_classes():
    y = labels([6000, 4000])
    parts = partition("random", y, sites=10, seed=3)
    sizes = np.array([len(rows) for rows in parts.values()])
    assert sizes.max() > 4 * sizes.min()
    share = table(y, parts)[:, 0] / sizes
    assert np.all(np.abs(share - 0.6) < 5 * np.sqrt(0.24 / sizes))


def test_random_meets_min_rows_where_redrawing_never_would():
    parts = partition("random", labels([900]), sites=100, seed=0, min_rows=8)
    assert min(map(len, parts.values())) >= 8


def test_unequal_keeps_the_stated_sizes_exactly_while_the_mix_is_skewed():
    y = labels([275, 275])
    parts = partition("unequal", y, sites=10, seed=0)
    assert [len(rows) for rows in parts.values()] == [10 * k for k in range(1, 11)]
    share = table(y, parts)[:, 0] / np.arange(10, 101, 10)
    assert share.min() < 0.25 and share.max() > 0.75


def test_dirichlet_is_skewed_when_alpha_is_small_and_even_when_it_is_large():
    y = labels([1000] * 5)
    skewed = table(y, partition("dirichlet", y, sites=10, seed=0, alpha=0.1))
    even = table(y, partition("dirichlet", y, sites=10, seed=0, alpha=1000.0))
    assert (skewed < 5).mean() > 0.4
    assert np.all(np.abs(even - 100) < 30)


def test_dirichlet_that_cannot_be_met_says_how_to_mend_it():
    with refused("too-few-rows", match="alpha = 0.01.*20 sites.*8 of.*200 rows"):
        partition("dirichlet", labels([100, 100]), sites=20, seed=0, alpha=0.01)


def test_shards_give_two_classes_a_site_when_they_divide():
    y = labels([100] * 10)
    counts = table(y, partition("shards", y, sites=10, seed=0))
    assert np.all(counts.sum(axis=1) == 100)
    assert np.all(np.isin(counts, (0, 50, 100)))
    assert np.all((counts > 0).sum(axis=1) <= 2)


def test_semi_iid_takes_80_percent_from_one_class_and_the_rest_from_all():
    y = labels([1000] * 10)
    counts = table(y, partition("semi-iid", y, sites=10, seed=0))
    assert np.all(counts.sum(axis=1) == 1000)
    assert sorted(counts.argmax(axis=1)) == list(range(10))
    assert np.all(counts.max(axis=1) >= 800)
    rest = np.sort(counts, axis=1)[:, :-1]
    assert np.all((rest > 0) & (rest < 60))


def test_semi_iid_takes_what_there_is_where_a_class_is_too_small():
    y = labels([50, 50, 50, 50])  # two sites of 100 rows: 80 of one class do not exist
    counts = table(y, partition("semi-iid", y, sites=2, seed=0))
    assert np.all(counts.sum(axis=1) == 100)
    assert np.all(counts.max(axis=1) == 50)


def test_groups_go_by_the_class_of_most_of_their_rows():
    cls = np.array([0, 1, 1, 2, 0, 2])
    assert majority_class(cls, np.array([0, 0, 0, 1, 1, 2])).tolist() == [1, 0, 2]


def test_one_patient_with_most_rows_cannot_fill_the_other_sites():
    groups = np.array([0] * 90 + list(range(1, 11)))
    with refused("too-few-rows"):
        partition("equal", labels([100]), sites=4, seed=0, groups=groups)


def test_text_labels_and_missing_ones_are_classes_too():
    y = np.array(["no", "yes", None, "no"] * 25, dtype=object)
    parts = partition("dirichlet", y, sites=3, seed=0, alpha=1.0)
    assert sum(map(len, parts.values())) == 100


def test_a_hundred_sites_have_three_digits():
    assert list(partition("equal", labels([1000]), sites=100, seed=0))[:2] == ["site-001", "site-002"]


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"kind": "dirichelt"}, "unknown-partition", "'dirichlet'"),
        ({"sites": 0}, "out-of-range", None),
        ({"sites": 101}, "too-few-rows", "100 rows.*101 sites.*0 rows"),
        ({"kind": "unequal", "sites": 8}, "too-few-rows", "3 rows.*min_rows = 8"),
        ({"min_rows": 0}, "out-of-range", None),
        ({"alpha": 0.0}, "out-of-range", "alpha = 0.0"),
        ({"alpha": float("nan")}, "out-of-range", "alpha = nan"),
        ({"y": np.zeros((100, 2))}, "length-mismatch", None),
        ({"groups": np.zeros(7)}, "length-mismatch", "7 values.*100 rows"),
        ({"groups": np.zeros(100)}, "too-few-groups", "1 groups.*5 sites"),
        ({"y": np.array([])}, "too-few-rows", "0 rows.*5 sites"),
    ],
)
def test_what_cannot_be_done_is_said(change, code, value):
    with refused(code, match=value):
        partition(**{"kind": "equal", "y": labels([60, 40]), "sites": 5, "seed": 0, **change})


def test_by_column_names_sites_by_their_values():
    parts = partition_by_column(np.array(["b", "a", "b"], dtype=object))
    assert {k: v.tolist() for k, v in parts.items()} == {"a": [1], "b": [0, 2]}
    assert {k: v.tolist() for k, v in partition_by_column(np.array([100.0, 59.0, 100.0])).items()} == {
        "59": [1],
        "100": [0, 2],
    }


@pytest.mark.parametrize("values", [np.array(["a", None, None], dtype=object), np.array([1.0, np.nan, np.nan])])
def test_by_column_refuses_rows_without_a_site(values):
    with refused("missing-values", match="'hospital'.*2 of 3"):
        partition_by_column(values, column="hospital")


@pytest.mark.parametrize(
    "other", ["h0\u200b", "\u2060h0", "h0\xa0", unicodedata.normalize("NFD", "h\xf60"), "h\xad0"]
)
def test_sites_that_look_the_same_are_refused(other):
    first = "h\xf60" if "\u0308" in other else "h0"
    with refused("ambiguous-site"):
        partition_by_column(np.array([first, other, "b"], dtype=object), column="hospital")
    table = Table.from_mapping({"hospital": [first, other], "x": [1, 2]})
    with refused("ambiguous-site"):
        split_table(table, "hospital")


def test_sites_that_differ_in_case_are_two_with_a_warning():
    names = tuple(partition_by_column(np.array(["h0", "H0", "h1", "h10"], dtype=object)))
    assert len(names) == 4
    (sentence,) = alike_sites_warnings(names)
    assert "'H0'" in sentence and "'h0'" in sentence and "h1'" not in sentence
