"""Quality report of a site's table: a description of every column, and findings against the agreed schema.

Everything in a report describes the site's patients and stays at the site. `Finding` and its levels are those of
`agreement.check`: an error means that a run would refuse or misread the data, a warning that somebody should look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.data.agreement.check import Finding
from grandrounds.data.agreement.dates import read_days
from grandrounds.data.agreement.schema import LEVELS, DataSchema
from grandrounds.data.table import Table, missing_mask, to_text

Role = Literal["feature", "label", "patient", "time", "duration", "date"]

MOST_LEVELS = 200
"""Levels of a category that a report lists, most frequent first."""


@dataclass(frozen=True)
class ColumnQuality:
    """Description of one agreed column of a site's table.

    Attributes:
        name: Its name.
        role: Its role in the agreed schema.
        kind: "number", "category", "binary", "ordinal", "date" or "id".
        rows: Rows of the table.
        missing: Rows without a value.
        distinct: Different values.
        quantiles: At `LEVELS`, of numbers.
        range: Lowest and highest number.
        levels: Rows of each level of a category or of each class, most frequent first.
        unknown: Cells with a value that is none of the agreed levels.
        first: First day of a date column, ISO; "" for other columns.
        last: Last day.
    """

    name: str
    role: Role
    kind: str
    rows: int
    missing: int
    distinct: int = 0
    quantiles: tuple[float, ...] = ()
    range: tuple[float, float] | None = None
    levels: tuple[tuple[str, int], ...] = ()
    unknown: int = 0
    first: str = ""
    last: str = ""

    @property
    def missing_share(self) -> float:
        """Share of rows without a value; 0 for a table without rows."""
        return self.missing / self.rows if self.rows else 0.0

    @property
    def coverage(self) -> float:
        """Share of the cells with a value whose level is agreed; 1 where no levels are agreed."""
        present = self.rows - self.missing
        return 1.0 - self.unknown / present if present else 1.0


@dataclass(frozen=True)
class QualityReport:
    """Description of a site's data, and everything that differs from the agreed schema.

    Attributes:
        source: The file or database.
        rows: Rows or images.
        columns: The agreed columns that the table has; none for images.
        findings: Differences, errors first.
        patients: Different patients, where the schema names them.
        repeated: Rows of a patient with an earlier row.
        copies: Rows that are the same as another in every agreed column.
        assumptions: Assumptions made to read the file, one sentence each.
    """

    source: str
    rows: int
    columns: tuple[ColumnQuality, ...]
    findings: tuple[Finding, ...]
    patients: int | None = None
    repeated: int | None = None
    copies: int = 0
    assumptions: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ColumnQuality:
        return next(c for c in self.columns if c.name == name)

    @property
    def errors(self) -> int:
        """Number of findings that must be fixed before a run."""
        return sum(f.level == "error" for f in self.findings)

    @property
    def fits(self) -> bool:
        """True where no finding is an error."""
        return self.errors == 0

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, for the site's own tools."""
        return asdict(self)


def describe_columns(table: Table, schema: DataSchema) -> tuple[ColumnQuality, ...]:
    """Describe every agreed column that a table has: roles first, then features in the agreed order.

    Args:
        table: The site's table.
        schema: The agreed schema.
    """
    return tuple(_describe(table, schema))


def _describe(table: Table, schema: DataSchema) -> Iterator[ColumnQuality]:
    classes = schema.classes if schema.task in (CLASSIFICATION, SURVIVAL) else ()
    if schema.label in table.columns:
        is_class = schema.task in (CLASSIFICATION, SURVIVAL)
        kind = "category" if is_class else "number"
        yield _describe_column(schema.label, "label", kind, table.columns[schema.label], classes)
    if schema.duration is not None and schema.duration in table.columns:
        yield _describe_column(schema.duration, "duration", "number", table.columns[schema.duration])
    if schema.patient is not None and schema.patient in table.columns:
        yield _describe_column(schema.patient, "patient", "id", table.columns[schema.patient])
    dates = [d.name for d in schema.dates]
    if schema.time is not None and schema.time in table.columns:
        yield _describe_time(schema.time, "time", table.columns[schema.time])
    for name in dates:
        if name in table.columns and name != schema.time:
            yield _describe_time(name, "date", table.columns[name])
    for column in schema.columns:
        if column.name in table.columns:
            yield _describe_column(column.name, "feature", column.kind, table.columns[column.name], column.values)


def _describe_column(name: str, role: Role, kind: str, values: Array, agreed: Sequence[str] = ()) -> ColumnQuality:
    gaps = missing_mask(values)
    facts: dict[str, Any] = {"rows": len(values), "missing": int(gaps.sum())}
    present = values[~gaps]
    if kind == "number" and present.dtype == np.float64:
        facts["distinct"] = len(np.unique(present))
        if len(present):
            facts["quantiles"] = tuple(float(q) for q in np.quantile(present, LEVELS))
            facts["range"] = (float(present.min()), float(present.max()))
    else:
        counts = Counter(to_text(present).tolist())
        facts["distinct"] = len(counts)
        if kind in ("category", "binary", "ordinal"):
            facts["levels"] = tuple(counts.most_common(MOST_LEVELS))
            facts["unknown"] = sum(n for word, n in counts.items() if agreed and word not in agreed)
    return ColumnQuality(name, role, kind, **facts)


def _describe_time(name: str, role: Role, values: Array) -> ColumnQuality:
    """Describe a column of dates, or of numbers that order rows."""
    read = read_days(values)
    if read is None or np.isnan(read).all():
        return _describe_column(name, role, "number" if values.dtype == np.float64 else "id", values)
    gaps = missing_mask(values)
    days = read[~np.isnan(read)].astype("datetime64[D]")
    first, last = str(days.min()), str(days.max())
    distinct = len(np.unique(days))
    return ColumnQuality(name, role, "date", len(values), int(gaps.sum()), distinct, first=first, last=last)


def count_repeated(table: Table, schema: DataSchema) -> tuple[int | None, int | None]:
    """Count different patients, and the rows of a patient with an earlier row; None where no patient is agreed."""
    if schema.patient is None or schema.patient not in table.columns:
        return None, None
    counts: Mapping[str | None, int] = Counter(to_text(table.columns[schema.patient]).tolist())
    rows = sum(n for word, n in counts.items() if word is not None)
    patients = len(counts) - (None in counts)
    return patients, rows - patients
