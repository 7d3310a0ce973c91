"""Values of records: conversion to the agreed unit, and aggregation over a time window of each row.

Records are sorted by patient, time and value, so that the result does not depend on the order in which a database or a file
gives them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.sources.cohort.records import Records
from grandrounds.core.arrays import Array
from grandrounds.data.agreement.units import Conversion, conversions, format_unit, plain_unit

_DAY = 86400.0
_UCUM = {
    "mm[hg]": "mmhg", "cel": "c", "[degf]": "f", "10*3/ul": "10^9/l", "10*9/l": "10^9/l", "10*6/l": "/ul", "[lb_av]": "lb",
    "[in_i]": "in", "a": "years", "mo": "months", "[iu]/l": "u/l", "meq/l": "meq/l", "{ratio}": "fraction", "1": "fraction",
}  # fmt: skip
_ANNOTATION = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True, eq=False)
class SortedRecords:
    """Records of known patients in the order of patient, time, value and word."""

    person: Array  # (n,) int64: position of the patient
    time: Array  # (n,) int64 seconds
    value: Array  # (n,) float64
    word: Array  # (n,) object


@dataclass(frozen=True, eq=False)
class Segments:
    """Records [low, high) of each row."""

    low: Array
    high: Array

    @property
    def count(self) -> Array:
        """Number of records of each row."""
        return np.asarray(self.high - self.low)


def sort_records(records: Records, position: dict[str, int], keep: Array | None = None) -> SortedRecords:
    """Sort the records of known patients; those without a time are left out.

    Args:
        records: The records.
        position: The position of each patient.
        keep: A mask of records to use.
    """
    person = np.fromiter((position.get(p, -1) for p in records.person), np.int64, len(records))
    used = (person >= 0) & ~np.isnat(records.time)
    if keep is not None:
        used &= keep
    person, time = person[used], records.time[used].astype("datetime64[s]").astype(np.int64)
    value, word = records.value[used], records.word[used]
    codes = np.unique(np.array(["" if w is None else w for w in word], dtype=np.str_), return_inverse=True)[1]
    order = np.lexsort((codes, value, time, person))
    return SortedRecords(person[order], time[order], value[order], word[order])


def find_segments(records: SortedRecords, person: Array, low: Array, high: Array) -> Segments:
    """Find the records of each row's patient from `low` to `high`, both included.

    Args:
        records: The records.
        person: (m,) Position of each row's patient.
        low: (m,) Seconds.
        high: (m,) Seconds.
    """
    if not len(records.time) or not len(person):
        return Segments(np.zeros(len(person), np.int64), np.zeros(len(person), np.int64))
    first = int(records.time.min())
    width = int(records.time.max()) - first + 2
    key = records.person * width + (records.time - first)
    begin = person * width + np.clip(low - first, 0, width - 1)
    end = person * width + np.clip(high - first, -1, width - 2)
    left, right = np.searchsorted(key, begin, "left"), np.searchsorted(key, end, "right")
    return Segments(left, np.maximum(right, left))


def aggregate(records: SortedRecords, segments: Segments, take: str, now: Array) -> Array:
    """Aggregate the records of each row.

    Args:
        records: The records; for numbers without missing values.
        segments: The records of each row.
        take: A word of TAKES.
        now: (m,) Seconds at which `days_since` ends.

    Returns:
        (m,) float64, NaN where a row has no record; `count` and `any` are then 0.
    """
    count = segments.count
    if take == "count":
        return count.astype(np.float64)
    if take == "any":
        return (count > 0).astype(np.float64)
    out = np.full(len(count), np.nan)
    filled = count > 0
    low, high = segments.low[filled], segments.high[filled]
    if not len(low):
        return out
    if take == "days_since":
        out[filled] = (now[filled] - records.time[high - 1]) / _DAY
    elif take == "first":
        out[filled] = records.value[low]
    elif take == "last":
        out[filled] = records.value[high - 1]
    else:
        reduce = {"min": np.minimum, "max": np.maximum, "mean": np.add}[take]
        ends = np.column_stack((low, high)).ravel()
        total = reduce.reduceat(np.append(records.value, 0.0), ends)[::2]
        out[filled] = total / count[filled] if take == "mean" else total
    return out


def choose_words(records: SortedRecords, segments: Segments, take: str) -> Array:
    """Choose the coded value of the first or last record of each row, None without one."""
    out = np.full(len(segments.low), None, dtype=object)
    filled = segments.count > 0
    place = segments.low[filled] if take == "first" else segments.high[filled] - 1
    out[filled] = records.word[place]
    return out


def convert_units(records: Records, name: str, unit: str) -> tuple[Array, tuple[str, ...]]:
    """Convert values to the agreed unit.

    Args:
        records: The records.
        name: The feature, by which the substance is known: mg/dL of glucose and of creatinine convert differently.
        unit: The agreed unit; "" leaves values as they are.

    Returns:
        The values, NaN where a unit cannot be converted, and a sentence for each unit that was converted or left out.
    """
    values = np.array(records.value, np.float64)
    if not unit or not len(values):
        return values, ()
    units = np.array(["" if u is None else u for u in records.unit], dtype=object)
    notes: list[str] = []
    for found in sorted(set(units.tolist())):
        mine = (units == found) & ~np.isnan(values)
        count = int(mine.sum())
        if not count or _normalise(found) == _normalise(unit):
            continue
        if not found:
            notes.append(f"{name}: {count} values without a unit, read as {unit}")
            continue
        conversion = _find_conversion(name, _normalise(found), unit)
        if conversion is None:
            values[mine] = np.nan
            notes.append(f"{name}: {count} values in '{found}' left out, which cannot be converted to {unit}")
        else:
            values[mine] = conversion.factor * values[mine] + conversion.offset
            notes.append(f"{name}: {count} values in {found} converted to {unit} ({conversion})")
    return values, tuple(notes)


def _normalise(unit: str) -> str:
    word = unit.strip().lower()
    if word in _UCUM:
        return _UCUM[word]
    return plain_unit(_UCUM.get(_ANNOTATION.sub("", word), _ANNOTATION.sub("", word)))


def _find_conversion(name: str, found: str, unit: str) -> Conversion | None:
    """Find the one conversion from a recorded unit; None where the substance is not known, so that several are possible."""
    candidates = [c for c in conversions(name, unit=format_unit(_normalise(unit))) if c.site_unit == found]
    return candidates[0] if len({(c.factor, c.offset) for c in candidates}) == 1 else None
