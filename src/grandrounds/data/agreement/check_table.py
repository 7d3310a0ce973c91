"""Whether a site's table fits what the consortium agreed on, as a list for the site's own people before it joins.

What a finding says in words may name values, so it stays at the site. What may leave is `codes`: fixed words, and names of
columns that the consortium's own schema has.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.schema import Agreed, AgreedColumn, DataSchema
from grandrounds.data.agreement.unit_check import suspected
from grandrounds.data.schema import refuse_unclear
from grandrounds.data.table import Table, is_number, missing_mask, text_of

Level = Literal["error", "warning"]
Where = Callable[[int], str]

MISSING_COLUMN, EXTRA_COLUMN, NOT_A_NUMBER = "missing-column", "extra-column", "not-a-number"
UNKNOWN_VALUE, LABEL_VALUES, ONE_CLASS = "unknown-value", "label-values", "one-class"
NO_LABEL, NO_PATIENT = "no-label", "no-patient"
ALL_MISSING, MOSTLY_MISSING, OUT_OF_RANGE = "all-missing", "mostly-missing", "out-of-range"
REPEATED_ROWS, REPEATED_PATIENTS, TOO_FEW_ROWS = "repeated-rows", "repeated-patients", "too-few-rows"
UNITS, UNREADABLE = "units", "unreadable"

MOSTLY = 0.5
"""Share of missing values that is told."""

_SHOWN = 5  # values named in a finding


@dataclass(frozen=True)
class Finding:
    """One thing that differs. `column` is empty where it concerns the table."""

    level: Level
    code: str
    column: str
    what: str

    def __str__(self) -> str:
        return f"{self.level}: {self.column + ': ' if self.column else ''}{self.what}"


def check(table: Table, schema: DataSchema) -> list[Finding]:
    """Everything that differs, errors first. No error means that the table is read as a run will read it."""
    found = [*_names(table, schema), *_rows(table, schema)]
    for column in schema.columns:
        if column.name in table.columns:
            found += _column(table, column)
    found += label_findings(table, schema)
    if not fits(found):
        return ordered(found)
    try:
        schema.dataset(table, name=table.source)
    except BadInput as e:  # a rule of the readers that is not told above
        found.append(Finding("error", UNREADABLE, "", str(e)))
    return ordered(found)


def fits(findings: Iterable[Finding]) -> bool:
    """Whether there is no error among them."""
    return all(f.level != "error" for f in findings)


def codes(findings: Iterable[Finding], schema: Agreed) -> list[dict[str, str]]:
    """What may leave the site: level, code and the agreed column's name; nothing that stands in the table."""
    known = set(schema.names)
    told = {(f.level, f.code, f.column if f.column in known else "") for f in findings}
    return [{"level": level, "code": code, "column": column} for level, code, column in sorted(told)]


def ordered(found: Sequence[Finding]) -> list[Finding]:
    """Errors first."""
    return sorted(found, key=lambda f: f.level != "error")


def _names(table: Table, schema: DataSchema) -> Iterator[Finding]:
    lost = [name for name in schema.names if name not in table.columns]
    extra = [name for name in table.names if name not in schema.names]
    lower = {name.lower(): name for name in reversed(extra)}
    for name in lost:
        close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
        hint = f"; is it '{lower[close[0]]}'? rename it" if close else f"; the table has {listed(table.names)}"
        yield Finding("error", MISSING_COLUMN, name, f"the table has no such column{hint}")
    if extra:
        yield Finding(
            "warning", EXTRA_COLUMN, "", f"{counted(len(extra), 'column')} not agreed on, left out: {listed(extra)}"
        )


def _rows(table: Table, schema: DataSchema) -> Iterator[Finding]:
    yield from few_findings(len(table), schema.fewest_rows, "row")
    held = [table.columns[name] for name in schema.names if name in table.columns]
    if len(held) == len(schema.names):
        again = len(table) - _distinct(held)
        if again:
            what = f"{counted(again, 'row')} the same as another in every agreed column: remove copies"
            yield Finding("warning", REPEATED_ROWS, "", what)
    if schema.patient is not None and schema.patient in table.columns:
        yield from patient_findings(table, schema.patient)
        yield from _returning(table, schema.patient)


def _distinct(columns: Sequence[Array]) -> int:
    """How many rows differ: the rows are numbered anew with each column, so memory is one column's."""
    key = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        if values.dtype == np.object_:
            number = {word: i for i, word in enumerate(dict.fromkeys(values.tolist()))}
            own = np.fromiter(map(number.__getitem__, values), np.int64, len(values))
        else:
            own = np.unique(values, return_inverse=True)[1]
        key = np.unique(key * (own.max(initial=0) + 1) + own, return_inverse=True)[1]
    return int(key.max(initial=-1)) + 1


def few_findings(count: int, fewest: int, what: str) -> Iterator[Finding]:
    """Whether there are enough of them to take part."""
    if count < fewest:
        yield Finding("error", TOO_FEW_ROWS, "", f"{counted(count, what)}; a site needs {fewest} to take part")


def patient_findings(table: Table, name: str, *, unit: str = "row", where: Where | None = None) -> Iterator[Finding]:
    """Rows that name no patient: they could be on both sides of a split."""
    gaps = missing_mask(table.columns[name])
    if gaps.any():
        first = (where or table.where)(int(gaps.argmax()))
        what = f"{counted(int(gaps.sum()), unit)} without a patient, first {first}: fill it in"
        yield Finding("error", NO_PATIENT, name, what)


def _returning(table: Table, name: str) -> Iterator[Finding]:
    values = table.columns[name]
    often = [n for n in Counter(text_of(values)[~missing_mask(values)].tolist()).values() if n > 1]
    if often:
        what = f"{counted(len(often), 'patient')} with more than one row ({max(often)} at most): right only if patients return"
        yield Finding("warning", REPEATED_PATIENTS, name, what)


def label_findings(table: Table, schema: Agreed, *, unit: str = "row", where: Where | None = None) -> Iterator[Finding]:
    """Labels that are missing, none of the agreed classes, or all the same. `where`: names a row to people."""
    if schema.label not in table.columns:
        return
    values = table.columns[schema.label]
    gaps = missing_mask(values)
    if gaps.any():
        first = (where or table.where)(int(gaps.argmax()))
        what = f"{counted(int(gaps.sum()), unit)} without a label, first {first}: leave them out"
        yield Finding("error", NO_LABEL, schema.label, what)
    counts = Counter(text_of(values)[~gaps].tolist())
    classes = schema.classes or ()
    odd = {word: n for word, n in counts.items() if classes and word not in classes}
    if odd:
        what = f"{_cells(odd)} not among the agreed classes {listed(classes)}"
        yield Finding("error", LABEL_VALUES, schema.label, what)
    elif schema.positive is not None and not classes and schema.positive not in counts and len(counts) > 1:
        what = f"no {unit} says '{schema.positive}', the agreed event; it says {listed(sorted(counts))}"
        yield Finding("error", LABEL_VALUES, schema.label, what)
    elif len(counts) == 1:
        what = f"every {unit} says '{next(iter(counts))}': a site needs patients of two classes to take part"
        yield Finding("error", ONE_CLASS, schema.label, what)


def _column(table: Table, column: AgreedColumn) -> Iterator[Finding]:
    values = table.columns[column.name]
    gaps = missing_mask(values)
    share = float(gaps.mean()) if len(values) else 0.0
    if share == 1:
        yield Finding("warning", ALL_MISSING, column.name, "no value in any row")
        return
    if share > MOSTLY:
        yield Finding("warning", MOSTLY_MISSING, column.name, f"{share:.0%} of the rows have no value")
    if column.numeric:
        try:
            refuse_unclear(table, column.name)
        except BadInput as e:
            yield Finding("error", NOT_A_NUMBER, column.name, str(e))
            return
        yield from _number(table, column, values[~gaps])
    elif column.values:
        yield from _category(column, text_of(values)[~gaps])


def _number(table: Table, column: AgreedColumn, present: Array) -> Iterator[Finding]:
    if present.dtype == np.object_:
        words = Counter(w for w in present.tolist() if not _readable(w))
        if words:
            what = f"{_cells(words)} no number: write one, or list the word in the agreed marks for missing"
            yield Finding("error", NOT_A_NUMBER, column.name, what)
            return
        present = np.array([float(w) for w in present])
    if column.kind == "binary":
        yield from _category(column, text_of(present))
        return
    found = suspected(column, present)
    if found is not None:
        c = found.conversion
        here, agreed = c.of
        what = (
            f"looks like {here} where {column.unit or agreed} is agreed ({c.measure}; its median is {found.median:.4g}, "
            f"the consortium's {found.agreed:.4g}): {c}"
        )
        yield Finding("error" if found.certain else "warning", UNITS, column.name, what)
    if column.range is not None and (found is None or not found.certain):
        low, high = column.range
        out = (present < low) | (present > high)
        if out.any():
            first = f"{float(present[out][0]):.6g}"
            told = f"{int(out.sum())} of {counted(len(present), 'value')} outside what is possible"
            what = f"{told}, {low:g} to {high:g}, first {first}"
            yield Finding("error" if out.mean() > MOSTLY else "warning", OUT_OF_RANGE, column.name, what)


def _category(column: AgreedColumn, words: Array) -> Iterator[Finding]:
    """An ordinal level without a place cannot be read; a category that nobody agreed on is `other` to the model."""
    odd = Counter(w for w in words.tolist() if w not in column.values)
    if not odd:
        return
    what = f"{_cells(odd)} not among the agreed values {listed(column.values)}"
    lower = {v.lower().strip(): v for v in column.values}
    alike = [(w, lower[w.lower().strip()]) for w in odd if w.lower().strip() in lower]
    if alike:
        what += f"; write '{alike[0][1]}' for '{alike[0][0]}'"
    wrong = column.kind in ("ordinal", "binary") or 2 * sum(odd.values()) > len(words)
    yield Finding("error" if wrong else "warning", UNKNOWN_VALUE, column.name, what)


def _readable(word: str) -> bool:
    """As the readers take a number: "007" is one where a number is agreed."""
    return is_number(word) or is_number(word.lstrip("+-0") or "0")


def _cells(counts: Counter[str] | dict[str, int]) -> str:
    """ "3 cells ('x' 2, 'y' 1) are" """
    total = sum(counts.values())
    first = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN]
    named = ", ".join(f"'{word[:20]}' {n}" for word, n in first)
    more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    return f"{counted(total, 'cell')} ({named}{more}) {'is' if total == 1 else 'are'}"


def listed(names: Sequence[str]) -> str:
    """The first ten names in quotes, and how many there are."""
    more = f", ... ({len(names)} in all)" if len(names) > 10 else ""
    return ", ".join(f"'{n}'" for n in names[:10]) + more


def counted(n: int, word: str) -> str:
    """So many of them, in words."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """All of it, for the site's own tools."""
    return [{"level": f.level, "code": f.code, "column": f.column, "what": f.what} for f in findings]
