"""OMOP tables in a folder or zip: CSV (also tab-separated as Athena writes it, or gzip) and Parquet.

A table is a file by its name in capitals or not (`PERSON.csv`, `person.parquet`), or a folder of numbered parts. Only the
columns that are asked for are read, a batch of rows at a time, so that memory does not grow with the size of a file.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from grandrounds.capabilities.sources.cohort.omop_tables import TABLES, Batch, Kind, Match, TableCounts
from grandrounds.core.arrays import refuse_bomb
from grandrounds.core.errors import BadInput
from grandrounds.data.limits import BROKEN_ARCHIVE, check_text, open_gzip
from grandrounds.data.parquet_file import count_text, list_text

_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".pq")
_PART = re.compile(r"(?:part)?[-_.]*\d+(?:[-_.].*)?")
_BLOCK = 2**23  # bytes of a text file that are parsed at a time
_PAIRS = 2**20  # pairs of concept and patient that are collected before repeated ones are dropped
_ROWS = 2**17  # rows of a Parquet file that are read at a time
_MISSING = ["", "NULL", "null", "NA", "N/A", "NaN", "nan", "\\N", "None", "<NA>"]


@dataclass(frozen=True)
class _File:
    """One file of a table."""

    name: str  # as in the folder or zip
    size: int
    open: Callable[[], IO[bytes]]

    @property
    def is_parquet(self) -> bool:
        return self.name.lower().endswith((".parquet", ".pq"))


class FileTables:
    """A `TableReader` of a folder or zip."""

    def __init__(self, where: Path) -> None:
        """Find the tables.

        Args:
            where: The folder or zip.

        Raises:
            BadInput: It cannot be read, or has two files of one table.
        """
        self.name = str(where)
        self._archive = _open_zip(where) if where.is_file() else None
        self._files = _sort_files(_list_files(where, self._archive), self.name)
        self._columns: dict[str, tuple[str, ...]] = {}

    def tables(self) -> tuple[str, ...]:
        """List the tables of the data model that are there."""
        return tuple(self._files)

    def columns(self, table: str) -> tuple[str, ...]:
        """List the columns of a table; none where it is missing."""
        if table not in self._columns:
            files = self._files.get(table, ())
            self._columns[table] = tuple(n for n in self._header(files[0])[0] if n) if files else ()
        return self._columns[table]

    def read(self, table: str, columns: Sequence[str], match: Match | None = None) -> Iterator[Batch]:
        """Read columns of a table, a batch of rows at a time.

        Args:
            table: The table.
            columns: Columns that it has.
            match: Rows to keep; columns that it names are read as well. None keeps all.

        Yields:
            Batches that are not empty.

        Raises:
            BadInput: A file is damaged, or a row has another number of cells than the header.
        """
        further = [c for c in (*match.ids, *match.words) if c not in columns] if match else []
        for file in self._files.get(table, ()):
            with closing(self._batches(file, [*columns, *further])) as batches:
                for batch in batches:
                    kept = batch if match is None else batch.take(match.mask(batch))
                    if len(kept):
                        yield kept

    def count(self, table: str, concept: str, *, number: str | None = None, units: Sequence[str] = ()) -> TableCounts:
        """Count rows and patients by concept, in one pass over the files; arguments as in `TableReader.count`."""
        import pyarrow as pa

        counts = TableCounts()
        met: list[Any] = []  # different pairs of concept and patient
        compact = 0  # rows of the first of them, in which no pair recurs
        kinds: dict[str, Kind] = {concept: "id", "unit_concept_id": "id", "unit_source_value": "word"}
        numbers: dict[str, Kind] = {} if number is None else {number: "number"}
        for batch in self.read(table, ["person_id", concept, *units, *numbers]):
            columns = batch.convert({**kinds, **numbers, "person_id": "id"})
            filled = np.zeros(len(batch)) if number is None else ~np.isnan(columns[number])
            rows = pa.table({c: pa.array(columns[c]) for c in kinds} | {"filled": filled.astype(np.int64)})
            groups = rows.group_by(list(kinds)).aggregate([("filled", "count"), ("filled", "sum")]).to_pydict()
            for *group, records, values in zip(
                *(groups[c] for c in (*kinds, "filled_count", "filled_sum")), strict=True
            ):
                counts.add(*group, records=records, numbers=values)
            met.append(_drop_repeated(pa.table({"concept": columns[concept], "person": columns["person_id"]})))
            if sum(map(len, met)) > max(2 * compact, _PAIRS):
                met = [_drop_repeated(pa.concat_tables(met))]
                compact = len(met[0])
        if met:
            people = (
                _drop_repeated(pa.concat_tables(met)).group_by("concept").aggregate([("person", "count")]).to_pydict()
            )
            counts.patients.update(zip(people["concept"], people["person_count"], strict=True))
        return counts

    def close(self) -> None:
        """Close the zip."""
        if self._archive is not None:
            self._archive.close()

    def _batches(self, file: _File, columns: Sequence[str]) -> Generator[Batch, None, None]:
        """Read one file whole, a batch at a time."""
        import pyarrow as pa

        fault = _Fault()
        first = 0
        try:
            source = self._parquet(file, columns) if file.is_parquet else self._text(file, columns, fault)
            for cells in source:
                count = len(next(iter(cells.values())))
                yield Batch(file.name, self.name, cells, np.arange(first, first + count))
                first += count
        except (pa.ArrowException, IndexError, *BROKEN_ARCHIVE) as error:
            raise self._damaged(file, fault, error) from None

    def _damaged(self, file: _File, fault: _Fault, error: Exception) -> BadInput:
        place = f"{file.name} in {self.name}"
        if fault.expected:
            row = "" if fault.row is None else f"row {fault.row} of "
            return BadInput(
                f"{row}{place} has {fault.found} cells, and the header has {fault.expected}; "
                "put cells that contain a separator in quotes, or export the table again",
                code="ragged-row",
            )
        if isinstance(error, RuntimeError) and "password" in str(error):
            return BadInput(f"{place} is encrypted; unpack the zip first", code="unreadable-file")
        return BadInput(f"{place} is damaged or cut short; export or copy it again", code="damaged-file")

    def _parquet(self, file: _File, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        with file.open() as stream:
            if self._archive is not None:  # Parquet is read from its end
                refuse_bomb(file.size, where=f"{file.name} in {self.name}")
                stream = io.BytesIO(stream.read())
            opened = pq.ParquetFile(stream)
            opened = pq.ParquetFile(stream, read_dictionary=list_text(opened.schema_arrow))
            spelled = {n.lower(): n for n in opened.schema_arrow.names}
            absent = next((c for c in columns if c not in spelled), None)
            if absent is not None:
                raise self._missing_column(file, absent)
            for batch in opened.iter_batches(_ROWS, columns=[spelled[c] for c in columns]):
                check_text(sum(map(count_text, batch.columns)), where=f"{file.name} in {self.name}")
                yield {c: batch.column(spelled[c]) for c in columns}

    def _text(self, file: _File, columns: Sequence[str], fault: _Fault) -> Iterator[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.csv as pc

        names, separator, quoted = self._header(file)
        absent = next((c for c in columns if c not in names), None)
        if absent is not None:
            raise self._missing_column(file, absent)
        twice = next((c for c in columns if names.count(c) > 1), None)
        if twice is not None:
            raise BadInput(
                f"{file.name} in {self.name} has the column {twice} more than once; keep one of them",
                code="duplicate-column",
            )
        used = {c: str(names.index(c)) for c in columns}
        with self._open(file) as stream:
            reader = pc.open_csv(
                stream,
                pc.ReadOptions(
                    use_threads=False, block_size=_BLOCK, skip_rows=1, column_names=list(map(str, range(len(names))))
                ),
                pc.ParseOptions(
                    delimiter=separator,
                    quote_char='"' if quoted else False,
                    newlines_in_values=quoted,
                    invalid_row_handler=fault.note,
                ),
                pc.ConvertOptions(
                    check_utf8=False,
                    column_types={i: pa.binary() for i in used.values()},
                    include_columns=list(used.values()),
                    null_values=_MISSING,
                    strings_can_be_null=True,
                ),
            )
            for batch in reader:
                if batch.num_rows:
                    yield {c: batch.column(i) for c, i in zip(columns, range(batch.num_columns), strict=True)}

    def _missing_column(self, file: _File, column: str) -> BadInput:
        return BadInput(
            f"{file.name} in {self.name} has no column {column}, which another file of the table has; export the table again",
            code="missing-omop-column",
        )

    def _header(self, file: _File) -> tuple[list[str], str, bool]:
        """Read the names of the columns, the separator, and whether cells may be in quotes."""
        place = f"{file.name} in {self.name}"
        try:
            if file.is_parquet:
                return self._parquet_names(file), ",", False
            with self._open(file) as stream:
                line = _first_line(stream)
        except BROKEN_ARCHIVE as error:
            raise self._damaged(file, _Fault(), error) from None
        text = line.removeprefix(b"\xef\xbb\xbf").decode("latin-1").strip("\r\n")
        if not text.strip() or "\0" in text:
            raise BadInput(
                f"{place} has no header line in UTF-8; save it as CSV UTF-8 with the column names of OMOP",
                code="no-header",
            )
        if "\r" in text:
            raise BadInput(
                f"{place} ends its lines with a carriage return alone; save it as CSV UTF-8 with line feeds", code="malformed-csv"
            )
        separator = max(",\t;|", key=text.count)
        names = [n.strip().lower() for n in next(csv.reader([text], delimiter=separator))]
        return names, separator, separator != "\t" or '"' in text  # Athena writes quotes as they are

    def _parquet_names(self, file: _File) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with file.open() as stream:
            if self._archive is not None:
                refuse_bomb(file.size, where=f"{file.name} in {self.name}")
                stream = io.BytesIO(stream.read())
            try:
                return [n.lower() for n in pq.ParquetFile(stream).schema_arrow.names]
            except pa.ArrowException as error:
                raise self._damaged(file, _Fault(), error) from None

    def _open(self, file: _File) -> IO[bytes]:
        """Open a text file, unpacked; one that unpacks to too much is refused."""
        place = f"{file.name} in {self.name}"
        if self._archive is not None:
            refuse_bomb(file.size, where=place)
        stream = file.open()
        if not file.name.lower().endswith(".gz"):
            return stream
        return open_gzip(stream, where=place, buffer=_BLOCK)


class _Fault:
    """The row at which a text file could not be parsed."""

    row: int | None = None
    expected = 0
    found = 0

    def note(self, row: Any) -> str:
        """Note a row with the wrong number of cells, which ends the reading."""
        self.row, self.expected, self.found = row.number, row.expected_columns, row.actual_columns
        return "error"


def _drop_repeated(pairs: Any) -> Any:
    """Drop repeated rows of an Arrow table."""
    return pairs.group_by(pairs.column_names).aggregate([])


def _open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


def _first_line(stream: IO[bytes]) -> bytes:
    return stream.readline(2**16)


def _open_zip(where: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(where)
    except (OSError, zipfile.BadZipFile):
        raise BadInput(
            f"{where} is not a zip file that can be read; give a folder or zip of OMOP tables, or a database URL",
            code="damaged-file",
        ) from None


def _list_files(where: Path, archive: zipfile.ZipFile | None) -> list[_File]:
    """List the files that may be tables, sorted by name; hidden files and those of macOS are left out."""
    if archive is not None:
        members = [(m.filename, m.file_size) for m in archive.infolist() if not m.is_dir()]
        found = [_File(name, size, partial(archive.open, name)) for name, size in members]
    else:
        try:
            paths = [p for p in [*where.iterdir(), *where.glob("*/*")] if p.is_file()]
        except OSError as error:
            raise BadInput(
                f"{where} cannot be read: {error.strerror or error}; check the path", code="unreadable-file"
            ) from None
        for path in paths:  # an error may quote the header
            if _table_of(path.relative_to(where).as_posix()) and not path.resolve().is_relative_to(where.resolve()):
                raise BadInput(
                    f"{path} is a link that leads out of the folder, which is not followed: put the file itself there",
                    code="link-not-followed",
                )
        found = [_File(p.relative_to(where).as_posix(), p.stat().st_size, partial(_open_file, p)) for p in paths]
    return sorted((f for f in found if _table_of(f.name)), key=lambda f: f.name)


def _table_of(name: str) -> str:
    """Return the table of a file by its name, or that of its folder; "" where it is none."""
    path = PurePosixPath(name.lower())
    ending = next((e for e in sorted(_ENDINGS, key=len, reverse=True) if path.name.endswith(e)), "")
    if not ending or path.name.startswith((".", "_")) or "__macosx" in path.parts:
        return ""
    stem = path.name.removesuffix(ending)
    if stem in TABLES:
        return stem
    by_length = sorted(TABLES, key=len, reverse=True)
    numbered = next((t for t in by_length if stem.startswith(t) and _PART.fullmatch(stem[len(t) :])), "")
    return numbered or (path.parent.name if path.parent.name in TABLES else "")


def _sort_files(files: Sequence[_File], name: str) -> dict[str, tuple[_File, ...]]:
    """Sort files by table; several files are parts of one table only where their names have numbers."""
    by_table: dict[str, list[_File]] = {}
    for file in files:
        by_table.setdefault(_table_of(file.name), []).append(file)
    for table, parts in by_table.items():
        whole = [f.name for f in parts if PurePosixPath(f.name.lower()).name.split(".")[0] == table]
        if whole and len(parts) > 1:
            raise BadInput(
                f"{name} has {len(parts)} files of table {table}: {', '.join(f.name for f in parts[:4])}; keep one of them",
                code="ambiguous-omop-table",
            )
    return {table: tuple(by_table[table]) for table in TABLES if table in by_table}


def has_person(where: Path) -> bool:
    """Return True where a folder or zip has the table person."""
    try:
        archive = _open_zip(where) if where.is_file() else None
    except BadInput:
        return False
    try:
        return any(_table_of(f.name) == "person" for f in _list_files(where, archive))
    finally:
        if archive is not None:
            archive.close()
