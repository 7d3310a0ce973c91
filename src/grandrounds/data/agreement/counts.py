"""Counts of a site's rows in agreed bins, and the rule for counts of few patients.

Only counts leave a site: no minimum, maximum, value or date. In the clear a count of 1 to `least` - 1 patients is hidden, and so
are further counts of its block from which it would follow by subtraction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.bins import (
    COLUMN,
    COPIES,
    DATES,
    OUTCOME,
    PATIENTS,
    ROWS,
    AgreedBins,
    place_years,
    read_years,
)
from grandrounds.data.table import Table, to_text

_Z = 1.959963984540054  # of a 95% interval

HIDDEN = -1
"""Value of a hidden count in an answer."""


@dataclass(frozen=True)
class RowCounts:
    """Counts of rows in the blocks of agreed bins, and the patients behind each count.

    Attributes:
        rows: Counts by block.
        patients: Distinct patients of each count; the same as `rows` where a row is a patient.
    """

    rows: Mapping[str, Array]
    patients: Mapping[str, Array]

    def pack(self, bins: AgreedBins) -> Array:
        """Return all counts as one vector."""
        return np.concatenate([self.rows[name] for name in bins.blocks]).astype(float)

    def hide_small(self, bins: AgreedBins, *, least: int) -> Array:
        """Return all counts as one vector, with `HIDDEN` for counts of few patients.

        Args:
            bins: The agreed bins.
            least: Fewest patients of a count that is sent.
        """
        return np.concatenate(
            [
                np.where(choose_hidden(self.rows[name], self.patients[name], least=least), HIDDEN, self.rows[name])
                for name in bins.blocks
            ]
        ).astype(float)


@dataclass(frozen=True)
class Roles:
    """Names of the columns of a table that are no features; None where there is none."""

    label: str
    time: str | None = None
    patient: str | None = None


def count_rows(bins: AgreedBins, table: Table, roles: Roles) -> RowCounts:
    """Count the rows of a site's table in agreed bins.

    Args:
        bins: The agreed bins.
        table: The site's rows; a column that it lacks counts as missing in every row.
        roles: The columns of the outcome, of dates and of patients.

    Returns:
        The counts.
    """
    n = len(table)
    patient = _number_patients(table, roles.patient)
    places = {ROWS: np.zeros(n, np.int64)}
    places |= {
        f"{COLUMN}{c.name}": c.place(table.columns[c.name]) if c.name in table.columns else np.zeros(n, np.int64)
        for c in bins.columns
    }
    if bins.classes:
        numbers = {word: i for i, word in enumerate(bins.classes)}
        words = to_text(table.columns[roles.label]) if roles.label in table.columns else np.full(n, None, object)
        places[OUTCOME] = np.fromiter((numbers.get(w, len(numbers)) for w in words), np.int64, n)
    if bins.years is not None:
        has_time = roles.time is not None and roles.time in table.columns
        years = read_years(table.columns[str(roles.time)]) if has_time else np.full(n, np.nan)
        places[DATES] = place_years(years, bins.years)
    names = [*(c.name for c in bins.columns), roles.label, roles.time, roles.patient]
    places[COPIES] = find_copies(table, [name for name in names if name is not None]).astype(np.int64)
    rows, patients = {}, {}
    for name, labels in bins.blocks.items():
        if name == PATIENTS:
            several = np.bincount(patient) > 1 if patient is not None else np.zeros(n, bool)
            rows[name] = patients[name] = np.array([(~several).sum(), several.sum()], np.int64)
            continue
        rows[name] = np.bincount(places[name], minlength=len(labels))
        patients[name] = rows[name] if patient is None else _count_patients(places[name], patient, len(labels))
    return RowCounts(rows, patients)


def _number_patients(table: Table, name: str | None) -> Array | None:
    """Number the patient of each row (n,); None without a column of patients. A row without a patient is one of its own."""
    if name is None or name not in table.columns:
        return None
    words = to_text(table.columns[name]).tolist()
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault((i,) if w is None else w, len(numbers)) for i, w in enumerate(words)], np.int64)


def choose_hidden(rows: Array, patients: Array, *, least: int) -> Array:
    """Choose the counts of one block that are not sent, (b,) of bool.

    Counts of 1 to `least` - 1 patients are hidden. The number of rows of a site is known, so hidden counts must not follow by
    subtraction: at least two are hidden, of `least` patients together, and of rows that are neither all 1 nor all `least` - 1.
    The smallest shown count above 0 is hidden until that is so. Zeros are shown.

    Args:
        rows: Counts of rows.
        patients: Distinct patients of each count.
        least: Fewest patients of a count that is sent.
    """
    rows, patients = np.asarray(rows), np.asarray(patients)
    hidden = (patients > 0) & (patients < least)
    while hidden.any() and _follows(rows[hidden], patients[hidden], least):
        shown = np.flatnonzero(~hidden & (rows > 0))
        if not len(shown):
            break
        hidden[shown[np.argmin(rows[shown])]] = True
    return np.asarray(hidden)


def _follows(rows: Array, patients: Array, least: int) -> bool:
    """Tell whether hidden counts follow from their sum, or whether their sum is itself a count of few patients."""
    small = patients < least
    if len(rows) == 1 or patients.sum() < least:
        return True
    return bool(small.all()) and int(rows.sum()) in (len(rows), len(rows) * (least - 1))


def share_interval(count: float, n: float, *, noise: float = 0.0) -> tuple[float, float]:
    """Return the 95% interval of a share by Wilson's method.

    Args:
        count: Rows that are counted.
        n: All rows.
        noise: Standard deviation of the noise in both; the interval is then that of the normal distribution, with the noise.
    """
    if n <= 0:
        return 0.0, 1.0
    share, z2 = min(max(count / n, 0.0), 1.0), _Z**2
    if noise:
        half = _Z * math.sqrt(share * (1 - share) / n + 2 * noise**2 / n**2)
        return max(0.0, share - half), min(1.0, share + half)
    centre, scale = share + z2 / (2 * n), 1 + z2 / n
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def find_copies(table: Table, names: Sequence[str]) -> Array:
    """Return True for rows that equal an earlier one in all of these columns, (n,)."""
    present = [table.columns[name] for name in names if name in table.columns]
    n = len(table)
    if not present or n == 0:
        return np.zeros(n, bool)
    key = np.zeros(n, np.int64)
    for values in present:
        key = np.unique(key * (n + 1) + _number(values), return_inverse=True)[1].ravel()
    first = np.unique(key, return_index=True)[1]
    out = np.ones(n, bool)
    out[first] = False
    return out


def _number(values: Array) -> Array:
    """Number the distinct values of a column; missing ones are the same."""
    if values.dtype == np.object_:
        numbers = {word: i for i, word in enumerate(dict.fromkeys(values.tolist()))}
        return np.fromiter(map(numbers.__getitem__, values.tolist()), np.int64, len(values))
    return np.unique(values, return_inverse=True)[1].ravel()


def _count_patients(places: Array, patient: Array, size: int) -> Array:
    """Count the distinct patients of each bin."""
    pairs = np.unique(places * (patient.max(initial=0) + 1) + patient)
    return np.bincount(pairs // (patient.max(initial=0) + 1), minlength=size)
