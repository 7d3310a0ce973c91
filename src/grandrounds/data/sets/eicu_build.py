"""Builder of one table from the credentialed eICU database: a row a stay, its first day, the outcome.

The columns are called as in the demo's prepared table (`eicu.py`), without those known only
later. Two files are written beside the table: the flow of the rules (JSON) and an experiment that runs on it (TOML).

The cohort follows VEIL's rules of inclusion. The paper counts 811,088 stays at 152 hospitals, more than the database has
(about 200,000 at 208): rows repeated by a join, most likely. Here a stay is a row of `patient`, once, from the first rule to
the last.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from grandrounds.core import toml
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.data.sets import public_ranges
from grandrounds.data.sets.eicu_tables import (
    APERIODIC,
    KEY,
    PERIODIC,
    Measurements,
    Progress,
    RawTable,
    find_table,
    need_tables,
    no_progress,
)

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
"""Columns that are read of `patient`."""


@dataclass(frozen=True)
class Step:
    """One rule: how many stays it left out, and what it left."""

    rule: str
    left_out: int
    stays: int
    patients: int
    hospitals: int


def choose_stays(
    patient: pd.DataFrame, recorded: pd.Series, *, least_hours: float = 0.0
) -> tuple[pd.DataFrame, list[Step]]:
    """Choose the stays of the cohort, and record the flow of the rules.

    Args:
        patient: The table `patient`.
        recorded: The stays whose length is known.
        least_hours: Leave out shorter stays, as the prepared table of the demo does with 24; no rule of the paper's. Without
            it the window of a stay that ended earlier is shorter than a day, and may hold its end.
    """
    repeated = patient[KEY].duplicated()
    if repeated.any():
        raise BadInput(
            f"stay {patient[KEY][repeated].iloc[0]} is twice in the table 'patient', where every stay has one row; "
            "download it again",
            code="repeated-ids",
        )
    patient = patient.assign(age=parse_ages(patient["age"]))
    first = first_stays(patient)
    steps = [_step("stays in the database", patient, patient)]
    for rule, included in _rules(patient, first, recorded, least_hours):
        steps.append(_step(rule, patient, included))
        patient = included
    if patient.empty:
        raise BadInput("the rules of inclusion leave no stay; is this the whole database?", code="no-rows-left")
    return patient, steps


def parse_ages(words: pd.Series) -> pd.Series:
    """Read ages in years; "> 89" is 90, and what is blank is not known."""
    return pd.to_numeric(words.where(words.str.strip() != "> 89", str(OLDEST)), errors="coerce")


def first_stays(patient: pd.DataFrame) -> pd.Series:
    """Find the stays that were their patient's first in an ICU: number 1 of the patient's first time in hospital.

    eICU has no dates. Times in hospital are put in order by the year of discharge, then by age; between those of one
    year and one age the order cannot be known, and the lower patienthealthsystemstayid is taken.
    """
    order = ["hospitaldischargeyear", "age", "patienthealthsystemstayid"]
    admitted = patient.sort_values(order).drop_duplicates("uniquepid")["patienthealthsystemstayid"]
    candidates = patient[patient["patienthealthsystemstayid"].isin(admitted) & (patient["unitvisitnumber"] == 1)]
    return candidates.sort_values(KEY).drop_duplicates("uniquepid")[KEY]


def outcome_unknown(patient: pd.DataFrame) -> int:
    """Patients who were in hospital more than once in one year and at one age, first of all: see `first_stays`."""
    times = patient.assign(age=parse_ages(patient["age"])).drop_duplicates("patienthealthsystemstayid")
    when = times["hospitaldischargeyear"] * 1000 + times["age"].fillna(999)
    earliest = when.groupby(times["uniquepid"]).transform("min")
    return int(((when == earliest).groupby(times["uniquepid"]).sum() > 1).sum())


def _rules(
    patient: pd.DataFrame, first: pd.Series, recorded: pd.Series, least_hours: float
) -> Iterator[tuple[str, pd.DataFrame]]:
    """List each rule with the stays that remain after it."""
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


SCHEMA = "grandrounds/eicu-flow/1"
SUFFIXES = (".parquet", ".csv", ".csv.gz")

APACHE = ("intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
          "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2",
          "pco2", "bun", "glucose", "bilirubin", "fio2")  # fmt: skip
_PERSON = ("age", "gender", "ethnicity", "unittype", "unitadmitsource", "unitstaytype", "unitvisitnumber",
           "admissionheight", "admissionweight", "apacheadmissiondx")  # fmt: skip
_HOSPITAL = ("numbedscategory", "teachingstatus", "region")
_TEACHING = {"t": 1.0, "f": 0.0}


class CohortFlow(TypedDict):
    """The rules of inclusion and their counts, as written beside the table."""

    schema: str
    steps: list[dict[str, Any]]
    deaths: int
    first_stay_undecided: int
    without_vitals: int
    rows: dict[str, dict[str, int]]
    absent_tables: list[str]
    least_hours: float


@dataclass(frozen=True)
class EicuTable:
    """The table, and how it came about."""

    table: pd.DataFrame
    steps: tuple[Step, ...]
    flow: CohortFlow


def build_table(folder: Path, *, least_hours: float = 0.0, progress: Progress = no_progress) -> EicuTable:
    """Read the database and make the table; every file is looked for before the first is read."""
    raw = need_tables(folder, _NEEDED)
    more = {name: raw_table for name in _OPTIONAL if (raw_table := find_table(folder, name)) is not None}
    patient = raw["patient"].read(COLUMNS, progress=progress)
    chosen, steps = choose_stays(patient, _read_recorded(raw["apachePatientResult"], progress), least_hours=least_hours)
    chosen = chosen.sort_values(KEY, ignore_index=True)
    measured = Measurements.empty(chosen[KEY])
    measured.add_vitals(raw["vitalPeriodic"], PERIODIC, progress=progress)
    measured.add_vitals(raw["vitalAperiodic"], APERIODIC, progress=progress)
    measured.add_labs(raw["lab"], progress=progress)
    if "nurseCharting" in more:
        measured.add_nursed(more["nurseCharting"], progress=progress)
    if "intakeOutput" in more:
        measured.add_urine(more["intakeOutput"], progress=progress)
    table = _join(
        chosen,
        _read_hospitals(raw["hospital"], progress),
        measured.table(),
        _read_apache(raw["apacheApsVar"], progress),
    )
    _check_rows(table, chosen)
    flow: CohortFlow = {
        "schema": SCHEMA,
        "steps": [asdict(step) for step in steps],
        "deaths": int(table["died_in_hospital"].sum()),
        "first_stay_undecided": outcome_unknown(patient),
        "without_vitals": int((measured.vitals.count.sum(axis=1) == 0).sum()),
        "rows": measured.rows,
        "absent_tables": [name for name in _OPTIONAL if name not in more],
        "least_hours": least_hours,
    }
    return EicuTable(table, tuple(steps), flow)


_NEEDED = ("patient", "hospital", "apachePatientResult", "apacheApsVar", "vitalPeriodic", "vitalAperiodic", "lab")
_OPTIONAL = ("nurseCharting", "intakeOutput")  # temperatures of hospitals without a probe, and urine


def write_files(built: EicuTable, out: Path) -> tuple[Path, Path, Path]:
    """Write the table, its flow and an experiment on it, side by side."""
    flow, recipe = check_out(out)
    packed = io.BytesIO()
    if out.name.endswith(".parquet"):
        built.table.to_parquet(packed, index=False)
    else:
        gzipped: Any = {"method": "gzip", "mtime": 0} if out.name.endswith(".gz") else None
        built.table.to_csv(packed, index=False, compression=gzipped)
    write_atomic(flow, (json.dumps(built.flow, indent=2) + "\n").encode())
    write_atomic(recipe, experiment(out.name, built.table).encode())
    write_atomic(out, packed.getvalue())  # last: where the table is, the rest is
    return out, flow, recipe


def check_out(out: Path) -> tuple[Path, Path]:
    """Find where the flow and the experiment go; refused before an hour of reading where one cannot be written."""
    suffix = next((s for s in SUFFIXES if out.name.endswith(s)), None)
    if suffix is None or out.name == suffix:
        raise BadInput(f"--out {out}: write the table as one of *{', *'.join(SUFFIXES)}", code="unknown-file-type")
    base = out.name.removesuffix(suffix)
    companions = out.with_name(f"{base}.flow.json"), out.with_name(f"{base}.toml")
    for path in (out, *companions):
        if path.exists():
            raise BadInput(
                f"{path} is there already; remove it, or choose another name (use --out)", code="file-exists"
            )
    if not out.absolute().parent.is_dir():
        raise BadInput(
            f"{out.absolute().parent} is not a folder; make it, or choose another place (use --out)",
            code="folder-not-found",
        )
    return companions


def experiment(name: str, table: pd.DataFrame) -> str:
    """TOML of an experiment on the table: death in hospital, hospitals as sites, unseen ones as test."""
    numeric = {c: list(r) for c, r in public_ranges.EICU.items() if c in table.columns}
    levels = {c: list(words) for c, words in public_ranges.EICU_LEVELS.items() if c in table.columns}
    return toml.dumps(
        {
            "name": "eicu",
            "data": {
                "table": name,
                "label": "died_in_hospital",
                "site": "hospitalid",
                "patient": "uniquepid",
                "drop": [KEY, "apacheadmissiondx"],
                "kinds": {"numbedscategory": list(public_ranges.EICU_BEDS)},
                "ranges": numeric,
                "levels": levels,
            },
            "split": {"scheme": "group-kfold", "min_rows": 1},
            "method": {"rounds": 30},
            "train": {"epochs": 1, "batch": 64, "lr": 0.1},
            "evaluation": {"threshold": "specificity", "subgroup": "gender"},
        },
        head='# Death in hospital from the first day in the ICU (eICU). Ranges and levels serve data.encoding = "public".',
    )


def _read_recorded(table: RawTable, progress: Progress) -> pd.Series:
    """Read the stays whose length of stay APACHE's results record; the demo's offsets in `patient` are never blank."""
    results = table.read({KEY: "int64", "actualiculos": "float64"}, progress=progress)
    return results[KEY][results["actualiculos"] >= 0].drop_duplicates()


def _read_hospitals(table: RawTable, progress: Progress) -> pd.DataFrame:
    hospitals = table.read({"hospitalid": "int64", **dict.fromkeys(_HOSPITAL, "str")}, progress=progress)
    _refuse_repeated(hospitals, "hospitalid", table)
    return hospitals.assign(teachingstatus=hospitals["teachingstatus"].map(_TEACHING))


def _read_apache(table: RawTable, progress: Progress) -> pd.DataFrame:
    """Read APACHE's values of the first day; -1 stands for "not known" there."""
    values = table.read({KEY: "int64", **dict.fromkeys(APACHE, "float64")}, progress=progress)
    _refuse_repeated(values, KEY, table)
    return values.set_index(KEY).replace(-1, np.nan).add_prefix("aps_").reset_index()


def _refuse_repeated(rows: pd.DataFrame, key: str, table: RawTable) -> None:
    repeated = rows[key].duplicated()
    if repeated.any():
        raise BadInput(
            f"{table.path} has two rows for {key} {rows[key][repeated].iloc[0]}, where eICU has one; download it again",
            code="repeated-ids",
        )


def _join(chosen: pd.DataFrame, hospitals: pd.DataFrame, measured: pd.DataFrame, apache: pd.DataFrame) -> pd.DataFrame:
    """Join each part to its stay; a join that would repeat a stay is an error of pandas' own."""
    table = chosen[[KEY, "uniquepid", "hospitalid"]].merge(hospitals, on="hospitalid", how="left", validate="m:1")
    table = pd.concat([table, chosen[list(_PERSON)]], axis=1)
    table = table.merge(measured, left_on=KEY, right_index=True, how="left", validate="1:1")
    table = table.merge(apache, on=KEY, how="left", validate="1:1")
    table["died_in_hospital"] = chosen["hospitaldischargestatus"].map(OUTCOMES).to_numpy()
    numbers = table.select_dtypes("float").columns
    return table.assign(**{name: table[name].round(4) for name in numbers})


def _check_rows(table: pd.DataFrame, chosen: pd.DataFrame) -> None:
    """Check that there is one row a stay, of the stays that were chosen: a join must not multiply them."""
    if not (len(table) == len(chosen) and table[KEY].is_unique and set(table[KEY]) == set(chosen[KEY])):
        raise RunFailed(
            f"the joined table has {len(table)} rows for {len(chosen)} stays: please report this",
            code="row-count-mismatch",
        )


def flow_rows(steps: Sequence[Step]) -> list[tuple[str, str, str, str, str]]:
    """Format the flow as the cells of a table, one row a rule."""
    return [
        (s.rule, f"-{s.left_out:,}" if i else "", f"{s.stays:,}", f"{s.patients:,}", f"{s.hospitals:,}")
        for i, s in enumerate(steps)
    ]
