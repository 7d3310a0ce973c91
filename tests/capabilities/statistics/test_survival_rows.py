"""Rows of survival curves are read from a table; what is wrong with it is named with counts."""

from __future__ import annotations

import pytest

from grandrounds.capabilities.statistics.survival_rows import SurvivalRequest, read_survival_rows
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table

COLUMNS = {
    "days": [5, 3, 8, 2, 9, 4],
    "status": [1, 0, 1, 1, 0, 1],
    "hospital": ["a", "b", "c", "a", "b", "c"],
    "arm": ["drug", "placebo", None, "placebo", "drug", "drug"],
}
REQUEST = SurvivalRequest("days", "status", "hospital")


def read(request=REQUEST, **changed):
    return read_survival_rows(Table.from_mapping({**COLUMNS, **changed}, source="p.csv"), request)


def test_rows_are_split_by_site():
    found = read()
    assert list(found.sites) == ["a", "b", "c"]
    assert found.sites["a"].time.tolist() == [5, 2]
    assert found.sites["b"].y.tolist() == [0, 0]
    assert found.groups == () and found.event == "1"


def test_groups_have_numbers_and_rows_without_one_are_left_out():
    found = read(SurvivalRequest("days", "status", "hospital", "arm"))
    assert found.groups == ("drug", "placebo")
    assert found.sites["a"].group.tolist() == [0, 1]
    assert found.sites["c"].time.tolist() == [4]
    assert found.notes == ("Rows without a value of 'arm' are left out: 1 of 6.",)


def test_words_name_the_event():
    words = ["dead", "alive", "dead", "dead", "alive", "dead"]
    assert read(status=words).sites["a"].y.tolist() == [1, 1]
    coded = SurvivalRequest("days", "status", "hospital", positive="2")
    assert read(coded, status=[2, 1, 1, 2, 1, 2]).sites["a"].y.tolist() == [1, 1]


def test_one_value_of_the_event_column_is_read_by_its_word():
    assert read(status=[1] * 6).sites["b"].y.tolist() == [1, 1]
    assert read(status=[0] * 6).sites["b"].y.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"days": [5, -3, 8, -2, 9, 4]}, "is negative in 2 rows"),
        ({"days": [5, None, 8, 2, 9, 4]}, "is missing in 1 row"),
        ({"days": ["2020-01-01"] * 6}, "holds dates in 6 rows"),
        ({"days": ["long"] * 6}, "holds words such as 'long'"),
        ({"status": [1, None, 1, None, 0, 1]}, "has 2 rows without a value"),
        ({"status": [1, 2, 0, 1, 1, 1]}, "3 different values"),
        ({"status": [2, 1, 1, 2, 1, 2]}, "--event"),
        ({"hospital": ["a", "b", "b", "a", "b", "a"]}, "names 2 sites"),
        ({"hospital": ["a", None, "b", "a", "b", "c"]}, "1 rows without a value"),
    ],
)
def test_bad_columns_are_named(changed, sentence):
    with pytest.raises(BadInput, match=sentence):
        read(**changed)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (SurvivalRequest("day", "status", "hospital"), "column 'day' not found"),
        (SurvivalRequest("days", "status", "hospital", "hospital"), "as --site and as --group"),
        (SurvivalRequest("days", "status", "hospital", "one"), "has 1 different values"),
        (SurvivalRequest("days", "status", "hospital", "many"), "has 13 different values"),
    ],
)
def test_bad_requests_are_named(request_, sentence):
    table = {name: values * 3 for name, values in COLUMNS.items()}
    table |= {"one": ["x"] * 18, "many": [str(k % 13) for k in range(18)]}
    with pytest.raises(BadInput, match=sentence):
        read_survival_rows(Table.from_mapping(table, source="p.csv"), request_)
