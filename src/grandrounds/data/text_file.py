"""Delimited text: cells without types, read strictly, with the line of every fault and a note on every assumption."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.fast_text import BATCH_ROWS, DELIMITERS, split_columns
from grandrounds.data.formats import (
    AUTO,
    PLAIN,
    Format,
    Source,
    list_columns,
    may_be_formatted,
    parse_cell,
    read_formats,
)
from grandrounds.data.limits import check_columns, check_table
from grandrounds.data.table import Table, check_names, is_number, parse_numbers, without_marks

FAST_SIZE = 2**18  # shorter texts are read before Arrow is imported
_SAMPLE_ROWS = 50
_SAMPLE_CHARS = 200_000
_PIECE = 2**20  # characters
_MAGIC = {
    b"\x1f\x8b": "it is gzip: name it .csv.gz",
    b"PAR1": "it is Parquet: name it .parquet",
    b"PK\x03\x04": "it is an Excel or zip file: name an Excel workbook .xlsx",
}
_BOM = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_WINDOWS = "cp1252"  # a superset of Latin-1 with typographic quotes and dashes
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "space"}
_USUAL_MARKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")  # nobody means anything else by these


@dataclass(frozen=True)
class FileText:
    """Text of a file, as UTF-8 bytes or as a string: a large file is seldom needed as both."""

    content: bytes | str
    encoding: str = ""  # the encoding where it was assumed

    def __len__(self) -> int:
        return len(self.content)

    @property
    def head(self) -> str:
        """The first characters."""
        if isinstance(self.content, str):
            return self.content[:_SAMPLE_CHARS]
        return self.content[: 4 * _SAMPLE_CHARS].decode("utf-8", "ignore")[:_SAMPLE_CHARS]

    def to_text(self) -> str:
        """Return the whole text as a string."""
        return self.content if isinstance(self.content, str) else self.content.decode("utf-8")

    def to_bytes(self) -> bytes:
        """Return the whole text in UTF-8; raises UnicodeEncodeError for a half of a UTF-16 pair."""
        return self.content if isinstance(self.content, bytes) else self.content.encode("utf-8")


def decode_text(raw: bytes, *, source: str, encoding: str = AUTO) -> FileText:
    """Find the text in bytes: UTF-16 by its mark, Windows-1252 if it is not UTF-8.

    Args:
        raw: The bytes of the file.
        source: The file, for messages.
        encoding: The encoding that the user states.

    Raises:
        BadInput: The bytes are not text, or not in the encoding.
    """
    hint = next((hint for magic, hint in _MAGIC.items() if raw.startswith(magic)), "")
    bom_encoding = next((name for mark, name in _BOM.items() if raw.startswith(mark)), None)
    if hint or (b"\0" in raw and bom_encoding != "utf-16" and encoding == AUTO):
        raise BadInput(f"{source} is binary, not text; {hint or 'save the table as CSV (UTF-8)'}", code="not-text")
    if encoding != AUTO:
        return FileText(_decode_as(raw, encoding, source=source))
    if bom_encoding == "utf-16":
        return FileText(_decode_as(raw, bom_encoding, source=source), "UTF-16")
    try:
        if not raw.isascii():
            raw.decode("utf-8-sig")
        return FileText(raw.removeprefix(b"\xef\xbb\xbf"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
    try:
        return FileText(raw.decode(_WINDOWS), "Windows-1252")
    except UnicodeDecodeError:
        raise BadInput(
            f"{source} is neither UTF-8 (line {line}) nor Windows-1252 text; "
            "say what it is with --text-encoding (cp850, mac-roman ...), or save it as CSV (UTF-8)",
            code="undecodable-text",
        ) from None


def _decode_as(raw: bytes, encoding: str, *, source: str) -> str:
    """Bytes in a named encoding; a name that Python does not know, or one that does not fit, is refused."""
    try:
        wanted = "utf-8-sig" if encoding.lower().replace("-", "").replace("_", "") == "utf8" else encoding
        return raw.decode(wanted)
    except (LookupError, ValueError) as error:
        if isinstance(error, UnicodeError):
            raise BadInput(
                f"{source} is not {encoding} text; say another --text-encoding (utf-8, cp1252, latin-1, utf-16), "
                "or leave it out",
                code="undecodable-text",
            ) from None
        raise BadInput(
            f"--text-encoding {encoding} for {source} is not known; use utf-8, cp1252, latin-1, utf-16, cp850 ...",
            code="unknown-encoding",
        ) from None


def read_text(
    text: FileText,
    *,
    source: str,
    marks: frozenset[str],
    form: Format = PLAIN,
    names: Sequence[str] | None = None,
    kinds: Mapping[str, object] | None = None,
    keep: Collection[str] = (),
    fast_size: int = FAST_SIZE,
) -> Table:
    """Read a delimited text as a table: a large one of a regular structure by Arrow, any other cell by cell.

    Args:
        text: The content.
        source: The file, for messages.
        marks: Cells that mean "no value".
        form: The format that the user states.
        names: The column names of a file without a header.
        kinds: As in `read_formats`.
        keep: As in `read_formats`.
        fast_size: Bytes from which on Arrow is tried; it gives the same table.
    """
    usual = "\t" if ".tsv" in source.lower() else ","
    if form.separator == AUTO:
        delimiter = _detect_delimiter(text.head, default=usual)
    else:
        delimiter = _parse_separator(form.separator, source=source)
    sources = None
    if len(text) >= fast_size:
        formatted = partial(may_be_formatted, kinds=kinds or {}, keep=keep)
        sources = _read_quickly(
            text, delimiter=delimiter, source=source, marks=marks, names=names, formatted=formatted, detect=form.detect
        )
    if sources is None:
        sources = _read_strictly(text.to_text(), delimiter=delimiter, source=source, marks=marks, names=names)
    if not form.detect:
        return Table({column.name: column.values for column in sources}, source)
    values, reading = read_formats(sources, form, separator=delimiter, kinds=kinds or {}, keep=keep)
    notes = [f"read as {text.encoding}{_first_foreign([s.name for s in sources])}"] if text.encoding else []
    if form.separator == AUTO and delimiter != usual:
        notes.append(f"cells are separated by a {_SEPARATORS[delimiter]}")
    notes += [*reading.notes, *_missing_notes(sources)]
    return Table(values, source, reading=replace(reading, notes=tuple(notes)))


def _read_quickly(
    text: FileText,
    *,
    delimiter: str,
    source: str,
    marks: frozenset[str],
    names: Sequence[str] | None,
    formatted: Callable[[str], bool],
    detect: bool,
) -> list[Source] | None:
    """Read a large text of a regular structure by Arrow; None for every other text, also for one with a fault."""
    head, start = text.head, 0
    if head.startswith("\ufeff"):
        return None
    if names is None:
        try:
            line, first = next(_read_rows(head, delimiter=delimiter, source=source))
        except (BadInput, StopIteration):
            return None
        for _ in range(line):
            start = head.find("\n", start) + 1
            if start == 0:
                return None
        header = _read_header(first, source=source, marks=marks)
    else:
        header = list(names)
        check_names(header, source=source)
    try:
        raw, start = text.to_bytes(), len(head[:start].encode("utf-8"))
    except UnicodeEncodeError:
        return None
    try:
        check_table(raw.count(b"\n", start), len(header), where=source)
    except BadInput:
        if raw.find(b'"', start) < 0:
            raise
        return None  # line ends in quotes begin no row
    free = [detect and formatted(name) for name in header]
    columns = split_columns(raw, start, delimiter=delimiter, marks=marks, formatted=free, with_cells=detect)
    if columns is None:
        return None
    return [
        Source(name, c.values, c.batches, c.missing_words, c.comma, c.distinct)
        for name, c in zip(header, columns, strict=True)
    ]


def _read_strictly(
    text: str, *, delimiter: str, source: str, marks: frozenset[str], names: Sequence[str] | None
) -> list[Source]:
    """Read any text cell by cell; every fault is an error that names its line."""
    rows = _read_rows(text, delimiter=delimiter, source=source)
    if names is None:
        first = next(rows, None)
        if first is None:
            raise BadInput(
                f"{source} is empty (only blank lines); give a table with a header and rows", code="empty-table"
            )
        header = _read_header(first[1], source=source, marks=marks)
    else:
        header = list(names)
        check_names(header, source=source)
    columns = [_Cells(marks) for _ in header]
    count = 0
    while batch := list(itertools.islice(rows, BATCH_ROWS)):
        for line, row in batch:
            if len(row) != len(header):
                raise BadInput(
                    f"line {line} of {source} has {len(row)} cells where the header has {len(header)}; "
                    "fix that line, or quote cells that hold the separator",
                    code="ragged-row",
                )
        count += len(batch)
        check_table(count, len(header), where=source)
        for column, cells in zip(columns, zip(*(row for _, row in batch), strict=True), strict=True):
            column.add(cells)
    if not columns[0]:
        raise BadInput(f"{source} has a header but no rows; give a table with at least one row", code="empty-table")
    return [Source(n, c.finish(), c.cells, c.missing_words) for n, c in zip(header, columns, strict=True)]


def _first_foreign(header: Sequence[str]) -> str:
    """Find the first column name that shows whether the encoding was guessed right."""
    name = next((name for name in header if not name.isascii()), None)
    return "" if name is None else f" (column '{name}')"


def _missing_notes(columns: Sequence[Source]) -> list[str]:
    """List words that were read as missing, besides empty cells and NA."""
    by_word: dict[str, list[str]] = {}
    for column in columns:
        for word in sorted(set(column.marks) - set(_USUAL_MARKS)):
            by_word.setdefault(word, []).append(column.name)
    return [f"'{word}' read as missing in {list_columns(names)}" for word, names in by_word.items()]


def _parse_separator(word: str, *, source: str) -> str:
    """Find the character that a separator's name means."""
    named = {name: mark for mark, name in _SEPARATORS.items()} | {"\\t": "\t"}
    mark = named.get(word.lower(), word)
    if len(mark) != 1 or mark in '"\r\n':
        raise BadInput(
            f"separator {word!r} for {source} is not one character; use one of , ; | or tab", code="invalid-separator"
        )
    return mark


def _open_reader(text: str, *, delimiter: str, strict: bool) -> Any:
    return csv.reader(_split_lines(text), delimiter=delimiter, skipinitialspace=delimiter != " ", strict=strict)


def _split_lines(text: str) -> Iterator[str]:
    """Split text into lines with their ends, a piece at a time: a StringIO needs four bytes for each character."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1 or len(text)
        yield from io.StringIO(text[start:end], newline="")
        start = end


def _detect_delimiter(text: str, *, default: str) -> str:
    """Find the delimiter that cuts the first lines evenly, and the header into most columns."""
    best, best_score = default, (False, 1, False)
    for delimiter in DELIMITERS:
        try:
            sample = _open_reader(text, delimiter=delimiter, strict=False)
            widths = [len(row) for row in itertools.islice(filter(None, sample), _SAMPLE_ROWS)]
        except csv.Error:
            continue
        if not widths or widths[0] == 1:
            continue
        score = (len(set(widths)) == 1, widths[0], delimiter == default)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _read_rows(text: str, *, delimiter: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Read every row and its line, without blank lines; in a table of one column only "" is a missing cell."""
    reader = _open_reader(text, delimiter=delimiter, strict=True)
    narrow = False
    try:
        for row in reader:
            if row and (len(row) > 1 or narrow or row[0].strip()):
                yield reader.line_num, row
                narrow = narrow or (len(row) == 1)
    except csv.Error as error:
        raise BadInput(
            f"line {reader.line_num} of {source} cannot be read as CSV ({error}); "
            'look for a quote (") that is not closed or not doubled',
            code="malformed-csv",
        ) from None


def _read_header(cells: list[str], *, source: str, marks: frozenset[str]) -> list[str]:
    """Read column names; one may be empty (a data frame's index), two may not."""
    check_columns(len(cells), where=source)
    names = [cell.strip() for cell in cells]
    numeric = [is_number(name) or parse_cell(name) is not None for name in names]
    if all(n or name in marks for n, name in zip(numeric, names, strict=True)) and any(numeric):
        numbered = all(name.isdigit() for name in names)
        if not numbered or len(set(names)) < len(names):
            raise BadInput(
                f"line 1 of {source} holds values, not column names; add a header line with the names",
                code="missing-header",
            )
    empty = [position for position, name in enumerate(names) if not name]
    if len(empty) > 1:
        raise BadInput(
            f"columns {empty[0] + 1} and {empty[1] + 1} of {source} have no name; name them in the header",
            code="missing-header",
        )
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
        self[cell] = value = None if word in self.marks else word
        return value


class _Cells:
    """One column in the making: numbers until a cell is not one, text from then on."""

    def __init__(self, marks: frozenset[str]) -> None:
        self.marks = marks
        self.words = _Words(marks)
        self.numeric = True
        self.floats: list[Array] = []
        self.cells: list[str] = []  # batches as read, one string each, in case the column is text
        self.texts: list[str | None] = []
        self.found: set[str] = set()  # marks for missing among numbers

    @property
    def missing_words(self) -> set[str]:
        """Words of this column that were read as missing."""
        return self.found | {cell.strip() for cell, word in self.words.items() if word is None}

    def __bool__(self) -> bool:
        return bool(self.floats or self.texts)

    def add(self, cells: Sequence[str]) -> None:
        """Add the next batch of cells."""
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

    def finish(self) -> Array:
        """Build the whole column."""
        if self.numeric:
            return without_marks(np.concatenate(self.floats), marks=self.marks)
        out = np.empty(len(self.texts), dtype=object)
        out[:] = self.texts
        return out

    def _floats(self, cells: Sequence[str]) -> Array | None:
        """Parse the batch as numbers with NaN for missing; None where it is text."""
        floats = parse_numbers(cells)
        if floats is not None:
            return floats
        stripped = list(map(str.strip, cells))
        present = ~np.fromiter(map(self.marks.__contains__, stripped), bool, len(cells))
        numbers = parse_numbers(list(itertools.compress(stripped, present)))
        if numbers is None:
            return None
        self.found.update(itertools.compress(stripped, ~present))
        out = np.full(len(cells), np.nan)
        out[present] = numbers
        return out
