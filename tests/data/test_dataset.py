"""Data sets: how columns are read through a schema, subgroups, and columns that give the label away."""

from collections import Counter

import numpy as np
import pytest

from grandrounds.core.arrays import Array
from grandrounds.data.checks import Leak, check_sites, check_unique, find_leaks, merge_leaks, site_leak_scores
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.schema import infer_schema
from grandrounds.data.table import Table
from tests.support import refused

RNG = np.random.default_rng(1)


def dataset(columns: dict[str, object], **settings: object) -> Dataset:
    table = Table.from_mapping(columns, source="t.csv")  # type: ignore[arg-type]
    drop_unlabelled = bool(settings.pop("drop_unlabelled", False))
    schema = infer_schema(table, label="y", **settings)  # type: ignore[arg-type]
    return build_dataset(table, schema, name="test", drop_unlabelled=drop_unlabelled)


def ward() -> Dataset:
    return dataset(
        {
            "age": [50, None, 70, 61],
            "sex": ["m", "f", None, "f"],
            "stage": ["II", "I", None, "III"],
            "unit": [10, 2, None, 10],
            "site": [1, 1, 2, 2],
            "who": ["a", "b", "b", "c"],
            "day": ["2024-05-31", "2024-05-31T00:00:01", "1970-01-01", "2024-05-30T23:00:00-02:00"],
            "y": [1, 0, 0, 1],
        },
        site="site",
        patient="who",
        time="day",
        overrides={"stage": ["I", "II", "III"], "unit": "categorical"},
    )


def test_columns_read_through_the_schema() -> None:
    data = ward()
    assert len(data) == 4
    assert data.numeric_names == ("age", "stage")
    np.testing.assert_array_equal(data.numeric, [[50, 1], [np.nan, 0], [70, np.nan], [61, 2]])
    assert data.categorical_names == ("sex", "unit")
    assert data.vocabulary == (("f", "m"), ("10", "2"))
    assert data.codes.dtype == np.int32
    assert data.codes.tolist() == [[1, 0], [0, 1], [-1, -1], [0, 0]]
    assert data.label.tolist() == ["1", "0", "0", "1"]
    assert data.site is not None
    assert data.site.tolist() == ["1", "1", "2", "2"]
    assert data.patient is not None
    assert data.patient.tolist() == ["a", "b", "b", "c"]
    assert data.time is not None
    assert (data.time - data.time[2]).tolist() == [1717113600, 1717113601, 0, 1717117200]


def test_take_keeps_the_vocabulary() -> None:
    part = ward().take(np.array([3, 0]))
    assert part.vocabulary == ward().vocabulary
    assert part.label.tolist() == ["1", "1"]
    assert part.table.column("age").tolist() == [61, 50]
    assert part.codes.tolist() == [[0, 0], [1, 0]]
    assert part.site is not None
    assert part.site.tolist() == ["2", "1"]


def test_rows_without_label_can_be_left_out() -> None:
    data = dataset({"x": [1, 2, 3, np.inf], "y": ["a", None, "b", None]}, drop_unlabelled=True)
    assert data.label.tolist() == ["a", "b"]
    assert data.numeric.ravel().tolist() == [1, 3]


def test_another_table_through_the_same_schema() -> None:
    present = ward()
    remote = build_dataset(
        present.table.with_columns({"sex": [np.nan] * 4, "age": ["50", "007", None, "1"]}), present.schema, name="there"
    )
    np.testing.assert_array_equal(remote.numeric[:, 0], [50, 7, np.nan, 1])
    assert remote.vocabulary[0] == ()
    assert (remote.codes[:, 0] == -1).all()


def test_groups_by_text_and_by_few_numbers() -> None:
    data = ward()
    assert data.groups("sex").tolist() == ["m", "f", "missing", "f"]
    assert data.groups("unit").tolist() == ["10", "2", "missing", "10"]
    assert data.groups("y").tolist() == ["1", "0", "0", "1"]


def test_groups_by_many_numbers_are_quartiles_without_the_extremes() -> None:
    age = [*range(20, 100), None]
    data = dataset({"age": age, "y": np.arange(81) % 2})
    groups = data.groups("age")
    want = {"up to 39.8": 20, "39.8-59.5": 20, "59.5-79.2": 20, "over 79.2": 20, "missing": 1}
    assert Counter(groups.tolist()) == want
    assert groups[0] == "up to 39.8"
    assert groups[79] == "over 79.2"


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (np.concatenate([np.zeros(80), np.arange(1, 21)]), {"up to 0": 80, "over 0": 20}),
        (np.concatenate([np.full(80, 20.0), np.arange(20)]), {"up to 19": 20, "over 19": 80}),
        (np.linspace(-8, 8, 101), {"up to -4": 26, "-4 to 0": 25, "0 to 4": 25, "over 4": 25}),
        (1e6 + np.arange(41), {"up to 1000010": 11, "1000010-1000020": 10, "1000020-1000030": 10, "over 1000030": 10}),
        (1 + np.arange(41) / 1e4, {"up to 1.001": 11, "1.001-1.002": 10, "1.002-1.003": 10, "over 1.003": 10}),
    ],
)
def test_quartiles_of_awkward_numbers(values: Array, want: dict[str, int]) -> None:
    data = dataset({"x": values, "y": np.arange(len(values)) % 2})
    assert Counter(data.groups("x").tolist()) == want


def test_sites_large_enough_and_unique_ids_pass() -> None:
    check_sites({"a": np.arange(5), "b": np.arange(9)}, min_rows=5)
    check_unique(ward().take([0, 2, 3]), "age")


# --- columns that give the label away --------------------------------------------------------------

N = 600
NO_CODES = np.empty((N, 0), np.int32)


def auroc(x: Array, target: Array) -> float:
    """All pairs, one by one."""
    pairs = [(a > b) + (a == b) / 2 for a in x[target] for b in x[~target]]
    return float(np.mean(pairs))


def test_site_scores_are_the_aurocs_with_ties_half() -> None:
    y = RNG.integers(0, 2, 80)
    x = np.round(RNG.normal(size=(80, 20)) + 0.7 * y[:, None], 1)
    x[RNG.random(x.shape) < 0.2] = np.nan
    scores, weight = site_leak_scores(x, np.empty((80, 0), np.int32), y)
    assert weight == y.sum() * (1 - y).sum()
    for j in range(20):
        present = ~np.isnan(x[:, j])
        assert scores[0, j] == pytest.approx(auroc(x[present, j], y[present] == 1))
        assert scores[1, j] == pytest.approx(auroc((~present).astype(float), y == 1))


def test_a_perfect_column_is_found_by_value_by_gap_and_by_category() -> None:
    y = np.arange(N) % 2
    site = np.arange(N) // 100
    noise = RNG.normal(size=N)
    numeric = np.stack([noise, y + 0.01 * noise, -y + 0.01 * noise, np.where(y == 1, noise, np.nan)], axis=1)
    partly = np.where(RNG.random(N) < 0.5, np.nan, y + 0.01 * noise)
    numeric = np.column_stack([numeric, partly])
    codes = np.stack([RNG.integers(0, 4, N), y * 3 + RNG.integers(0, 3, N), np.zeros(N)], axis=1).astype(np.int32)
    names = ["noise", "up", "down", "gap", "partly", "any", "outcome", "same"]
    result = find_leaks(numeric, codes, y, site, names=names)
    assert {leak.column for leak in result} == {"up", "down", "gap", "partly", "outcome"}
    assert {leak.column: leak.how for leak in result}["gap"] == "missing"
    assert all(leak.auroc >= 0.99 for leak in result)


def test_directions_that_differ_between_sites_are_not_a_leak() -> None:
    y = np.arange(N) % 2
    site = np.arange(N) // 300
    flips = np.where(site == 0, y, -y)[:, None] + 0.01 * RNG.normal(size=(N, 1))
    assert find_leaks(flips, NO_CODES, y, site, names=["flips"]) == []
    assert [leak.column for leak in find_leaks(flips, NO_CODES, y, site, names=["flips"], threshold=0.5)] == ["flips"]


def test_merging_site_answers_equals_the_whole() -> None:
    y = RNG.integers(0, 2, N)
    site = RNG.integers(0, 5, N)
    numeric = RNG.normal(size=(N, 3)) + y[:, None] * np.array([0.0, 1.0, 5.0])
    codes = RNG.integers(-1, 5, (N, 2)).astype(np.int32)
    names = list("abcde")
    parts = [site_leak_scores(numeric[site == s], codes[site == s], y[site == s]) for s in range(5)]
    merged = merge_leaks(parts, names, threshold=0.9)
    assert merged == find_leaks(numeric, codes, y, site, names=names, threshold=0.9)
    assert [leak.column for leak in merged] == ["c"]


def test_useless_categories_score_a_half() -> None:
    y = np.arange(N) % 2
    same = np.zeros(N)
    pairs = np.arange(N) // 6  # three of each class in every category: leave-one-out would be upside down
    rare = np.arange(N) // 2
    absent = np.full(N, -1)
    codes = np.stack([same, pairs, rare, absent], axis=1).astype(np.int32)
    scores, _ = site_leak_scores(np.empty((N, 0)), codes, y)
    assert scores[0].tolist() == [0.5, 0.5, 0.5, 0.5]


def test_random_categories_of_many_levels_are_no_leak() -> None:
    y = RNG.integers(0, 2, N)
    codes = RNG.integers(0, 60, (N, 5)).astype(np.int32)
    scores, _ = site_leak_scores(np.empty((N, 0)), codes, y)
    assert (scores[0] < 0.6).all()


def test_more_than_two_classes() -> None:
    y = np.arange(N) % 3
    numeric = np.stack([RNG.normal(size=N), (y == 2) + 0.1 * RNG.random(N)], axis=1)
    result = find_leaks(numeric, NO_CODES, y, np.arange(N) % 4, names=["noise", "tells 2"])
    assert [leak.column for leak in result] == ["tells 2"]


def test_few_rows_prove_nothing() -> None:
    y = np.array([0] * 30 + [1] * 3)
    x = y[:, None].astype(float)
    assert find_leaks(x, np.empty((33, 0), np.int32), y, np.zeros(33), names=["x"]) == []


def test_sites_with_one_class_or_no_rows_say_nothing() -> None:
    empty = site_leak_scores(np.empty((0, 2)), np.empty((0, 1), np.int32), np.empty(0, np.int64))
    single = site_leak_scores(np.ones((9, 2)), np.zeros((9, 1), np.int32), np.zeros(9, np.int64))
    for scores, weight in (empty, single):
        assert weight == 0
        assert np.isfinite(scores).all()
    y = np.arange(N) % 2
    full = site_leak_scores(np.stack([y, y], axis=1).astype(float), np.zeros((N, 1), np.int32), y)
    assert merge_leaks([empty, single, full], ["a", "b", "c"]) == [Leak("a", 1.0), Leak("b", 1.0)]
    assert merge_leaks([], []) == []


def test_a_small_site_is_refused_with_the_reference_rows_that_were_taken():
    with refused("too-few-rows", match="'a'.*1 row.*40 reference"):
        check_sites({"a": np.arange(1), "b": np.arange(9)}, min_rows=5, reference=40)
