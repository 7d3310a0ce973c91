"""Tables of the OMOP Common Data Model: rows to read, and cells as identifiers, numbers, words and times.

A reader (`omop_files`, `omop_sql`) gives the columns that are asked for, a batch of rows at a time. Cells come as a database
or a file has them. Here they get one type, the same from every reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

Kind = Literal["id", "number", "word", "time"]

CLINICAL = (
    "person", "observation_period", "visit_occurrence", "visit_detail", "condition_occurrence", "drug_exposure",
    "procedure_occurrence", "device_exposure", "measurement", "observation", "death", "note", "note_nlp", "specimen",
    "fact_relationship", "location", "care_site", "provider", "payer_plan_period", "cost", "drug_era", "dose_era",
    "condition_era", "episode", "episode_event", "metadata", "cdm_source", "cohort", "cohort_definition",
)  # fmt: skip
VOCABULARY = (
    "concept", "vocabulary", "domain", "concept_class", "concept_relationship", "relationship", "concept_synonym",
    "concept_ancestor", "source_to_concept_map", "drug_strength",
)  # fmt: skip
TABLES = CLINICAL + VOCABULARY

NO_ID = np.iinfo(np.int64).min
"""An identifier that is missing."""

_EXACT = 2**53  # whole numbers up to here are exact as float64
_ID = re.compile(r"[+-]?[0-9]+(\.0*)?")
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})")
_STAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)(?:[.,]\d+)?\s*(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?"
)
_FIXES = {
    "id": "identifiers in OMOP are whole numbers",
    "number": "write numbers with a decimal point",
    "time": "write dates as 2024-12-31, times as 2024-12-31 23:59:00",
    "word": "write one text into each cell",
}


@dataclass(frozen=True)
class WordMatch:
    """Words that a cell may have, and beginnings of words."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.exact or self.prefixes)

    def covers(self, word: str | None) -> bool:
        """Return True if a cell matches."""
        return word is not None and (word in self.exact or word.startswith(self.prefixes))


@dataclass(frozen=True, eq=False)
class Match:
    """Rows to read: those that have one of the identifiers, or one of the words, in any of the columns."""

    ids: Mapping[str, Array] = field(default_factory=dict)  # sorted int64 by column
    words: Mapping[str, WordMatch] = field(default_factory=dict)

    def mask(self, batch: Batch) -> Array:
        """Compute (n,) True for each row to keep; every column must be in the batch."""
        kept = np.zeros(len(batch), bool)
        for column, wanted in self.ids.items():
            if len(wanted):
                kept |= np.isin(batch.ids(column), wanted)
        for column, words in self.words.items():
            if words:
                found = batch.words(column)
                covered = {w: words.covers(w) for w in set(found.tolist())}
                kept |= np.fromiter((covered[w] for w in found), bool, len(found))
        return kept


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table.

    Attributes:
        table: The table, for messages: "MEASUREMENT.csv", or "table measurement".
        source: The folder or database, for messages.
        columns: Cells by column in lower case, each an Arrow array or a list.
        rows: (n,) Positions in the file; None in a database, which has no order.
    """

    table: str
    source: str
    columns: Mapping[str, Any]
    rows: Array | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def ids(self, column: str) -> Array:
        """Convert a column to int64, NO_ID where a cell is empty."""
        return np.asarray(self._convert(column, "id"))

    def words(self, column: str) -> Array:
        """Convert a column to an object array of text, None where a cell is empty."""
        return np.asarray(self._convert(column, "word"))

    def take(self, kept: Array) -> Batch:
        """Keep some rows."""
        places = np.flatnonzero(kept)
        columns = {
            n: [c[i] for i in places] if isinstance(c, list) else c.take(places) for n, c in self.columns.items()
        }
        return Batch(self.table, self.source, columns, None if self.rows is None else self.rows[places])

    def convert(self, kinds: Mapping[str, Kind]) -> dict[str, Array]:
        """Convert columns to their kinds; one that is absent has missing cells only."""
        return {
            n: self._convert(n, kind) if n in self.columns else _missing(kind, len(self)) for n, kind in kinds.items()
        }

    def _convert(self, column: str, kind: Kind) -> Array:
        cells = self.columns[column]
        try:
            return _to_arrow_kind(cells, kind) if hasattr(cells, "type") else _to_kind(cells, kind)
        except _BadCell as bad:
            row = "" if self.rows is None else f" in row {int(self.rows[bad.place]) + 2} (the header is row 1)"
            raise BadInput(
                f"column {column}{row} of {self.table} in {self.source} has {bad.shown}; {_FIXES[kind]}",
                code=f"invalid-{'date' if kind == 'time' else kind}-cell",
            ) from None


@dataclass(frozen=True, eq=False)
class TableCounts:
    """Counts of a table's rows by concept id.

    Attributes:
        records: Rows of each concept.
        numbers: Rows with a number.
        patients: Different patients.
        units: By concept, rows with a number for each pair of unit concept and unit as the source writes it.
    """

    records: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    patients: dict[int, int] = field(default_factory=dict)
    units: dict[int, dict[tuple[int, str | None], int]] = field(default_factory=dict)

    def add(self, concept: int, unit: int, word: str | None, *, records: int, numbers: int) -> None:
        """Add the rows of one concept and unit."""
        self.records[concept] = self.records.get(concept, 0) + records
        self.numbers[concept] = self.numbers.get(concept, 0) + numbers
        units = self.units.setdefault(concept, {})
        units[unit, word] = units.get((unit, word), 0) + numbers


class TableReader(Protocol):
    """Tables of one folder or database, with names in lower case."""

    @property
    def name(self) -> str:
        """The folder or database, for messages; never a password."""

    def tables(self) -> tuple[str, ...]:
        """List the tables of the data model that are there."""

    def columns(self, table: str) -> tuple[str, ...]:
        """List the columns of a table; none where it is missing."""

    def read(self, table: str, columns: Sequence[str], match: Match | None = None) -> Iterator[Batch]:
        """Read columns of a table, a batch of rows at a time; `match` selects rows."""

    def count(self, table: str, concept: str, *, number: str | None = None, units: Sequence[str] = ()) -> TableCounts:
        """Count rows and patients by concept."""

    def close(self) -> None:
        """Release what the reader holds open."""


def read_columns(
    reader: TableReader,
    table: str,
    kinds: Mapping[str, Kind],
    *,
    required: Sequence[str] = (),
    match: Match | None = None,
) -> dict[str, Array]:
    """Read columns of a table into memory.

    Args:
        reader: The tables.
        table: The table.
        kinds: The kind of each column; one that the table lacks has missing cells only.
        required: Columns that the table must have.
        match: Rows to read; all of them without it.

    Returns:
        Arrays of one length: "id" int64, "number" float64, "word" object, "time" datetime64[s].

    Raises:
        BadInput: The table or a required column is missing, or a cell cannot be read.
    """
    present = check_columns(reader, table, required)
    wanted = [c for c in kinds if c in present]
    parts = [batch.convert(kinds) for batch in reader.read(table, wanted, match)] if wanted else []
    if not parts:
        return {name: _missing(kind, 0) for name, kind in kinds.items()}
    return {name: np.concatenate([part[name] for part in parts]) for name in kinds}


def check_columns(reader: TableReader, table: str, required: Sequence[str]) -> tuple[str, ...]:
    """List the columns of a table that must be there.

    Raises:
        BadInput: The table or a required column is missing.
    """
    present = reader.columns(table)
    if not present:
        known = ", ".join(reader.tables()) or "none"
        raise BadInput(
            f"{reader.name} has no table {table}; tables of OMOP in it: {known}; add the table or leave it out of the cohort",
            code="missing-omop-table",
        )
    missing = next((c for c in required if c not in present), None)
    if missing is not None:
        raise BadInput(
            f"table {table} of {reader.name} has no column {missing}; columns are: {', '.join(present)}; "
            "name the columns as OMOP CDM 5.3 or 5.4 does",
            code="missing-omop-column",
        )
    return present


class _BadCell(Exception):
    """A cell that cannot be converted, by its position."""

    def __init__(self, place: int, value: object) -> None:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        self.place = place
        self.shown = f"'{text[:40]}{'...' if len(text) > 40 else ''}'"


def _missing(kind: Kind, count: int) -> Array:
    if kind == "word":
        return np.full(count, None, dtype=object)
    fill = {"id": np.int64(NO_ID), "number": np.float64("nan"), "time": np.datetime64("NaT", "s")}[kind]
    return np.full(count, fill)


def _to_kind(cells: Sequence[Any], kind: Kind) -> Array:
    """Convert Python values one at a time."""
    convert = {"id": to_id, "number": _to_number, "word": _to_word, "time": _to_time}[kind]
    out = _missing(kind, len(cells))
    known: dict[Any, Any] = {}  # text recurs
    for place, cell in enumerate(cells):
        if cell is None or cell != cell:
            continue
        try:
            if isinstance(cell, str | bytes):
                if cell not in known:
                    known[cell] = convert(cell)
                value = known[cell]
            else:
                value = convert(cell)
        except (ValueError, TypeError, OverflowError):
            raise _BadCell(place, cell) from None
        if value is not None:
            out[place] = value
    return out


def to_id(cell: Any) -> int | None:
    """Read an identifier: a whole number, also one written as 5.0.

    Raises:
        ValueError: It is none.
    """
    if isinstance(cell, bytes):
        cell = cell.decode("ascii")
    if isinstance(cell, str):
        text = cell.strip().strip('"')
        if not text:
            return None
        if not _ID.fullmatch(text):
            raise ValueError
        cell = int(text.partition(".")[0])
    if isinstance(cell, bool) or cell != int(cell) or abs(int(cell)) >= (_EXACT if isinstance(cell, float) else 2**63):
        raise ValueError
    return int(cell)


def _to_number(cell: Any) -> float | None:
    if isinstance(cell, bytes):
        cell = cell.decode("ascii")
    if isinstance(cell, str):
        cell = cell.strip().strip('"')
        if not cell:
            return None
        if "_" in cell:
            raise ValueError
    value = float(cell)
    if np.isinf(value):
        raise ValueError
    return value


def _to_word(cell: Any) -> str | None:
    if isinstance(cell, bytes):
        try:
            cell = cell.decode("utf-8")
        except UnicodeDecodeError:
            cell = cell.decode("cp1252", "replace")
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    text = str(cell).strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    return text or None


def _to_time(cell: Any) -> np.datetime64 | None:
    """Read a date or time as the hospital's clock shows it: an offset from UTC is left out."""
    if isinstance(cell, datetime):
        return np.datetime64(cell.replace(tzinfo=None, microsecond=0), "s")
    if isinstance(cell, date):
        return np.datetime64(cell, "s")
    text = cell.decode("ascii") if isinstance(cell, bytes) else str(cell)
    text = text.strip().strip('"')
    if not text:
        return None
    compact = _COMPACT.fullmatch(text)
    match = _STAMP.fullmatch("-".join(compact.groups()) if compact else text)
    if match is None:
        raise ValueError
    day, clock = match.groups()
    return np.datetime64(datetime.fromisoformat(f"{day} {clock}" if clock else day), "s")


def _to_arrow_kind(cells: Any, kind: Kind) -> Array:
    """Convert an Arrow array at once, or value by value where that fails."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(cells):
        return _missing(kind, 0)
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    textual = pa.types.is_binary(cells.type) or pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    if kind == "word":
        try:
            levels = pc.dictionary_encode(cells)
        except pa.ArrowException:  # lists, structures and maps
            raise _BadCell(0, cells.type) from None
        words = _to_kind([*_to_list(levels.dictionary), None], "word")
        return np.asarray(words[pc.fill_null(levels.indices, len(words) - 1).to_numpy(zero_copy_only=False)])
    if pa.types.is_null(cells.type):
        return _missing(kind, len(cells))
    try:
        if textual and not pa.types.is_string(cells.type):
            cells = cells.cast(pa.string())
        is_hex = kind == "id" and textual and pc.any(pc.match_substring(cells, "x", ignore_case=True)).as_py()
        if kind == "id" and not is_hex and (textual or pa.types.is_integer(cells.type)):
            return _fill(cells.cast(pa.int64()), NO_ID)
        if kind == "number" and (textual or pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
            numbers = cells.cast(pa.float64()).to_numpy(zero_copy_only=False)
            if not np.isinf(numbers).any():
                return np.array(numbers, np.float64)
        if kind == "time" and (textual or pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type)):
            if pa.types.is_timestamp(cells.type) and cells.type.tz is not None:
                cells = pc.local_timestamp(cells)
            moments = cells.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
            return np.asarray(moments.astype("datetime64[us]").astype("datetime64[s]"))
    except (pa.ArrowException, ValueError):
        pass
    return _to_kind(_to_list(cells), kind)


def _to_list(cells: Any) -> list[Any]:
    """Convert an Arrow array to Python values, which have dates of the years 1 to 9999 alone."""
    import pyarrow as pa

    try:
        return list(cells.to_pylist())
    except (pa.ArrowException, ValueError, OverflowError):
        raise _BadCell(0, f"{cells.type} out of range") from None


def _fill(cells: Any, missing: int) -> Array:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(cells, missing).to_numpy(zero_copy_only=False))
