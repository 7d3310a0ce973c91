"""Tables from a database by a SQL URL. Messages never hold a user name or a password.

A query may come from a plan that somebody else wrote, so the database's own parser decides that it is one SELECT before it is
run: DuckDB by its list of statements, SQLite by its authorizer, PostgreSQL by a cursor. DuckDB opens no other file and no
address, SQLite and PostgreSQL do not write.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core import redact
from grandrounds.core.errors import BadInput, install_extra, nearest
from grandrounds.data.limits import OBJECT_CELL, check_table, check_text
from grandrounds.data.table import Table, check_names, to_column

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection, CursorResult, Engine

_IDENTIFIER = re.compile(r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)?")
_READING = re.compile(r"\s*\(*\s*(?:select|with)\b", re.IGNORECASE)
_HARMLESS = ("user", "password", "passwd", "pwd", "token", "ssl", "sslmode", "charset", "driver", "connect_timeout")
"""Options of a URL that do not change where it leads."""

_ROWS = 20_000  # rows that are fetched at a time
_IN_FILES = ("sqlite", "duckdb")
_DUCKDB = {
    "enable_external_access": "false", "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
    "lock_configuration": "true",
}  # fmt: skip
"""Settings of a DuckDB connection: it reads its own file and nothing else, and no statement changes that."""
_CURSOR = "rounds_rows"
_OPEN_CURSOR = (
    f"DO $$ DECLARE place refcursor := '{_CURSOR}'; BEGIN OPEN place FOR EXECUTE current_setting('grandrounds.query'); END $$"
)
"""PostgreSQL opens a cursor for one SELECT only, and the text of the query is a value here, not a part of the statement."""
_BAD_CURSOR = "42P11"
"""SQLSTATE of a query that is several statements, or not a SELECT."""
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

_PACKAGES = {"psycopg": "'psycopg[binary]'", "MySQLdb": "mysqlclient"}


@dataclass(frozen=True)
class Database:
    """An opened database.

    Attributes:
        engine: Its connections.
        url: The address, with its password.
        name: The address without user, password or options, for messages.
        schema: The option `schema` of the address, "" without one.
    """

    engine: Engine
    url: URL
    name: str
    schema: str = ""

    @contextmanager
    def connect(self, *, setting: str) -> Iterator[Connection]:
        """Open a connection that cannot write; what the driver reports is one sentence without a password.

        Args:
            setting: The setting to check, for messages.

        Raises:
            BadInput: The database did not answer.
        """
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self.engine.connect() as connection:
                if connection.dialect.name == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("PRAGMA query_only = ON")
                yield connection
                connection.rollback()
        except SQLAlchemyError as error:
            reason = _driver_message(error, url=self.url)
            raise BadInput(
                f"{self.name} did not answer: {reason}; check the URL and {setting}", code="database-error"
            ) from None


def open_database(address: str) -> Database:
    """Open a database by its URL, without a connection yet.

    Args:
        address: The URL; an option `schema` in it is taken out.

    Returns:
        The database; dispose of its engine at the end.

    Raises:
        BadInput: The URL, its driver or its file is at fault.
    """
    try:
        import sqlalchemy as sa
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError:
        raise BadInput(
            "reading a database needs SQLAlchemy; run: pip install sqlalchemy", code="missing-package"
        ) from None
    scheme = address.split("://", 1)[0]
    try:
        url = sa.make_url(address)
        schema = url.query.get("schema", "")
        url = _with_password(url.difference_update_query(["schema"]))
        source = _public_name(url)
        _check_file(url, source=source)
        options: dict[str, Any] = {}
        if url.get_backend_name() == "duckdb":
            options = {"connect_args": {"read_only": True, "config": _DUCKDB}}
        if url.drivername == "postgresql" and find_spec("psycopg2") is None and find_spec("psycopg") is not None:
            url = url.set(drivername="postgresql+psycopg")  # the driver that the extra installs
        engine = sa.create_engine(url, **options)
    except (ArgumentError, NoSuchModuleError, ValueError, TypeError) as error:
        if isinstance(error, NoSuchModuleError) and scheme.startswith("duckdb"):
            raise BadInput(
                f"the database driver for duckdb:// is not installed; {install_extra('databases')}",
                code="missing-package",
            ) from None
        raise BadInput(
            f"the {scheme}:// address is not a database URL that can be read; give a file, or a URL such as "
            "sqlite:///x.db or postgresql://user@host/name (write @ : / in a password as %40 %3A %2F)",
            code="invalid-url",
        ) from None
    except ImportError as error:
        package = _PACKAGES.get(error.name or "", error.name or scheme)
        install = install_extra("databases") if package == "psycopg2" else f"run: pip install {package}"
        raise BadInput(f"the database driver for {scheme}:// is not installed; {install}", code="missing-package") from None
    return Database(engine, url, source, schema if isinstance(schema, str) else "")


def read_sql(address: str, *, query: str | None) -> Table:
    """Read the rows of one SELECT or one table; nothing is ever written and the password is never shown."""
    database = open_database(address)
    source = database.name
    try:
        with database.connect(setting="data.query") as connection:
            names, rows = _select(connection, query=query, source=source)
    finally:
        database.engine.dispose()
    if not rows:
        raise BadInput(f"{source} returned no rows; check data.query", code="empty-table")
    cells = zip(*rows, strict=True)
    return Table({n: to_column(column, name=n, source=source) for n, column in zip(names, cells, strict=True)}, source)


def _select(connection: Connection, *, query: str | None, source: str) -> tuple[list[str], list[Any]]:
    """Run the query inside a transaction that is rolled back, and read its rows within the limits of a table."""
    import sqlalchemy as sa

    wanted = (query or "").strip().rstrip(";")
    if _READING.match(wanted):
        fetch = _run_select(connection, wanted, source=source)
    elif wanted and not _IDENTIFIER.fullmatch(wanted) and " " in wanted:
        raise _not_a_select(source)
    else:
        inspector = sa.inspect(connection)
        schema, _, name = wanted.rpartition(".") if _IDENTIFIER.fullmatch(wanted) else ("", "", wanted)
        tables = sorted(inspector.get_table_names(schema or None) + inspector.get_view_names(schema or None))
        if not wanted and len(tables) == 1:
            name = tables[0]
        if not tables:
            raise BadInput(f"{source} holds no tables; check the URL", code="no-tables")
        if name not in tables:
            problem = f"table '{wanted}' not found in" if wanted else "no table chosen in"
            raise BadInput(f"{problem} {source}; {nearest(name, tables)} (use data.query)", code="unknown-table")
        table = sa.table(name, schema=schema or None)
        chosen = connection.execution_options(stream_results=True).execute(sa.select(sa.text("*")).select_from(table))
        fetch = partial(_fetch, chosen)
    names, batch = fetch()
    check_names(names, source=source)
    rows: list[Any] = []
    while batch:
        rows += batch
        check_table(len(rows), len(names), where=source, cell=OBJECT_CELL)
        check_text(sum(len(cell) for row in batch for cell in row if isinstance(cell, str)), where=source)
        names, batch = fetch()
    return names, rows


def _fetch(result: CursorResult[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of columns, and the next rows."""
    return list(map(str, result.keys())), list(result.fetchmany(_ROWS))


def _run_select(connection: Connection, query: str, *, source: str) -> Callable[[], tuple[list[str], list[Any]]]:
    """Run a query of which the database itself says that it is one SELECT. No ':name' or '%' in it is a parameter.

    Returns:
        A function that returns the names of columns and the next rows.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import DBAPIError

    backend = connection.dialect.name
    driver: Any = connection.connection.driver_connection
    as_written = connection.execution_options(no_parameters=True)
    if backend == "duckdb":
        import duckdb

        try:
            statements = driver.extract_statements(query)
        except duckdb.Error as error:
            raise BadInput(
                f"data.query for {source} is not SQL that DuckDB reads: {_first_line(error)}", code="not-a-select"
            ) from None
        if [s.type for s in statements] != [duckdb.StatementType.SELECT]:
            raise _not_a_select(source)
        return partial(_fetch, as_written.exec_driver_sql(query))
    if backend == "sqlite":
        driver.set_authorizer(_authorize_reading)
        try:
            return partial(_fetch, as_written.exec_driver_sql(query))
        except sqlite3.Warning:  # several statements, before Python 3.12
            raise _not_a_select(source) from None
        except DBAPIError as error:
            several = isinstance(error.orig, sqlite3.ProgrammingError)
            if several or getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
                raise _not_a_select(source) from None
            raise
        finally:
            driver.set_authorizer(None)
    if backend == "postgresql":
        connection.execute(sa.text("SELECT set_config('grandrounds.query', :query, true)"), {"query": query})
        try:
            as_written.exec_driver_sql(_OPEN_CURSOR)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _BAD_CURSOR or getattr(error.orig, "pgcode", None) == _BAD_CURSOR:
                raise _not_a_select(source) from None
            raise
        return lambda: _fetch(as_written.exec_driver_sql(f"FETCH FORWARD {_ROWS} FROM {_CURSOR}"))
    raise BadInput(
        f"data.query for {source} is a SELECT, and only SQLite, DuckDB and PostgreSQL run one here; name a table or a view",
        code="query-not-supported",
    )


def _authorize_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Let SQLite read tables and call functions, except those that load code."""
    loads = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in ("load_extension", "fts3_tokenizer")
    return sqlite3.SQLITE_OK if action in _READS and not loads else sqlite3.SQLITE_DENY


def _not_a_select(source: str) -> BadInput:
    return BadInput(
        f"data.query for {source} is not one SELECT; give a single SELECT or the name of a table", code="not-a-select"
    )


def _with_password(url: URL) -> URL:
    """Take the password from the environment for a URL from a plan or a run folder, which has none."""
    if redact.HIDDEN not in (url.password, *url.query.values()):
        return url
    word = redact.password()
    if word is None:
        raise BadInput(
            f"the database URL was stored without its password: set {redact.VARIABLE} and try again",
            code="missing-password",
        )
    _refuse_other_host(url)
    query = {k: word if v == redact.HIDDEN else v for k, v in url.query.items()}
    return url.set(password=word if url.password == redact.HIDDEN else url.password, query=query)


def _refuse_other_host(url: URL) -> None:
    """Send the password to the host that the user named for it, never to one that only a plan names."""
    if url.get_backend_name() in _IN_FILES:  # a file: nothing is sent
        return
    odd = next((key for key in url.query if key.lower() not in _HARMLESS), None)
    if odd is not None:
        raise BadInput(
            f"{_public_name(url)} has the option '{odd}', by which a password could go elsewhere: give the whole URL",
            code="unsafe-url",
        )
    if not redact.is_for(url.host or "", url.port):
        raise BadInput(
            f"{_public_name(url)} was named by a plan or a run folder, and {redact.VARIABLE} is sent to no host but your own: "
            f"if it is, set {redact.HOST}={url.host or 'HOST'}",
            code="password-withheld",
        )


def _public_name(url: URL) -> str:
    """Write a database address without user, password or options."""
    host = (url.host or "") + (f":{url.port}" if url.port else "")
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def _check_file(url: URL, *, source: str) -> None:
    """Refuse a database file that is not there, since SQLite would create it, and options, which may create or change one."""
    if url.get_backend_name() not in _IN_FILES:
        return
    name = str(url.database or "")
    if url.query or name in ("", ":memory:") or name.startswith("file:"):
        raise BadInput(
            f"{source} does not name a database file alone; write {url.get_backend_name()}:///folder/name.db without options",
            code="invalid-url",
        )
    path = Path(name).expanduser()
    if path.is_file():
        return
    try:
        databases = sorted(
            p.name for p in path.parent.iterdir() if p.suffix in (".db", ".sqlite", ".sqlite3", ".duckdb")
        )
    except OSError:
        databases = []
    hint = nearest(path.name, databases) if databases else "there is no database in that folder; check the path"
    raise BadInput(f"database file of {source} not found; {hint}", code="file-not-found")


def _driver_message(error: Exception, *, url: URL) -> str:
    """Take the first line of the driver's message, unless it repeats a secret."""
    line = _first_line(getattr(error, "orig", None) or error)
    secrets = [str(url.password or ""), *(str(value) for value in url.query.values())]
    return type(error).__name__ if any(secret and secret in line for secret in secrets) else line


def _first_line(error: object) -> str:
    """Return the first line of an error's message, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
