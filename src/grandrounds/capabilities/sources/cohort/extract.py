"""Extraction of a cohort's table from a hospital's records: one row for each visit, the same from every kind of source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import (
    ALL,
    DURATION,
    HISTORY,
    NUMERIC_TAKES,
    PATIENT,
    VISIT,
    VISIT_START,
    Cohort,
    ConceptSet,
    Feature,
    write_span,
)
from grandrounds.capabilities.sources.cohort.records import ClinicalSource, PreparedSource, Records, end_of_day
from grandrounds.capabilities.sources.cohort.values import (
    Segments,
    SortedRecords,
    aggregate,
    choose_words,
    convert_units,
    find_segments,
    sort_records,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.table import Table

_DAY = 86400
_BEFORE_ALL = -(2**52)  # seconds: before every record
_AFTER_ALL = 2**52


@dataclass(frozen=True)
class CohortTable:
    """The table of a cohort at one hospital, for the hospital alone.

    Attributes:
        table: One row for each visit: patient, start of the visit, outcome, and features.
        steps: Rows that are left after each step of the selection.
        notes: A sentence for each assumption, such as a unit that was converted.
    """

    table: Table
    steps: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Visits that are still in the cohort, with times in seconds."""

    person: Array  # position of the patient
    visit: Array
    start: Array
    end: Array  # _AFTER_ALL while the visit goes on
    now: Array  # the prediction

    def __len__(self) -> int:
        return len(self.person)

    def take(self, kept: Array) -> _Rows:
        return _Rows(self.person[kept], self.visit[kept], self.start[kept], self.end[kept], self.now[kept])


def extract_table(cohort: Cohort, source: ClinicalSource, *, pending: bool = False) -> CohortTable:
    """Extract the table of a cohort from a hospital's records.

    Args:
        cohort: The cohort.
        source: The hospital's records.
        pending: Also take visits whose outcome is not known yet, with a missing value for it: new patients, for a prediction.

    Returns:
        The table with the steps of the selection.

    Raises:
        BadInput: No visit is left, with the step that left none; or the source cannot be read.
    """
    return _Extraction(cohort, source, pending).run()


class _Extraction:
    """One extraction: the patients, the rows that are left, and what was noted."""

    def __init__(self, cohort: Cohort, source: ClinicalSource, pending: bool) -> None:
        self.cohort = cohort
        self.source = source
        self.pending = pending
        if isinstance(source, PreparedSource):
            source.prepare(cohort)
        self.persons = source.persons()
        self.position = {str(p): i for i, p in enumerate(self.persons.id)}
        self.steps: list[tuple[str, int]] = []
        self.notes: list[str] = []

    def run(self) -> CohortTable:
        """Select rows, then compute the outcome and the features."""
        rows = self._select(self._visits())
        rows, label, duration = self._outcome(rows)
        columns: dict[str, Array] = {
            PATIENT: self.persons.id[rows.person],
            VISIT_START: np.datetime_as_string(rows.start.astype("datetime64[s]")).astype(object),
            self.cohort.outcome.name: label,
        }
        if duration is not None:
            columns[DURATION] = duration
        for feature in self.cohort.features:
            columns[feature.name] = self._feature(feature, rows)
        notes = dict.fromkeys((*self.notes, *getattr(self.source, "notes", ())))
        return CohortTable(Table(columns, self.source.name), tuple(self.steps), tuple(notes))

    def _keep(self, rows: _Rows, kept: Array, step: str) -> _Rows:
        """Keep some rows, and note how many; an empty cohort is refused with the step that emptied it."""
        left = rows.take(kept)
        self.steps.append((step, len(left)))
        if not len(left):
            steps = ", ".join(f"{name}: {n}" for name, n in self.steps)
            raise BadInput(
                f"no visit in {self.source.name} is in cohort '{self.cohort.name}' after the step '{step}' ({steps}); "
                "check [include] and the codes of the cohort file",
                code="empty-cohort",
            )
        return left

    def _visits(self) -> _Rows:
        """Read the visits of known patients, sorted by patient, start and id."""
        visits = self.source.visits()
        person = np.fromiter((self.position.get(p, -1) for p in visits.person), np.int64, len(visits.person))
        start = visits.start.astype("datetime64[s]").astype(np.int64)
        end = np.where(np.isnat(visits.end), _AFTER_ALL, visits.end.astype("datetime64[s]").astype(np.int64))
        known = (person >= 0) & ~np.isnat(visits.start)
        wanted = self.cohort.include.visits
        chosen = known & np.isin(visits.kind.astype(str), wanted) if wanted else known
        name = self.persons.id.astype(str)[np.maximum(person, 0)]
        order = np.lexsort((visits.id.astype(str), start, name))
        order = order[chosen[order]]
        rows = _Rows(person, visits.id, start, end, start + self.cohort.predict_at).take(order)
        self.steps.append(("all visits", int(known.sum())))
        return self._keep(
            rows, np.ones(len(rows), bool), f"visits of type {' or '.join(wanted)}" if wanted else "any type of visit"
        )

    def _select(self, rows: _Rows) -> _Rows:
        """Apply the rules of [include]."""
        rule = self.cohort.include
        if rule.first_visit:
            first = np.concatenate(([True], rows.person[1:] != rows.person[:-1]))
            rows = self._keep(rows, first, "first visit of each patient")
        if self.cohort.predict_at:
            rows = self._keep(rows, rows.end >= rows.now, f"visit lasts {write_span(self.cohort.predict_at)} or longer")
        if rule.age is not None:
            low, high = rule.age
            age = self._age(rows)
            rows = self._keep(rows, (age >= low) & (age <= high), f"age {low:g} to {high:g}")
        if rule.observed:
            begin, _ = self._period(rows)
            seen = rows.start - begin >= rule.observed
            rows = self._keep(rows, seen, f"observed for {write_span(rule.observed)} before the visit")
        for concepts, wanted, step in (
            (rule.diagnoses, True, "with one of the diagnoses"),
            (rule.without_diagnoses, False, "without the excluded diagnoses"),
        ):
            if concepts is not None:
                rows = self._keep(rows, self._has_diagnosis(rows, concepts) == wanted, step)
        return rows

    def _age(self, rows: _Rows) -> Array:
        """Compute whole years at the prediction, NaN where the birth is not known."""
        birth = self.persons.birth[rows.person].astype("datetime64[D]")
        now = rows.now.astype("datetime64[s]").astype("datetime64[D]")
        months = now.astype("datetime64[M]").astype(np.int64) - birth.astype("datetime64[M]").astype(np.int64)
        day_now = (now - now.astype("datetime64[M]")).astype(np.int64)
        day_birth = (birth - birth.astype("datetime64[M]")).astype(np.int64)
        years = np.floor_divide(months - (day_now < day_birth), 12).astype(np.float64)
        return np.where(np.isnat(birth), np.nan, years)

    def _period(self, rows: _Rows) -> tuple[Array, Array]:
        """Find the observation period of each row's visit; one that begins after and ends before where there is none."""
        periods = self.source.periods()
        person = np.fromiter((self.position.get(p, -1) for p in periods.person), np.int64, len(periods.person))
        start, end = (t.astype("datetime64[s]").astype(np.int64) for t in (periods.start, periods.end))
        order = np.lexsort((end, start, person))
        person, start, end = person[order], start[order], end[order]
        begin = np.full(len(rows), _AFTER_ALL)
        until = np.full(len(rows), _BEFORE_ALL)
        if not len(person):
            return begin, until
        width = int(max(start.max(), rows.start.max()) - min(start.min(), rows.start.min())) + 2
        base = int(min(start.min(), rows.start.min()))
        place = np.searchsorted(person * width + start - base, rows.person * width + rows.start - base, "right") - 1
        mine = (place >= 0) & (person[place] == rows.person) & (end[place] >= rows.start)
        begin[mine], until[mine] = start[place[mine]], end[place[mine]]
        return begin, until

    def _has_diagnosis(self, rows: _Rows, concepts: ConceptSet) -> Array:
        records = sort_records(self.source.records("condition", concepts), self.position)
        back = self.cohort.include.look_back
        low = np.full(len(rows), _BEFORE_ALL) if back is None else rows.start - back
        return find_segments(records, rows.person, low, _last_of_day(rows.end)).count > 0

    def _outcome(self, rows: _Rows) -> tuple[_Rows, Array, Array | None]:
        """Compute the outcome of each row, leaving out rows whose outcome cannot be known."""
        outcome = self.cohort.outcome
        if outcome.within is None and not self.pending:
            rows = self._keep(rows, rows.end < _AFTER_ALL, "visit has ended")
        if outcome.kind == "measurement":
            return self._measured_outcome(rows)
        if outcome.kind == "death":
            dead, event = self._death_times(rows)
            if (dead & (event == _AFTER_ALL)).any():
                known = ~(dead & (event == _AFTER_ALL))
                rows, event = self._keep(rows, known, "date of death is known"), event[known]
            alive = event > rows.now
            rows, event = self._keep(rows, alive, "alive at the prediction"), event[alive]
        else:
            assert outcome.concepts is not None
            records = sort_records(self.source.records("condition", outcome.concepts), self.position)
            if outcome.first:
                before = find_segments(records, rows.person, np.full(len(rows), _BEFORE_ALL), rows.now)
                rows = self._keep(rows, before.count == 0, "without the outcome before the prediction")
            after = find_segments(records, rows.person, rows.now + 1, np.full(len(rows), _AFTER_ALL))
            event = np.full(len(rows), _AFTER_ALL)
            event[after.count > 0] = records.time[after.low[after.count > 0]]
        return self._follow(rows, event)

    def _death_times(self, rows: _Rows) -> tuple[Array, Array]:
        """Find each row's death: the fact, and its time, _AFTER_ALL where there is none or it is not known."""
        deaths = self.source.deaths()
        dead = np.zeros(len(self.persons.id), bool)
        first = np.full(len(self.persons.id), _AFTER_ALL)
        person = np.fromiter((self.position.get(p, -1) for p in deaths.person), np.int64, len(deaths.person))
        known = person >= 0
        dead[person[known]] = True
        timed = known & ~np.isnat(deaths.time)
        np.minimum.at(first, person[timed], deaths.time[timed].astype("datetime64[s]").astype(np.int64))
        return dead[rows.person], first[rows.person]

    def _follow(self, rows: _Rows, event: Array) -> tuple[_Rows, Array, Array | None]:
        """Follow each row to its event, the horizon, or the end of observation."""
        outcome = self.cohort.outcome
        if outcome.within is None:
            horizon = until = rows.end
            happened = (event < _AFTER_ALL) & ((event <= rows.end) | (event == _last_of_day(rows.end)))
        else:
            horizon = rows.now + outcome.within
            happened = event <= horizon
            _, until = self._period(rows)
            until = np.maximum(until, np.where(rows.end < _AFTER_ALL, rows.end, rows.now))
        if outcome.time_to_event:
            last = np.where(happened, event, np.minimum(horizon, until))
            followed = (last > rows.now) & (last < _AFTER_ALL)
            if self.pending:
                return rows, np.where(followed, happened, np.nan), np.where(followed, (last - rows.now) / _DAY, np.nan)
            rows = self._keep(rows, followed, "followed after the prediction")
            days = (last[followed] - rows.now) / _DAY
            return rows, happened[followed].astype(np.float64), days
        complete = happened | ((until >= horizon) & (horizon < _AFTER_ALL))
        if self.pending:
            return rows, np.where(complete, happened, np.nan), None
        if outcome.within is not None and outcome.complete_follow_up:
            rows = self._keep(rows, complete, f"event, or followed for {write_span(outcome.within)}")
            happened = happened[complete]
        return rows, happened.astype(np.float64), None

    def _measured_outcome(self, rows: _Rows) -> tuple[_Rows, Array, None]:
        outcome = self.cohort.outcome
        assert outcome.concepts is not None
        records = self._numbers(self.source.records("measurement", outcome.concepts), outcome.name, outcome.unit, None)
        end = _last_of_day(rows.end) if outcome.within is None else rows.now + outcome.within
        segments = find_segments(records, rows.person, rows.now + 1, end)
        values = aggregate(records, segments, outcome.take, rows.now)
        measured = ~np.isnan(values)
        if not self.pending:
            rows, values = self._keep(rows, measured, "outcome was measured"), values[measured]
        if outcome.task == CLASSIFICATION:
            beyond = values > outcome.above if outcome.above is not None else values < outcome.below
            values = np.where(np.isnan(values), np.nan, beyond)
        return rows, values, None

    def _feature(self, feature: Feature, rows: _Rows) -> Array:
        """Compute one column."""
        if feature.domain == "age":
            return self._age(rows)
        if feature.domain == "sex":
            return np.asarray(self.persons.sex[rows.person])
        assert feature.concepts is not None
        found = self.source.records(feature.domain, feature.concepts, feature.values)
        if feature.values:
            named = np.fromiter((w is not None for w in found.word), bool, len(found))
            records = sort_records(found, self.position, named)
            return choose_words(records, _find_window(records, rows, feature.window), feature.take)
        if feature.take in NUMERIC_TAKES:
            records = self._numbers(found, feature.name, feature.unit, feature.range)
        else:
            records = sort_records(found, self.position)
        return aggregate(records, _find_window(records, rows, feature.window), feature.take, rows.now)

    def _numbers(self, found: Records, name: str, unit: str, limits: tuple[float, float] | None) -> SortedRecords:
        """Convert values to the agreed unit, and leave out those that are missing or impossible."""
        values, notes = convert_units(found, name, unit)
        self.notes += notes
        kept = ~np.isnan(values)
        if limits is not None:
            inside = (values >= limits[0]) & (values <= limits[1])
            outside = int((kept & ~inside).sum())
            if outside:
                self.notes.append(f"{name}: {outside} values outside {limits[0]:g} to {limits[1]:g} left out")
            kept &= inside
        converted = Records(found.person, found.visit, found.time, values, found.unit, found.word)
        return sort_records(converted, self.position, kept)


def _find_window(records: SortedRecords, rows: _Rows, window: str | int) -> Segments:
    """Find the records of each row in a feature's window; history ends the day before the visit."""
    before = np.full(len(rows), _BEFORE_ALL)
    if window == HISTORY:
        return find_segments(records, rows.person, before, rows.start // _DAY * _DAY - 1)
    low = {VISIT: rows.start, ALL: before}[window] if isinstance(window, str) else rows.now - window
    return find_segments(records, rows.person, low, rows.now)


def _last_of_day(seconds: Array) -> Array:
    """Return the last second of each time's day; a visit that goes on has none."""
    days = end_of_day(np.where(seconds < _AFTER_ALL, seconds, 0).astype("datetime64[s]")).astype(np.int64)
    return np.where(seconds < _AFTER_ALL, days, _AFTER_ALL)
