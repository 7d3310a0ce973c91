"""Agreed bins of a table: every row is in one bin of each agreed column, of the label and of the years.

The bins follow from the agreed schema: quantiles and range of numbers, values of categories, classes of the label. They disclose
nothing about the patients that are counted in them. Numbers have further edges where the values of another known unit would be,
so that counts show a column in mg/dL where mmol/L is agreed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.agreement.units import conversions
from grandrounds.data.formats import AUTO, read_dates
from grandrounds.data.table import missing_mask, to_text

MISSING, PRESENT, UNKNOWN, NO_DATE = "missing", "any value", "another value", "no date"
"""Bins beside those of values."""

ROWS, COLUMN, OUTCOME, DATES, COPIES, PATIENTS = "rows", "column:", "outcome", "years", "copies", "patients"
"""Blocks of counts; that of a column has its name behind the prefix."""

FURTHER = 5
"""Blocks beside those of columns, at most."""

YEARS = (2000, 2030)
"""First and last year with a bin of its own, where the plan names no others."""

_EQUAL = 6  # bins within the range of a column without quantiles
_DIGITS = 6  # significant digits of an edge


@dataclass(frozen=True)
class ColumnBins:
    """Bins of one column; the first is that of missing values.

    Attributes:
        name: The column.
        edges: Edges of a number: a bin below the first, one between each two, one from the last on.
        levels: Values of a category; a further bin counts all others.
        range: The values that are possible, which are two of the edges.
        unit: The agreed unit.
    """

    name: str
    edges: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    unit: str = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name each bin."""
        if self.levels:
            return (MISSING, *self.levels, UNKNOWN)
        if not self.edges:
            return (MISSING, PRESENT)
        ends = [f"{e:.4g}" for e in self.edges]
        return (MISSING, f"below {ends[0]}", *(f"{a} to {b}" for a, b in pairwise(ends)), f"{ends[-1]} and above")

    @cached_property
    def outside(self) -> Array:
        """Return True for bins of values that are not possible, (b,)."""
        out = np.zeros(len(self.names), bool)
        if self.edges and self.range is not None:
            low, high = self.range
            lower = np.array([-np.inf, *self.edges])
            out[1:] = (lower < low) | (lower > high)
        return out

    def place(self, values: Array) -> Array:
        """Return the bin of each value of a column (n,).

        Args:
            values: The column as it was read: numbers with NaN, or text with None.
        """
        if self.levels:
            places = {level: i + 1 for i, level in enumerate(self.levels)}
            other = len(self.levels) + 1
            words = to_text(values)
            return np.fromiter((0 if w is None else places.get(w, other) for w in words), np.int64, len(words))
        if not self.edges:
            return (~missing_mask(values)).astype(np.int64)
        numbers = as_numbers(values)
        return np.where(np.isnan(numbers), 0, 1 + np.searchsorted(self.edges, numbers, side="right"))

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values."""
        plain: dict[str, Any] = {"edges": list(self.edges), "levels": list(self.levels), "unit": self.unit}
        plain["range"] = [] if self.range is None else list(self.range)
        return {name: value for name, value in plain.items() if value}


@dataclass(frozen=True)
class AgreedBins:
    """Bins of all columns of a schema, and further blocks of counts: outcome, years, repeated rows, patients.

    Attributes:
        columns: Bins of the columns.
        classes: Classes of the outcome; none where it is a number.
        years: First and last year with a bin of its own; None where no column of dates is agreed.
        patients: Patients are counted by their number of rows, because a column of patients is agreed.
    """

    columns: tuple[ColumnBins, ...]
    classes: tuple[str, ...] = ()
    years: tuple[int, int] | None = None
    patients: bool = False

    @classmethod
    def from_schema(cls, schema: DataSchema, *, years: tuple[int, int] = YEARS) -> AgreedBins:
        """Build the bins of an agreed schema.

        Args:
            schema: The schema.
            years: First and last year with a bin of its own.
        """
        classes = schema.classes if schema.task in (CLASSIFICATION, SURVIVAL) else ()
        dated = None if schema.time is None else years
        columns = sorted((_column_bins(column) for column in schema.columns), key=lambda c: c.name)
        return cls(tuple(columns), tuple(classes), dated, schema.patient is not None)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> AgreedBins:
        """Read bins from plain values, as [method.quality] of a plan has them.

        Args:
            plain: `bins` by column, `classes`, `years` (empty: none) and `patients`.

        Raises:
            BadInput: They cannot be meant.
        """
        try:
            columns = {str(name): read_column_bins(str(name), entry) for name, entry in plain["bins"].items()}
            years = tuple(int(year) for year in plain["years"])
            if len(years) not in (0, 2) or (years and not 1800 <= years[0] <= years[1] <= 2200):
                raise BadInput(f"years are {list(years)}: give the first and the last year", code="bad-bins")
            classes = tuple(map(str, plain["classes"]))
            dated = (years[0], years[1]) if years else None
            return cls(tuple(columns[name] for name in sorted(columns)), classes, dated, bool(plain["patients"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(
                "the agreed bins cannot be read: write the plan with `rounds quality --plan FILE`", code="bad-bins"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values; `from_dict` reads them."""
        return {
            "bins": {c.name: c.to_dict() for c in self.columns},
            "classes": list(self.classes),
            "years": [] if self.years is None else list(self.years),
            "patients": self.patients,
        }

    def to_json(self) -> str:
        """Return the bins as text with sorted keys, as a request has them."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @cached_property
    def blocks(self) -> dict[str, tuple[str, ...]]:
        """Return the names of bins by block, in the order of an answer. A column's block has its name after a colon."""
        out: dict[str, tuple[str, ...]] = {ROWS: ("rows",), **{f"{COLUMN}{c.name}": c.names for c in self.columns}}
        if self.classes:
            out[OUTCOME] = (*self.classes, UNKNOWN)
        if self.years is not None:
            first, last = self.years
            out[DATES] = (NO_DATE, f"before {first}", *map(str, range(first, last + 1)), f"after {last}")
        out[COPIES] = ("different rows", "repeated rows")
        if self.patients:
            out[PATIENTS] = ("patients with one row", "patients with several rows")
        return out

    @property
    def size(self) -> int:
        """Return the number of counts."""
        return sum(len(names) for names in self.blocks.values())

    def split(self, vector: Array) -> dict[str, Array]:
        """Divide a vector of all counts into its blocks.

        Raises:
            BadInput: It has another length.
        """
        vector = np.asarray(vector, float)
        if vector.shape != (self.size,):
            raise BadInput(f"an answer has {vector.size} counts; the agreed bins are {self.size}", code="malformed-answer")
        ends = np.cumsum([len(names) for names in self.blocks.values()])
        return dict(zip(self.blocks, np.split(vector, ends[:-1]), strict=True))


def read_column_bins(name: str, entry: Mapping[str, Any]) -> ColumnBins:
    """Read the bins of one column from plain values.

    Args:
        name: The column.
        entry: `edges`, `levels`, `range` and `unit`, each optional.

    Raises:
        BadInput: Edges do not rise, or both edges and levels are given.
    """
    edges = tuple(float(e) for e in entry.get("edges", ()))
    levels = tuple(str(level) for level in entry.get("levels", ()))
    limits = tuple(float(e) for e in entry.get("range", ()))
    rising = np.isfinite(edges).all() and (np.diff(edges) > 0).all()
    if not rising or (edges and levels) or len(limits) not in (0, 2) or len(set(levels)) < len(levels):
        raise BadInput(
            f"bins of column '{name}' are not valid: give rising edges of a number, or the values of a category", code="bad-bins"
        )
    return ColumnBins(str(name), edges, levels, (limits[0], limits[1]) if limits else None, str(entry.get("unit", "")))


def as_numbers(values: Array) -> Array:
    """Read a column as numbers (n,); NaN where a cell is missing or no number."""
    if values.dtype != np.object_:
        return np.asarray(values, float)
    by_word: dict[str | None, float] = {None: float("nan")}
    for word in dict.fromkeys(values.tolist()):
        try:
            by_word[word] = float("nan") if word is None else float(word)
        except ValueError:
            by_word[word] = float("nan")
    return np.array([by_word[word] for word in values.tolist()], float)


def read_years(values: Array) -> Array:
    """Return the year of each date of a column (n,); NaN where it is none. Numbers are years where they look like one."""
    if values.dtype != np.object_:
        numbers = np.asarray(values, float)
        whole = np.floor(numbers)
        return np.where((whole >= 1800) & (whole <= 2200), whole, np.nan)
    words = [word if word is None else str(word) for word in values.tolist()]
    seconds = read_dates(words, AUTO)
    if seconds is None:  # day or month may be first; the year is the same
        seconds = read_dates(words, "day-first")
        assert seconds is not None
    out = np.full(len(seconds), np.nan)
    known = np.isfinite(seconds)
    moments = seconds[known].astype("datetime64[s]")
    out[known] = moments.astype("datetime64[Y]").astype(int) + 1970
    return out


def place_years(years: Array, span: tuple[int, int]) -> Array:
    """Return the bin of each year; NaN is the first."""
    first, last = span
    place = np.clip(years, first - 1, last + 1) - first + 2
    return np.where(np.isnan(years), 0, place).astype(np.int64)


def _column_bins(column: AgreedColumn) -> ColumnBins:
    if column.values:
        return ColumnBins(column.name, levels=column.values)
    if column.kind != "number":
        return ColumnBins(column.name)
    edges: set[float] = set()
    if column.quantiles:
        edges |= {_round(q) for q in column.quantiles} | _edges_of_other_units(column)
    elif column.range is not None:
        edges |= {_round(e) for e in np.linspace(*column.range, _EQUAL + 1)[1:-1]}
    if column.range is not None:
        low, high = column.range
        edges |= {low, float(np.nextafter(high, np.inf))}  # the highest possible value is within the range
    return ColumnBins(column.name, edges=tuple(sorted(edges)), range=column.range, unit=column.unit)


def _edges_of_other_units(column: AgreedColumn) -> set[float]:
    """Return the outer quantiles as they would be in each unit that the column may be mistaken for."""
    found = conversions(column.name, unit=column.unit, median=column.quantiles[2])
    ends = [(q - c.offset) / c.factor for c in found for q in (column.quantiles[0], column.quantiles[-1])]
    return {_round(e) for e in ends if np.isfinite(e)}


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def pool_counts(counts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Add counts of several sites, block by block."""
    return {name: np.sum([one[name] for one in counts], axis=0) for name in counts[0]}
