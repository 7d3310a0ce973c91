"""Number and date formats of exported tables: decimal commas, thousands separators, percent signs, "<5", 31.05.2024.

A text column becomes numbers only if every cell is one and the whole column, or else the whole file, settles how it is
written. A cell such as "1,234" that nothing settles is left as text with a sentence that names the flag to add. Every
assumption is stated in `Reading.notes`.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.table import EXACT, format_number, parse_numbers

DEFAULT_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?", ".", "n/a", "#N/A", "#NV", "<NA>")
"""Cells that mean a missing value, unless an experiment lists others."""

AUTO = "auto"
DECIMALS = (AUTO, ",", ".")
CENSORED = ("value", "half", "missing")

FEW = 10  # so few distinct numbers beside limits may be levels: "0", "1", "2", ">2"
MOSTLY = 0.9  # a share of plain numbers that shows a measurement
_NAMED = 3  # cells that a note quotes
_LISTED = 8  # columns that a note lists

_CELL = re.compile(r"(<=|>=|[<>≤≥])?\s*([+\-−]?)([0-9.,][0-9.,'’ \u00a0\u202f]*(?:[eE][+-]?[0-9]+)?)\s*(%?)")
_SPACED = re.compile(r"([1-9][0-9]{0,2})((?P<gap>['’ \u00a0\u202f])[0-9]{3}(?:(?P=gap)[0-9]{3})*)([.,][0-9]+)?")
_WHOLE = re.compile(r"0|[1-9][0-9]*")
_POINT = re.compile(r"(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.")
_COMMA = re.compile(r"(?:0|[1-9][0-9]*)?,[0-9]+")
_UNCLEAR = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_COMMA_GROUPS = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_POINT_GROUPS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]+)?")
_EXPONENT = re.compile(r"(.+?)[eE][+-]?[0-9]+")

# of cells with \0 between them: a mark that can be no thousands separator, and one that can be either
_SURE = r"(?:^|\0)\s*[+-]?(?:0|[0-9]{4,})?%s[0-9]|%s(?:[0-9]{0,2}|[0-9]{4,})\s*(?:$|\0)"
_SURE_POINT = re.compile(_SURE % (r"\.", r"\.") + "|[eE]")
_SURE_COMMA = re.compile(_SURE % (",", ","))
_UNSURE_POINT = re.compile(r"(?:^|\0)\s*[+-]?[1-9][0-9]{0,2}\.[0-9]{3}\s*(?:$|\0)")


@dataclass(frozen=True)
class Format:
    """The way a table's text is written; "auto": as the table itself shows. `sheet` is that of a workbook.

    `decimal` settles only cells that can be read in two ways. `detect=False` reads nothing but UTF-8 and plain numbers.
    """

    decimal: str = AUTO
    text_encoding: str = AUTO
    separator: str = AUTO
    censored: str = "value"
    detect: bool = True
    sheet: str | None = None

    def __post_init__(self) -> None:
        for key, value, choices in (("decimal", self.decimal, DECIMALS), ("censored", self.censored, CENSORED)):
            if value not in choices:
                raise BadInput(f"{key} is '{value}'; use one of {' '.join(choices)} (--{key})", code="unknown-format")


PLAIN = Format(detect=False)
"""Files that are known to be UTF-8 with plain numbers: those of the catalog."""


@dataclass(frozen=True)
class Reading:
    """Assumptions made to read a table: one sentence each, the file's decimal mark, and columns that stay unclear."""

    notes: tuple[str, ...] = ()
    decimal: str = AUTO
    unclear: Mapping[str, str] = field(default_factory=dict)  # column -> a cell that can be read in two ways
    header: int = 1  # row of a sheet with the column names
    rows: Array | None = field(default=None, compare=False)  # (n,) number of each row in its sheet
    labels: Mapping[str, str] = field(default_factory=dict)  # column -> its description in the file
    mixed: tuple[str, ...] = ()  # columns with decimal commas and decimal points
    selection: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Of a cohort: rows left after each step, by hospital ("" where there is one). Counts of patients, for the hospital alone."""
    row_names: tuple[str, ...] = ()
    """Of a cohort: columns that name a row, which has no number in a file."""


def align_steps(selection: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, dict[str, int]]:
    """Align the steps of all hospitals; a step that a hospital did not need leaves its rows as they were.

    Args:
        selection: Rows left after each step, by hospital.

    Returns:
        The number of rows by step and hospital, in the order of steps.
    """
    longest = max(selection.values(), key=len, default=())
    names = list(dict.fromkeys([*(name for name, _ in longest), *(name for steps in selection.values() for name, _ in steps)]))
    out: dict[str, dict[str, int]] = {name: {} for name in names}
    for site, steps in selection.items():
        counts, rows = dict(steps), steps[0][1] if steps else 0
        for name in names:
            rows = counts.get(name, rows)
            out[name][site] = rows
    return out


@dataclass(frozen=True)
class Cell:
    """One number as it is written: its limit sign, digits without a sign, the decimal mark that it proves, percent."""

    limit: str
    negative: bool
    digits: str
    proves: str  # "," or "." as the decimal mark; "?," or "?." where the mark may also be a thousands separator
    percent: bool
    grouped: bool

    def value(self, decimal: str) -> float:
        """Read the number, with `decimal` as the decimal mark where the cell does not prove its own."""
        mark = self.proves if self.proves in (",", ".") else decimal
        plain = self.digits.replace(".", "").replace(",", ".") if mark == "," else self.digits.replace(",", "")
        return -float(plain) if self.negative else float(plain)


def parse_cell(word: str) -> Cell | None:
    """Parse a cell as a number in one of the known formats; None where it is none."""
    match = _CELL.fullmatch(word)
    if match is None:
        return None
    limit, sign, body, percent = match.groups()
    digits, proves, grouped = _parse_digits(body.strip())
    if not digits or (digits.isdigit() and float(digits) > EXACT):
        return None
    return Cell(limit or "", sign in ("-", "−"), digits, proves, bool(percent), grouped)


def _parse_digits(body: str) -> tuple[str, str, bool]:
    """Read digits with at most the marks "," and ".", the decimal mark they prove, and whether thousands are grouped."""
    spaced = _SPACED.fullmatch(body)
    if spaced:
        rest = spaced.group(4) or ""
        integer_digits = re.sub(r"[^0-9]", "", spaced.group(1) + spaced.group(2))
        return integer_digits + rest, rest[:1], True
    power = _EXPONENT.fullmatch(body)
    number = power.group(1) if power else body
    if _WHOLE.fullmatch(number):
        return body, "", False
    if _POINT.fullmatch(number) or _COMMA.fullmatch(number):
        mark = "." if "." in number else ","
        return body, f"?{mark}" if _UNCLEAR.fullmatch(number) and not power else mark, False
    if power is None and _COMMA_GROUPS.fullmatch(number):
        return body, ".", True
    if power is None and _POINT_GROUPS.fullmatch(number):
        return body, ",", True
    return "", "", False


@dataclass
class TextColumn:
    """A column of text whose every cell is a number in some format."""

    words: list[str | None]
    cells: dict[str, Cell]  # of each distinct word
    fast: Array | None = None  # the values, where all marks are decimal commas

    @property
    def proves(self) -> set[str]:
        return {c.proves for c in self.cells.values()} & {",", "."}

    @property
    def unclear(self) -> str | None:
        """A word that can be read in two ways."""
        return next((word for word, c in self.cells.items() if c.proves.startswith("?")), None)


@dataclass
class Source:
    """One column as it was read: numbers with their cells as text, or words."""

    name: str
    values: Array
    batches: Sequence[str]  # of numbers: cells with \0 between them
    marks: Collection[str] = ()  # words that were read as missing
    comma: str | None = None  # of numbers that were read with decimal commas: the first cell that has one
    distinct: Sequence[str] | None = None  # of text, if they are known: its words in the order of the rows, each once


def read_formats(
    columns: Sequence[Source], form: Format, *, separator: str, kinds: Mapping[str, object], keep: Collection[str]
) -> tuple[dict[str, Array], Reading]:
    """Read columns with formatted numbers, and state the assumptions.

    Args:
        columns: The columns as they were read.
        form: The format that the user states.
        separator: The separator of the file.
        kinds: Columns that are "categorical" or have levels stay text, "numeric" ones are read if every cell is a number.
        keep: Columns that stay as they are (label, site, patient).

    Returns:
        The columns by name, and the assumptions.
    """
    texts: dict[str, TextColumn] = {}
    for source in columns:
        if source.comma is not None:
            texts[source.name] = TextColumn([], {source.comma: _comma_cell(source.comma)}, source.values)
        elif source.values.dtype == np.object_ and may_be_formatted(source.name, kinds=kinds, keep=keep):
            sure = kinds.get(source.name) == "numeric"
            text_column = _parse_column(source.values, source.distinct, sure=sure)
            if text_column is not None:
                texts[source.name] = text_column
    commas = [n for n, t in texts.items() if t.proves == {","}]
    comma_possible = form.decimal == "," or any("," in t.proves or t.unclear for t in texts.values())
    numbers = [s for s in columns if s.values.dtype == np.float64 and s.batches and s.name not in keep]
    dotted = {s.name: _classify_points(s.batches) for s in numbers} if comma_possible or separator == ";" else {}
    points = [n for n, t in texts.items() if t.proves == {"."}] + [n for n, d in dotted.items() if d == "."]
    decimal = form.decimal
    if decimal == AUTO and bool(commas) != bool(points):
        decimal = "," if commas else "."
    out = {s.name: s.values for s in columns}
    notes = _Notes(form)
    unclear: dict[str, str] = {}
    for name, text in texts.items():
        mark = next(iter(text.proves)) if len(text.proves) == 1 else decimal
        if mark == AUTO and text.unclear is not None:
            unclear[name] = text.unclear
            continue
        out[name] = _column_values(text, mark, form.censored)
        notes.add(name, text, mark)
    for source in numbers:
        if dotted.get(source.name) != "?":
            continue
        if decimal == ",":
            cells = [cell for batch in source.batches for cell in batch.split("\0")]
            out[source.name] = _without_points(cells, source.values)
            notes.thousands[source.name] = _first_dotted(source.batches)
        elif decimal == AUTO and commas:
            unclear[source.name] = _first_dotted(source.batches)
        elif decimal == AUTO:
            notes.points.append(source.name)
    return out, Reading(tuple(notes.lines()), decimal, unclear, mixed=tuple(notes.mixed))


def may_be_formatted(name: str, *, kinds: Mapping[str, object], keep: Collection[str]) -> bool:
    """Tell whether text of a column may be numbers in some format; arguments as in `read_formats`."""
    kind = kinds.get(name)
    return name not in keep and (kind is None or kind in ("numeric", "id", "drop"))


def _parse_column(values: Array, known: Sequence[str] | None, *, sure: bool) -> TextColumn | None:
    """Parse the column's cells as numbers; None where one is no number or the column holds levels or codes."""
    first = next((w for w in (known or values) if w is not None), None)
    if first is None or (parse_cell(first) is None and parse_numbers([first.replace(",", ".")]) is None):
        return None
    distinct = list(dict.fromkeys(w for w in values.tolist() if w is not None) if known is None else known)
    fast = _fast_commas(distinct)
    if fast is not None:
        floats, cells = fast
        words: list[str | None] = values.tolist()
        number_by_word: dict[str | None, float] = dict(zip(distinct, floats.tolist(), strict=True))
        number_by_word[None] = np.nan
        return TextColumn(words, cells, np.fromiter(map(number_by_word.__getitem__, words), np.float64, len(words)))
    cells = {}
    for word in distinct:
        cell = parse_cell(word)
        if cell is None:
            return None
        cells[word] = cell
    column = TextColumn(values.tolist(), cells)
    return column if _is_measurement(column, sure=sure) else None


def _fast_commas(words: list[str]) -> tuple[Array, dict[str, Cell]] | None:
    """Parse numbers that differ from plain ones by a decimal comma alone, without a pattern for each cell."""
    joined = "\0".join(words)
    if "," not in joined or "." in joined or not proves_comma(words):
        return None
    floats = parse_numbers([word.replace(",", ".") for word in words])
    if floats is None:
        return None
    shown = next(w for w in words if "," in w)
    return floats, {shown: _comma_cell(shown)}


def _comma_cell(word: str) -> Cell:
    """Return the cell that represents a column of numbers with decimal commas."""
    return Cell("", False, word, ",", False, False)


def proves_comma(words: Sequence[str]) -> bool:
    """Tell whether a comma in one of the cells can be no thousands separator."""
    return _SURE_COMMA.search("\0".join(words)) is not None


def _is_measurement(column: TextColumn, *, sure: bool) -> bool:
    """Tell whether cells that are all numbers are meant as numbers: not as levels ("<40", ">=40"), codes, or mixed units."""
    cells = column.cells.values()
    signed = [c for c in cells if c.percent]
    if signed and any(not c.percent and c.digits.strip("0.,") for c in cells):
        return False
    if sure:
        return True
    if any(c.limit for c in cells):
        counts = Counter(w for w in column.words if w is not None)
        plain = {w for w, c in column.cells.items() if not c.limit}
        if len(plain) <= FEW and sum(counts[w] for w in plain) < MOSTLY * sum(counts.values()):
            return False
    spaced = [c for c in cells if c.grouped and c.digits.isdigit()]
    same_width = len({len(c.digits) for c in cells}) == 1
    return not (len(spaced) == len(column.cells) > 1 and same_width and len(spaced[0].digits) > 6)


def _column_values(column: TextColumn, decimal: str, censored: str) -> Array:
    """Convert the column's cells to numbers, NaN where missing."""
    if column.fast is not None:
        return column.fast
    number_by_word: dict[str | None, float] = {None: np.nan}
    for word, cell in column.cells.items():
        number_by_word[word] = limit_value(cell, cell.value(decimal), censored)
    return np.fromiter(map(number_by_word.__getitem__, column.words), np.float64, len(column.words))


def limit_value(cell: Cell, value: float, censored: str) -> float:
    """Choose the number for "<5" or ">200": the limit, half of a lower limit, or none."""
    if not cell.limit or censored == "value":
        return value
    if censored == "missing":
        return float("nan")
    return value / 2 if cell.limit[0] in "<≤" else value


def _classify_points(batches: Iterable[str]) -> str:
    """Give "." where a cell proves a decimal point, "?" where all points may separate thousands, "" without points."""
    unsure = ""
    for batch in batches:
        if "." in batch or "e" in batch or "E" in batch:
            if _SURE_POINT.search(batch):
                return "."
            if not unsure and _UNSURE_POINT.search(batch):
                unsure = "?"
    return unsure


def _first_dotted(batches: Iterable[str]) -> str:
    matches = (_UNSURE_POINT.search(batch) for batch in batches)
    return next(match.group().strip("\0 ") for match in matches if match)


def _without_points(cells: Sequence[str], values: Array) -> Array:
    """Read numbers whose points are thousands separators."""
    present = ~np.isnan(values)
    plain = [
        cell.replace(".", "") if has_value else "nan" for cell, has_value in zip(cells, present.tolist(), strict=True)
    ]
    return np.array([float(cell) for cell in plain])


class _Notes:
    """Sentences about what was assumed, grouped by what it was."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.commas: list[str] = []
        self.mixed: list[str] = []
        self.percent: list[str] = []
        self.points: list[str] = []
        self.thousands: dict[str, str] = {}
        self.limits: list[str] = []

    def add(self, name: str, column: TextColumn, decimal: str) -> None:
        """Note the assumptions that one column needed."""
        cells = column.cells
        if len(column.proves) == 2:
            self.mixed.append(name)
        elif any("," in c.digits for c in cells.values()) and decimal == ",":
            self.commas.append(name)
        grouped = next((w for w, c in cells.items() if c.grouped or c.proves not in ("", decimal, f"?{decimal}")), None)
        if grouped is not None and len(column.proves) < 2:
            self.thousands[name] = grouped
        if any(c.percent for c in cells.values()):
            self.percent.append(name)
        limits = [w for w, c in cells.items() if c.limit]
        if limits:
            self._limits(name, column, decimal, limits)

    def _limits(self, name: str, column: TextColumn, decimal: str, limits: Sequence[str]) -> None:
        counts = Counter(column.words)
        shown = sorted(limits, key=lambda w: (-counts[w], w))[:_NAMED]
        total = sum(counts[w] for w in limits)
        cells = "1 cell" if total == 1 else f"{total} cells"
        more = f" and {len(limits) - len(shown)} more" if len(limits) > len(shown) else ""
        if self.form.censored == "missing":
            read = "missing"
        else:
            got = [limit_value(c, c.value(decimal), self.form.censored) for c in map(column.cells.__getitem__, shown)]
            read = ", ".join(map(format_number, got)) + (" ..." if more else "")
        quoted = ", ".join(f"'{w}'" for w in shown)
        self.limits.append(f"{quoted}{more} in {cells} of {name} read as {read} (data.censored = {self.form.censored})")

    def lines(self) -> list[str]:
        lines = []
        if self.commas:
            lines.append(f"decimal comma in {list_columns(self.commas)}")
        if self.mixed:
            lines.append(f"decimal comma and decimal point are mixed in {list_columns(self.mixed)}")
        if self.thousands:
            word = next(iter(self.thousands.values()))
            lines.append(f"thousands separators in {list_columns(list(self.thousands))} (such as '{word}')")
        if self.percent:
            lines.append(f"percent signs in {list_columns(self.percent)} ('45%' is read as 45)")
        if self.points:
            lines.append(
                f"decimal point in {list_columns(self.points)}; if it separates thousands there, add --decimal ,"
            )
        return [*lines, *self.limits]


def list_columns(names: Sequence[str]) -> str:
    """List columns: 'column crp' or 'columns crp, lactate and 3 more'."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"column{'s' * (len(names) > 1)} {', '.join(names[:_LISTED])}{more}"


def find_unreadable(words: Iterable[str]) -> set[str]:
    """Find words that are numbers in no format."""
    return {word for word in words if parse_cell(word) is None}


# --- dates -----------------------------------------------------------------------------------------

DATE_ORDERS = (AUTO, "day-first", "month-first")
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
_DATE = re.compile(
    r"(?:(?P<a>\d{1,2})(?P<gap>[./-])(?P<b>\d{1,2})(?P=gap)(?P<year>\d{4}|(?<=\d\d.)\d\d)"
    r"|(?P<day>\d{1,2})(?P<dash>[ -]?)(?P<name>[A-Za-z]{3})(?P=dash)(?P<named_year>\d{4}|\d\d)"
    r"|(?P<first_year>\d{4})/(?P<month>\d{1,2})/(?P<last_day>\d{1,2}))"
    r"(?:[T ,]+(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.\d+)?)?(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?)?"
)
_ENGLISH = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_ENGLISH, start=1)}
_MONTHS |= {"mrz": 3, "mai": 5, "okt": 10, "dez": 12}


def is_iso_date(word: str) -> bool:
    """Tell whether a cell is written as 2024-05-31, with or without a time."""
    return _ISO_DATE.fullmatch(word) is not None


def date_format(counts: Mapping[str, int]) -> str:
    """Find the format of most dates in a column: "dd.mm.yyyy", "mm/dd/yyyy" ...; "" where they are none.

    Where every date can be read in two ways it is "dd/mm/yyyy or mm/dd/yyyy".
    """
    total = sum(counts.values())
    matches = {word: match for word in counts if (match := _DATE.fullmatch(word))}
    if not matches or sum(counts[word] for word in matches) < MOSTLY * total:
        return ""
    orders = [o for o in DATE_ORDERS[1:] if _count_dates(counts, matches, o) >= MOSTLY * total]
    match = next(iter(matches.values()))
    if not orders:
        return ""
    if match["name"]:
        return "dd-mon-yyyy"
    if match["first_year"]:
        return "yyyy/mm/dd"
    year = "y" * len(match["year"])
    patterns = {"day-first": ("dd", "mm", year), "month-first": ("mm", "dd", year)}
    return " or ".join(match["gap"].join(patterns[order]) for order in (_prefer_day_first(match, orders) or orders))


def _count_dates(counts: Mapping[str, int], matches: Mapping[str, re.Match[str]], order: str) -> int:
    return sum(counts[word] for word, match in matches.items() if _to_utc(match, order) is not None)


def _prefer_day_first(match: re.Match[str], orders: Sequence[str]) -> list[str]:
    """Prefer the day first in dates with points, such as 31.05.2024: all countries write them so."""
    return ["day-first"] if match["gap"] == "." and "day-first" in orders else []


def read_dates(words: Sequence[str | None], order: str) -> Array | None:
    """Read dates as seconds since 1970 (NaN where a cell is none); None where nothing shows if day or month comes first."""
    distinct = dict.fromkeys(w for w in words if w is not None)
    match_by_word = {word: _DATE.fullmatch(word) for word in distinct}
    matches = [m for m in match_by_word.values() if m is not None]
    if order == AUTO and matches:
        best = [o for o in DATE_ORDERS[1:] if all(_to_utc(m, o) is not None for m in matches)]
        same = len(best) == 2 and all(_to_utc(m, best[0]) == _to_utc(m, best[1]) for m in matches)
        choice = _prefer_day_first(matches[0], best) or best
        if len(choice) > 1 and not same:
            return None
        order = choice[0] if choice else "day-first"
    seconds_by_word: dict[str | None, float] = {None: float("nan")}
    for word, match in match_by_word.items():
        moment = _parse_iso(word) if match is None else _to_utc(match, order)
        seconds_by_word[word] = float("nan") if moment is None else moment.timestamp()
    return np.array([seconds_by_word[word] for word in words])


def _parse_iso(word: str) -> datetime.datetime | None:
    try:
        moment = datetime.datetime.fromisoformat(word)
    except ValueError:
        return None
    return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment


def _to_utc(match: re.Match[str], order: str) -> datetime.datetime | None:
    """Convert a date that was recognised to UTC; None where no calendar has it."""
    got = match.groupdict()
    month: int | str
    if got["name"]:
        day, month, year = got["day"], _MONTHS.get(got["name"].lower(), 0), got["named_year"]
    elif got["first_year"]:
        day, month, year = got["last_day"], got["month"], got["first_year"]
    else:
        day, month = (got["a"], got["b"]) if order == "day-first" else (got["b"], got["a"])
        year = got["year"]
    full = int(year) if len(year) == 4 else int(year) + (1900 if int(year) > 68 else 2000)
    hour = int(got["hour"] or 0)
    if got["half"]:
        hour = hour % 12 + (12 if got["half"] in "pP" else 0)
    try:
        return datetime.datetime(
            full, int(month), int(day), hour, int(got["minute"] or 0), int(got["second"] or 0), tzinfo=datetime.UTC
        )
    except ValueError:
        return None
