"""Readers of tables: CSV, Parquet, Excel, files of statistics packages and SQL databases.

CSV cells carry no types, so types are read from the content, strictly: a column is numeric only if
every cell is a finite number, and codes such as "007" stay text. Formatted numbers ("1,5", "45%", "<5")
are read where the column or the file settles how they are written (`formats`). Parquet and SQL carry
types, and those are kept.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, open_file, refuse_bomb
from grandrounds.core.capability import collect, find, load
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import DataSettings
from grandrounds.data.formats import DEFAULT_MISSING, Format
from grandrounds.data.limits import check_file
from grandrounds.data.parquet_file import read_parquet
from grandrounds.data.spreadsheets import EXCEL, UNREADABLE, read_excel, refuse_spreadsheet
from grandrounds.data.table import Table, without_marks
from grandrounds.data.text_file import decode_text, read_text

# "None" is not here: in some tables it is a category ("no treatment given").
# "." is how SAS and Stata write it, "#NV" is German Excel's "#N/A".

TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".data", ".data.gz")
PARQUET = (".parquet", ".pq")

_PIECE = 2**20  # bytes that are unpacked at a time
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")


def table_endings() -> tuple[str, ...]:
    """List the endings of files that are read as tables."""
    return (*TEXT, *PARQUET, *EXCEL, *(name for name in collect("readers") if name.startswith(".")))


def find_reader(name: str) -> Callable[..., Any]:
    """Import the reader of a file, an address or a section of a plan from the capability that has it (`Capability.readers`).

    Raises:
        BadInput: No installed capability has it.
    """
    reader: Callable[..., Any] = find("readers", name, what=f"'{name.partition(' ')[0]}' is to be read")
    return reader


def lists_scans(table: Table, folder: str | Path, *, file: str) -> bool:
    """Tell whether a table lists DICOM or NIfTI files; without a capability that reads them none does."""
    path = collect("readers").get("data.scan manifest")
    return path is not None and bool(load(path)(table, folder, file=file))


def read_table(
    where: str | Path,
    *,
    query: str | None = None,
    missing: Sequence[str] = DEFAULT_MISSING,
    sep: str | None = None,
    names: Sequence[str] | None = None,
    form: Format = Format(),  # noqa: B008 (a frozen value)
    kinds: Mapping[str, object] | None = None,
    keep: Collection[str] = (),
) -> Table:
    """Read a file or a SQL database into a table; `reading` of it says what was assumed.

    Args:
        where: A file (`table_endings`), or a database URL.
        query: A SELECT or a table name, for a database URL.
        missing: Cells that mean "no value" (numbers such as "-999" match by value).
        sep: The separator of a text file (default: as `form` says).
        names: The column names of a text file that has no header line.
        form: How the text is written; what it leaves at "auto" is recognised.
        kinds: Kinds of columns that are known: "numeric" ones are numbers in some format, "categorical" ones stay text.
        keep: Columns whose text is never read as formatted numbers, such as the label.
    """
    marks = frozenset(word.strip() for word in missing)
    if isinstance(where, str) and _URL.match(where):
        return _mark_missing(find_reader("://")(where, query=query), marks=marks)
    source = str(where)
    if query is not None:
        raise BadInput(
            f"data.query is set but {source} is a file; remove the query or give a database URL",
            code="conflicting-settings",
        )
    raw = _read_bytes(Path(where), source=source)
    ending = source.lower()
    if form.sheet is not None and not ending.endswith(EXCEL):
        raise BadInput(
            f"data.sheet is '{form.sheet}' but {source} is no Excel workbook; leave --sheet out", code="conflicting-settings"
        )
    if ending.endswith(EXCEL):
        return read_excel(raw, source=source, marks=marks, form=form, kinds=kinds, keep=keep)
    for name in collect("readers"):
        if name.startswith(".") and ending.endswith(name):
            table: Table = find_reader(name)(raw, source=source, marks=marks, form=form, kinds=kinds)
            return table
    if source.lower().endswith(PARQUET):
        return read_parquet(raw, source=source, marks=marks)
    if source.lower().endswith(".gz"):
        raw = _gunzip(raw, source=source)
    text = decode_text(raw, source=source, encoding=form.text_encoding)
    del raw
    form = form if sep is None else replace(form, separator=sep)
    return read_text(text, source=source, marks=marks, form=form, names=names, kinds=kinds, keep=keep)


def table_format(settings: DataSettings) -> Format:
    """Read the text format from [data] of a plan."""
    return Format(settings.decimal, settings.text_encoding, settings.separator, settings.censored, sheet=settings.sheet)


def read_plan_table(
    settings: DataSettings, where: str | Path | None = None, *, query: str | None = None, pending: bool = False
) -> Table:
    """Read the table that [data] of a plan names, or another (`where`) in the way that the plan says.

    Args:
        settings: The section [data] of a plan. With `cohort`, clinical records give the cohort's table.
        where: Another table or other records.
        query: A SELECT or a table name, for `where`.
        pending: Of a cohort: also take visits whose outcome is not known yet.

    Returns:
        The table.

    Raises:
        BadInput: It cannot be read.
    """
    roles = [settings.label, settings.site, settings.patient]
    place = settings.table if where is None else where
    assert place is not None, "an experiment names a set or a table"
    query = settings.query if where is None else query
    if settings.cohort is not None:
        table: Table | None = find_reader("data.cohort")(settings.cohort.plain(), place, query=query, pending=pending)
        if table is not None:
            return table
    return read_table(
        place,
        query=query,
        missing=settings.missing,
        form=table_format(settings),
        kinds=settings.kinds.plain(),
        keep=[name for name in roles if name is not None],
    )


def _read_bytes(path: Path, *, source: str) -> bytes:
    """Read a file of a known type, or refuse its name."""
    try:
        path = path.expanduser()
        if path.is_dir():
            raise BadInput(
                f"{source} is a folder, not a file; name a table in it, {_tables_in(path)}", code="not-a-file"
            )
        if not path.exists():
            raise BadInput(f"file {source} not found; {_tables_in(path.parent, path.name)}", code="file-not-found")
        if path.name.lower().endswith(UNREADABLE):
            raise refuse_spreadsheet(source)
        if not path.name.lower().endswith(table_endings()):
            raise BadInput(
                f"file type of {source} is not known; save the table as one of {', '.join(table_endings())}",
                code="unknown-file-type",
            )
        with os.fdopen(open_file(path, links=True), "rb") as f:
            check_file(os.fstat(f.fileno()).st_size, where=source)
            raw = f.read()
    except PermissionError:
        raise BadInput(
            f"{source} cannot be read: permission denied; ask its owner for read access", code="permission-denied"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~nobody
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise BadInput(f"{source} cannot be read: {reason}; check the path", code="unreadable-file") from None
    if not raw:
        raise BadInput(
            f"{source} is empty (0 bytes); give a table with a header and at least one row", code="empty-table"
        )
    return raw


def _tables_in(folder: Path, word: str = "") -> str:
    """List the tables of a folder as a clause, with the nearest to `word`."""
    try:
        names = sorted(p.name for p in folder.iterdir() if p.name.lower().endswith(table_endings()))
    except OSError:
        return "its folder does not exist or cannot be listed; check the path"
    return nearest(word, names) if names else "there is no table in that folder; check the path"


def _gunzip(raw: bytes, *, source: str) -> bytes:
    """Unpack a gzip file, a piece at a time: a few bytes may unpack to more than there is memory."""
    out, place = io.BytesIO(), 0
    try:
        while place < len(raw):  # a file may have several members, and zeros after them
            place = _unpack_member(raw, place, out, source=source)
            while raw[place : place + 1] == b"\0":
                place += 1
        return out.getvalue()
    except (EOFError, zlib.error):
        raise BadInput(
            f"{source} is not a complete gzip file; copy it again, or name it .csv if it is not compressed",
            code="damaged-file",
        ) from None


def _unpack_member(raw: bytes, place: int, out: io.BytesIO, *, source: str) -> int:
    """Unpack one member of a gzip file; return the place after it."""
    member = zlib.decompressobj(wbits=31)
    while not member.eof:
        packed = raw[place : place + _PIECE]
        if not packed:
            raise EOFError
        place += len(packed)
        size = _PIECE
        while not member.eof and (packed or size == _PIECE):
            size = out.write(member.decompress(packed, _PIECE))
            refuse_bomb(out.tell(), where=source)
            packed = member.unconsumed_tail
    return place - len(member.unused_data)


def _mark_missing(table: Table, *, marks: frozenset[str]) -> Table:
    """Apply the same marks for missing to a source that has types: text is stripped and compared."""
    columns: dict[str, Array] = {}
    for name, values in table.columns.items():
        if values.dtype == np.float64:
            columns[name] = without_marks(values, marks=marks)
            continue
        cleaned = {cell: None if cell is None or cell.strip() in marks else cell.strip() for cell in set(values)}
        columns[name] = np.empty(len(values), dtype=object)
        columns[name][:] = [cleaned[cell] for cell in values]
        if all(cell is None for cell in cleaned.values()):
            columns[name] = np.full(len(values), np.nan)
    return Table(columns, table.source)
