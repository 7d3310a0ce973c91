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
from tests.support import refused


def fault(code: str, call: Callable[[], Any], *words: str) -> str:
    """The message of an error of a code; it must be one line with all the words, for exit code 2."""
    with refused(code) as caught:
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
    fault("file-not-found", lambda: read_table(tmp_path / "patient.csv"), "patient.csv", "'patients.csv'")
    fault("file-not-found", lambda: read_table(tmp_path / "no" / "x.csv"), "x.csv")
    (tmp_path / "bare").mkdir()
    fault("file-not-found", lambda: read_table(tmp_path / "bare" / "x.csv"))


def test_folder_instead_of_file(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "a\n1\n")
    fault("not-a-file", lambda: read_table(tmp_path), "a.csv")


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
        fault("permission-denied", lambda: read_table(path), "a.csv")


def test_file_name_that_cannot_be(tmp_path: Path) -> None:
    fault("file-not-found", lambda: read_table(tmp_path / "a\0b.csv"))
    fault("unreadable-file", lambda: read_table("~no-such-user/a.csv"), "a.csv")
    fault("unreadable-file", lambda: read_table(tmp_path / ("x" * 300 + ".csv")))


def test_unknown_extension(tmp_path: Path) -> None:
    fault("unknown-file-type", lambda: read_table(write(tmp_path / "a.xlsx", "x")))


def test_query_for_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a\n1\n")
    fault("conflicting-settings", lambda: read_table(path, query="select 1"), "data.query", "a.csv")


def test_empty_and_header_only(tmp_path: Path) -> None:
    fault("empty-table", lambda: read_table(write(tmp_path / "a.csv", "")), "a.csv")
    fault("empty-table", lambda: read_table(write(tmp_path / "b.csv", "\n \n")), "b.csv")
    fault("empty-table", lambda: read_table(write(tmp_path / "c.csv", "a,b\n")), "c.csv")


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b"a,b\n1,\x00\n", "not-text", "UTF-8"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "not-text", ".csv.gz"),
        (b"PK\x03\x04rest", "not-text", "Excel"),
        (b"PAR1....PAR1", "not-text", ".parquet"),
        ("a,b\n1,2\n".encode("utf-16-le"), "not-text", "UTF-8"),
        ("name\nok\nMüller\n".encode("cp850"), "undecodable-text", "line 3"),
    ],
)
def test_not_text(tmp_path: Path, content: bytes, code: str, word: str) -> None:
    fault(code, lambda: read_table(write(tmp_path / "a.csv", content)), "a.csv", word)


def test_ragged_rows_name_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'a,b\n1,"x\ny"\n\n1,2,3\n')
    fault("ragged-row", lambda: read_table(path), "line 5", "a.csv", "3 cells", "2")
    fault("ragged-row", lambda: read_table(write(tmp_path / "b.csv", "a,b,c\n1,2\n")), "line 2", "2 cells", "3")


def test_unclosed_quote(tmp_path: Path) -> None:
    fault("malformed-csv", lambda: read_table(write(tmp_path / "a.csv", 'a,b\n1,"x\n2,3\n')), "line 3", "a.csv")
    huge = 'a,b\n1,"' + "x" * 200_000 + '"\n'
    fault("malformed-csv", lambda: read_table(write(tmp_path / "a.csv", huge)), "line 2", "a.csv")


def test_duplicate_and_empty_names(tmp_path: Path) -> None:
    fault("repeated-column", lambda: read_table(write(tmp_path / "a.csv", "a,b, a\n1,2,3\n")), "'a'", "columns 1 and 3")
    fault("missing-header", lambda: read_table(write(tmp_path / "a.csv", "a,,\n1,2,3\n")), "columns 2 and 3")


def test_no_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.data", "63.0,1.0,1.0,?\n67.0,1.0,4.0,2\n")
    fault("missing-header", lambda: read_table(path), "line 1", "a.data")


def test_bad_separator(tmp_path: Path) -> None:
    fault("invalid-separator", lambda: read_table(write(tmp_path / "a.csv", "a\n1\n"), sep="::"), "'::'", "a.csv")


def test_broken_gzip(tmp_path: Path) -> None:
    full = gzip.compress(b"a,b\n" + os.urandom(2000).hex().encode())
    flipped = full[:50] + bytes([full[50] ^ 0xFF]) + full[51:]
    for raw in (full[: len(full) // 2], flipped, b"plain text"):
        path = write(tmp_path / "a.csv.gz", raw)
        fault("damaged-file", lambda path=path: read_table(path), "a.csv.gz")  # type: ignore[misc]


def test_broken_and_empty_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    full = path.read_bytes()
    for raw in (full[:100], b"junk" * 9, full[:20] + os.urandom(40) + full[60:]):
        write(path, raw)
        fault("damaged-file", lambda: read_table(path), "a.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    fault("empty-table", lambda: read_table(path), "a.parquet")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    fault("repeated-column", lambda: read_table(path), "'a'", "a.parquet")
    pq.write_table(pa.table({"scan": pa.array([b"\xff\xfe\x00"])}), path)
    fault("binary-column", lambda: read_table(path), "'scan'")


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
    fault("unknown-table", lambda: read_table(database, query="stay"), "'stay'", "'stays'", "data.query")
    fault("unknown-table", lambda: read_table(database), "data.query")
    fault("database-error", lambda: read_table(database, query="select agee from stays"), "ward.db", "data.query")
    fault("not-a-select", lambda: read_table(database, query="delete from stays"), "ward.db")
    fault("empty-table", lambda: read_table(database, query="select * from stays where age > 99"), "data.query")
    fault("repeated-column", lambda: read_table(database, query="select age, age from stays"), "'age'", "ward.db")
    fault("file-not-found", lambda: read_table(database.replace("ward", "wards")), "wards.db", "'ward.db'")
    assert not (tmp_path / "wards.db").exists()
    write(tmp_path / "junk.db", "this is no database, but it is long enough to be looked at" * 20)
    fault("database-error", lambda: read_table(f"sqlite:///{tmp_path / 'junk.db'}"), "junk.db")
    sqlite3.connect(tmp_path / "bare.db").execute("vacuum").close()
    fault("no-tables", lambda: read_table(f"sqlite:///{tmp_path / 'bare.db'}"), "bare.db")


def test_unknown_address(tmp_path: Path) -> None:
    fault("invalid-url", lambda: read_table("https://example.org/a.csv"))


def test_driver_missing() -> None:
    # a dialect whose driver is not among the dependencies
    fault("invalid-url", lambda: read_table("mysql+oursql://u:hunter2@db/ward"))
    fault("missing-package", lambda: read_table("mssql+pymssql://u:hunter2@db/ward"))


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
    with pytest.raises(BadInput) as caught:
        read_table(address, query="stays")
    message = str(caught.value)
    assert "hunter2" not in message
    assert "ada" not in message


# --- tables and schemas ----------------------------------------------------------------------------


def table(**columns: object) -> Table:
    return Table.from_mapping({"y": [0, 1] * 10, **columns}, source="patients.csv")  # type: ignore[dict-item]


def schema(t: Table, **settings: Any) -> Schema:
    return infer_schema(t, **{"label": "y", **settings})


def test_columns_of_different_length() -> None:
    fault(
        "length-mismatch", lambda: Table.from_mapping({"a": [1, 2], "b": [1]}, source="t"), "'a'", "2 rows", "'b'", "1"
    )


def test_data_frames() -> None:
    fault("empty-table", lambda: Table.from_pandas(pd.DataFrame({"a": []})))
    fault("no-columns", lambda: Table.from_pandas(pd.DataFrame()))
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    fault("repeated-column", lambda: Table.from_pandas(twice, source="frame"), "'a'")


@pytest.mark.parametrize(
    ("role", "flag"), [("label", "--label"), ("site", "--site"), ("patient", "--patient"), ("time", "data.time")]
)
def test_absent_role(role: str, flag: str) -> None:
    t = table(dead=[0, 1] * 10)
    fault("unknown-column", lambda: schema(t, **{role: "ded"}), "'ded'", "patients.csv", "'dead'", f"(use {flag})")


def test_absent_drop_and_override() -> None:
    t = table(age=range(20))
    fault("unknown-column", lambda: schema(t, drop=["aeg"]), "'aeg'", "patients.csv", "'age'", "--drop")
    fault("unknown-column", lambda: schema(t, overrides={"aeg": "id"}), "'aeg'", "patients.csv", "'age'", "data.kinds")


def test_one_column_in_two_roles() -> None:
    fault("conflicting-roles", lambda: schema(table(x=range(20)), site="y"), "'y'", "patients.csv", "--site")


def test_text_in_a_numeric_column() -> None:
    t = table(**{"blood lactate": [*range(18), "sample haemolysed, see note", "x"]})
    message = fault(
        "text-in-numbers",
        lambda: schema(t),
        "2 of 20",
        "'blood lactate'",
        "patients.csv",
        "'sample haemolysed, s...'",
        "row 20",
        "row 1",
        "data.missing",
        'data.kinds."blood lactate"',
    )
    assert "see note" not in message
    assert schema(table(x=[*range(17), "a", "b", "c"])).columns[1].kind == "categorical"


def test_decimal_commas() -> None:
    t = table(dose=["1,5", "2", "0,25", "12,75"] * 5)
    fault("decimal-comma", lambda: schema(t), "'dose'", "patients.csv", "'1,5'", "row 2", "data.kinds.dose")


def test_overrides_that_the_data_contradict() -> None:
    t = table(sex=["f", "m"] * 10, age=range(20))
    fault("unknown-kind", lambda: schema(t, overrides={"sex": "number"}), "data.kinds.sex", "'number'", "'numeric'")
    fault("unknown-kind", lambda: schema(t, overrides={"sex": "constant"}), "data.kinds.sex")
    fault("text-in-numbers", lambda: schema(t, overrides={"sex": "numeric"}), "'sex'", "patients.csv", "'f'", "row 2")
    fault("unknown-level", lambda: schema(t, overrides={"sex": ["f", "x"]}), "'sex'", "patients.csv", "'m'", "row 3")
    fault("invalid-levels", lambda: schema(t, overrides={"sex": ["f", "m", "f"]}), "data.kinds.sex")
    fault("unclear-order", lambda: schema(t, overrides={"sex": "ordinal"}), "'sex'", "data.kinds.sex", "'f'", "'m'")


def test_no_feature_left() -> None:
    t = table(x=[1] * 20, when=["2024-01-01", "2024-01-02"] * 10)
    fault("no-features", lambda: schema(t), "patients.csv", "'x'", "data.kinds")
    fault("no-features", lambda: schema(table(x=range(20)), drop=["x"]), "data.drop")


def test_damaged_schema() -> None:
    good = schema(table(x=range(20))).to_dict()
    for bad in (
        {},
        {**good, "label": None},
        {**good, "site": 3},
        {**good, "columns": [{"name": "x"}]},
        {**good, "columns": 5},
    ):
        fault("damaged-schema", lambda bad=bad: Schema.from_dict(bad))  # type: ignore[misc]
    good["columns"][0]["kind"] = "float"
    fault("damaged-schema", lambda: Schema.from_dict(good), "'float'")


# --- data sets -------------------------------------------------------------------------------------


def build(t: Table, *, drop_unlabelled: bool = False, **settings: Any) -> Any:
    return build_dataset(t, schema(t, **settings), name="test", drop_unlabelled=drop_unlabelled)


def test_label_column_gone() -> None:
    s = schema(table(x=range(20)))
    other = table(x=range(20)).with_columns({"Y": [0, 1] * 10}).without(["y"])
    fault("unknown-column", lambda: build_dataset(other, s, name="t"), "'y'", "patients.csv", "--label")


def test_feature_column_gone() -> None:
    s = schema(table(x=range(20), z=["a", "b"] * 10))
    for name in ("x", "z"):
        other = table(x=range(20), z=["a", "b"] * 10).without([name])
        fault(
            "unknown-column",
            lambda other=other: build_dataset(other, s, name="t"),
            f"'{name}' not found in patients.csv",
        )  # type: ignore[misc]


def test_label_with_gaps() -> None:
    t = table(x=range(20), y=[*[0, 1] * 9, None, None])
    fault("missing-labels", lambda: build(t), "'y'", "patients.csv", "2 rows", "row 20", "data.drop_unlabelled")
    nothing = table(x=range(20), y=[None] * 20)
    fault("missing-labels", lambda: build(nothing, drop_unlabelled=True), "'y'", "patients.csv", "--label")


def test_rows_are_named_as_in_the_file_after_rows_were_left_out() -> None:
    t = table(x=[*[1.0, 2.0] * 9, 3.0, np.inf], y=[None, None, *[0, 1] * 9])
    fault("infinite-value", lambda: build(t, drop_unlabelled=True), "row 21", "row 1")


def test_labels_that_are_no_classes() -> None:
    x = list(range(20))
    fault("one-class-only", lambda: build(table(x=x, y=[1] * 20)), "'y'", "patients.csv", "'1'", "--label")
    fault("label-not-classes", lambda: build(table(x=x, y=np.arange(20) / 4)), "0.25", "--label")
    fault("label-not-classes", lambda: build(table(x=x, y=[np.inf, 1] * 10)))
    many = Table.from_mapping({"x": np.arange(101) % 3, "y": range(101)}, source="patients.csv")
    fault("too-many-classes", lambda: build(many), "101 classes", "--label")


def test_gaps_in_site_patient_and_time() -> None:
    t = table(x=range(20), h=["a", None] * 10, d=["2024-01-01", "soon"] * 10)
    fault("missing-values", lambda: build(t, site="h"), "'h'", "patients.csv", "10 rows", "row 3", "--site")
    fault("missing-values", lambda: build(t, patient="h"), "'h'", "10 rows", "row 3", "--patient")
    fault("unreadable-dates", lambda: build(t, time="d"), "'d'", "patients.csv", "'soon'", "row 3", "data.time")
    fault("unreadable-dates", lambda: build(t, time="h"), "'h'", "'a'", "row 2")
    gap = table(x=range(20), t=[1, None] * 10)
    fault("unreadable-dates", lambda: build(gap, time="t"), "'t'", "10 rows", "row 3")


def test_infinite_values() -> None:
    t = table(x=[*range(19), np.inf])
    fault("infinite-value", lambda: build(t), "'x'", "patients.csv", "1 row", "row 21", "--drop")


def test_another_table_that_does_not_fit_the_schema() -> None:
    s = schema(table(x=range(20), g=["a", "b"] * 10), overrides={"g": ["a", "b"]})
    words = table(x=["high", *range(19)], g=["a", "b"] * 10)
    fault(
        "text-in-numbers",
        lambda: build_dataset(words, s, name="t"),
        "'x'",
        "patients.csv",
        "'high'",
        "row 2",
        "data.missing",
    )
    level = table(x=range(20), g=["a", "c"] * 10)
    fault("unknown-level", lambda: build_dataset(level, s, name="t"), "'c'", "row 3", "data.kinds")


def test_tiny_sites() -> None:
    rows = {"Basel": np.arange(1), "Bern": np.arange(50), "Chur": np.arange(3)}
    fault(
        "too-few-rows",
        lambda: check_sites(rows, min_rows=5),
        "2 of 3",
        "5 rows",
        "'Basel'",
        "1 row",
        "'Chur'",
        "3 rows",
        "split.min_rows",
    )
    fault("too-few-rows", lambda: check_sites({str(i): np.arange(1) for i in range(30)}, min_rows=2), "20 more")


def test_repeated_ids() -> None:
    data = build(table(x=range(20), stay=[*range(18), 7, 3]))
    fault("repeated-ids", lambda: check_unique(data, "stay"), "'stay'", "patients.csv", "2 repeated", "'3'", "row 21")
    fault("unknown-column", lambda: check_unique(data, "sty"), "'sty'", "'stay'", "data.id")
    gap = build(table(x=range(20), stay=[*range(19), None]))
    fault("missing-values", lambda: check_unique(gap, "stay"), "'stay'", "patients.csv", "1 row", "row 21")


def test_unknown_subgroup() -> None:
    data = build(table(sex=["f", "m"] * 10))
    fault("unknown-column", lambda: data.groups("sx"), "'sx'", "patients.csv", "'sex'", "evaluation.subgroup")
