"""Layout of a sheet: the choice of the sheet, its header, and rows that are no patients (titles, units, remarks below).

Everything that is left out or repeated is noted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.formats import list_columns, parse_cell
from grandrounds.data.sheets import Cell, Merged, Sheet, column_letters, sheet_is_empty
from grandrounds.data.table import check_names, is_number

_SAMPLE = 50  # rows in which the header is looked for
_TOTALS = {"total", "totals", "sum", "summe", "gesamt", "mean", "average", "mittelwert", "median", "somme", "totaal", "media"}


def choose_sheet(book: Any, wanted: str | None, *, source: str) -> tuple[str, list[str]]:
    """Choose the named sheet, or the only visible one with cells; and note the choice where there are several."""
    states = {sheet.title: sheet.sheet_state for sheet in book.worksheets}
    if not states:
        raise BadInput(f"{source} has no sheet with cells; save the table in a worksheet", code="empty-table")
    if wanted is not None:
        plain = {name.strip().casefold(): name for name in states}
        name = wanted if wanted in states else plain.get(wanted.strip().casefold())
        if name is None:
            raise BadInput(
                f"sheet '{wanted}' not found in {source}; {nearest(wanted, list(states))} (use --sheet)", code="unknown-sheet"
            )
        return name, [f"sheet '{name}'"] if len(states) > 1 else []
    visible = [name for name, state in states.items() if state == "visible"]
    used = [name for name in visible if not sheet_is_empty(book, name, source=source)]
    if len(used) > 1:
        shown = ", ".join(f"'{name}'" for name in used)
        raise BadInput(
            f"{source} has {len(used)} sheets with cells: {shown}; choose one with --sheet '{used[0]}'", code="sheet-not-set"
        )
    if not used:
        hidden = [f"'{name}'" for name in states if name not in visible]
        more = f" (hidden: {', '.join(hidden)}; read one with --sheet)" if hidden else ""
        raise BadInput(f"{source} has no cells in its visible sheets{more}; give a table with rows", code="empty-table")
    hidden = [f"'{name}'" for name in states if name not in visible]
    others = f"; hidden and not read: {', '.join(hidden)}" if hidden else "; the others are empty"
    return used[0], [f"sheet '{used[0]}'{others}"] if len(states) > 1 else []


@dataclass(frozen=True)
class Header:
    """The header of a sheet: its last row, and the name of each column."""

    row: int
    names: dict[int, str]  # column number from 1 -> name


def without_footnotes(grid: Sheet, notes: list[str]) -> Sheet:
    """Leave out remarks below the table: rows of one text after an empty row."""
    rows = list(grid.rows)
    widest = max((len(row) for _, row in rows[:_SAMPLE]), default=0)
    end = len(rows)
    while end > 1 and widest > 2 and len(rows[end - 1][1]) == 1 and next(iter(rows[end - 1][1].values())).is_text:
        end -= 1
    while end < len(rows) and rows[end][0] == rows[end - 1][0] + 1:  # no empty row above it: it may be a patient
        end += 1
    if end == len(rows):
        return grid
    left = rows[end:]
    first = next(iter(left[0][1].values())).text
    notes.append(f"{_row_range([n for n, _ in left])} below the table not read ('{first[:40]}')")
    return replace(grid, rows=rows[:end])


def find_header(grid: Sheet, *, where: str, notes: list[str]) -> tuple[Header, Sheet]:
    """Find the row with the column names, and the rows below it: titles above have fewer cells."""
    sample = grid.rows[:_SAMPLE]
    if not sample:
        raise BadInput(f"{where} is empty; give a table with a header and rows", code="empty-table")
    widest = max(len(row) for _, row in sample)
    place = next(i for i in range(len(sample)) if _is_header(grid, i, widest))
    number, cells = sample[place]
    names = {column: " ".join(cell.text.split()) for column, cell in cells.items()}
    groups = [m for m in grid.merged if m.top == number and m.right > m.left]
    below = sample[place + 1][1] if place + 1 < len(sample) else {}
    if groups and all(c in below and below[c].is_text for m in groups for c in range(m.left, m.right + 1)):
        number, names = sample[place + 1][0], _join_header(names, below, groups)
        notes.append(f"the header has two rows, {number - 1} and {number}")
    above = [row for _, row in sample[:place]]
    if above:
        words = ", ".join(f"'{next(iter(row.values())).text[:40]}'" for row in above[:2])
        count = "1 row" if len(above) == 1 else f"{len(above)} rows"
        notes.append(f"header in row {number}; {count} above it not read ({words})")
    rest = replace(grid, rows=[(n, row) for n, row in grid.rows if n > number])
    return Header(number, _check_header(rest, names, number, where=where)), rest


def _is_header(grid: Sheet, place: int, widest: int) -> bool:
    """Tell whether a row can be the header: at least half of the columns, and no title of two cells above wider rows."""
    number, row = grid.rows[place]
    if len(row) < 2:
        return widest == 1
    covered = len(row) + sum(m.right - m.left for m in grid.merged if m.top == number)
    if 2 * covered < widest:
        return False
    below = grid.rows[place + 1][1] if place + 1 < len(grid.rows) else {}
    is_title = covered < widest == len(below) and len(row) == 2 and all(cell.is_text for cell in below.values())
    return not is_title


def _join_header(names: dict[int, str], below: Mapping[int, Cell], groups: Sequence[Merged]) -> dict[int, str]:
    """Join a row of group names (merged cells) with the row of names below it."""
    upper = dict(names)
    for group in groups:
        upper.update(dict.fromkeys(range(group.left, group.right + 1), names.get(group.left, "")))
    lower = {c: " ".join(cell.text.split()) for c, cell in below.items()}
    repeated = {name for name, count in Counter(lower.values()).items() if count > 1}
    joined = {}
    for column in sorted(upper.keys() | lower.keys()):
        name = lower.get(column, "")
        joined[column] = f"{upper.get(column, '')} {name}".strip() if not name or name in repeated else name
    return joined


def _refuse_two_rows(grid: Sheet, names: Mapping[int, str], number: int, *, used: Sequence[int], where: str) -> None:
    """Refuse a header whose names repeat or are too few, above a row that names every column: groups of columns, not merged."""
    given = [name for name in names.values() if name]
    if (len(set(given)) == len(given) and len(used) < len(given) + 2) or not grid.rows or grid.rows[0][0] != number + 1:
        return
    below = grid.rows[0][1]
    words = [" ".join(cell.text.split()) for cell in below.values() if cell.is_text and parse_cell(cell.text) is None]
    if len(words) < len(used) or len(set(words)) < len(words):
        return
    shown = ", ".join(f"'{word}'" for word in words[:3])
    raise BadInput(
        f"the header of {where} has two rows: row {number} holds groups ('{given[0]}'), and row {number + 1} the column names "
        f"({shown} ...); delete row {number}, or merge the cells of each group, and both rows are read",
        code="two-header-rows",
    )


def _check_header(grid: Sheet, names: dict[int, str], number: int, *, where: str) -> dict[int, str]:
    """Check the column names, as of a text file: one may be empty (a data frame's index), two may not."""
    if all(is_number(name) or parse_cell(name) is not None for name in names.values()):
        wholes = [name for name in names.values() if name.isdigit()]
        if len(wholes) < len(names) or len(set(wholes)) < len(names):
            raise BadInput(
                f"row {number} of {where} holds values, not column names; add a header row with the names",
                code="missing-header",
            )
    used = sorted({c for _, row in grid.rows for c in row} | names.keys())
    unnamed = [c for c in used if not names.get(c)]
    _refuse_two_rows(grid, names, number, used=used, where=where)
    if len(unnamed) > 1:
        raise BadInput(
            f"columns {column_letters(unnamed[0])} and {column_letters(unnamed[1])} of {where} have cells but no name in row "
            f"{number}; name them, or remove what is beside the table",
            code="missing-header",
        )
    for column in unnamed:
        free = column == used[0] and "index" not in names.values()
        names[column] = "index" if free else f"column {column_letters(column)}"
    ordered = {column: names[column] for column in used}
    check_names(list(ordered.values()), source=where)
    return ordered


def fill_merged(grid: Sheet, head: Header, *, where: str, notes: list[str]) -> None:
    """Repeat the value of cells merged downwards; cells merged sideways are no values of a column and are refused."""
    rows = dict(grid.rows)
    numbers = list(rows)
    filled: dict[str, None] = {}
    for merge in grid.merged:
        if merge.bottom <= head.row or merge.top not in rows:
            continue
        cell = rows[merge.top].get(merge.left)
        if cell is None:
            continue
        if merge.right > merge.left:
            raise BadInput(
                f"cell {column_letters(merge.left)}{merge.top} of {where} is merged over several columns ('{cell.text[:40]}'): "
                "remove that row, or unmerge it and fill every column",
                code="merged-cells",
            )
        for row in numbers[bisect_right(numbers, merge.top) : bisect_right(numbers, merge.bottom)]:
            rows[row].setdefault(merge.left, cell)
            filled[head.names[merge.left]] = None
    if filled:
        notes.append(f"merged cells in {list_columns(list(filled))}: their value is repeated in every row")


def skip_units(head: Header, grid: Sheet, *, marks: frozenset[str], notes: list[str]) -> Sheet:
    """Leave out a row of units under the header: words only, in columns that are numbers everywhere else."""
    if len(grid.rows) < 3:
        return grid
    number, first = grid.rows[0]
    words = {c: cell.text for c, cell in first.items() if cell.is_text and cell.text.strip() not in marks}
    others = [row for _, row in grid.rows[1:]]
    units = [c for c, word in words.items() if parse_cell(word.strip()) is None and _has_numbers(others, c, marks)]
    if len(units) < 2 or any(not cell.is_text for cell in first.values()):
        return grid
    notes.append(f"row {number} not read: it has units ('{words[units[0]]}' of {head.names[units[0]]})")
    return replace(grid, rows=grid.rows[1:])


def _has_numbers(rows: Sequence[Mapping[int, Cell]], column: int, marks: frozenset[str]) -> bool:
    """Tell whether the cells of a column are numbers in some format, with at least one."""
    cells = [row[column] for row in rows if column in row]
    words = [cell.text.strip() for cell in cells if cell.is_text]
    return bool(cells) and all(word in marks or parse_cell(word) is not None for word in words)


def note_hidden(head: Header, grid: Sheet, notes: list[str]) -> None:
    """Note hidden rows and columns, which are read."""
    columns = [name for column, name in head.names.items() if any(column in hidden for hidden in grid.hidden_columns)]
    if columns:
        notes.append(f"hidden {list_columns(columns)} read like the others")
    hidden = sum(number in grid.hidden for number, _ in grid.rows)
    if hidden:
        notes.append(f"{'1 hidden row is' if hidden == 1 else f'{hidden} hidden rows are'} read like the others")


def note_totals(head: Header, grid: Sheet, notes: list[str]) -> None:
    """Note a last row that starts with a word such as "Total"."""
    number, last = grid.rows[-1]
    word = next((cell.text.strip() for cell in last.values() if cell.is_text), "")
    if word.lower().rstrip(":") in _TOTALS:
        notes.append(f"row {number} starts with '{word}' and is read as a patient: remove it if it is a sum")


def _row_range(numbers: Sequence[int]) -> str:
    return f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
