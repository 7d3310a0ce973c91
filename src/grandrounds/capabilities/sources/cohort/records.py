"""Clinical records in memory, the same from an OMOP database and from a FHIR export.

Times are `datetime64[s]` of the hospital's own clock. A record with a date alone is at the start of that day; a death or the
end of a visit with a date alone is at its last second, so that it does not come before what happened on that day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import Cohort, ConceptSet, Domain
from grandrounds.core.arrays import Array

NEVER = np.datetime64("NaT", "s")
_LAST_SECOND = np.timedelta64(86399, "s")


@dataclass(frozen=True, eq=False)
class Persons:
    """Patients; `birth` is the day, or the middle of the month or year where only that is known."""

    id: Array  # (n,) object of str
    birth: Array  # (n,) datetime64[D], NaT where unknown
    sex: Array  # (n,) object: a word of SEXES, or None


@dataclass(frozen=True, eq=False)
class Visits:
    """Visits, each of one person."""

    id: Array  # (n,) object of str
    person: Array  # (n,) object of str
    start: Array  # (n,) datetime64[s]
    end: Array  # (n,) datetime64[s], NaT while the visit goes on
    kind: Array  # (n,) object: a word of VISITS


@dataclass(frozen=True, eq=False)
class Periods:
    """Times under observation."""

    person: Array  # (n,) object of str
    start: Array  # (n,) datetime64[s]
    end: Array  # (n,) datetime64[s]


@dataclass(frozen=True, eq=False)
class Deaths:
    """Deaths; `time` is NaT where only the fact is known."""

    person: Array  # (n,) object of str
    time: Array  # (n,) datetime64[s]


@dataclass(frozen=True, eq=False)
class Records:
    """Conditions, measurements, drugs or procedures of one concept set."""

    person: Array  # (n,) object of str
    visit: Array  # (n,) object: the visit's id, or None
    time: Array  # (n,) datetime64[s]
    value: Array  # (n,) float64, NaN where there is no number
    unit: Array  # (n,) object: the unit as recorded (UCUM code where known), or None
    word: Array  # (n,) object: the name of the first set of `values` that has the coded value, or None

    def __len__(self) -> int:
        return len(self.person)


@dataclass(frozen=True)
class ConceptCount:
    """How often a hospital recorded one concept; for the hospital alone, and for `rounds cohort draft`."""

    domain: Domain
    code: str  # with its vocabulary, "LOINC:2345-7"; "OMOP:3004501" where the vocabulary is not known
    name: str
    patients: int
    records: int
    numbers: int  # records with a number
    unit: str  # the commonest unit, "" where none is recorded


class ClinicalSource(Protocol):
    """Records of one hospital."""

    @property
    def name(self) -> str:
        """The database or folder, for messages; never a password."""

    def persons(self) -> Persons:
        """Read the patients."""

    def visits(self) -> Visits:
        """Read the visits."""

    def periods(self) -> Periods:
        """Read the times under observation; where none are recorded, from a patient's first to last visit."""

    def deaths(self) -> Deaths:
        """Read the deaths."""

    def records(self, domain: Domain, concepts: ConceptSet, values: Sequence[ConceptSet] = ()) -> Records:
        """Read the records of a domain that have one of these concepts, or a descendant of one.

        Args:
            domain: The domain. A FHIR Observation is a measurement and an observation alike.
            concepts: The codes.
            values: Coded values that `Records.word` names.

        Raises:
            BadInput: A table or column is missing, or a cell cannot be read; the sentence names file, table, column and row.
        """

    def close(self) -> None:
        """Release what the source holds open."""


@runtime_checkable
class PreparedSource(Protocol):
    """A source that reads faster where it knows the cohort, and notes what it assumed."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each assumption of the reads so far."""

    def prepare(self, cohort: Cohort) -> None:
        """Read what a cohort needs, each table or file once."""


def middle_of(years: Array, months: Array, days: Array) -> Array:
    """Return the day of each birth, or the middle of its month or year where only that is known.

    Args:
        years: (n,) Years; 0 where not known.
        months: (n,) Months from 1; 0 where not known.
        days: (n,) Days of the month from 1; 0 where not known.

    Returns:
        (n,) datetime64[D], NaT without a year.
    """
    known = (months >= 1) & (months <= 12)
    month = (12 * (years - 1970) + np.where(known, months - 1, 0)).astype("datetime64[M]")
    first = month.astype("datetime64[D]")
    last = (month + np.where(known, 1, 12)).astype("datetime64[D]") - np.timedelta64(1, "D")
    dated = known & (days >= 1) & (days <= 31)
    middle = np.where(dated, first + (days - 1).astype("timedelta64[D]"), first + (last - first) // 2)
    return np.where(years > 0, middle, np.datetime64("NaT", "D"))


def periods_of_visits(visits: Visits) -> Periods:
    """Compute each patient's time from the first to the last visit, for a source that records no times under observation."""
    dated = ~np.isnat(visits.start)
    person, start = visits.person[dated].astype(str), visits.start[dated]
    end = np.where(np.isnat(visits.end[dated]), start, visits.end[dated])
    names, place = np.unique(person, return_inverse=True)
    first = np.full(len(names), np.datetime64(2**40, "s"))
    last = np.full(len(names), np.datetime64(-(2**40), "s"))
    np.minimum.at(first, place, start)
    np.maximum.at(last, place, end)
    return Periods(names.astype(object), first, last)


def to_words(values: Iterable[Any]) -> Array:
    """Convert identifiers to an object array of text with None for missing; whole numbers have no ".0"."""
    items = list(values)
    out = np.empty(len(items), dtype=object)
    out[:] = [_to_word(v) for v in items]
    return out


def _to_word(value: Any) -> str | None:
    if value is None or value != value:
        return None
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return str(value) or None


def end_of_day(days: Array) -> Array:
    """Return the last second of each day."""
    return np.asarray(days.astype("datetime64[D]").astype("datetime64[s]") + _LAST_SECOND)
