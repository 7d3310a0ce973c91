"""Tables: the two column forms, selection, and a hash that depends on content alone."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.data.table import Table, format_number, is_number, parse_numbers, to_text
from tests.support import refused

WORDS = st.one_of(
    st.text(alphabet="0123456789+-.eE_ ", max_size=8),
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(["007", "-07", "0", "-0", "0.5", ".5", "5.", "1e3", "inf", "nan", "1_000", "٣", "", "9" * 20]),
)


def small() -> Table:
    return Table.from_mapping({"age": [70, None, 41.5], "sex": ["f", None, "m"], "alive": [True, False, True]})


def test_numbers_and_bools_become_floats_and_the_rest_text() -> None:
    table = small()
    assert table.names == ("age", "sex", "alive")
    assert len(table) == 3
    assert table.column("age").dtype == np.float64
    np.testing.assert_array_equal(table.column("age"), [70, np.nan, 41.5])
    assert table.column("sex").tolist() == ["f", None, "m"]
    assert table.column("alive").tolist() == [1.0, 0.0, 1.0]


def test_dates_become_iso_text_and_durations_seconds() -> None:
    table = Table.from_mapping(
        {
            "day": [datetime.date(2024, 5, 31), None],
            "at": np.array(["2024-05-31T08:00", "NaT"], dtype="datetime64[m]"),
            "stay": [datetime.timedelta(hours=1), None],
            "cost": [Decimal("1.5"), None],
        }
    )
    assert table.column("day").tolist() == ["2024-05-31", None]
    assert table.column("at").tolist() == ["2024-05-31T08:00", None]
    np.testing.assert_array_equal(table.column("stay"), [3600, np.nan])
    np.testing.assert_array_equal(table.column("cost"), [1.5, np.nan])


def test_whole_numbers_that_float64_would_blur_stay_text() -> None:
    twins = [2**53 + 1, 2**53 + 2]
    assert Table.from_mapping({"id": twins}).column("id").tolist() == [str(v) for v in twins]
    assert Table.from_mapping({"id": np.array(twins)}).column("id").tolist() == [str(v) for v in twins]


def test_mixed_values_become_text_without_point_zero() -> None:
    assert Table.from_mapping({"x": [1.0, "b", 2, 2.5]}).column("x").tolist() == ["1", "b", "2", "2.5"]


def test_take_keeps_columns_and_remembers_source_rows() -> None:
    table = small()
    part = table.take(np.array([2, 0])).take(np.array([False, True]))
    assert part.column("age").tolist() == [70]
    assert part.where(0) == "row 2 (the header is row 1)"
    assert table.take(np.array([2])).where(0) == "row 4 (the header is row 1)"
    assert len(table.take(slice(0, 0))) == 0


def test_with_and_without_columns() -> None:
    table = small().with_columns({"sex": ["x", "y", "z"], "new": [1, 2, 3]}).without(["age"])
    assert table.names == ("sex", "alive", "new")
    assert table.column("sex").tolist() == ["x", "y", "z"]
    with refused("unknown-column", match="'aeg'.*'age'"):
        small().without(["aeg"])


def test_columns_cannot_be_written_to_by_accident() -> None:
    values = np.zeros(2)
    table = Table({"a": values}, "t")
    with pytest.raises(ValueError, match="read-only"):
        table.column("a")[0] = 1
    values[0] = 5  # the caller's own array stays the caller's


def test_absent_column_names_the_nearest_and_the_flag() -> None:
    with refused("unknown-column") as caught:
        small().column("aeg", flag="--label")
    assert str(caught.value) == (
        "column 'aeg' not found in mapping; did you mean 'age'? known: age, sex, alive (use --label)"
    )


def test_other_array_types_are_a_programming_error() -> None:
    with pytest.raises(TypeError, match="from_mapping"):
        Table({"a": np.arange(3)}, "t")


def test_pandas_types() -> None:
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "c": pd.Categorical(["x", None, "y"]),
            "s": ["p", None, "q"],
            "t": pd.to_datetime(["2024-05-31", None, "2024-06-01 12:00"], format="mixed"),
            "f": [1.5, np.nan, 2.0],
            7: [1, 2, 3],
        },
        index=[5, 6, 7],
    )
    table = Table.from_pandas(frame, source="my frame")
    assert table.source == "my frame"
    assert table.names == ("n", "b", "c", "s", "t", "f", "7")
    np.testing.assert_array_equal(table.column("n"), [1, np.nan, 3])
    np.testing.assert_array_equal(table.column("b"), [1, np.nan, 0])
    assert table.column("c").tolist() == ["x", None, "y"]
    assert table.column("s").tolist() == ["p", None, "q"]
    assert table.column("t").tolist() == ["2024-05-31T00:00:00", None, "2024-06-01T12:00:00"]
    np.testing.assert_array_equal(table.column("f"), [1.5, np.nan, 2.0])


def test_hash_depends_on_names_content_and_order_only() -> None:
    table = small()
    assert table.sha256() == Table(dict(table.columns), "another source").sha256()
    assert table.sha256() == table.take(np.arange(3)).sha256()
    assert table.sha256() != table.take(np.array([1, 0, 2])).sha256()
    renamed = Table({name.upper(): values for name, values in table.columns.items()}, "t")
    assert table.sha256() != renamed.sha256()
    assert table.sha256() != table.with_columns({"sex": ["f", "", "m"]}).sha256()


def test_hash_is_the_same_on_every_machine() -> None:
    table = Table.from_mapping({"a": [1.0, None, -0.0], "b": ["x", None, "é"]})
    assert table.sha256() == Table.from_mapping({"a": [1.0, np.nan, 0.0], "b": ["x", None, "é"]}).sha256()
    assert table.sha256() == "b6bfa88eb05455705b11b45a791418a098057509be2be395d6f1c5ceac5d74bf"


@given(st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=2, max_size=6))
def test_hash_tells_cells_apart_wherever_the_cut_is(cells: list[str | None]) -> None:
    moved = [*cells[1:], cells[0]]
    same = Table.from_mapping({"a": [*cells, "x"]}).sha256() == Table.from_mapping({"a": [*moved, "x"]}).sha256()
    assert same == (cells == moved)


@given(st.lists(WORDS, max_size=6))
def test_a_column_is_numeric_exactly_if_every_cell_is(words: list[str]) -> None:
    numbers = parse_numbers(words)
    blurred = [w for w in words if is_number(w) and w.lstrip("+-").isdigit() and abs(float(w)) > 2**53]
    if all(is_number(word) for word in words) and not blurred:
        assert numbers is not None
        assert numbers.tolist() == [float(word) for word in words]
    else:
        assert numbers is None


@pytest.mark.parametrize("word", ["1", "-2", "+3", "1e3", "-1.5E-7", ".5", "5.", "0", "-0", "0.25", "00.5"[1:]])
def test_written_as_a_number(word: str) -> None:
    assert is_number(word)
    assert parse_numbers([word]) is not None


@pytest.mark.parametrize("word", ["007", "-07", "00", "inf", "nan", "1e999", "1_000", "1,5", " 1", "", "-", "٣", "0x1"])
def test_not_written_as_a_number(word: str) -> None:
    assert not is_number(word)
    assert parse_numbers([word]) is None


@given(st.lists(st.one_of(st.floats(allow_infinity=False), st.integers(-99, 99).map(float)), max_size=20))
def test_numbers_as_text_read_back_equal(values: list[float]) -> None:
    words = to_text(np.array(values, dtype=np.float64))
    for value, word in zip(values, words, strict=True):
        assert (word is None) if np.isnan(value) else (float(word) == value)


def test_whole_numbers_are_written_without_point_zero() -> None:
    assert [format_number(v) for v in (3.0, -0.0, 2.5, 1e20)] == ["3", "0", "2.5", "1e+20"]
