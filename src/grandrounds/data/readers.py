"""From a file or a database to a `Table`, or to one sentence that says why not.

CSV cells carry no types, so types are read from the content, strictly: a column is numeric only if
every cell is a finite number, and codes such as "007" stay text. Parquet and SQL carry types, and
those are kept.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.table import EXACT, Table, check_names, column_of, is_number, numbers_of
from grandrounds.errors import BadInput, nearest

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection

# "None" is not here: in some tables it is a category ("no treatment given").
DEFAULT_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")

_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".data", ".data.gz")
_PARQUET = (".parquet", ".pq")
_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_ROWS = 50
_SAMPLE_CHARS = 200_000
_BATCH_ROWS = 1000
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)?")
_READING = re.compile(r"\s*\(*\s*(?:select|with)\b", re.IGNORECASE)
_MAGIC = {
    b"\x1f\x8b": "it is gzip: name it .csv.gz",
    b"PAR1": "it is Parquet: name it .parquet",
    b"PK\x03\x04": "it is an Excel or zip file: save the sheet as CSV (UTF-8)",
    b"\xff\xfe": "it is UTF-16: save it as CSV (UTF-8)",
    b"\xfe\xff": "it is UTF-16: save it as CSV (UTF-8)",
}
_PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}


def read_table(
    where: str | Path,
    *,
    query: str | None = None,
    missing: Sequence[str] = DEFAULT_MISSING,
    sep: str | None = None,
    names: Sequence[str] | None = None,
) -> Table:
    """Read a CSV, TSV or Parquet file, or a SQL database, into a table.

    `query` is a SELECT or a table name and belongs to a database URL; `missing` lists the cells that
    stand for "no value" (numbers such as "-999" match by value); `sep` overrides the sniffed
    delimiter; `names` are the column names of a text file that has no header line.
    """
    marks = frozenset(word.strip() for word in missing)
    if isinstance(where, str) and _URL.match(where):
        return _mark_missing(_read_sql(where, query=query), marks=marks)
    source = str(where)
    if query is not None:
        raise BadInput(f"data.query is set but {source} is a file; remove the query or give a database URL")
    raw = _read_bytes(Path(where), source=source)
    if source.lower().endswith(_PARQUET):
        return _mark_missing(_read_parquet(raw, source=source), marks=marks)
    if source.lower().endswith(".gz"):
        raw = _gunzip(raw, source=source)
    return _read_text(_decode(raw, source=source), source=source, marks=marks, sep=sep, names=names)


# --- files ---------------------------------------------------------------------------------------


def _read_bytes(path: Path, *, source: str) -> bytes:
    """The content of a file of a known type, or what is wrong with its name."""
    try:
        path = path.expanduser()
        if path.is_dir():
            raise BadInput(f"{source} is a folder, not a file; name a table in it, {_tables_in(path)}")
        if not path.exists():
            raise BadInput(f"file {source} not found; {_tables_in(path.parent, path.name)}")
        if not path.name.lower().endswith(_TEXT + _PARQUET):
            known = ", ".join(_TEXT + _PARQUET)
            raise BadInput(f"file type of {source} is not known; save the table as one of {known}")
        raw = path.read_bytes()
    except PermissionError:
        raise BadInput(f"{source} cannot be read: permission denied; ask its owner for read access") from None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~nobody
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise BadInput(f"{source} cannot be read: {reason}; check the path") from None
    if not raw:
        raise BadInput(f"{source} is empty (0 bytes); give a table with a header and at least one row")
    return raw


def _tables_in(folder: Path, word: str = "") -> str:
    """The tables of a folder as a clause, with the nearest to `word`."""
    try:
        found = sorted(p.name for p in folder.iterdir() if p.name.lower().endswith(_TEXT + _PARQUET))
    except OSError:
        return "its folder does not exist or cannot be listed; check the path"
    return nearest(word, found) if found else "there is no table in that folder; check the path"


def _gunzip(raw: bytes, *, source: str) -> bytes:
    """The unpacked content of a gzip file."""
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error):
        raise BadInput(
            f"{source} is not a complete gzip file; copy it again, or name it .csv if it is not compressed"
        ) from None


def _read_parquet(raw: bytes, *, source: str) -> Table:
    """A Parquet file with its own types."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise BadInput(f"reading {source} needs pyarrow; run: pip install pyarrow") from None
    try:
        content = pq.ParquetFile(io.BytesIO(raw)).read()
    except (pa.ArrowException, OSError, ValueError):
        raise BadInput(f"{source} is not a complete Parquet file; write or copy it again") from None
    # pandas writes an unnamed index under this name
    names = ["index" if name == "__index_level_0__" else name for name in content.column_names]
    check_names(names, source=source)
    if content.num_rows == 0:
        raise BadInput(f"{source} has no rows; give a table with at least one row")
    columns = {
        name: _arrow_column(values, name=name, source=source)
        for name, values in zip(names, content.columns, strict=True)
    }
    return Table(columns, source)


def _arrow_column(values: Any, *, name: str, source: str) -> Array:
    """One Arrow column: floats and small integers directly, the rest value by value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    simple = pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if pa.types.is_integer(kind):
        ends = pc.min_max(values).as_py()
        simple = max(abs(ends["min"] or 0), abs(ends["max"] or 0)) <= EXACT
    if simple:
        return np.array(values.cast(pa.float64()).to_numpy(), dtype=np.float64)
    return column_of(values.to_pylist(), name=name, source=source)


# --- text ----------------------------------------------------------------------------------------


def _decode(raw: bytes, *, source: str) -> str:
    """Bytes as UTF-8 text; another encoding is refused, as guessing would corrupt names silently."""
    hint = next((hint for magic, hint in _MAGIC.items() if raw.startswith(magic)), "")
    if not hint and b"\0" not in raw:
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise BadInput(
                f"{source} is not UTF-8 text (line {line}); it may be Latin-1 or Windows-1252: save it as CSV (UTF-8)"
            ) from None
    raise BadInput(f"{source} is binary, not text; {hint or 'save the table as CSV (UTF-8)'}")


def _read_text(text: str, *, source: str, marks: frozenset[str], sep: str | None, names: Sequence[str] | None) -> Table:
    """A delimited text as a table, a batch of rows at a time so that the cells are still in cache."""
    if sep is not None and (len(sep) != 1 or sep in '"\r\n'):
        raise BadInput(f"separator {sep!r} for {source} is not one character; use one of , ; | or a tab")
    delimiter = sep or _sniff(text, default="\t" if ".tsv" in source.lower() else ",")
    rows = _rows(text, delimiter=delimiter, source=source)
    if names is None:
        first = next(rows, None)
        if first is None:
            raise BadInput(f"{source} is empty (only blank lines); give a table with a header and rows")
        header = _header(first[1], source=source, marks=marks)
    else:
        header = list(names)
        check_names(header, source=source)
    columns = [_Cells(marks) for _ in header]
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        for line, row in batch:
            if len(row) != len(header):
                raise BadInput(
                    f"line {line} of {source} has {len(row)} cells where the header has {len(header)}; "
                    "fix that line, or quote cells that hold the separator"
                )
        for column, cells in zip(columns, zip(*(row for _, row in batch), strict=True), strict=True):
            column.add(cells)
    if not columns[0]:
        raise BadInput(f"{source} has a header but no rows; give a table with at least one row")
    return Table({name: column.done() for name, column in zip(header, columns, strict=True)}, source)


def _reader(text: str, *, delimiter: str, strict: bool) -> Any:
    return csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != " ", strict=strict
    )


def _sniff(text: str, *, default: str) -> str:
    """The delimiter that cuts the first lines evenly, and the header into most columns."""
    best, best_score = default, (False, 1, False)
    for delimiter in _DELIMITERS:
        try:
            sample = _reader(text[:_SAMPLE_CHARS], delimiter=delimiter, strict=False)
            widths = [len(row) for row in itertools.islice(filter(None, sample), _SAMPLE_ROWS)]
        except csv.Error:
            continue
        if not widths or widths[0] == 1:
            continue
        score = (len(set(widths)) == 1, widths[0], delimiter == default)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _rows(text: str, *, delimiter: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Every row and its line, without blank lines; in a table of one column only "" is a missing cell."""
    reader = _reader(text, delimiter=delimiter, strict=True)
    narrow = False
    try:
        for row in reader:
            if row and (len(row) > 1 or narrow or row[0].strip()):
                yield reader.line_num, row
                narrow = narrow or (len(row) == 1)
    except csv.Error as error:
        raise BadInput(
            f"line {reader.line_num} of {source} cannot be read as CSV ({error}); "
            'look for a quote (") that is not closed or not doubled'
        ) from None


def _header(cells: list[str], *, source: str, marks: frozenset[str]) -> list[str]:
    """Column names; one may be empty (a data frame's index), two may not."""
    names = [cell.strip() for cell in cells]
    numeric = [is_number(name) for name in names]
    if all(n or name in marks for n, name in zip(numeric, names, strict=True)) and any(numeric):
        whole = all(name.isdigit() for name in names)
        if not whole or len(set(names)) < len(names):
            raise BadInput(f"line 1 of {source} holds values, not column names; add a header line with the names")
    empty = [position for position, name in enumerate(names) if not name]
    if len(empty) > 1:
        raise BadInput(f"columns {empty[0] + 1} and {empty[1] + 1} of {source} have no name; name them in the header")
    for position in empty:
        free = position == 0 and "index" not in names
        names[position] = "index" if free else f"column {position + 1}"
    check_names(names, source=source)
    return names


class _Words(dict[str, "str | None"]):
    """Each distinct cell cleaned once: most text columns of a clinical table hold few."""

    def __init__(self, marks: frozenset[str]) -> None:
        super().__init__()
        self.marks = marks

    def __missing__(self, cell: str) -> str | None:
        word = cell.strip()
        self[cell] = kept = None if word in self.marks else word
        return kept


class _Cells:
    """One column in the making: numbers until a cell is not one, text from then on."""

    def __init__(self, marks: frozenset[str]) -> None:
        self.marks = marks
        self.words = _Words(marks)
        self.numeric = True
        self.floats: list[Array] = []
        self.cells: list[str] = []  # batches as read, one string each, in case the column is text
        self.texts: list[str | None] = []

    def __bool__(self) -> bool:
        return bool(self.floats or self.texts)

    def add(self, cells: Sequence[str]) -> None:
        """The next batch of cells."""
        floats = self._floats(cells) if self.numeric else None
        if floats is not None:
            self.floats.append(floats)
            self.cells.append("\0".join(cells))
            return
        if self.numeric:
            self.numeric = False
            for earlier in self.cells:
                self.texts.extend(map(self.words.__getitem__, earlier.split("\0")))
            self.cells.clear()
        self.texts.extend(map(self.words.__getitem__, cells))

    def done(self) -> Array:
        """The whole column."""
        if self.numeric:
            return _without_marks(np.concatenate(self.floats), marks=self.marks)
        out = np.empty(len(self.texts), dtype=object)
        out[:] = self.texts
        return out

    def _floats(self, cells: Sequence[str]) -> Array | None:
        """The batch as numbers with NaN for missing, or None."""
        floats = numbers_of(cells)
        if floats is not None:
            return floats
        stripped = list(map(str.strip, cells))
        here = ~np.fromiter(map(self.marks.__contains__, stripped), bool, len(cells))
        numbers = numbers_of(list(itertools.compress(stripped, here)))
        if numbers is None:
            return None
        out = np.full(len(cells), np.nan)
        out[here] = numbers
        return out


def _without_marks(floats: Array, *, marks: frozenset[str]) -> Array:
    """NaN where a number is itself a mark for missing, such as -999."""
    numbers = [float(mark) for mark in marks if is_number(mark)]
    return np.where(np.isin(floats, numbers), np.nan, floats) if numbers else floats


def _mark_missing(table: Table, *, marks: frozenset[str]) -> Table:
    """The same marks for missing in a source that has types: text is stripped and compared."""
    columns: dict[str, Array] = {}
    for name, values in table.columns.items():
        if values.dtype == np.float64:
            columns[name] = _without_marks(values, marks=marks)
            continue
        kept = {cell: None if cell is None or cell.strip() in marks else cell.strip() for cell in set(values)}
        columns[name] = np.empty(len(values), dtype=object)
        columns[name][:] = [kept[cell] for cell in values]
        if all(cell is None for cell in kept.values()):
            columns[name] = np.full(len(values), np.nan)
    return Table(columns, table.source)


# --- databases -----------------------------------------------------------------------------------


def _read_sql(address: str, *, query: str | None) -> Table:
    """The rows of one SELECT or one table; nothing is ever written and the password is never shown."""
    try:
        import sqlalchemy as sa
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
    except ImportError:
        raise BadInput("reading a database needs SQLAlchemy; run: pip install sqlalchemy") from None
    scheme = address.split("://", 1)[0]
    try:
        url = sa.make_url(address)
        source = _public_name(url)
        _check_sqlite(url, source=source)
        engine = sa.create_engine(url)
    except (ArgumentError, NoSuchModuleError, ValueError, TypeError):
        raise BadInput(
            f"the {scheme}:// address is not a database URL that can be read; give a file, or a URL such as "
            "sqlite:///x.db or postgresql://user@host/name (write @ : / in a password as %40 %3A %2F)"
        ) from None
    except ImportError as error:
        package = _PACKAGES.get(error.name or "", error.name or scheme)
        raise BadInput(f"the database driver for {scheme}:// is not installed; run: pip install {package}") from None
    try:
        with engine.connect() as connection:
            names, rows = _select(connection, query=query, source=source)
    except SQLAlchemyError as error:
        reason = _reason(error, url=url)
        raise BadInput(f"{source} did not answer: {reason}; check the URL and data.query") from None
    finally:
        engine.dispose()
    check_names(names, source=source)
    if not rows:
        raise BadInput(f"{source} returned no rows; check data.query")
    cells = zip(*rows, strict=True)
    return Table({n: column_of(column, name=n, source=source) for n, column in zip(names, cells, strict=True)}, source)


def _select(connection: Connection, *, query: str | None, source: str) -> tuple[list[str], list[Any]]:
    """Run the query inside a transaction that is rolled back."""
    import sqlalchemy as sa

    if connection.dialect.name == "postgresql":
        connection = connection.execution_options(postgresql_readonly=True)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA query_only = ON")
    wanted = (query or "").strip().rstrip(";")
    if _READING.match(wanted):
        # as written: no ':name' or '%' in it is taken for a parameter
        result = connection.execution_options(no_parameters=True).exec_driver_sql(wanted)
    elif wanted and not _IDENTIFIER.fullmatch(wanted) and " " in wanted:
        raise BadInput(f"data.query for {source} is not a SELECT; give a SELECT or the name of a table")
    else:
        inspector = sa.inspect(connection)
        schema, _, name = wanted.rpartition(".") if _IDENTIFIER.fullmatch(wanted) else ("", "", wanted)
        known = sorted(inspector.get_table_names(schema or None) + inspector.get_view_names(schema or None))
        if not wanted and len(known) == 1:
            name = known[0]
        if not known:
            raise BadInput(f"{source} holds no tables; check the URL")
        if name not in known:
            what = f"table '{wanted}' not found in" if wanted else "no table chosen in"
            raise BadInput(f"{what} {source}; {nearest(name, known)} (use data.query)")
        table = sa.table(name, schema=schema or None)
        result = connection.execute(sa.select(sa.text("*")).select_from(table))
    names = list(map(str, result.keys()))
    rows = list(result.fetchall())
    connection.rollback()
    return names, rows


def _public_name(url: URL) -> str:
    """A database address without user, password or options."""
    host = (url.host or "") + (f":{url.port}" if url.port else "")
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def _check_sqlite(url: URL, *, source: str) -> None:
    """SQLite would create a file that is not there."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return
    path = Path(str(url.database)).expanduser()
    if str(url.database).startswith("file:") or path.is_file():
        return
    try:
        found = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".db", ".sqlite", ".sqlite3"))
    except OSError:
        found = []
    hint = nearest(path.name, found) if found else "there is no database in that folder; check the path"
    raise BadInput(f"database file of {source} not found; {hint}")


def _reason(error: Exception, *, url: URL) -> str:
    """The first line of the driver's message, unless it repeats a secret."""
    said = str(getattr(error, "orig", None) or error).strip().splitlines()
    line = said[0][:200] if said else type(error).__name__
    secrets = [str(url.password or ""), *(str(value) for value in url.query.values())]
    return type(error).__name__ if any(secret and secret in line for secret in secrets) else line
