"""The eICU demo as one hospital's events, for tests that write it as OMOP tables and as FHIR resources.

The demo has minutes from the admission to a unit and no dates. Here a patient's hospital stays follow each other, 30 days
apart, from 2 January of the year of the first one's discharge. A stay that ends in death comes last. Glucose and creatinine
are in other units at some hospitals. Some deaths and diagnoses have a date alone, some births a year or a month.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from tests.capabilities.sources.cohort.clinical_export import Event, Hospital, Patient, Stay

LAST_HOUR = 48
UNIT_BASE = 10_000_000  # ids of unit stays are beyond those of hospital stays
ICU_NUMBERS = {  # column of the hourly table: code, unit, hours between values that are used
    "glu": ("LOINC:2345-7", "mg/dL", 1),
    "crea": ("LOINC:2160-0", "mg/dL", 1),
    "lact": ("LOINC:2524-7", "mmol/L", 1),
    "hr": ("LOINC:8867-4", "/min", 4),
    "temp": ("LOINC:8310-5", "Cel", 4),
    "sbp": ("LOINC:8480-6", "mm[Hg]", 6),
    "dbp": ("LOINC:8462-4", "mm[Hg]", 6),
}
MAPS_TO = {  # beginnings of ICD codes, and the SNOMED code of each
    ("ICD9CM:401", "ICD10CM:I10"): "SNOMED:38341003",
    ("ICD9CM:038", "ICD10CM:A41"): "SNOMED:91302008",
    ("ICD9CM:427.31",): "SNOMED:49436004",
    ("ICD9CM:584",): "SNOMED:14669001",
}
BELOW = (("SNOMED:49601007", "SNOMED:38341003"), ("SNOMED:49601007", "SNOMED:49436004"))
VENTILATED, YES, NO = "SNOMED:40617009", "SNOMED:373066001", "SNOMED:373067005"
DIABETES = "SNOMED:73211009"


@dataclass(frozen=True)
class EicuDemo:
    """The demo's own tables with dates, and the events made of them.

    Attributes:
        units: One row for each unit stay: `patient`, `admit` and `leave` of the unit and of the hospital, and the columns
            of the demo.
        hourly: Vitals and labs that are used, with the demo's units.
        diagnoses: Diagnoses with a code.
        history: Past diabetes.
        hospital: The events.
    """

    units: pd.DataFrame
    hourly: pd.DataFrame
    diagnoses: pd.DataFrame
    history: pd.DataFrame
    hospital: Hospital


def read_eicu(folder: Path) -> EicuDemo:
    """Read the demo and give it dates."""
    units = _date_stays(pd.read_csv(folder / "patient.csv.gz"))
    hourly = pd.read_parquet(folder / "eicu_hourly.parquet", columns=["stay_id", "time", *ICU_NUMBERS])
    hourly["minute"] = hourly.time.dt.total_seconds() // 60
    hourly = hourly[hourly.minute <= 60 * LAST_HOUR].drop(columns="time")
    for name, (_, _, hours) in ICU_NUMBERS.items():
        hourly.loc[hourly.minute % (60 * hours) != 0, name] = np.nan
    hourly = hourly.merge(
        units[["patientunitstayid", "patient", "admit"]], left_on="stay_id", right_on="patientunitstayid"
    )
    diagnoses = pd.read_csv(folder / "diagnosis.csv.gz").dropna(subset="icd9code")
    diagnoses = diagnoses.merge(units[["patientunitstayid", "patient", "admit", "hospitalid"]], on="patientunitstayid")
    diagnoses["code"] = [_first_code(text) for text in diagnoses.icd9code]
    past = pd.read_csv(folder / "pastHistory.csv.gz")
    past = past[past.pasthistorypath.str.contains("iabetes")].drop_duplicates("patientunitstayid")
    past = past.merge(units[["patientunitstayid", "patient", "hospital_admit"]], on="patientunitstayid")
    aps = pd.read_csv(folder / "apacheApsVar.csv.gz", usecols=["patientunitstayid", "vent"])
    units = units.merge(aps, on="patientunitstayid", how="left")
    known = sorted(set(diagnoses.code))
    maps = {c: snomed for begins, snomed in MAPS_TO.items() for c in known if c.startswith(begins)}
    events = [*_measurements(hourly, units), *_conditions(diagnoses), *_past(past), *_ventilations(units)]
    hospital = Hospital(_patients(units), _stays(units), events, maps, BELOW)
    return EicuDemo(units, hourly, diagnoses, past, hospital)


def _date_stays(units: pd.DataFrame) -> pd.DataFrame:
    """Give every unit stay its patient's number and its times."""
    names = {name: i for i, name in enumerate(sorted(units.uniquepid.unique()), start=1)}
    units = units.assign(
        patient=units.uniquepid.map(names), expired=(units.hospitaldischargestatus == "Expired").astype(int)
    )
    stays = units.drop_duplicates("patienthealthsystemstayid").sort_values(
        ["patient", "expired", "hospitaldischargeyear", "patienthealthsystemstayid"]
    )
    admits: dict[int, datetime] = {}
    following: dict[int, datetime] = {}  # the day on which a patient's next stay begins
    for stay in stays.itertuples():
        day = following.get(stay.patient, datetime(int(stay.hospitaldischargeyear), 1, 2))
        hour, minute, _ = map(int, stay.hospitaladmittime24.split(":"))
        admits[stay.patienthealthsystemstayid] = day + timedelta(hours=hour, minutes=minute)
        length = max(stay.hospitaldischargeoffset, 0) - min(stay.hospitaladmitoffset, 0)
        following[stay.patient] = day + timedelta(days=31 + length // 1440)
    hospital_admit = units.patienthealthsystemstayid.map(admits)
    admit = hospital_admit - pd.to_timedelta(units.hospitaladmitoffset, "min")
    return units.assign(
        hospital_admit=hospital_admit,
        hospital_leave=admit + pd.to_timedelta(units.hospitaldischargeoffset, "min"),
        admit=admit,
        leave=admit + pd.to_timedelta(units.unitdischargeoffset, "min"),
        years=pd.to_numeric(units.age.replace("> 89", "90"), errors="coerce"),
    )


def _first_code(text: str) -> str:
    """Return the ICD-9 code of "401.9, I10", else the ICD-10 code."""
    codes = [c.strip() for c in text.split(",") if c.strip()]
    first = next((c for c in codes if c[0].isdigit()), None)
    return f"ICD9CM:{first}" if first else f"ICD10CM:{codes[0]}"


def _write(times: pd.Series) -> list[str]:
    return times.dt.strftime("%Y-%m-%dT%H:%M:%S").tolist()


def has_death_date_only(hospital: int) -> bool:
    """Return True for a hospital that records the day of a death alone."""
    return hospital % 2 == 0


def uses_millimoles(hospitals: pd.Series) -> pd.Series:
    """Return True for hospitals whose laboratories use mmol/L of glucose and umol/L of creatinine."""
    return hospitals % 3 == 0


def _patients(units: pd.DataFrame) -> list[Patient]:
    first, last = {}, {}
    columns = ["patient", "hospital_admit", "hospital_leave", "years", "gender", "expired", "hospitalid"]
    for unit in units.sort_values("hospital_admit", kind="stable")[columns].itertuples():
        first.setdefault(unit.patient, unit)
        if unit.expired:
            last.setdefault(unit.patient, unit)
    out = []
    for number, one in sorted(first.items()):
        birth = death = None
        if not np.isnan(one.years):
            born = one.hospital_admit - timedelta(days=365.25 * one.years + 40 + number % 200)
            birth = born.strftime(("%Y-%m-%d", "%Y-%m", "%Y")[number % 3])
        if number in last:
            day_only = has_death_date_only(last[number].hospitalid)
            death = last[number].hospital_leave.strftime("%Y-%m-%d" if day_only else "%Y-%m-%dT%H:%M:%S")
        out.append(Patient(number, birth, one.gender.lower() if isinstance(one.gender, str) else None, death))
    return out


def _stays(units: pd.DataFrame) -> list[Stay]:
    whole = units.drop_duplicates("patienthealthsystemstayid")
    stays = [
        Stay(i, p, "inpatient", a, b)
        for i, p, a, b in zip(
            whole.patienthealthsystemstayid.tolist(), whole.patient.tolist(), _write(whole.hospital_admit),
            _write(whole.hospital_leave), strict=True,
        )
    ]  # fmt: skip
    return stays + [
        Stay(UNIT_BASE + i, p, "icu", a, b, part_of=h)
        for i, p, a, b, h in zip(
            units.patientunitstayid.tolist(), units.patient.tolist(), _write(units.admit), _write(units.leave),
            units.patienthealthsystemstayid.tolist(), strict=True,
        )
    ]  # fmt: skip


def _measurements(hourly: pd.DataFrame, units: pd.DataFrame) -> list[Event]:
    """Make an event of every value; blood pressures follow each other, so that they are one panel in FHIR."""
    hospital = hourly.stay_id.map(units.set_index("patientunitstayid").hospitalid)
    converted = uses_millimoles(hospital).to_numpy()
    times = _write(hourly.admit + pd.to_timedelta(hourly.minute, "min"))
    patients, stays = hourly.patient.tolist(), hourly.stay_id.tolist()
    low_pressure = hourly.dbp.to_numpy()
    events = []
    for name, (code, unit, _) in ICU_NUMBERS.items():
        if name == "dbp":
            continue
        values = hourly[name].to_numpy()
        for i in np.flatnonzero(~np.isnan(values)):
            value, written = float(values[i]), unit
            if converted[i] and name == "glu":
                value, written = round(value / 18.0156, 2), "mmol/L"
            elif converted[i] and name == "crea":
                value, written = round(value * 88.42, 1), "umol/L"
            events.append(Event("measurement", patients[i], code, times[i], value, written, stay=UNIT_BASE + stays[i]))
            if name == "sbp" and not np.isnan(low_pressure[i]):
                code_2, unit_2, _ = ICU_NUMBERS["dbp"]
                low = float(low_pressure[i])
                events.append(
                    Event("measurement", patients[i], code_2, times[i], low, unit_2, stay=UNIT_BASE + stays[i])
                )
    return events


def _conditions(diagnoses: pd.DataFrame) -> list[Event]:
    times = _write(diagnoses.admit + pd.to_timedelta(diagnoses.diagnosisoffset, "min"))
    return [
        Event("condition", p, code, t, stay=UNIT_BASE + s)
        for p, code, t, s in zip(
            diagnoses.patient.tolist(), diagnoses.code, times, diagnoses.patientunitstayid.tolist(), strict=True
        )
    ]


def _past(past: pd.DataFrame) -> list[Event]:
    """Date past diabetes 400 days before the stay, as a day alone."""
    days = (past.hospital_admit - pd.Timedelta(days=400)).dt.strftime("%Y-%m-%d")
    return [Event("condition", p, DIABETES, d) for p, d in zip(past.patient.tolist(), days, strict=True)]


def _ventilations(units: pd.DataFrame) -> list[Event]:
    known = units.dropna(subset="vent")
    times = _write(known.admit + pd.Timedelta(hours=12))
    return [
        Event("observation", p, VENTILATED, t, word=YES if v else NO)
        for p, t, v in zip(known.patient.tolist(), times, known.vent, strict=True)
    ]
