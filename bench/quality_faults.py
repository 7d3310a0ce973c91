"""Faults for `bench/quality.py`: eight kinds, several forms each, put into a site's table as a file.

A fault is drawn from a seed: its form, its column and its size. Every table goes through a CSV file, as a hospital would hand
it over. Columns are drawn at random among those that a form can change: a column whose main level has 95% of the rows
is neither exchanged nor recoded, since nothing would change.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.agreement.units import conversions
from grandrounds.data.table import Table, missing_mask, to_text

KINDS = (
    "wrong unit", "swapped columns", "shifted dates", "duplicated patients", "recoded category", "truncated file",
    "mixed encodings", "label leak",
)  # fmt: skip
_FEWEST = 20  # values of a column that is changed
_MAIN = 0.95


@dataclass(frozen=True, eq=False)
class Fault:
    """A file with one fault.

    Attributes:
        kind: One of `KINDS`.
        form: Its form, in a few words.
        columns: Columns that a finding may name; "" stands for the whole table.
        expected_rows: Rows that the site states, where the form has that.
    """

    kind: str
    form: str
    columns: frozenset[str]
    content: bytes
    suffix: str = ".csv"
    expected_rows: int | None = None

    def write(self, folder: Path) -> Path:
        """Write the file into a folder."""
        path = folder / f"site{self.suffix}"
        path.write_bytes(self.content)
        return path


def write_csv(table: Table, *, encode: Callable[[int, str, str], bytes] | None = None) -> bytes:
    """Write a table as CSV in UTF-8; `encode` writes a cell of a row and column in its own way."""
    names = list(table.names)
    columns = [to_text(table.columns[name]).tolist() for name in names]
    lines = [_csv_line(names).encode()]
    for i, row in enumerate(zip(*columns, strict=True)):
        cells = ["" if cell is None else cell for cell in row]
        if encode is None:
            lines.append(_csv_line(cells).encode())
        else:
            lines.append(b",".join(encode(i, n, _quote(c)) for n, c in zip(names, cells, strict=True)) + b"\n")
    return b"".join(lines)


def _csv_line(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _quote(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n') else cell


def make_fault(kind: str, form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Put one fault into a table; `form` counts the forms of a kind, beginning again after the last."""
    makers = {
        "wrong unit": _wrong_unit, "swapped columns": _swap, "shifted dates": _shift_dates, "duplicated patients": _duplicate,
        "recoded category": _recode, "truncated file": _truncate, "mixed encodings": _mix_encodings, "label leak": _leak,
    }  # fmt: skip
    return makers[kind](form, table, schema, rng)


def _present(table: Table, name: str) -> Array:
    return ~missing_mask(table.columns[name])


def _wrong_unit(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Whole column in another unit (twice as often), or 40% of its rows."""
    options = []
    for c in schema.columns:
        if c.unit and c.name in table.columns and _present(table, c.name).sum() >= _FEWEST:
            known = conversions(c.name, unit=c.unit, median=c.quantiles[2] if c.quantiles else None)
            options += [(c.name, k) for k in known if k.measure != "age" or c.unit == "years"]
    names = sorted({name for name, _ in options})
    name = names[int(rng.integers(len(names)))]
    known = [k for n, k in options if n == name]
    conversion = known[int(rng.integers(len(known)))]
    values = table.columns[name].copy()
    other = (values - conversion.offset) / conversion.factor
    whole = form % 3 != 2
    changed = np.ones(len(values), bool) if whole else rng.random(len(values)) < 0.4
    values = np.where(changed, np.round(other, 4), values)
    part = "all rows" if whole else "40% of the rows"
    text = f"{part} in {conversion.units[0]} for {conversion.units[1]}"
    return Fault("wrong unit", text, frozenset({name}), write_csv(table.with_columns({name: values})))


def _varies(table: Table, column: AgreedColumn) -> bool:
    """Tell whether a column has values, and a main level below 95%."""
    present = _present(table, column.name)
    if present.sum() < _FEWEST:
        return False
    words, counts = np.unique(to_text(table.columns[column.name])[present].astype(str), return_counts=True)
    return len(words) > 1 and counts.max() / counts.sum() < _MAIN


def _swap(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Two neighbours of the table, or any two columns of the same kind."""
    fit = [c for c in schema.columns if c.name in table.columns and _varies(table, c)]
    while True:
        i = int(rng.integers(len(fit) - 1))
        j = i + 1 if form % 2 == 0 else int(rng.integers(len(fit)))
        a, b = fit[i], fit[j]
        if i != j and (a.kind == "number") == (b.kind == "number"):
            break
    changed = table.with_columns({a.name: table.columns[b.name], b.name: table.columns[a.name]})
    text = f"{'neighbours' if form % 2 == 0 else 'any two'}: {a.name} and {b.name}"
    return Fault("swapped columns", text, frozenset({a.name, b.name}), write_csv(changed))


def _shift_dates(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Both columns by years; one by years; Excel's calendars; a wrong century; the end by weeks; day and month exchanged."""
    dates = {name: _days(table, name) for name in schema.date_names}
    sign, years = int(rng.choice([-1, 1])), int(rng.integers(2, 10))
    one = str(rng.choice(["admitted", "discharged"]))
    changed: dict[str, Array] = {}
    kind = form % 6
    if kind == 0:
        changed = {name: dates[name] + sign * round(365.25 * years) for name in ("admitted", "discharged")}
        text = f"admitted and discharged by {sign * years} years"
    elif kind == 1:
        years = int(rng.integers(1, 6))
        changed = {one: dates[one] + sign * round(365.25 * years)}
        text = f"{one} by {sign * years} years"
    elif kind == 2:
        changed = {one: dates[one] + sign * 1462}
        text = f"{one} by {sign * 1462} days, Excel's calendars"
    elif kind == 3:
        one = "born" if "born" in dates else one
        changed = {one: _change_century(dates[one], later=one == "born")}
        text = f"{one} in another century where the year has two digits"
    elif kind == 4:
        days = int(rng.integers(30, 91))
        changed = {"discharged": dates["discharged"] + sign * days}
        text = f"discharged by {sign * days} days"
    else:
        changed = {one: _exchange_day_month(dates[one])}
        text = f"{one} with day and month exchanged where the day is 12 or less"
    # a shift of one column shows in its difference from the other: the pair is named
    pair = frozenset({"admitted", "discharged"}) if "born" not in changed else frozenset({"born", "admitted", "discharged"})
    new = {name: [None if np.isnat(d) else str(d) for d in days] for name, days in changed.items()}
    return Fault("shifted dates", text, pair, write_csv(table.with_columns(new)))


def _days(table: Table, name: str) -> Array:
    return np.array([np.datetime64("NaT") if d is None else np.datetime64(d) for d in table.columns[name].tolist()], "M8[D]")


def _change_century(days: Array, *, later: bool) -> Array:
    """Read years of two digits wrongly: up to 68 as 20xx, or 19xx for 20xx and 18xx for 19xx."""
    year = days.astype("M8[Y]").astype(int) + 1970
    years = np.where(later, np.where(year <= 1968, 100, 0), -100)
    return np.where(np.isnat(days), days, days + np.round(years * 365.25).astype(int))


def _exchange_day_month(days: Array) -> Array:
    out = days.copy()
    for i, day in enumerate(days):
        if not np.isnat(day):
            year, month, number = str(day).split("-")
            if int(number) <= 12:
                out[i] = np.datetime64(f"{year}-{number}-{month}")
    return out


def _duplicate(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Rows copied; copied under new numbers; copied under new numbers with changed cells; numbers of patients cut short."""
    assert schema.patient is not None
    n, count = len(table), max(5, round(0.1 * len(table)))
    columns = frozenset({"", schema.patient})
    if form % 4 == 3:
        ids = to_text(table.columns[schema.patient])
        changed = table.with_columns({schema.patient: _cut_numbers(ids.tolist())})
        return Fault("duplicated patients", "the patient's number cut short", columns, write_csv(changed))
    again = rng.choice(n, count, replace=False)
    copies = {name: values[again].copy() for name, values in table.columns.items()}
    text = "10% of the rows copied"
    if form % 4 in (1, 2):
        copies[schema.patient] = np.array([f"9{int(k):07d}" for k in rng.integers(10**7, size=count)], dtype=object)
        text += ", under new numbers"
    if form % 4 == 2:
        _change_cells(copies, schema, rng)
        text += ", with three changed cells each"
    joined = {name: np.concatenate([values, copies[name]]) for name, values in table.columns.items()}
    order = rng.permutation(n + count)
    changed = Table({name: values[order] for name, values in joined.items()}, table.source)
    return Fault("duplicated patients", text, columns, write_csv(changed))


def _cut_numbers(words: list[str]) -> list[str]:
    """Cut digits until at least 10% of the patients share a number with another."""
    patients = set(words)
    short = {word: word for word in patients}
    while len(set(short.values())) > 0.9 * len(patients):
        short = {word: word[: len(short[word]) - 1] for word in patients}
    return [short[word] for word in words]


def _change_cells(copies: dict[str, Array], schema: DataSchema, rng: np.random.Generator) -> None:
    """Replace three cells of each row by those of another row."""
    names = [c.name for c in schema.columns if c.name in copies]
    count = len(next(iter(copies.values())))
    for i in range(count):
        for name in rng.choice(names, 3, replace=False).tolist():
            copies[name][i] = copies[name][int(rng.integers(count))]


def _recode(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Numbers for words; levels moved by one place; the two main levels exchanged; other words in half of the rows."""
    fit = [c for c in schema.columns if c.values and c.name in table.columns and _varies(table, c)]
    column = fit[int(rng.integers(len(fit)))]
    words = to_text(table.columns[column.name]).tolist()
    levels = sorted({w for w in words if w is not None} | set(column.values))
    other: dict[str | None, str | None]
    kind = form % 4
    if kind in (0, 3):
        numbered = all(w.isdigit() for w in levels)
        other = {w: f"K{i}" if numbered else str(i + 1) for i, w in enumerate(levels)}
        text = "codes for words" if kind == 0 else "codes for words in half of the rows"
    elif kind == 1:
        other = dict(zip(levels, (*levels[1:], levels[0]), strict=True))
        text = "levels moved by one place"
    else:
        share = dict(zip(column.values, column.shares, strict=True))
        first, second = sorted(column.values, key=lambda w: -share[w])[:2]
        other = {first: second, second: first}
        text = f"'{first}' and '{second}' exchanged"
    half = rng.random(len(words)) < (0.5 if kind == 3 else 1.0)
    changed = [other.get(w, w) if h and w is not None else w for w, h in zip(words, half.tolist(), strict=True)]
    content = write_csv(table.with_columns({column.name: changed}))
    return Fault("recoded category", f"{column.name}: {text}", frozenset({column.name}), content)


def _truncate(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Cut within a line; gzip cut; cut between lines with the rows stated; the same without, in the order of admission."""
    kind = form % 4
    ordered = table.take(np.argsort(_days(table, "admitted"), kind="stable")) if kind == 3 else table
    whole = write_csv(Table(ordered.columns, table.source))
    part = float(rng.uniform(0.2, 0.9))
    if kind == 1:
        packed = gzip.compress(whole, mtime=0)
        return Fault("truncated file", "gzip cut", frozenset({""}), packed[: int(part * len(packed))], suffix=".csv.gz")
    if kind == 0:
        return Fault("truncated file", "cut at a byte", frozenset({""}), whole[: int(part * len(whole))])
    end = whole.rindex(b"\n", 0, int(part * len(whole))) + 1
    if kind == 2:
        return Fault("truncated file", "cut between lines, rows stated", frozenset({""}), whole[:end], expected_rows=len(table))
    return Fault("truncated file", "cut between lines, in the order of admission", frozenset({""}), whole[:end])


def _mix_encodings(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """Half of the rows, or one column, in Windows-1252; a third of the rows, or one column, encoded twice."""
    accented = [
        name for name, values in table.columns.items()
        if values.dtype == np.object_ and any(w is not None and not w.isascii() for w in values.tolist())
    ]  # fmt: skip
    one = str(rng.choice(accented))
    rows = rng.random(len(table)) < (0.5 if form % 4 == 0 else 0.33)

    def encode(i: int, name: str, cell: str) -> bytes:
        changed = bool(rows[i]) if form % 2 == 0 else name == one
        if not changed:
            return cell.encode()
        if form % 4 < 2:
            return cell.encode("cp1252")
        return cell.encode().decode("latin-1").encode()

    columns = frozenset(accented) if form % 2 == 0 else frozenset({one})
    where = "a part of the rows" if form % 2 == 0 else f"column {one}"
    how = "Windows-1252" if form % 4 < 2 else "encoded twice"
    return Fault("mixed encodings", f"{where} {how}", columns, write_csv(table, encode=encode))


def _leak(form: int, table: Table, schema: DataSchema, rng: np.random.Generator) -> Fault:
    """A copy of the label with 2% wrong; values moved with the outcome; recorded with the event only; not recorded with it."""
    classes = schema.classes
    event = np.asarray(to_text(table.columns[schema.label]) == classes[-1])
    kind = form % 4
    fit = [c for c in schema.columns if c.name in table.columns and (c.missing_share or 0) < 0.5 and _varies(table, c)]
    if kind == 1:
        fit = [c for c in fit if c.quantiles and c.quantiles[0] < c.quantiles[4]]
    column = fit[int(rng.integers(len(fit)))]
    values = table.columns[column.name].copy()
    if kind == 0:
        wrong = rng.random(len(values)) < 0.02
        values = _tell(column, event ^ wrong, rng)
        text = "copy of the label, 2% wrong"
    elif kind == 1:
        reach = column.quantiles[4] - column.quantiles[0]
        values = np.where(event, np.round(values + 1.5 * reach, 2), values)
        text = "values moved with the outcome"
    else:
        gone = (event if kind == 3 else ~event) & (rng.random(len(values)) < 0.97)
        values = np.where(gone, np.nan, values) if values.dtype == np.float64 else np.where(gone, None, values)
        text = f"recorded {'without' if kind == 3 else 'with'} the event only"
    changed = table.with_columns({column.name: values})
    return Fault("label leak", f"{column.name}: {text}", frozenset({column.name}), write_csv(changed))


def _tell(column: AgreedColumn, event: Array, rng: np.random.Generator) -> Array:
    """Write values of a column that tell the event: numbers of its upper or lower half, or its two main levels."""
    if column.quantiles:
        low, q1, _, q3, high = column.quantiles
        return np.round(np.where(event, rng.uniform(q3, high, len(event)), rng.uniform(low, q1, len(event))), 2)
    share = dict(zip(column.values, column.shares, strict=True))
    first, second = sorted(column.values, key=lambda w: -share[w])[:2]
    out = np.empty(len(event), dtype=object)
    out[:] = [second if e else first for e in event.tolist()]
    return out
