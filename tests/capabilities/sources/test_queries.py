"""A query that somebody else wrote reads rows of one database: it writes nothing, reads no file and reaches no other address."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from grandrounds.core.errors import BadInput
from grandrounds.data.readers import read_table
from tests.capabilities.sources.cohort.test_omop import postgres
from tests.support import refused

__all__ = ["postgres"]


def refuse_query(address: str, query: str) -> None:
    """Expect that a query is not run: it is not one SELECT, or the database refuses it."""
    with pytest.raises(BadInput) as caught:
        read_table(address, query=query)
    assert caught.value.code in ("not-a-select", "database-error"), caught.value


SEVERAL = (
    "SELECT 1 AS a; COPY (SELECT 'x' AS x) TO '{mark}'; SELECT 1 AS a",
    "SELECT 1 AS a; EXPORT DATABASE '{mark}'; SELECT 1 AS a",
    "SELECT 1 AS a; ATTACH '{mark}' AS other; SELECT 1 AS a",
    "SELECT 1 AS a; SET enable_external_access = true; SELECT 1 AS a",
    "SELECT 1 AS a; INSERT INTO stays VALUES (1, 1); SELECT 1 AS a",
    "SELECT 1 AS a; DROP TABLE stays",
    "SELECT 1 AS a; SELECT 2 AS b",
    "WITH gone AS (DELETE FROM stays RETURNING *) SELECT * FROM gone",
    "WITH s AS (SELECT 1 AS a) INSERT INTO stays SELECT a, a FROM s",
    "(SELECT 1 AS a); COMMIT; DROP TABLE stays; SELECT 1 AS a",
)


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "ward.db") as db:
        db.execute("CREATE TABLE stays (age real, died integer)")
        db.execute("INSERT INTO stays VALUES (70, 1)")
    db.close()
    return tmp_path / "ward.db"


@pytest.fixture
def duck(tmp_path: Path) -> Path:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "ward.duckdb")) as db:
        db.execute("CREATE TABLE stays (age DOUBLE, died INTEGER)")
        db.execute("INSERT INTO stays VALUES (70, 1)")
    return tmp_path / "ward.duckdb"


@pytest.mark.parametrize("query", SEVERAL)
def test_one_select_is_run_on_a_duckdb_file_and_nothing_else(duck: Path, query: str) -> None:
    before = duck.read_bytes()
    refuse_query(f"duckdb:///{duck}", query.format(mark=duck.parent / "mark"))
    assert [p.name for p in duck.parent.iterdir()] == ["ward.duckdb"]
    assert duck.read_bytes() == before


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT content FROM read_text('{secret}')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/a.csv')",
        "SELECT * FROM sqlite_scan('{secret}', 'stays')",
        "SELECT * FROM postgres_scan('host=127.0.0.1 port=1', 'public', 'stays')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{secret}.copy''')",
    ],
)
def test_a_query_on_duckdb_opens_no_other_file_and_no_address(duck: Path, query: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nhidden\n")
    with refused("database-error") as caught:
        read_table(f"duckdb:///{duck}", query=query.format(secret=secret))
    assert "hidden" not in str(caught.value)
    assert not (tmp_path / "secret.csv.copy").exists()


@pytest.mark.parametrize("query", SEVERAL)
def test_one_select_is_run_on_sqlite_and_nothing_else(sqlite: Path, query: str) -> None:
    before = sqlite.read_bytes()
    refuse_query(f"sqlite:///{sqlite}", query.format(mark=sqlite.parent / "mark"))
    assert [p.name for p in sqlite.parent.iterdir()] == ["ward.db"]
    assert sqlite.read_bytes() == before


def test_a_query_on_sqlite_loads_no_extension_and_reads_no_settings(sqlite: Path) -> None:
    for query in ("SELECT load_extension('/no/such.so')", "SELECT * FROM pragma_database_list"):
        refuse_query(f"sqlite:///{sqlite}", query)
    several = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i, upper('a') AS w FROM n"
    assert read_table(f"sqlite:///{sqlite}", query=several).columns["i"].tolist() == [1.0, 2.0, 3.0]


def test_rows_of_a_query_without_an_end_are_refused_at_the_limit_of_a_table(sqlite: Path, monkeypatch) -> None:
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "20M")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
    for columns in ("i", "i, hex(zeroblob(1000)) AS text"):
        with refused("unpacks-too-large"):
            read_table(f"sqlite:///{sqlite}", query=endless.format(columns))


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:///file:{new}?mode=rwc&uri=true",
        "sqlite:///file:{new}",
        "sqlite://",
        "sqlite:///:memory:",
        "duckdb://",
        "duckdb:///:memory:",
        "duckdb:///{old}?access_mode=read_write",
        "duckdb:///{old}?enable_external_access=true",
    ],
)
def test_an_address_of_a_database_file_has_no_options_and_makes_no_file(duck: Path, address: str, tmp_path: Path) -> None:
    with refused("invalid-url"):
        read_table(address.format(new=tmp_path / "new.db", old=duck), query="SELECT 1 AS a")
    assert [p.name for p in tmp_path.iterdir()] == ["ward.duckdb"]


def test_one_query_cannot_leave_the_read_only_transaction_of_postgresql(postgres: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(postgres)
    with engine.begin() as db:
        db.exec_driver_sql("CREATE TABLE IF NOT EXISTS stays (age real, died integer)")
        db.exec_driver_sql("DELETE FROM stays")
        db.exec_driver_sql("INSERT INTO stays VALUES (70, 1)")
    address = postgres.replace("+psycopg", "")
    leaving = (
        "SELECT 1 AS a; COMMIT; DROP TABLE stays; SELECT 1 AS a",
        "SELECT 1 AS a; COMMIT; BEGIN READ WRITE; INSERT INTO stays VALUES (1, 1); COMMIT; SELECT 1 AS a",
        "SELECT 1 AS a; ROLLBACK; COPY (SELECT 1) TO PROGRAM 'touch /tmp/grandrounds-mark'; SELECT 1 AS a",
    )
    for query in (*SEVERAL, *leaving):
        refuse_query(address, query.format(mark="/tmp/grandrounds-mark"))
    for query in (
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SELECT * INTO copied FROM stays",
        "SELECT query_to_xml('DROP TABLE stays', true, true, '')",
    ):
        refuse_query(address, query)
    words = read_table(address, query="SELECT age, died, '50%' AS share, ':name' AS word FROM stays").columns
    assert (words["share"][0], words["word"][0]) == ("50%", ":name")
    read_table(address, query="SELECT lo_create(0) AS object")  # rolled back
    with engine.begin() as db:
        assert db.exec_driver_sql("SELECT count(*) FROM stays").scalar() == 1
        assert db.exec_driver_sql("SELECT count(*) FROM pg_largeobject_metadata").scalar() == 0
    engine.dispose()
    assert not Path("/tmp/grandrounds-mark").exists()
