"""Codes of what is watched: each variable of a patient becomes one of a few codes, and each check reads one variable.

A number becomes its bin: quantiles of the reference rows, rounded, or single values where it has few. Values outside the training
range have codes of their own, and so have missing values and unseen categories. No patient's value is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.watch.statistics.rows import MISSING_CATEGORY, Rows
from grandrounds.core.arrays import Array

ABSENT, NEW, LOW, HIGH, FIRST = 0, 1, 2, 3, 4
"""Codes of a missing value, an unseen category, a number below and above its range; bins and categories begin at FIRST."""

NUMBER, CATEGORY, RISK, ATTRIBUTION, LABEL, OUTCOME, DECISION = (
    "number", "category", "risk", "attribution", "label", "outcome", "decision",
)  # fmt: skip
BINS, FEW = 16, 12
"""Bins of a number; distinct values up to which each has a code of its own."""
ROWS_PER_BIN, ROWS_PER_VALUE = 4, 10
DIGITS = 4


@dataclass(frozen=True, eq=False)
class Variable:
    """One variable of a patient and its codes.

    Attributes:
        kind: `NUMBER`, `CATEGORY`, `RISK` of a class, `ATTRIBUTION` of a column, `LABEL`, `OUTCOME` (bin of the risk with the
            label) or `DECISION` (alert or not, with the label).
        column: The column, or "".
        level: Number of the class among those watched.
        edges: Inner edges of bins, or the single values of a number with few; the threshold of a decision.
        single: Each of `edges` has a code, and so has each gap between two of them.
        span: Training range of a number.
        size: Number of codes.
    """

    kind: str
    column: str
    level: int
    edges: Array
    single: bool = False
    span: tuple[float, float] = (-np.inf, np.inf)
    size: int = FIRST

    @property
    def labelled(self) -> bool:
        """Needs labels."""
        return self.kind in (LABEL, OUTCOME, DECISION)

    def raw(self, rows: Rows) -> Array | None:
        """Return the numbers (n,) behind the codes, NaN where not known; None if the rows lack the variable."""
        if self.kind == NUMBER and self.column in rows.numbers:
            return np.asarray(rows.numbers[self.column], np.float64)
        if self.kind == CATEGORY and self.column in rows.categories:
            return np.asarray(rows.categories[self.column], np.float64)
        if self.kind == ATTRIBUTION and self.column in rows.attributions:
            return np.abs(np.asarray(rows.attributions[self.column], np.float64))
        risks = rows.risks
        if self.kind in (RISK, OUTCOME, DECISION) and risks is not None:
            return risks[:, self.level]
        return self.events(rows) if self.kind == LABEL else None

    def events(self, rows: Rows) -> Array | None:
        """Return 1 where the label is this class, 0 where it is another, NaN where it is not known (n,)."""
        if rows.label is None:
            return None
        label = np.asarray(rows.label, np.float64)
        several = rows.score is not None and np.ndim(rows.score) == 2
        return np.where(np.isnan(label), np.nan, label == (self.level if several else 1))

    def encode(self, rows: Rows) -> Array | None:
        """Return codes (n,) of 0 to size - 1, with `ABSENT` where the value is not known; None if the rows lack the variable."""
        raw = self.raw(rows)
        if raw is None:
            return None
        if self.kind == CATEGORY:
            codes = raw.astype(np.int64)
            inside = (codes >= 0) & (codes < self.size - FIRST)
            return np.where(codes == MISSING_CATEGORY, ABSENT, np.where(inside, codes + FIRST, NEW))
        known = ~np.isnan(raw)
        if not self.labelled:
            return np.where(known, self.place(raw), ABSENT)
        events = self.events(rows)
        if events is None:
            return None
        known &= ~np.isnan(events)
        happened = np.nan_to_num(events).astype(np.int64)
        place = 0 if self.kind == LABEL else 2 * (raw >= self.edges[0]) if self.kind == DECISION else 2 * self.bin(raw)
        return np.where(known, FIRST + place + happened, ABSENT)

    def place(self, raw: Array) -> Array:
        """Return the codes of numbers that are known: their bin, or out of range."""
        return np.where(raw < self.span[0], LOW, np.where(raw > self.span[1], HIGH, FIRST + self.bin(raw)))

    def bin(self, raw: Array) -> Array:
        """Return the bin of each number, from 0 on."""
        if not self.single:
            return np.asarray(np.searchsorted(self.edges, raw, side="right"))
        place = np.searchsorted(self.edges, raw, side="left")
        exact = self.edges[np.minimum(place, len(self.edges) - 1)] == raw
        return np.asarray(2 * place + exact)

    @property
    def gaps(self) -> Array:
        """Codes of values that no reference row has, for a number with few values."""
        return FIRST + 2 * np.arange(len(self.edges) + 1)

    @property
    def order(self) -> Array:
        """Codes of a number from the smallest value to the largest."""
        return np.concatenate([[LOW], np.arange(FIRST, self.size), [HIGH]])


def number(
    kind: str, column: str, raw: Array, *, level: int = 0, span: tuple[float, float] = (-np.inf, np.inf)
) -> Variable:
    """Make the variable of a number from reference values (n,).

    Returns:
        A variable with a code for each value if there are few, else with bins of about equal shares.
    """
    raw = raw[np.isfinite(raw)]
    values = np.unique(raw)
    if kind == NUMBER and 0 < len(values) <= min(FEW, len(raw) // ROWS_PER_VALUE):
        return Variable(kind, column, level, values, True, span, FIRST + 2 * len(values) + 1)
    edges = quantile_edges(raw, min(BINS, max(2, len(raw) // ROWS_PER_BIN)))
    return Variable(kind, column, level, edges, False, span, FIRST + len(edges) + 1)


def quantile_edges(raw: Array, bins: int) -> Array:
    """Return inner edges of bins of about equal shares, rounded so that no edge is a patient's own value."""
    if not len(raw):
        return np.zeros(0)
    edges = np.quantile(raw, np.arange(1, bins) / bins)
    width = float(np.ptp(edges)) or float(np.abs(edges).max()) or 1.0
    digits = DIGITS - 1 - int(np.floor(np.log10(width)))
    return np.unique(np.round(edges, digits))


def category(column: str, levels: int) -> Variable:
    """Make the variable of a categorical column with this number of categories."""
    return Variable(CATEGORY, column, 0, np.zeros(0), size=FIRST + levels)
