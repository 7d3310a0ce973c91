"""Excel workbooks (.xlsx, .xlsm): choice of the sheet, its header, and cells with their types.

Dates are written as ISO text and numbers are kept. Cells of text ("<5", "1,5", "12" stored as text) are read by the rules of
a text file (`formats`). Every assumption is a note. Formulas are never computed: the values that Excel stored are read.
"""

from __future__ import annotations

import datetime
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.formats import (
    AUTO,
    Format,
    Reading,
    Source,
    date_format,
    list_columns,
    read_dates,
    read_formats,
)
from grandrounds.data.limits import check_text
from grandrounds.data.sheet_layout import (
    Header,
    choose_sheet,
    fill_merged,
    find_header,
    note_hidden,
    note_totals,
    skip_units,
    without_footnotes,
)
from grandrounds.data.sheets import Cell, Sheet, check_workbook, column_letters, open_workbook, read_sheet
from grandrounds.data.table import Table, format_number, is_number, parse_numbers

EXCEL = (".xlsx", ".xlsm")
UNREADABLE = (".xls", ".xlsb", ".ods")
"""Spreadsheets of other formats, which are refused with a sentence."""

NOT_AVAILABLE = "#N/A"
_USUAL_MARKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")


def read_excel(
    raw: bytes,
    *,
    source: str,
    marks: frozenset[str],
    form: Format,
    kinds: Mapping[str, object] | None = None,
    keep: Collection[str] = (),
) -> Table:
    """Read one sheet of a workbook as a table.

    Args:
        raw: The file's content.
        source: The file, for messages.
        marks: Cells that mean "no value".
        form: The format that the user states; `sheet` of it names the sheet.
        kinds: As in `read_formats`.
        keep: As in `read_formats`.

    Returns:
        The table; `reading` of it states the assumptions.

    Raises:
        BadInput: It is no readable workbook, the sheet is not clear, or a cell has no value to read.
    """
    check_workbook(raw, source=source)
    with open_workbook(io.BytesIO(raw), source=source) as book:
        sheet, notes = choose_sheet(book, form.sheet, source=source)
        grid = read_sheet(book, sheet, source=source)
    where = f"sheet '{sheet}' of {source}"
    grid = without_footnotes(grid, notes)
    head, grid = find_header(grid, where=where, notes=notes)
    fill_merged(grid, head, where=where, notes=notes)
    grid = skip_units(head, grid, marks=marks, notes=notes)
    if not grid.rows:
        raise BadInput(f"{where} has a header but no rows; give a table with at least one row", code="empty-table")
    note_hidden(head, grid, notes)
    note_totals(head, grid, notes)
    columns = [_Column(name, [row.get(c) for _, row in grid.rows]) for c, name in head.names.items()]
    check_text(sum(len(c.value) for column in columns for c in column.present() if isinstance(c.value, str)), where=where)
    values, reading = _read_columns(columns, head, grid, marks=marks, form=form, kinds=kinds or {}, keep=keep, where=where)
    numbers = np.array([number for number, _ in grid.rows])
    return Table(values, source, reading=replace(reading, notes=(*notes, *reading.notes), header=head.row, rows=numbers))


@dataclass
class _Column:
    """One column of a sheet: cells with their types, None where there is none."""

    name: str
    cells: list[Cell | None]
    missing: set[str] = field(default_factory=set)  # words that were read as missing

    def present(self) -> list[Cell]:
        return [cell for cell in self.cells if cell is not None]


def _read_columns(
    columns: Sequence[_Column],
    head: Header,
    grid: Sheet,
    *,
    marks: frozenset[str],
    form: Format,
    kinds: Mapping[str, object],
    keep: Collection[str],
    where: str,
) -> tuple[dict[str, Array], Reading]:
    """Convert the columns to numbers or text, and state the assumptions."""
    sources, notes = [], _Notes()
    for place, column in zip(head.names, columns, strict=True):
        _refuse_errors(column, place, grid, marks=marks, where=where)
        sources.append(_to_source(column, marks, notes))
    if form.detect:
        values, reading = read_formats(sources, form, separator="", kinds=kinds, keep=keep)
    else:
        values, reading = {s.name: s.values for s in sources}, Reading()
    return values, replace(reading, notes=(*notes.lines(), *reading.notes, *_missing_notes(columns)))


def _refuse_errors(column: _Column, place: int, grid: Sheet, *, marks: frozenset[str], where: str) -> None:
    """Read #N/A as missing, and refuse formulas without a value and other errors such as #REF!."""
    for index, cell in enumerate(column.cells):
        if cell is None or not cell.fault:
            continue
        if cell.fault == NOT_AVAILABLE or cell.fault in marks:
            column.cells[index] = None
            column.missing.add(cell.fault)
            continue
        at = f"cell {column_letters(place)}{grid.rows[index][0]} of {where} (column '{column.name}')"
        if cell.fault == "=":
            raise BadInput(
                f"{at} is a formula without a stored value; open the file in Excel or LibreOffice, save it, and try again",
                code="formula-without-value",
            )
        raise BadInput(
            f"{at} holds the error {cell.fault}; repair the formula, or read it as missing with --missing '{cell.fault}'",
            code="spreadsheet-error",
        )


def _to_source(column: _Column, marks: frozenset[str], notes: _Notes) -> Source:
    """Convert one column: numbers where every cell is one, else text that `read_formats` looks at."""
    cells = column.cells
    present = column.present()
    if any(cell.date for cell in present):
        return Source(column.name, _date_words(column, marks, notes), ())
    if not any(cell.is_text for cell in present):
        percent = bool(present) and all(cell.percent for cell in present if isinstance(cell.value, float))
        if any(cell.percent for cell in present):
            (notes.percent if percent else notes.part_percent).append(column.name)
        floats = np.array([np.nan if c is None else c.number(percent=percent) for c in cells], dtype=np.float64)
        codes = [float(mark) for mark in marks if is_number(mark)]
        return Source(column.name, np.where(np.isin(floats, codes), np.nan, floats) if codes else floats, ())
    words = _words(column, marks)
    known = [word for word in words if word is not None]
    numbers = parse_numbers(known) if known else np.empty(0)
    if numbers is None:
        values = np.empty(len(words), dtype=object)
        values[:] = words
        return Source(column.name, values, (), column.missing)
    if known and any(cell.is_text and cell.text.strip() in known for cell in present):
        notes.stored_as_text.append(column.name)
    floats = np.full(len(words), np.nan)
    floats[[word is not None for word in words]] = numbers
    only_text = all(cell.is_text for cell in present)
    return Source(column.name, floats, ["\0".join(word or "" for word in words)] if only_text else (), column.missing)


def _words(column: _Column, marks: frozenset[str]) -> list[str | None]:
    """Write the cells as words, None where one is missing."""
    words: list[str | None] = []
    codes = {float(mark) for mark in marks if is_number(mark)}
    for cell in column.cells:
        word = None if cell is None else _write_word(cell)
        if word is not None and (word in marks or (is_number(word) and float(word) in codes)):
            column.missing.add(word)
            word = None
        words.append(word)
    return words


def _write_word(cell: Cell) -> str:
    return f"{format_number(cell.number(percent=True))}%" if cell.percent else cell.text.strip()


def _date_words(column: _Column, marks: frozenset[str], notes: _Notes) -> Array:
    """Write dates as ISO text, without a time where no cell has one; dates stored as text beside them are converted."""
    present = column.present()
    days = all(cell.date is None or cell.date.time() == datetime.time() for cell in present)
    words = _words(column, marks)
    stored = [word for word, cell in zip(words, column.cells, strict=True) if word and cell is not None and not cell.date]
    seconds = read_dates(stored, AUTO) if stored and date_format(Counter(stored)) else None
    converted: dict[str, str] = {}
    if seconds is not None and not np.isnan(seconds).any():
        moments = [datetime.datetime.fromtimestamp(s, datetime.UTC).replace(tzinfo=None) for s in seconds.tolist()]
        days = days and all(m.time() == datetime.time() for m in moments)
        converted = {w: (m.date() if days else m).isoformat() for w, m in zip(stored, moments, strict=True)}
        notes.text_dates.setdefault(column.name, stored[0])
    out = np.empty(len(words), dtype=object)
    for index, (word, cell) in enumerate(zip(words, column.cells, strict=True)):
        if word is not None and cell is not None and cell.date is not None:
            out[index] = (cell.date.date() if days else cell.date).isoformat()
        else:
            out[index] = None if word is None else converted.get(word, word)
    return out


def _missing_notes(columns: Sequence[_Column]) -> list[str]:
    """List words that were read as missing, besides empty cells and NA."""
    by_word: dict[str, list[str]] = {}
    for column in columns:
        for word in sorted(column.missing - set(_USUAL_MARKS)):
            by_word.setdefault(word, []).append(column.name)
    return [f"'{word}' read as missing in {list_columns(names)}" for word, names in by_word.items()]


@dataclass
class _Notes:
    """Columns by what was assumed of them."""

    percent: list[str] = field(default_factory=list)
    part_percent: list[str] = field(default_factory=list)
    stored_as_text: list[str] = field(default_factory=list)
    text_dates: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        lines = []
        if self.percent:
            lines.append(f"percent format in {list_columns(self.percent)} (a cell that shows 45% is read as 45)")
        if self.part_percent:
            lines.append(
                f"percent format in some cells of {list_columns(self.part_percent)}, read as stored (45% is 0.45)"
            )
        if self.stored_as_text:
            lines.append(f"numbers stored as text in {list_columns(self.stored_as_text)} are read as numbers")
        if self.text_dates:
            shown = next(iter(self.text_dates.values()))
            lines.append(f"dates stored as text in {list_columns(list(self.text_dates))} (such as '{shown}') are read as dates")
        return lines


def refuse_spreadsheet(source: str) -> BadInput:
    """Return the error for a spreadsheet of another format, with the way to save it."""
    kind = next(ending for ending in UNREADABLE if source.lower().endswith(ending))
    program = "LibreOffice" if kind == ".ods" else "Excel"
    return BadInput(
        f"file type of {source} ({kind}) is not read; open it in {program} and save it as .xlsx (Excel Workbook) or as CSV UTF-8",
        code="unknown-file-type",
    )

