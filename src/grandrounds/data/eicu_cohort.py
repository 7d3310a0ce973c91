"""Who is in the eICU cohort: VEIL's rules of inclusion, one after another, and how many stays each leaves.

The paper counts 811,088 stays at 152 hospitals, more than the database has (about 200,000 at 208): rows
repeated by a join, most likely. Here a stay is a row of `patient`, once, from the first rule to the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from grandrounds.core.errors import BadInput

KEY = "patientunitstayid"
ADULT = 18
OLDEST = 90  # eICU writes "> 89" for all beyond
COMPLETE = 0.5
OUTCOMES = {"Alive": 0, "Expired": 1}

COLUMNS = {
    KEY: "int64",
    "patienthealthsystemstayid": "int64",
    "uniquepid": "str",
    "hospitalid": "int64",
    "age": "str",
    "gender": "str",
    "ethnicity": "str",
    "unittype": "str",
    "unitadmitsource": "str",
    "unitstaytype": "str",
    "unitvisitnumber": "float64",
    "admissionheight": "float64",
    "admissionweight": "float64",
    "apacheadmissiondx": "str",
    "hospitaldischargeyear": "float64",
    "hospitaldischargestatus": "str",
    "unitdischargeoffset": "float64",
}
"""What is read of `patient`."""


@dataclass(frozen=True)
class Step:
    """One rule: how many stays it left out, and what it left."""

    rule: str
    left_out: int
    stays: int
    patients: int
    hospitals: int


def choose(patient: pd.DataFrame, recorded: pd.Series, *, least_hours: float = 0.0) -> tuple[pd.DataFrame, list[Step]]:
    """The stays of the cohort, and the flow of the rules; `recorded` lists stays whose length of stay is known.

    `least_hours` is no rule of the paper's: it leaves out stays that were shorter, as the prepared table of the demo
    does with 24. Without it the window of a stay that ended earlier is shorter than a day, and may hold its end.
    """
    repeated = patient[KEY].duplicated()
    if repeated.any():
        raise BadInput(
            f"stay {patient[KEY][repeated].iloc[0]} is twice in the table 'patient', where every stay has one row; "
            "download it again"
        )
    patient = patient.assign(age=ages(patient["age"]))
    first = first_stays(patient)
    steps = [_step("stays in the database", patient, patient)]
    for rule, kept in _rules(patient, first, recorded, least_hours):
        steps.append(_step(rule, patient, kept))
        patient = kept
    if patient.empty:
        raise BadInput("the rules of inclusion leave no stay; is this the whole database?")
    return patient, steps


def ages(words: pd.Series) -> pd.Series:
    """Ages in years; "> 89" is 90, and what is blank is not known."""
    return pd.to_numeric(words.where(words.str.strip() != "> 89", str(OLDEST)), errors="coerce")


def first_stays(patient: pd.DataFrame) -> pd.Series:
    """The stays that were their patient's first in an ICU: number 1 of the patient's first time in hospital.

    eICU has no dates. Times in hospital are put in order by the year of discharge, then by age; between those of one
    year and one age the order cannot be known, and the lower patienthealthsystemstayid is taken.
    """
    order = ["hospitaldischargeyear", "age", "patienthealthsystemstayid"]
    admitted = patient.sort_values(order).drop_duplicates("uniquepid")["patienthealthsystemstayid"]
    there = patient[patient["patienthealthsystemstayid"].isin(admitted) & (patient["unitvisitnumber"] == 1)]
    return there.sort_values(KEY).drop_duplicates("uniquepid")[KEY]


def undecided(patient: pd.DataFrame) -> int:
    """Patients who were in hospital more than once in one year and at one age, first of all: see `first_stays`."""
    times = patient.assign(age=ages(patient["age"])).drop_duplicates("patienthealthsystemstayid")
    when = times["hospitaldischargeyear"] * 1000 + times["age"].fillna(999)
    earliest = when.groupby(times["uniquepid"]).transform("min")
    return int(((when == earliest).groupby(times["uniquepid"]).sum() > 1).sum())


def _rules(
    patient: pd.DataFrame, first: pd.Series, recorded: pd.Series, least_hours: float
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each rule with the stays that are left after it."""
    patient = patient[patient["age"] >= ADULT]
    yield f"adults ({ADULT} or older)", patient
    patient = patient[patient[KEY].isin(first)]
    yield "first ICU stay of the patient", patient
    if least_hours:
        patient = patient[patient["unitdischargeoffset"] >= least_hours * 60]
        yield f"at least {least_hours:g} hours in the unit", patient
    share = patient[KEY].isin(recorded).groupby(patient["hospitalid"]).transform("mean")
    patient = patient[share >= COMPLETE]
    yield "hospital records half its lengths of stay", patient
    patient = patient[patient["hospitaldischargestatus"].isin(OUTCOMES)]
    yield "outcome in hospital known", patient


def _step(rule: str, before: pd.DataFrame, after: pd.DataFrame) -> Step:
    return Step(rule, len(before) - len(after), len(after), after["uniquepid"].nunique(), after["hospitalid"].nunique())
