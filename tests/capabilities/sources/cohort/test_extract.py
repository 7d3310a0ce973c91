"""Tables of cohorts, computed by hand: windows, ties, ages, deaths, follow-up and the steps of the selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort
from grandrounds.capabilities.sources.cohort.extract import CohortTable, extract_table
from grandrounds.capabilities.sources.cohort.records import (
    Deaths,
    Periods,
    Persons,
    Records,
    Visits,
    end_of_day,
    to_words,
)
from grandrounds.core.errors import BadInput

GLUCOSE, SEPSIS = "LOINC:2345-7", "SNOMED:91302008"


def to_times(texts: Sequence[str | None], *, ends: bool = False) -> np.ndarray:
    """Convert times; a day alone is its first second, or its last where it is an end."""
    out = np.array(["NaT" if t is None else t for t in texts], "datetime64[s]")
    days = np.array([t is not None and len(t) == 10 for t in texts], bool)
    return np.where(days, end_of_day(out), out) if ends and len(out) else out


@dataclass
class Hospital:
    """Records in memory: persons (id, birth, sex), visits (id, person, kind, start, end), records (code, person, time, ...)."""

    people: Sequence[tuple] = (("p", "1950-01-01", "female"),)
    stays: Sequence[tuple] = (("v", "p", "inpatient", "2020-01-10T08:00:00", "2020-01-20T14:00:00"),)
    events: Sequence[tuple] = ()
    dead: Sequence[tuple] = ()
    observed: Sequence[tuple] | None = None
    name = "memory"

    def persons(self) -> Persons:
        ids, births, sexes = zip(*self.people, strict=True)
        return Persons(to_words(ids), to_times(births).astype("datetime64[D]"), to_words(sexes))

    def visits(self) -> Visits:
        ids, person, kinds, starts, ends = zip(*self.stays, strict=True)
        return Visits(to_words(ids), to_words(person), to_times(starts), to_times(ends, ends=True), to_words(kinds))

    def periods(self) -> Periods:
        rows = self.observed if self.observed is not None else [(p, a, b) for _, p, _, a, b in self.stays if b]
        person, starts, ends = zip(*rows, strict=True) if rows else ((), (), ())
        return Periods(to_words(person), to_times(starts), to_times(ends, ends=True))

    def deaths(self) -> Deaths:
        return Deaths(to_words(p for p, _ in self.dead), to_times([t for _, t in self.dead], ends=True))

    def records(self, domain, concepts, values=()) -> Records:
        wanted = {str(code) for code in concepts.codes}
        rows = [(*e, None, None, None)[:6] for e in self.events if e[0] in wanted]
        _, person, time, value, unit, word = zip(*rows, strict=True) if rows else ((),) * 6
        numbers = np.array([np.nan if v is None else v for v in value], np.float64)
        return Records(
            to_words(person), to_words([None] * len(rows)), to_times(time), numbers, to_words(unit), to_words(word)
        )

    def close(self) -> None:
        """Nothing is open."""


def extract(hospital: Hospital, *, features=None, **plain) -> CohortTable:
    cohort = {"outcome": {"death": "visit"}, "features": features or {"age": True}} | plain
    return extract_table(parse_cohort(cohort), hospital)


def column(hospital: Hospital, feature: dict, **plain) -> list:
    return extract(hospital, features={"x": feature}, **plain).table.columns["x"].tolist()


def glucose(*rows: tuple) -> list[tuple]:
    return [(GLUCOSE, "p", *row) for row in rows]


def labels(hospital: Hospital, outcome: dict, **plain) -> list[float]:
    table = extract(hospital, outcome=outcome, **plain).table
    return table.columns["died" if "death" in outcome else "outcome"].tolist()


NUMBERS = glucose(
    ("2019-01-01T00:00:00", 1), ("2020-01-09T23:59:59", 2), ("2020-01-10T07:59:59", 3), ("2020-01-10T08:00:00", 4),
    ("2020-01-11T08:00:00", 50), ("2020-01-11T08:00:01", 600),
)  # fmt: skip


@pytest.mark.parametrize(
    "window, total",
    [("visit", 54), ("history", 3), ("all", 60), ("24 hours", 54), ("25 hours", 57), ("1 hour", 50)],
)
def test_windows_have_both_of_their_ends_and_nothing_after_the_prediction(window, total):
    hospital = Hospital(events=NUMBERS)
    mean = {"measurement": [GLUCOSE], "take": "mean", "window": window}
    count = mean | {"take": "count"}
    plain = {"predict_at": "24 hours"}
    assert column(hospital, mean, **plain)[0] * column(hospital, count, **plain)[0] == pytest.approx(total)


def test_history_ends_the_day_before_the_visit_whatever_the_hour():
    """A diagnosis of the day of admission, which many hospitals record at its end, is no history."""
    days = ("2020-01-09", "2020-01-10", "2020-01-10T00:00:00", "2020-01-10T07:00:00")
    hospital = Hospital(events=[(SEPSIS, "p", day) for day in days])
    assert column(hospital, {"condition": [SEPSIS], "take": "count"}) == [1]
    assert column(hospital, {"condition": [SEPSIS], "take": "count", "window": "all"}) == [4]


@pytest.mark.parametrize(
    "take, value",
    [("last", 9), ("first", 5), ("mean", 7), ("min", 5), ("max", 9), ("count", 4), ("days_since", 0.5), ("any", 1)],
)
def test_aggregations_with_ties_do_not_depend_on_the_order_of_records(take, value):
    first, last = "2020-01-10T09:00:00", "2020-01-10T20:00:00"
    rows = [(last, 9), (last, 8), (first, 6), (first, 5)]
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        hospital = Hospital(events=glucose(*order))
        assert column(hospital, {"measurement": [GLUCOSE], "take": take}, predict_at="24 hours") == [value]


def test_rows_without_a_record_are_missing_and_counts_zero():
    hospital = Hospital()
    for take, value in (("count", 0), ("any", 0)):
        assert column(hospital, {"measurement": [GLUCOSE], "take": take}) == [value]
    assert np.isnan(column(hospital, {"measurement": [GLUCOSE], "take": "mean"})).all()
    assert column(hospital, {"observation": ["LOINC:1"], "values": {"yes": ["LOINC:2"]}}) == [None]


def test_coded_values_are_those_of_the_last_record_that_has_one():
    rows = [("2020-01-10T09:00:00", "no"), ("2020-01-10T10:00:00", "yes"), ("2020-01-10T11:00:00", None)]
    hospital = Hospital(events=[("LOINC:1", "p", time, None, None, word) for time, word in rows])
    feature = {"observation": ["LOINC:1"], "values": {"yes": ["LOINC:2"], "no": ["LOINC:3"]}}
    assert column(hospital, feature, predict_at="1 day") == ["yes"]
    assert column(hospital, feature | {"take": "first"}, predict_at="1 day") == ["no"]


def test_units_are_converted_and_impossible_values_left_out_with_a_note():
    rows = [
        ("2020-01-10T09:00:00", 10, "mmol/L"), ("2020-01-10T10:00:00", 100, "mg/dL"), ("2020-01-10T11:00:00", 5, "miles"),
        ("2020-01-10T12:00:00", 9999, "mg/dL"), ("2020-01-10T13:00:00", 90, None),
    ]  # fmt: skip
    feature = {"measurement": [GLUCOSE], "take": "max", "unit": "mg/dL", "range": [10, 1000]}
    found = extract(Hospital(events=glucose(*rows)), features={"glucose": feature}, predict_at="1 day")
    assert found.table.columns["glucose"][0] == pytest.approx(180.16, rel=1e-3)
    assert [note.partition("(")[0].strip() for note in found.notes] == [
        "glucose: 1 values without a unit, read as mg/dL",
        "glucose: 1 values in 'miles' left out, which cannot be converted to mg/dL",
        "glucose: 1 values in mmol/L converted to mg/dL",
        "glucose: 1 values outside 10 to 1000 left out",
    ]


STAYS = [
    ("b", "p", "inpatient", "2020-03-01T08:00:00", "2020-03-02T08:00:00"),
    ("a", "p", "inpatient", "2020-03-01T08:00:00", "2020-03-09T08:00:00"),
    ("c", "p", "emergency", "2020-02-01T08:00:00", "2020-02-01T12:00:00"),
    ("d", "q", "inpatient", "2020-01-05T08:00:00", None),
    ("e", "unknown", "inpatient", "2020-01-05T08:00:00", "2020-01-06T08:00:00"),
]
TWO = (("p", "1950-01-01", "female"), ("q", None, None))


def starts(found: CohortTable) -> list[tuple[str, str]]:
    columns = found.table.columns
    return list(zip(columns["patient"], (s[:10] for s in columns["visit_start"]), strict=True))


def test_the_first_visit_is_of_the_wanted_kinds_and_by_id_where_two_start_together():
    hospital = Hospital(people=TWO, stays=STAYS)
    plain = {"outcome": {"death": "30 days", "complete_follow_up": False}}
    assert starts(extract(hospital, **plain)) == [
        ("p", "2020-02-01"),
        ("p", "2020-03-01"),
        ("p", "2020-03-01"),
        ("q", "2020-01-05"),
    ]
    first = extract(hospital, include={"first_visit": True, "visit": ["inpatient"]}, **plain)
    assert starts(first) == [("p", "2020-03-01"), ("q", "2020-01-05")]
    assert first.steps[:3] == (("all visits", 4), ("visits of type inpatient", 3), ("first visit of each patient", 2))
    long = {"first_visit": True, "visit": ["inpatient"]}
    assert starts(extract(hospital, include=long, predict_at="2 days", **plain)) == starts(first)


def test_a_visit_that_is_too_short_or_goes_on_is_left_out_where_it_matters():
    hospital = Hospital(people=TWO, stays=STAYS)
    assert starts(extract(hospital, predict_at="24 hours")) == [("p", "2020-03-01"), ("p", "2020-03-01")]
    assert starts(extract(hospital, predict_at="25 hours")) == [("p", "2020-03-01")]
    assert extract(hospital).steps[-2:] == (("visit has ended", 3), ("alive at the prediction", 3))


@pytest.mark.parametrize(
    "birth, start, years",
    [
        ("2002-01-10", "2020-01-10T08:00:00", 18),
        ("2002-01-11", "2020-01-10T08:00:00", 17),
        ("2001-12-31", "2020-01-10T08:00:00", 18),
        ("2004-02-29", "2021-02-28T08:00:00", 16),
        ("2004-02-29", "2021-03-01T08:00:00", 17),
        ("2020-01-10", "2020-01-10T08:00:00", 0),
        ("1899-06-01", "2020-05-31T08:00:00", 120),
    ],
)
def test_ages_on_birthdays(birth, start, years):
    stay = ("v", "p", "inpatient", start, "2022-01-01T00:00:00")
    hospital = Hospital(people=[("p", birth, None)], stays=[stay])
    assert extract(hospital).table.columns["age"].tolist() == [years]


def test_the_age_is_that_at_the_prediction_and_patients_without_one_are_of_no_age():
    people = [("p", "2002-01-11", None), ("q", None, None)]
    stays = [(p, p, "inpatient", "2020-01-10T08:00:00", "2020-01-20T08:00:00") for p in "pq"]
    hospital = Hospital(people=people, stays=stays)
    assert starts(extract(hospital, include={"age": [18, 120]}, predict_at="1 day")) == [("p", "2020-01-10")]
    with pytest.raises(
        BadInput, match=r"after the step 'age 18 to 120' \(all visits: 2, .*age 18 to 120: 0\)"
    ) as caught:
        extract(hospital, include={"age": [18, 120]})
    assert caught.value.code == "empty-cohort"


@pytest.mark.parametrize(
    "death, end, died",
    [
        ("2020-01-20", "2020-01-20T14:00:00", 1),  # a day alone: the patient died in the visit
        ("2020-01-20", "2020-01-20", 1),
        ("2020-01-20T10:00:00", "2020-01-20", 1),
        ("2020-01-20T14:00:00", "2020-01-20T14:00:00", 1),
        ("2020-01-20T14:00:01", "2020-01-20T14:00:00", 0),  # after discharge
        ("2020-01-21", "2020-01-20T14:00:00", 0),
        ("2020-01-10", "2020-01-20T14:00:00", 1),  # a day alone on the day of admission
    ],
)
def test_deaths_on_the_day_of_discharge(death, end, died):
    stay = ("v", "p", "inpatient", "2020-01-10T08:00:00", end)
    assert labels(Hospital(stays=[stay], dead=[("p", death)]), {"death": "visit"}) == [died]


def test_patients_who_died_before_the_prediction_or_on_an_unknown_day_are_no_rows():
    people = [(p, "1950-01-01", None) for p in "pqr"]
    stays = [(p, p, "inpatient", "2020-01-10T08:00:00", "2020-01-20T08:00:00") for p in "pqr"]
    hospital = Hospital(
        people=people, stays=stays, dead=[("p", "2020-01-11T07:00:00"), ("q", None), ("x", "2020-01-01")]
    )
    found = extract(hospital, predict_at="1 day")
    assert starts(found) == [("r", "2020-01-10")]
    assert found.steps[-2:] == (("date of death is known", 2), ("alive at the prediction", 1))


OUT = [("v", "p", "outpatient", "2020-01-10T08:00:00", "2020-01-10T09:00:00")]


@pytest.mark.parametrize(
    "death, until, rows",
    [
        ("2020-02-09T08:00:00", "2020-01-10", [1]),  # on the last second of the horizon
        ("2020-02-09T08:00:01", "2020-03-01", [0]),
        ("2020-02-09T08:00:01", "2020-02-01", []),  # not observed to the horizon
        (None, "2020-02-09T08:00:00", [0]),
        (None, "2020-02-09T07:59:59", []),
        (None, "2020-02-09", [0]),
    ],
)
def test_rows_without_an_event_need_complete_follow_up(death, until, rows):
    hospital = Hospital(
        people=TWO, stays=[*OUT, ("w", "q", "other", "2019-01-10T08:00:00", "2019-01-10T09:00:00")],
        dead=[("p", death)] if death else [], observed=[("p", "2020-01-01", until), ("q", "2019-01-01", "2020-12-31")],
    )  # fmt: skip
    assert labels(hospital, {"death": "30 days"}) == [*rows, 0]
    every = labels(hospital, {"death": "30 days", "complete_follow_up": False})
    assert every == [*(rows or [0]), 0]


@pytest.mark.parametrize(
    "death, until, event, days",
    [
        ("2020-01-12T20:00:00", "2020-01-11", 1, 2.5),
        (None, "2020-01-15T08:00:00", 0, 5),  # censored at the end of observation
        (None, "2020-06-01", 0, 30),  # and at the horizon
        ("2020-02-09T08:00:00", "2020-01-11", 1, 30),
        ("2020-03-01", "2020-03-01", 0, 30),  # dies after the horizon
    ],
)
def test_times_to_an_event_are_censored(death, until, event, days):
    hospital = Hospital(stays=OUT, dead=[("p", death)] if death else [], observed=[("p", "2020-01-01", until)])
    found = extract(hospital, outcome={"death": "30 days", "time_to_event": True}).table.columns
    assert (found["died"].tolist(), found["days"].tolist()) == ([event], [days])


def test_without_a_period_a_patient_is_observed_to_the_end_of_the_visit():
    found = extract(Hospital(observed=[]), outcome={"death": "30 days", "time_to_event": True}).table.columns
    assert found["days"].tolist() == [10.25]


def test_conditions_count_after_the_prediction_and_first_leaves_out_those_with_one_before():
    people = [(p, "1950-01-01", None) for p in "pqr"]
    stays = [(p, p, "inpatient", "2020-01-10T08:00:00", "2020-01-20T08:00:00") for p in "pqr"]
    events = [
        (SEPSIS, "p", "2020-01-10T08:00:00"),  # at the prediction: known
        (SEPSIS, "q", "2020-01-20T08:00:00"),  # at the end of the visit
        (SEPSIS, "r", "2020-01-20T08:00:01"),  # after it
    ]
    hospital = Hospital(people=people, stays=stays, events=events)
    within = {"condition": [SEPSIS], "within": "visit"}
    assert labels(hospital, within) == [0, 1, 0]
    assert labels(hospital, within | {"first": True}) == [1, 0]


def test_measured_outcomes_are_of_records_after_the_prediction():
    rows = [
        ("2020-01-10T08:00:00", 500),
        ("2020-01-10T08:00:01", 100),
        ("2020-01-20T23:00:00", 300),
        ("2020-01-21", 900),
    ]
    hospital = Hospital(events=glucose(*rows))
    outcome = {"measurement": [GLUCOSE], "within": "visit", "take": "max"}
    assert labels(hospital, outcome) == [300]
    assert labels(hospital, outcome | {"within": "10 days"}) == [100]
    assert labels(hospital, outcome | {"above": 299}) == [1]
    assert labels(hospital, outcome | {"above": 300}) == [0]
    assert labels(hospital, outcome | {"take": "min", "below": 101}) == [1]
    with pytest.raises(BadInput, match="after the step 'outcome was measured'"):
        labels(Hospital(), outcome)


@pytest.mark.parametrize(
    "time, look_back, included",
    [
        ("2020-01-20", None, True),  # recorded on the day of discharge
        ("2020-01-20T23:00:00", None, True),
        ("2020-01-21", None, False),
        ("2010-01-01", None, True),
        ("2010-01-01", "5 years", False),
        ("2020-01-05", "7 days", True),
    ],
)
def test_diagnoses_are_recorded_up_to_the_end_of_the_visit(time, look_back, included):
    people = [(p, "1950-01-01", None) for p in "pq"]
    stays = [(p, p, "inpatient", "2020-01-10T08:00:00", "2020-01-20T14:00:00") for p in "pq"]
    events = [(SEPSIS, "p", time), ("SNOMED:1", "q", "2020-01-11")]
    hospital = Hospital(people=people, stays=stays, events=events)
    back = {} if look_back is None else {"look_back": look_back}
    found = extract(hospital, include={"diagnoses": [SEPSIS, "SNOMED:1"], **back})
    assert starts(found) == [(p, "2020-01-10") for p in ("pq" if included else "q")]
    without = extract(hospital, include={"without_diagnoses": [SEPSIS], **back})
    assert starts(without) == [(p, "2020-01-10") for p in ("q" if included else "pq")]


@pytest.mark.parametrize("begin, days, included", [("2020-01-03T08:00:00", 7, True), ("2020-01-03T08:00:01", 7, False)])
def test_patients_are_observed_before_the_visit(begin, days, included):
    hospital = Hospital(
        observed=[("p", "2000-01-01", "2001-01-01"), ("p", begin, "2020-02-01"), ("x", "1990-01-01", "2020-02-01")]
    )
    if included:
        assert len(extract(hospital, include={"observed": f"{days} days"}).table) == 1
    else:
        with pytest.raises(BadInput, match="after the step 'observed for 7 days before the visit'"):
            extract(hospital, include={"observed": f"{days} days"})
