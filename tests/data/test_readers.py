"""Readers: what is in the file is what is in the table."""

import csv
import gzip
import io
import sqlite3
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.core import capability
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.images import read_site_images
from grandrounds.data.agreement.schema import ImageSchema
from grandrounds.data.agreement.schema_file import parse_schema
from grandrounds.data.formats import DEFAULT_MISSING
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table
from grandrounds.experiment.experiment import Experiment
from tests.capabilities.sources.scans.make import ct_values, save_ct
from tests.support import refused

# text that strip() leaves alone and that neither is a mark for missing nor reads as a number
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc"), max_codepoint=0x2FFF), min_size=1, max_size=8)
CELL = TEXT.map(str.strip).filter(lambda s: s != "" and s not in DEFAULT_MISSING).map(lambda s: "t" + s)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


@st.composite
def tables(draw: st.DrawFn) -> Table:
    rows = draw(st.integers(1, 8))
    columns: dict[str, list[object]] = {}
    for name in draw(st.lists(CELL, min_size=1, max_size=5, unique=True)):
        cell = draw(st.sampled_from([CELL, NUMBER]))
        values: list[object] = draw(st.lists(st.one_of(st.none(), cell), min_size=rows, max_size=rows))
        columns[name] = values
    return Table.from_mapping(columns)


@given(table=tables(), delimiter=st.sampled_from([",", ";", "\t", "|"]), bom=st.booleans(), gz=st.booleans())
def test_a_csv_reads_back_as_it_was_written(
    table: Table, delimiter: str, bom: bool, gz: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(table.names)
    columns = [[v if isinstance(v, str) else "" if v is None or v != v else repr(float(v)) for v in c]
               for c in table.columns.values()]  # fmt: skip
    writer.writerows(zip(*columns, strict=True))
    raw = out.getvalue().encode("utf-8-sig" if bom else "utf-8")
    path = tmp_path_factory.getbasetemp() / ("round.csv.gz" if gz else "round.csv")
    path.write_bytes(gzip.compress(raw) if gz else raw)
    back = read_table(path, sep=delimiter)
    assert back.names == table.names
    assert back.sha256() == table.sha256()


def test_types_are_read_from_the_cells(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "n,e,code,flag,mixed,none,gap,big\n"
        " 1 ,1e3,007,true,1,None,,12345678901234567\n"
        "-2,.5,100,false,x,a,NA,12345678901234568\n"
        "?,5.,200,true,3,b,null,1\n",
    )
    table = read_table(path)
    np.testing.assert_array_equal(table.column("n"), [1, -2, np.nan])
    np.testing.assert_array_equal(table.column("e"), [1000, 0.5, 5])
    assert table.column("code").tolist() == ["007", "100", "200"]
    assert table.column("flag").tolist() == ["true", "false", "true"]
    assert table.column("mixed").tolist() == ["1", "x", "3"]
    assert table.column("none").tolist() == ["None", "a", "b"]
    assert np.isnan(table.column("gap")).all()
    assert table.column("big").tolist() == ["12345678901234567", "12345678901234568", "1"]
    assert table.source == str(path)


def test_infinite_cells_are_text(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "x\n1\ninf\n")).column("x").tolist() == ["1", "inf"]


def test_a_column_that_turns_to_text_late_keeps_its_early_cells(tmp_path: Path) -> None:
    cells = ["", *(str(i) for i in range(2500)), "007", "NA", "abc"]
    path = written(tmp_path, "k,x\n" + "".join(f"{i},{c}\n" for i, c in enumerate(cells)))
    want = [None, *(str(i) for i in range(2500)), "007", None, "abc"]
    assert read_table(path).column("x").tolist() == want


def test_own_marks_for_missing_match_numbers_by_value(tmp_path: Path) -> None:
    path = written(tmp_path, "x,y\n-999,unknown\n-999.0,b\n3,NA\n")
    table = read_table(path, missing=["-999", "unknown"])
    np.testing.assert_array_equal(table.column("x"), [np.nan, np.nan, 3])
    assert table.column("y").tolist() == [None, "b", "NA"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    rows = [["name", "dose"], ["Müller, A; B", "1.5"], ["x", "2"]]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows(rows)
    table = read_table(written(tmp_path, out.getvalue()))
    assert table.column("name").tolist() == ["Müller, A; B", "x"]
    assert table.column("dose").tolist() == [1.5, 2.0]


def test_tsv_and_data_and_capitals(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "a\tb\n1\tx,y\n", "t.tsv")).column("b").tolist() == ["x,y"]
    assert read_table(written(tmp_path, "a,b\n1,2\n", "t.data")).names == ("a", "b")
    assert read_table(written(tmp_path, "a,b\n1,2\n", "T.CSV")).names == ("a", "b")


def test_one_column_and_quoted_line_breaks_and_blank_lines(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, '  \n\nnote\n"two\nlines"\n\n""\nplain\n'))
    assert table.column("note").tolist() == ["two\nlines", None, "plain"]
    assert len(read_table(written(tmp_path, "\na,b\n1,2\n\n   \n3,4\n\n"))) == 2


def test_windows_line_ends_and_spaces_before_quotes(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, 'a, b\r\n1, "x, y"\r\n'))
    assert table.names == ("a", "b")
    assert table.column("b").tolist() == ["x, y"]


def test_an_unnamed_column_gets_a_name(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, ",a\n0,1\n1,2\n")).names == ("index", "a")
    assert read_table(written(tmp_path, "a,,b\n0,1,2\n")).names == ("a", "column 2", "b")


def test_names_for_a_file_without_a_header(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "63,1\n67,?\n", "heart.data"), names=["age", "sex"])
    assert table.column("age").tolist() == [63, 67]


def test_columns_named_by_numbers_are_allowed_when_they_differ(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "0,1,2\n5,6,7\n")).names == ("0", "1", "2")


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    content = pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "b": pa.array([True, None, False]),
            "f": pa.array([1.5, None, float("inf")], pa.float32()),
            "s": pa.array([" x ", "?", None]),
            "code": pa.array(["007", "1", "2"]),
            "d": pa.array([date(2024, 5, 31), None, date(2024, 6, 1)]),
            "t": pa.array([datetime(2024, 5, 31, 8), None, datetime(2024, 6, 1)], pa.timestamp("us")),
            "c": pa.array(["p", "q", "p"]).dictionary_encode(),
            "money": pa.array([1, None, 2], pa.decimal128(10, 2)),
            "big": pa.array([2**60 + 1, None, 5], pa.int64()),
            "nothing": pa.array([None, None, None], pa.string()),
            "__index_level_0__": pa.array([4, 5, 6]),
        }
    )
    pq.write_table(content, path)
    table = read_table(path)
    np.testing.assert_array_equal(table.column("i"), [1, np.nan, 3])
    np.testing.assert_array_equal(table.column("b"), [1, np.nan, 0])
    np.testing.assert_array_equal(table.column("f"), [1.5, np.nan, np.inf])
    assert table.column("s").tolist() == ["x", None, None]
    assert table.column("code").tolist() == ["007", "1", "2"]
    assert table.column("d").tolist() == ["2024-05-31", None, "2024-06-01"]
    assert table.column("t").tolist() == ["2024-05-31T08:00:00", None, "2024-06-01T00:00:00"]
    assert table.column("c").tolist() == ["p", "q", "p"]
    np.testing.assert_array_equal(table.column("money"), [1, np.nan, 2])
    assert table.column("big").tolist() == [str(2**60 + 1), None, "5"]
    assert np.isnan(table.column("nothing")).all()
    assert table.names[-1] == "index"


def test_parquet_folder_names_add_no_columns(tmp_path: Path) -> None:
    (tmp_path / "site=3").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "site=3" / "t.pq")
    assert read_table(tmp_path / "site=3" / "t.pq").names == ("a",)


@pytest.fixture
def database(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "ward.db") as db:
        db.execute("create table stays (age real, sex text, died integer, note text)")
        db.executemany(
            "insert into stays values (?, ?, ?, ?)",
            [(70.5, "f", 1, "at 12:30 :x 5%"), (None, " ? ", 0, None), (40, "m", 0, "b")],
        )
    db.close()
    return f"sqlite:///{tmp_path / 'ward.db'}"


def test_sql_by_table_by_select_and_by_default(database: str) -> None:
    for query in ("stays", "select * from stays", " WITH s AS (SELECT * FROM stays) SELECT * FROM s; ", None):
        table = read_table(database, query=query)
        assert table.names == ("age", "sex", "died", "note")
        np.testing.assert_array_equal(table.column("age"), [70.5, np.nan, 40])
        assert table.column("sex").tolist() == ["f", None, "m"]
        assert table.column("died").tolist() == [1, 0, 0]


def test_colons_and_percent_signs_in_a_select_are_not_parameters(database: str) -> None:
    table = read_table(database, query="select age from stays where note like '%:x 5%'")
    assert table.column("age").tolist() == [70.5]


def test_a_select_cannot_write(database: str) -> None:
    before = read_table(database, query="stays").sha256()
    for query in ("with x as (select 1) delete from stays", "delete from stays", "drop table stays"):
        with pytest.raises(BadInput):
            read_table(database, query=query)
    assert read_table(database, query="stays").sha256() == before


def test_without_capabilities_plain_tables_are_read_and_everything_else_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(capability, "capabilities", tuple)
    assert list(read_table(written(tmp_path, "a,b\n1,x\n")).names) == ["a", "b"]
    with refused("capability-not-installed", match="'://'") as caught:
        read_table("postgresql://me:secret@host/patients")
    assert "secret" not in str(caught.value)
    (tmp_path / "t.dta").write_bytes(b"bytes")
    with refused("unknown-file-type"):
        read_table(tmp_path / "t.dta")
    with refused("capability-not-installed", match="data.cohort"):
        Experiment.parse({"data": {"table": "records", "cohort": "cohort.toml"}})
    with refused("capability-not-installed", match="data.cohort"):
        parse_schema({"cohort": "cohort.toml"})
    first, second = save_ct(tmp_path, ct_values(2, 16, 16))
    written(tmp_path, f"file,label,patient\n{first.name},a,1\n{second.name},b,2\n", "labels.csv")
    with refused("damaged-image"):
        read_site_images(str(tmp_path), ImageSchema((16, 16), 1, patient="patient"))


def test_modules_need_numpy_alone() -> None:
    code = (
        "import sys\n"
        "import grandrounds.data.readers, grandrounds.data.dataset, grandrounds.data.checks\n"
        "heavy = {'pandas', 'pyarrow', 'sqlalchemy', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


@pytest.mark.data("diabetes130", "fed_tcga_brca")
def test_real_files_read_whole(data_folder) -> None:
    table = read_table(data_folder / "diabetes130" / "IDs_mapping.csv")
    assert table.names[0] == "admission_type_id"
    patients = read_table(data_folder / "fed_tcga_brca" / "brca.csv")
    assert (len(patients), len(patients.names)) == (1096, 42)
    assert all(c.dtype == np.float64 for name, c in patients.columns.items() if name != "pid")
