"""Cells of an Excel sheet, read from its XML a row at a time, with checks of the archive before anything is unpacked.

openpyxl reads the workbook: sheets, shared texts and cell formats. The sheet itself is read here, because openpyxl's
read-only mode shows neither merged cells nor formulas without a value, and writes out every empty cell of a sheet.
"""

from __future__ import annotations

import datetime
import math
import re
import warnings
import zipfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element, iterparse
from xml.parsers import expat

from grandrounds.core.arrays import refuse_bomb
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.data.limits import BROKEN_ARCHIVE, EXCEL_CELL, STYLE_BYTE, XML_BYTE, check_text
from grandrounds.data.table import format_number

_PIECE = 2**16
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # files of Excel before 2007, and every encrypted one
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_FAULTS = (*BROKEN_ARCHIVE, KeyError, ValueError, IndexError, TypeError, AttributeError, ArithmeticError, SyntaxError)
_MOST_ELEMENTS = 2**20  # of one row, or after the last one: they are in memory at once
_STYLES = re.compile(r"\[content_types\]\.xml|xl/(workbook|styles|theme/\w+)\.xml|docprops/\w+\.xml|.*\.rels")
_CELL_NAME = re.compile(r"([A-Z]{1,3})([0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: a number, a text, a truth value or a date; `fault` is an Excel error, or "=" for a formula without a value."""

    value: float | str | bool
    percent: bool = False
    date: datetime.datetime | None = None
    fault: str = ""

    @property
    def is_text(self) -> bool:
        """True for words, and for times of day."""
        return isinstance(self.value, str) and self.date is None and not self.fault

    @property
    def text(self) -> str:
        """The cell as a word, numbers without ".0"."""
        if isinstance(self.value, bool):
            return str(self.value).upper()
        return self.value if isinstance(self.value, str) else format_number(self.value)

    def number(self, *, percent: bool = False) -> float:
        """The value as a number; `percent`: 45 for a cell that shows 45%."""
        if percent and not isinstance(self.value, bool):
            return float(Decimal(repr(self.value)).scaleb(2))
        return float(self.value)


@dataclass(frozen=True)
class Merged:
    """A range of merged cells."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Sheet:
    """Rows of a sheet with at least one cell: (row number, cell by column number), both from 1."""

    rows: list[tuple[int, dict[int, Cell]]]
    merged: tuple[Merged, ...]
    hidden: Set[int]  # numbers of hidden rows
    hidden_columns: tuple[range, ...] = ()


def check_workbook(raw: bytes, *, source: str) -> None:
    """Refuse encrypted and damaged workbooks, archives that unpack to too much, and XML with declarations of its own.

    An Office file never has a document type declaration, which is the way to entity bombs and to files outside.

    Args:
        raw: The file's content.
        source: The file, for messages.

    Raises:
        BadInput: It is not a workbook that can be read safely.
    """
    if raw.startswith(_OLE):
        if _ENCRYPTED in raw:
            raise BadInput(
                f"{source} is encrypted with a password; open it in Excel, remove the password (File, Info, Protect Workbook) "
                "and save it",
                code="encrypted-file",
            )
        raise BadInput(
            f"{source} is a workbook of Excel 97-2003 (.xls) in content; open it in Excel and save it as Excel Workbook (.xlsx)",
            code="unknown-file-type",
        )
    if not raw.startswith(b"PK") and b"\0" not in raw[:_PIECE]:
        raise BadInput(f"{source} is text, not an Excel workbook; name it .csv", code="unknown-file-type")
    try:
        with zipfile.ZipFile(BytesIO(raw)) as archive:
            members = archive.infolist()
            names = {member.filename for member in members}
            styles = sum(member.file_size for member in members if _STYLES.fullmatch(member.filename.lower()))
            refuse_bomb(XML_BYTE * sum(member.file_size for member in members), where=source)
            refuse_bomb(STYLE_BYTE * styles, where=f"the styles and relations of {source}")
            if "[Content_Types].xml" not in names or "xl/workbook.bin" in names:
                kind = "a binary workbook (.xlsb)" if "xl/workbook.bin" in names else "a zip file, but no Excel workbook"
                raise BadInput(f"{source} is {kind}; save it as Excel Workbook (.xlsx)", code="unknown-file-type")
            for member in members:
                if member.flag_bits & 1:
                    raise BadInput(f"{source} is a zip file with a password; save it without one", code="encrypted-file")
                with archive.open(member) as part:
                    _refuse_declarations(part, source=source, name=member.filename)
    except (*BROKEN_ARCHIVE, expat.ExpatError, UnicodeError, LookupError, ValueError):
        raise BadInput(f"{source} is not a complete Excel workbook; save or copy it again", code="damaged-file") from None


class _Started(Exception):
    """The first element of an XML part was reached."""


def _refuse_declarations(part: Any, *, source: str, name: str) -> None:
    """Refuse a part that declares a document type, whatever its name. It is read up to the first element, or while it is XML.

    An image of the kind SVG may name its document type, and still declares no entities.
    """
    parser = expat.ParserCreate()

    def refuse(_name: str, _system: str | None, _public: str | None, has_declarations: int) -> None:
        if not has_declarations and name.lower().endswith(".svg"):
            return
        raise BadInput(
            f"{source} is refused: its part '{name[:60]}' declares XML entities, which Excel never writes; save it again",
            code="unsafe-file",
        )

    def stop(*_: object) -> None:
        raise _Started

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = stop
    try:
        while piece := part.read(_PIECE):
            parser.Parse(piece, False)
    except _Started:
        return
    except expat.ExpatError:
        if name.lower().endswith((".xml", ".rels", ".vml")):
            raise


@contextmanager
def open_workbook(stream: BytesIO, *, source: str) -> Iterator[Any]:
    """Open a workbook with openpyxl, read-only and with stored values in place of formulas.

    Raises:
        BadInput: openpyxl is not installed, or cannot read the file.
    """
    try:
        import openpyxl
    except ImportError:
        raise BadInput(
            f"reading {source} needs openpyxl; {install_extra('excel')}, or save it as CSV UTF-8",
            code="missing-package",
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about parts that are not read, such as charts and styles
        try:
            book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        except _FAULTS:
            raise BadInput(
                f"{source} is not a complete Excel workbook; save or copy it again", code="damaged-file"
            ) from None
        try:
            yield book
        finally:
            book.close()


def sheet_is_empty(book: Any, name: str, *, source: str) -> bool:
    """Tell whether a sheet has no cell with a value."""
    return next(_parse_rows(book, name, source=source), None) is None


def read_sheet(book: Any, name: str, *, source: str) -> Sheet:
    """Read all cells of a sheet.

    Args:
        book: The open workbook.
        name: The sheet.
        source: The file, for messages.

    Raises:
        BadInput: The sheet is damaged or has too many cells.
    """
    hidden: set[int] = set()
    merged: list[Merged] = []
    columns: list[range] = []
    rows = list(_parse_rows(book, name, source=source, hidden=hidden, merged=merged, columns=columns))
    ordered = all(a[0] < b[0] for a, b in pairwise(rows))
    return Sheet(rows if ordered else sorted(rows, key=lambda row: row[0]), tuple(merged), hidden, tuple(columns))


def _parse_rows(
    book: Any,
    name: str,
    *,
    source: str,
    hidden: set[int] | None = None,
    merged: list[Merged] | None = None,
    columns: list[range] | None = None,
) -> Iterator[tuple[int, dict[int, Cell]]]:
    """Parse the rows of a sheet that have a value, and collect hidden rows and columns, and merged ranges."""
    number = count = text = elements = 0
    place = f"sheet '{name}' of {source}"
    try:
        reader = _CellReader(book, book[name])
        with book._archive.open(book[name]._worksheet_path) as stream:
            parent: Element | None = None
            for event, element in iterparse(stream, events=("start", "end")):
                tag = element.tag.rpartition("}")[2]
                if event == "start":
                    parent = element if tag == "sheetData" else parent
                    continue
                elements += 1
                if elements > _MOST_ELEMENTS:
                    raise ValueError(f"{elements} elements")
                if tag == "row":
                    elements = 0
                    number = int(float(element.get("r") or number + 1))
                    if hidden is not None and element.get("hidden") in ("1", "true"):
                        hidden.add(number)
                    cells = reader.read_row(element)
                    count += len(cells)
                    text += sum(len(c.value) for c in cells.values() if isinstance(c.value, str))
                    refuse_bomb(EXCEL_CELL * count, where=place)
                    check_text(text, where=place)
                    if parent is not None:
                        parent.clear()
                    if cells:
                        yield number, cells
                elif tag == "col" and columns is not None and element.get("hidden") in ("1", "true"):
                    columns.append(range(int(element.get("min", 0)), int(element.get("max", 0)) + 1))
                elif tag == "mergeCell" and merged is not None:
                    merged.append(_parse_range(element.get("ref") or ""))
    except _FAULTS:
        raise BadInput(
            f"{place} is damaged after row {number}; open it in Excel and save it again",
            code="damaged-file",
        ) from None


class _CellReader:
    """Converts the XML of cells, with the formats and shared texts of the workbook."""

    def __init__(self, book: Any, sheet: Any) -> None:
        from openpyxl.utils.datetime import from_excel, from_ISO8601

        self.texts = sheet._shared_strings
        self.dates, self.durations = book._date_formats, book._timedelta_formats
        self.epoch, self.from_excel, self.from_iso = book.epoch, from_excel, from_ISO8601
        self.percents = {i for i, style in enumerate(book._cell_styles) if _is_percent(book, style.numFmtId)}

    def read_row(self, row: Element) -> dict[int, Cell]:
        """Read the cells of a row that have a value, by column."""
        cells: dict[int, Cell] = {}
        column = 0
        for element in row:
            place = element.get("r")
            column = column + 1 if place is None else _parse_cell_name(place)[0]
            cell = self._read_cell(element)
            if cell is not None:
                cells[column] = cell
        return cells

    def _read_cell(self, element: Element) -> Cell | None:
        kind, word, formula = element.get("t", "n"), "", False
        for child in element:
            tag = child.tag.rpartition("}")[2]
            if tag == "v":
                word = child.text or ""
            elif tag == "f":
                formula = True
            elif tag == "is":
                word = _inline_text(child)
        if kind in ("str", "inlineStr"):
            return Cell(word) if word.strip() else None
        if not word:
            return Cell("", fault="=") if formula else None
        if kind == "s":
            text = str(self.texts[int(word)])
            return Cell(text) if text.strip() else None
        if kind == "b":
            return Cell(word.strip() in ("1", "true"))
        if kind == "e":
            return Cell("", fault=word)
        if kind == "d":
            return _date_cell(self.from_iso(word))
        value, style = _parse_number(word), int(element.get("s", 0))
        if style in self.dates:
            try:
                return _date_cell(self.from_excel(value, self.epoch, timedelta=style in self.durations))
            except (OverflowError, ValueError):  # a number in a date's format
                return Cell("", fault="#VALUE!")
        return Cell(value, percent=style in self.percents)


def _parse_number(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word[:20]} is not a finite number")
    return value


def _date_cell(value: Any) -> Cell:
    """Convert a date, a time of day (as text) or a duration (in seconds)."""
    if isinstance(value, datetime.timedelta):
        return Cell(value.total_seconds())
    if isinstance(value, datetime.datetime):
        rounded = (value + datetime.timedelta(milliseconds=500)).replace(microsecond=0)  # serials have rounding errors
        return Cell(rounded.isoformat(), date=rounded)
    if isinstance(value, datetime.date):
        moment = datetime.datetime.combine(value, datetime.time())
        return Cell(moment.isoformat(), date=moment)
    return Cell(value.replace(microsecond=0).isoformat() if isinstance(value, datetime.time) else str(value))


def _inline_text(element: Element) -> str:
    """Join the text of an inline string, without its phonetic hints."""
    parts = []
    for child in element:
        tag = child.tag.rpartition("}")[2]
        if tag == "t":
            parts.append(child.text or "")
        elif tag == "r":
            parts += [run.text or "" for run in child if run.tag.rpartition("}")[2] == "t"]
    return "".join(parts)


def _is_percent(book: Any, number: int) -> bool:
    """Tell whether a number format shows percent: 9 and 10 are built in, the user's own start at 164."""
    if number in (9, 10):
        return True
    own = book._number_formats
    return number >= 164 and number - 164 < len(own) and "%" in re.sub(r'"[^"]*"|\\.', "", own[number - 164])


def _parse_cell_name(name: str) -> tuple[int, int]:
    match = _CELL_NAME.fullmatch(name.replace("$", "").upper())
    if match is None:
        raise ValueError(f"{name[:20]} is not a cell")
    column = 0
    for letter in match[1]:
        column = 26 * column + ord(letter) - ord("A") + 1
    return column, int(match[2])


def _parse_range(text: str) -> Merged:
    first, _, last = text.partition(":")
    left, top = _parse_cell_name(first)
    right, bottom = _parse_cell_name(last or first)
    return Merged(left, top, right, bottom)


def column_letters(column: int) -> str:
    """Write a column's number as Excel does: 1 is A, 28 is AB."""
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
