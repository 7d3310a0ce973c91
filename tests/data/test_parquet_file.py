"""Parquet files read by distinct values: the same columns as value by value."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.errors import BadInput
from grandrounds.data.formats import DEFAULT_MISSING
from grandrounds.data.parquet_file import read_parquet, to_array
from grandrounds.data.table import to_column, without_marks
from tests.support import refused

MARKS = frozenset(DEFAULT_MISSING)
WORDS = st.sampled_from(
    ["a", " b", "b ", "", "NA", "?", "ä", "日本", "007", "1", "\xa0x", "None", "\0", "-999"]
) | st.text(max_size=3)
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)) | st.datetimes().map(
    lambda t: t.replace(microsecond=0)
)
RECENT = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))
TYPES: list[tuple[Any, Any]] = [
    (pa.string(), WORDS),
    (pa.large_string(), WORDS),
    (pa.dictionary(pa.int32(), pa.string()), WORDS),
    (pa.dictionary(pa.int8(), pa.int64()), st.integers(-5, 5) | st.just(2**60)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(0, 3)),
    (pa.int8(), st.integers(-5, 5)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("s"), MOMENTS.map(lambda t: t.replace(microsecond=0))),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("ns"), RECENT),
    (pa.timestamp("us", "UTC"), RECENT.map(lambda t: t.replace(tzinfo=UTC))),
    (pa.timestamp("us", "+02:00"), RECENT.map(lambda t: t.replace(tzinfo=timezone(timedelta(hours=2))))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(timedelta(days=-900), timedelta(days=900))),
    (pa.decimal128(12, 3), st.decimals(-10**6, 10**6, places=3)),
    (pa.binary(), WORDS.map(str.encode)),
    (pa.list_(pa.int64()), st.lists(st.integers(0, 3), max_size=2)),
    (pa.null(), st.none()),
]  # fmt: skip


def value_by_value(column: pa.ChunkedArray, marks: frozenset[str]) -> np.ndarray:
    """Convert every value on its own, then mark missing words."""
    values = to_column(column.to_pylist(), name="c", source="t.parquet")
    if values.dtype == np.float64:
        return without_marks(values, marks=marks)
    cells = [None if cell is None or cell.strip() in marks else cell.strip() for cell in values.tolist()]
    out = np.empty(len(cells), dtype=object)
    out[:] = cells
    return out if any(cell is not None for cell in cells) else np.full(len(cells), np.nan)


def assert_same(ours: np.ndarray, reference: np.ndarray) -> None:
    assert ours.dtype == reference.dtype
    if ours.dtype == np.float64:
        assert (
            np.where(np.isnan(ours), np.nan, ours).tobytes()
            == np.where(np.isnan(reference), np.nan, reference).tobytes()
        )
    else:
        assert ours.tolist() == reference.tolist()
        assert all(v is None or type(v) is str for v in ours)


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_type_is_converted_as_value_by_value(kind: Any, values: Any, data: st.DataObject) -> None:
    few = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    cells = data.draw(st.lists(st.sampled_from(few), min_size=1, max_size=12) | st.just(few))
    cut = data.draw(st.integers(0, len(cells)))
    marks = data.draw(st.sampled_from([MARKS, frozenset[str](), MARKS | {"-999", "2"}]))
    column = pa.chunked_array([pa.array(part, kind) for part in (cells[:cut], cells[cut:])], kind)
    ours = to_array(column, name="c", source="t.parquet", marks=marks)
    assert_same(ours, value_by_value(column, marks))


def file_of(content: pa.Table, **options: Any) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(content, out, **options)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"row_group_size": 700}, {"store_schema": False}])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_few_and_many_words_from_a_file(options: dict[str, Any], kind: Any) -> None:
    rows = 3000
    content = pa.table(
        {
            "few": pa.array([f"w{i % 5} " if i % 7 else None for i in range(rows)], kind),
            "many": pa.array([f"P{i:05d}" if i % 11 else None for i in range(rows)], kind),
            "late": pa.array(["x" if i < 2500 else f"y{i}" for i in range(rows)], kind),
            "marks": pa.array(["NA", "?"] * (rows // 2), kind),
            "time": pa.array([datetime(2024, 1, 1) + timedelta(seconds=i) for i in range(rows)], pa.timestamp("us")),
        }
    )
    table = read_parquet(file_of(content, **options), source="t.parquet", marks=MARKS)
    for name in content.column_names:
        assert_same(table.columns[name], value_by_value(content.column(name), MARKS))


def test_categories_without_rows_do_not_decide_the_type() -> None:
    codes = pa.array([0, 1, 0, None], pa.int8())
    unused = pa.DictionaryArray.from_arrays(codes, pa.array([3, 4, 2**60]))
    assert to_array(pa.chunked_array([unused]), name="c", source="t", marks=MARKS).tolist()[:3] == [3.0, 4.0, 3.0]
    words = pa.DictionaryArray.from_arrays(codes, pa.array(["NA", "?", "x"]))
    assert np.isnan(to_array(pa.chunked_array([words]), name="c", source="t", marks=MARKS)).all()
    null = pa.DictionaryArray.from_arrays(codes, pa.array(["a", None, "x"]))
    assert to_array(pa.chunked_array([null]), name="c", source="t", marks=MARKS).tolist() == ["a", None, "a", None]


def binary(kind: Any) -> pa.Array:
    return pa.array([b"ok", b"\xff\xfe"], pa.binary()).view(kind)


@pytest.mark.parametrize("make", [lambda: binary(pa.binary()), lambda: binary(pa.string())])
def test_binary_data_are_refused(make: Callable[[], pa.Array]) -> None:
    raw = file_of(pa.table({"scan": make()}))
    with pytest.raises(BadInput, match=r"column 'scan' of t\.parquet holds binary data") as caught:
        read_parquet(raw, source="t.parquet", marks=MARKS)
    assert caught.value.code == "binary-column"


@pytest.mark.parametrize(
    "make, code",
    [
        (lambda: pa.array([10**7, 0], pa.int32()).cast(pa.date32()), "damaged-file"),
        (lambda: pa.array([10**18, None]).cast(pa.timestamp("us")), "damaged-file"),
        (lambda: pa.array([10**18, 0]).cast(pa.timestamp("us", "UTC")), "damaged-file"),
        (lambda: pa.array([10**9, 0]).cast(pa.timestamp("us", "Mars/Base")), "damaged-file"),
        (lambda: pa.array([[1], [2, 3]]), "nested-column"),
        (lambda: pa.array([{"a": 1}, {"a": 2}]), "nested-column"),
        (lambda: pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), "nested-column"),
    ],
)
def test_values_that_no_cell_can_hold_are_refused(make: Callable[[], pa.Array], code: str) -> None:
    raw = file_of(pa.table({"scan": make()}))
    with refused(code, match="scan"):
        read_parquet(raw, source="t.parquet", marks=MARKS)


@pytest.mark.parametrize("kind", [pa.string(), pa.date32(), pa.int64()])
def test_files_with_a_wrong_byte_are_read_or_refused(kind: Any) -> None:
    raw = file_of(pa.table({"a": pa.array([1, 2, 3] * 40, pa.int32()).cast(kind)}), compression="NONE")
    rng = np.random.default_rng(0)
    for place, byte in zip(rng.integers(4, len(raw), 400), rng.integers(0, 256, 400), strict=True):
        damaged = raw[:place] + bytes([byte]) + raw[place + 1 :]
        with suppress(BadInput):
            read_parquet(damaged, source="t.parquet", marks=MARKS)


def test_names_with_dots_are_columns_of_their_own() -> None:
    content = pa.table({"a": [1.0, 2.0], "a.b": ["x", "y"], "b.a": [3.0, 4.0]})
    table = read_parquet(file_of(content), source="t.parquet", marks=MARKS)
    assert {name: values.tolist() for name, values in table.columns.items()} == content.to_pydict()


def test_a_table_is_refused_by_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = file_of(pa.table({"a": pa.array(np.zeros(500_000, np.int8))}))
    text = file_of(pa.table({"a": pa.array(["x" * 1000] * 2000)}))
    assert len(rows) < 5000 and len(text) < 5000
    for raw in (rows, text):
        assert len(read_parquet(raw, source="t.parquet", marks=MARKS))
        monkeypatch.setenv("GRANDROUNDS_LARGEST", "8M")
        with refused("unpacks-too-large"):
            read_parquet(raw, source="t.parquet", marks=MARKS)
        monkeypatch.delenv("GRANDROUNDS_LARGEST")


@pytest.mark.data("eicu_demo")
def test_real_file(data_folder: Path) -> None:
    path = data_folder / "eicu_demo" / "eicu_hourly.parquet"
    content = pq.read_table(path)
    table = read_parquet(path.read_bytes(), source="t.parquet", marks=MARKS)
    for name in content.column_names:
        assert_same(table.columns[name], value_by_value(content.column(name), MARKS))
