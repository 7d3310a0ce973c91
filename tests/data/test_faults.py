"""Every fault in a user's data is one sentence: what, where, and the way out."""

import gzip
import os
import sqlite3
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grandrounds.core.errors import BadInput
from grandrounds.data.checks import check_sites, check_unique
from grandrounds.data.dataset import build_dataset
from grandrounds.data.readers import read_table
from grandrounds.data.schema import Schema, infer_schema
from grandrounds.data.table import Table


def refused(call: Callable[[], Any], *words: str) -> str:
    """The message of a refusal; it must be one line with all the words, for exit code 2."""
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    for word in words:
        assert word in message, message
    return message


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- files -----------------------------------------------------------------------------------------


def test_file_missing(tmp_path: Path) -> None:
    write(tmp_path / "patients.csv", "a\n1\n")
    refused(lambda: read_table(tmp_path / "patient.csv"), "patient.csv not found", "did you mean 'patients.csv'?")
    refused(lambda: read_table(tmp_path / "no" / "x.csv"), "x.csv not found", "check the path")
    (tmp_path / "bare").mkdir()
    refused(lambda: read_table(tmp_path / "bare" / "x.csv"), "not found", "no table in that folder")


def test_folder_instead_of_file(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "a\n1\n")
    refused(lambda: read_table(tmp_path), "is a folder", "known: a.csv")


@contextmanager
def as_nobody():  # type: ignore[no-untyped-def]
    """Without root's right to read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="file permissions of this kind are a POSIX thing")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a\n1\n")
    path.chmod(0)
    with as_nobody():
        refused(lambda: read_table(path), "a.csv cannot be read", "permission denied", "read access")


def test_file_name_that_cannot_be(tmp_path: Path) -> None:
    refused(lambda: read_table(tmp_path / "a\0b.csv"), "check the path")
    refused(lambda: read_table("~no-such-user/a.csv"), "~no-such-user/a.csv cannot be read", "check the path")
    refused(lambda: read_table(tmp_path / ("x" * 300 + ".csv")), "check the path")


def test_unknown_extension(tmp_path: Path) -> None:
    refused(lambda: read_table(write(tmp_path / "a.xlsx", "x")), "file type of", "a.xlsx", ".csv", ".parquet")


def test_query_for_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a\n1\n")
    refused(lambda: read_table(path, query="select 1"), "data.query", "a.csv is a file", "remove the query")


def test_empty_and_header_only(tmp_path: Path) -> None:
    refused(lambda: read_table(write(tmp_path / "a.csv", "")), "a.csv is empty", "header and at least one row")
    refused(lambda: read_table(write(tmp_path / "b.csv", "\n \n")), "b.csv is empty", "blank lines")
    refused(lambda: read_table(write(tmp_path / "c.csv", "a,b\n")), "c.csv has a header but no rows", "at least one")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"a,b\n1,\x00\n", "binary"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), ".csv.gz"),
        (b"PK\x03\x04rest", "Excel"),
        (b"PAR1....PAR1", ".parquet"),
        ("a,b\n1,2\n".encode("utf-16-le"), "binary"),
        ("name\nok\nMüller\n".encode("cp850"), "line 3"),
    ],
)
def test_not_text(tmp_path: Path, content: bytes, word: str) -> None:
    refused(
        lambda: read_table(write(tmp_path / "a.csv", content)),
        "a.csv is",
        word,
        "UTF-8" if "." not in word else "name it",
    )


def test_ragged_rows_name_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'a,b\n1,"x\ny"\n\n1,2,3\n')
    refused(lambda: read_table(path), "line 5 of", "a.csv has 3 cells where the header has 2", "fix that line")
    refused(lambda: read_table(write(tmp_path / "b.csv", "a,b,c\n1,2\n")), "line 2", "has 2 cells", "has 3")


def test_unclosed_quote(tmp_path: Path) -> None:
    refused(lambda: read_table(write(tmp_path / "a.csv", 'a,b\n1,"x\n2,3\n')), "line 3 of", "a.csv", "quote")
    huge = 'a,b\n1,"' + "x" * 200_000 + '"\n'
    refused(lambda: read_table(write(tmp_path / "a.csv", huge)), "line 2 of", "a.csv", "quote")


def test_duplicate_and_empty_names(tmp_path: Path) -> None:
    refused(
        lambda: read_table(write(tmp_path / "a.csv", "a,b, a\n1,2,3\n")),
        "'a' appears twice",
        "columns 1 and 3",
        "rename",
    )
    refused(lambda: read_table(write(tmp_path / "a.csv", "a,,\n1,2,3\n")), "columns 2 and 3", "no name", "header")


def test_no_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.data", "63.0,1.0,1.0,?\n67.0,1.0,4.0,2\n")
    refused(lambda: read_table(path), "line 1 of", "a.data holds values", "add a header line")


def test_bad_separator(tmp_path: Path) -> None:
    refused(lambda: read_table(write(tmp_path / "a.csv", "a\n1\n"), sep="::"), "'::'", "a.csv", "one character")


def test_broken_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + os.urandom(2000).hex().encode())
    flipped = whole[:50] + bytes([whole[50] ^ 0xFF]) + whole[51:]
    for raw in (whole[: len(whole) // 2], flipped, b"plain text"):
        path = write(tmp_path / "a.csv.gz", raw)
        refused(lambda path=path: read_table(path), "a.csv.gz is not a complete gzip file", "copy it again")  # type: ignore[misc]


def test_broken_and_empty_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    whole = path.read_bytes()
    for raw in (whole[:100], b"junk" * 9, whole[:20] + os.urandom(40) + whole[60:]):
        write(path, raw)
        refused(lambda: read_table(path), "a.parquet is not a complete Parquet file", "copy it again")
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    refused(lambda: read_table(path), "a.parquet has no rows", "at least one row")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    refused(lambda: read_table(path), "'a' appears twice", "a.parquet")
    pq.write_table(pa.table({"scan": pa.array([b"\xff\xfe\x00"])}), path)
    refused(lambda: read_table(path), "'scan'", "binary data", "leave it out")


# --- databases -------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "ward.db") as db:
        db.execute("create table stays (age real, died integer)")
        db.execute("create table nurses (name text)")
        db.execute("insert into stays values (70, 1)")
    db.close()
    return f"sqlite:///{tmp_path / 'ward.db'}"


def test_sql_faults(database: str, tmp_path: Path) -> None:
    refused(lambda: read_table(database, query="stay"), "table 'stay' not found", "did you mean 'stays'?", "data.query")
    refused(lambda: read_table(database), "no table chosen", "known: nurses, stays", "data.query")
    refused(
        lambda: read_table(database, query="select agee from stays"), "agee", "ward.db did not answer", "data.query"
    )
    refused(lambda: read_table(database, query="delete from stays"), "not a SELECT", "ward.db")
    refused(lambda: read_table(database, query="select * from stays where age > 99"), "no rows", "data.query")
    refused(lambda: read_table(database, query="select age, age from stays"), "'age' appears twice", "ward.db")
    refused(lambda: read_table(database.replace("ward", "wards")), "wards.db not found", "did you mean 'ward.db'?")
    assert not (tmp_path / "wards.db").exists()
    write(tmp_path / "junk.db", "this is no database, but it is long enough to be looked at" * 20)
    refused(lambda: read_table(f"sqlite:///{tmp_path / 'junk.db'}"), "junk.db did not answer", "check the URL")
    sqlite3.connect(tmp_path / "bare.db").execute("vacuum").close()
    refused(lambda: read_table(f"sqlite:///{tmp_path / 'bare.db'}"), "bare.db holds no tables", "check the URL")


def test_unknown_address(tmp_path: Path) -> None:
    refused(lambda: read_table("https://example.org/a.csv"), "https://", "give a file", "sqlite:///")


def test_driver_missing() -> None:
    # a dialect whose driver is not among the dependencies
    refused(lambda: read_table("mysql+oursql://u:hunter2@db/ward"), "mysql+oursql://")
    message = refused(
        lambda: read_table("mssql+pymssql://u:hunter2@db/ward"), "mssql+pymssql://", "pip install pymssql"
    )
    assert "driver" in message


@pytest.mark.parametrize(
    "address",
    [
        "mssql+pymssql://ada:hunter2@db.example/ward",
        "postgresql://ada:hunter2@localhost:1/ward",
        "postgresql://ada:hunter2@localhost:port/ward",
        "postgresql://localhost:1/ward?user=ada&password=hunter2",
        "nosuch://ada:hunter2@db/ward",
        "sqlite:///nowhere/hunter.db?password=hunter2",
    ],
)
def test_passwords_are_never_shown(address: str) -> None:
    message = refused(lambda: read_table(address, query="stays"))
    assert "hunter2" not in message
    assert "ada" not in message


# --- tables and schemas ----------------------------------------------------------------------------


def table(**columns: object) -> Table:
    return Table.from_mapping({"y": [0, 1] * 10, **columns}, source="patients.csv")  # type: ignore[dict-item]


def schema(t: Table, **settings: Any) -> Schema:
    return infer_schema(t, **{"label": "y", **settings})


def test_columns_of_different_length() -> None:
    refused(
        lambda: Table.from_mapping({"a": [1, 2], "b": [1]}, source="t"), "'a' has 2 rows", "'b' has 1", "columns of t"
    )


def test_data_frames() -> None:
    refused(lambda: Table.from_pandas(pd.DataFrame({"a": []})), "data frame has no rows")
    refused(lambda: Table.from_pandas(pd.DataFrame()), "data frame has no columns")
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    refused(lambda: Table.from_pandas(twice, source="frame"), "'a' appears twice in frame", "rename")


@pytest.mark.parametrize(
    ("role", "flag"), [("label", "--label"), ("site", "--site"), ("patient", "--patient"), ("time", "data.time")]
)
def test_absent_role(role: str, flag: str) -> None:
    t = table(dead=[0, 1] * 10)
    refused(
        lambda: schema(t, **{role: "ded"}),
        "column 'ded' not found in patients.csv",
        "'dead'?",
        "known: y",
        f"(use {flag})",
    )


def test_absent_drop_and_override() -> None:
    t = table(age=range(20))
    refused(lambda: schema(t, drop=["aeg"]), "'aeg' not found in patients.csv", "'age'?", "(use --drop)")
    refused(lambda: schema(t, overrides={"aeg": "id"}), "'aeg' not found in patients.csv", "'age'?", "data.kinds")


def test_one_column_in_two_roles() -> None:
    refused(
        lambda: schema(table(x=range(20)), site="y"), "'y' of patients.csv is both the label and the site", "--site"
    )


def test_text_in_a_numeric_column() -> None:
    t = table(**{"blood lactate": [*range(18), "sample haemolysed, see note", "x"]})
    message = refused(
        lambda: schema(t),
        "text in a numeric column: 2 of 20 cells of 'blood lactate' in patients.csv",
        "first 'sample haemolysed, s...' in row 20 (the header is row 1)",
        "data.missing",
        'data.kinds."blood lactate" = "categorical"',
    )
    assert "see note" not in message
    assert schema(table(x=[*range(17), "a", "b", "c"])).columns[1].kind == "categorical"


def test_decimal_commas() -> None:
    t = table(dose=["1,5", "2", "0,25", "12,75"] * 5)
    refused(
        lambda: schema(t), "'dose' of patients.csv writes numbers with a comma", "'1,5' in row 2", "data.kinds.dose"
    )


def test_overrides_that_the_data_contradict() -> None:
    t = table(sex=["f", "m"] * 10, age=range(20))
    refused(lambda: schema(t, overrides={"sex": "number"}), "data.kinds.sex = 'number'", "did you mean 'numeric'?")
    refused(lambda: schema(t, overrides={"sex": "constant"}), "data.kinds.sex", "known: numeric")
    refused(lambda: schema(t, overrides={"sex": "numeric"}), "'sex' of patients.csv", "'f' in row 2", "categorical")
    refused(lambda: schema(t, overrides={"sex": ["f", "x"]}), "'sex' of patients.csv", "'m' in row 3", "add it")
    refused(lambda: schema(t, overrides={"sex": ["f", "m", "f"]}), "data.kinds.sex", "each once", "low to high")
    refused(lambda: schema(t, overrides={"sex": "ordinal"}), "order of column 'sex'", "data.kinds.sex = ['f', 'm']")


def test_no_feature_left() -> None:
    t = table(x=[1] * 20, when=["2024-01-01", "2024-01-02"] * 10)
    refused(lambda: schema(t), "no column of patients.csv is left", "'x': one value only", "data.kinds")
    refused(lambda: schema(table(x=range(20)), drop=["x"]), "no column", "listed in data.drop", "drop fewer")


def test_damaged_schema() -> None:
    good = schema(table(x=range(20))).to_dict()
    for bad in (
        {},
        {**good, "label": None},
        {**good, "site": 3},
        {**good, "columns": [{"name": "x"}]},
        {**good, "columns": 5},
    ):
        refused(lambda bad=bad: Schema.from_dict(bad), "schema is damaged", "use the one")  # type: ignore[misc]
    good["columns"][0]["kind"] = "float"
    refused(lambda: Schema.from_dict(good), "unknown kind 'float'")


# --- data sets -------------------------------------------------------------------------------------


def build(t: Table, *, drop_unlabelled: bool = False, **settings: Any) -> Any:
    return build_dataset(t, schema(t, **settings), name="test", drop_unlabelled=drop_unlabelled)


def test_label_column_gone() -> None:
    s = schema(table(x=range(20)))
    other = table(x=range(20)).with_columns({"Y": [0, 1] * 10}).without(["y"])
    refused(lambda: build_dataset(other, s, name="t"), "column 'y' not found in patients.csv", "(use --label)")


def test_feature_column_gone() -> None:
    s = schema(table(x=range(20), z=["a", "b"] * 10))
    for name in ("x", "z"):
        other = table(x=range(20), z=["a", "b"] * 10).without([name])
        refused(lambda other=other: build_dataset(other, s, name="t"), f"'{name}' not found in patients.csv")  # type: ignore[misc]


def test_label_with_gaps() -> None:
    t = table(x=range(20), y=[*[0, 1] * 9, None, None])
    refused(
        lambda: build(t),
        "'y' of patients.csv has 2 rows without a value",
        "first row 20",
        "data.drop_unlabelled = true",
    )
    nothing = table(x=range(20), y=[None] * 20)
    refused(lambda: build(nothing, drop_unlabelled=True), "'y' of patients.csv has no value in any row", "--label")


def test_rows_are_named_as_in_the_file_after_rows_were_left_out() -> None:
    t = table(x=[*[1.0, 2.0] * 9, 3.0, np.inf], y=[None, None, *[0, 1] * 9])
    refused(lambda: build(t, drop_unlabelled=True), "infinite", "row 21 (the header is row 1)")


def test_labels_that_are_no_classes() -> None:
    x = list(range(20))
    refused(lambda: build(table(x=x, y=[1] * 20)), "'y' of patients.csv has one class only ('1'", "--label")
    refused(
        lambda: build(table(x=x, y=np.arange(20) / 4)), "looks like a measurement", "0.25", "classification", "--label"
    )
    refused(lambda: build(table(x=x, y=[np.inf, 1] * 10)), "looks like a measurement", "classification")
    many = Table.from_mapping({"x": np.arange(101) % 3, "y": range(101)}, source="patients.csv")
    refused(lambda: build(many), "101 classes", "looks like a measurement", "classification", "--label")


def test_gaps_in_site_patient_and_time() -> None:
    t = table(x=range(20), h=["a", None] * 10, d=["2024-01-01", "soon"] * 10)
    refused(
        lambda: build(t, site="h"), "site column 'h' of patients.csv has 10 rows without a value", "row 3", "--site"
    )
    refused(lambda: build(t, patient="h"), "patient column 'h'", "10 rows", "row 3", "--patient")
    refused(lambda: build(t, time="d"), "time column 'd' of patients.csv", "'soon' in row 3", "ISO date", "data.time")
    refused(lambda: build(t, time="h"), "time column 'h'", "'a' in row 2")
    gap = table(x=range(20), t=[1, None] * 10)
    refused(lambda: build(gap, time="t"), "time column 't'", "10 rows", "no value in row 3")


def test_infinite_values() -> None:
    t = table(x=[*range(19), np.inf])
    refused(lambda: build(t), "column 'x' of patients.csv has an infinite value in 1 row", "row 21", "--drop")


def test_another_table_that_does_not_fit_the_schema() -> None:
    s = schema(table(x=range(20), g=["a", "b"] * 10), overrides={"g": ["a", "b"]})
    words = table(x=["high", *range(19)], g=["a", "b"] * 10)
    refused(
        lambda: build_dataset(words, s, name="t"),
        "'x' of patients.csv should be numeric",
        "'high' in row 2",
        "data.missing",
    )
    level = table(x=range(20), g=["a", "c"] * 10)
    refused(lambda: build_dataset(level, s, name="t"), "level 'c' in row 3", "one of a, b", "data.kinds")


def test_tiny_sites() -> None:
    rows = {"Basel": np.arange(1), "Bern": np.arange(50), "Chur": np.arange(3)}
    refused(
        lambda: check_sites(rows, min_rows=5),
        "2 of 3 sites have fewer than 5 rows: 'Basel' (1 row), 'Chur' (3 rows)",
        "set split.min_rows or merge sites",
    )
    refused(lambda: check_sites({str(i): np.arange(1) for i in range(30)}, min_rows=2), "and 20 more")


def test_repeated_ids() -> None:
    data = build(table(x=range(20), stay=[*range(18), 7, 3]))
    refused(
        lambda: check_unique(data, "stay"),
        "id column 'stay' of patients.csv has 2 repeated values",
        "first '3' in row 21",
        "remove the duplicate rows",
    )
    refused(lambda: check_unique(data, "sty"), "'sty' not found", "'stay'?", "data.id")
    gap = build(table(x=range(20), stay=[*range(19), None]))
    refused(lambda: check_unique(gap, "stay"), "'stay' of patients.csv has 1 row without a value", "row 21")


def test_unknown_subgroup() -> None:
    data = build(table(sex=["f", "m"] * 10))
    refused(lambda: data.groups("sx"), "column 'sx' not found in patients.csv", "'sex'?", "evaluation.subgroup")
