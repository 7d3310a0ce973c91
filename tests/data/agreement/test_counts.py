"""Counts of a site's rows in agreed bins: bins by hand, and the rule for counts of few patients."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.data.agreement.bins import AgreedBins, ColumnBins, read_years
from grandrounds.data.agreement.counts import HIDDEN, Roles, choose_hidden, count_rows, find_copies, share_interval
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.table import Table
from tests.support import refused

GLUCOSE = AgreedColumn("glucose", "number", unit="mg/dL", range=(20.0, 1000.0), quantiles=(70.0, 90.0, 110.0, 140.0, 250.0))
SCHEMA = DataSchema(
    "died",
    (GLUCOSE, AgreedColumn("ward", "category", values=("icu", "ward")), AgreedColumn("note", "category")),
    classes=("0", "1"),
    patient="id",
    time="day",
)


def table(**columns) -> Table:
    return Table.from_mapping({name: np.asarray(values) for name, values in columns.items()}, source="t.csv")


def test_bins_of_a_number_have_the_agreed_quantiles_its_range_and_the_place_of_other_units():
    bins = AgreedBins.from_schema(SCHEMA).columns[0]
    assert {20.0, 70.0, 90.0, 110.0, 140.0, 250.0} <= set(bins.edges)
    assert any(e == pytest.approx(70 / 18.016, rel=1e-4) for e in bins.edges), "the lowest usual value in mmol/L"
    values = np.array([np.nan, 5.0, 20.0, 100.0, 1000.0, 1000.1])
    assert [bool(bins.outside[k]) for k in bins.place(values)] == [False, True, False, False, False, True]
    assert bins.names[int(bins.place(np.array([100.0]))[0])] == "90 to 110" and bins.place(values)[0] == 0


def test_counts_by_hand():
    """Six rows: a missing value, an unknown ward, a copy, a patient with two rows, dates in three years."""
    rows = table(
        glucose=[100.0, np.nan, 300.0, 5.0, 100.0, 100.0],
        ward=np.array(["icu", "ward", "attic", None, "icu", "icu"], object),
        note=np.array(["x", "x", None, "x", "x", "x"], object),
        died=[0.0, 1.0, 1.0, 0.0, 0.0, 0.0],
        id=np.array(["a", "b", "c", "d", "a", "a"], object),
        day=np.array(["2019-03-01", "2020-01-01", "1999-05-05", "2040-01-01", "2019-03-01", "2019-03-02"], object),
    )
    bins = AgreedBins.from_schema(SCHEMA, years=(2018, 2021))
    counts = count_rows(bins, rows, Roles("died", "day", "id"))
    assert counts.rows["rows"].tolist() == [6]
    glucose = dict(zip(bins.columns[0].names, counts.rows["column:glucose"].tolist(), strict=True))
    assert glucose["missing"] == 1 and glucose["90 to 110"] == 3 and sum(glucose.values()) == 6
    assert counts.rows["column:ward"].tolist() == [1, 3, 1, 1] and counts.rows["column:note"].tolist() == [1, 5]
    assert counts.rows["outcome"].tolist() == [4, 2, 0]
    assert counts.rows["years"].tolist() == [0, 1, 0, 3, 1, 0, 1]
    assert counts.rows["copies"].tolist() == [5, 1] and counts.rows["patients"].tolist() == [3, 1]
    assert counts.patients["column:ward"].tolist() == [1, 1, 1, 1], "three rows of one patient are one patient"
    assert find_copies(rows, ["glucose", "id"]).tolist() == [False] * 4 + [True, True]


def test_small_counts_are_hidden_with_one_that_would_give_them_away():
    rows = np.array([40, 30, 3, 0])
    assert choose_hidden(rows, rows, least=5).tolist() == [False, True, True, False], "3 would follow from the total"
    assert choose_hidden(np.array([40, 4, 3]), np.array([40, 4, 3]), least=5).tolist() == [False, True, True]
    two = np.array([40, 1, 2])
    assert choose_hidden(two, two, least=5).tolist() == [True, True, True], "three patients in two cells are few"
    same = np.array([40, 4, 4])
    assert choose_hidden(same, same, least=5).all(), "two hidden cells that are 8 together are 4 and 4"
    assert not choose_hidden(np.array([40, 0, 5]), np.array([40, 0, 5]), least=5).any()
    assert choose_hidden(np.array([50, 9]), np.array([50, 2]), least=5).all(), "nine rows of two patients"
    assert choose_hidden(np.array([3]), np.array([3]), least=5).all()


def test_no_hidden_count_follows_from_the_others():
    """Every set of hidden counts has a second solution with small counts, given the total."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows = rng.integers(0, 12, rng.integers(2, 7))
        hidden = choose_hidden(rows, rows, least=5)
        small = (rows > 0) & (rows < 5)
        assert not (small & ~hidden).any()
        if hidden.any() and not hidden[rows > 0].all():
            assert hidden.sum() > 1 and rows[hidden].sum() >= 5


def test_an_answer_has_no_count_of_few_patients():
    n = 60
    rows = table(
        glucose=np.r_[np.full(57, 100.0), [300.0, 301.0, np.nan]],
        ward=np.array(["icu"] * 30 + ["ward"] * 30, object),
        note=np.array(["x"] * n, object),
        died=np.r_[np.ones(2), np.zeros(58)],
        id=np.array([f"p{k}" for k in range(n)], object),
        day=np.array(["2019-01-01"] * n, object),
    )
    bins = AgreedBins.from_schema(SCHEMA, years=(2018, 2021))
    sent = bins.split(count_rows(bins, rows, Roles("died", "day", "id")).hide_small(bins, least=5))
    assert all(v == HIDDEN or v == 0 or v >= 5 for block in sent.values() for v in block.tolist())
    assert sent["outcome"].tolist() == [HIDDEN, HIDDEN, 0] and sent["column:ward"].tolist() == [0, 30, 30, 0]


def test_years_are_read_from_dates_and_from_numbers_that_look_like_years():
    dates = np.array(["2020-02-29", "31.12.2019", None, "soon"], object)
    assert read_years(dates)[:2].tolist() == [2020, 2019] and np.isnan(read_years(dates)[2:]).all()
    assert read_years(np.array([2011.0, 3.5]))[0] == 2011 and np.isnan(read_years(np.array([3.5]))[0])


def test_bins_survive_the_plan_and_refuse_nonsense():
    bins = AgreedBins.from_schema(SCHEMA)
    assert AgreedBins.from_dict(bins.to_dict()) == bins
    for wrong in ({"edges": [2.0, 1.0]}, {"edges": [1.0], "levels": ["a"]}, {"levels": ["a", "a"]}):
        with refused("bad-bins"):
            AgreedBins.from_dict({**bins.to_dict(), "bins": {"x": wrong}})
    with refused("bad-bins"):
        AgreedBins.from_dict({"bins": {}})
    with refused("malformed-answer"):
        bins.split(np.zeros(3))


def test_the_interval_of_a_share_is_wilsons():
    low, high = share_interval(10, 100)
    assert (low, high) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert share_interval(10, 100, noise=5.0)[1] > high and share_interval(0, 0) == (0.0, 1.0)


def test_a_category_without_agreed_values_counts_missing_values_alone():
    assert ColumnBins("note").names == ("missing", "any value")
