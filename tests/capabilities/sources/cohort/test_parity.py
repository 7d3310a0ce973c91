"""One cohort file gives the same table from OMOP tables and from FHIR resources, and the table is right.

The eICU demo is written as both and read back; every cell is compared, and the columns are computed a second time with
pandas from the demo's own tables. Small made-up hospitals, drawn at random, need no data.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort
from grandrounds.capabilities.sources.cohort.definition import Cohort
from grandrounds.capabilities.sources.cohort.extract import CohortTable, extract_table
from grandrounds.capabilities.sources.cohort.fhir import FhirSource
from grandrounds.capabilities.sources.cohort.sources import open_source
from grandrounds.capabilities.sources.cohort.vocabulary import open_vocabulary
from tests.capabilities.sources.cohort.clinical_export import Event, Hospital, Patient, Stay, write_fhir, write_omop
from tests.capabilities.sources.cohort.eicu_export import NO, VENTILATED, YES, EicuDemo, read_eicu, uses_millimoles

DEATH_IN_HOSPITAL = {
    "name": "death in hospital",
    "predict_at": "24 hours",
    "include": {"visit": ["inpatient"], "first_visit": True, "age": [18, 120]},
    "outcome": {"death": "visit"},
    "features": {
        "age": True,
        "sex": True,
        "glucose": {"measurement": ["LOINC:2345-7"], "take": "last", "unit": "mg/dL"},
        "first_glucose": {"measurement": ["LOINC:2345-7"], "take": "first", "unit": "mg/dL"},
        "creatinine": {"measurement": ["LOINC:2160-0"], "take": "max", "unit": "mg/dL", "range": [0, 10]},
        "heart_rate": {"measurement": ["LOINC:8867-4"], "take": "mean", "window": "12 hours"},
        "systolic": {"measurement": ["LOINC:8480-6"], "take": "min"},
        "diastolic": {"measurement": ["LOINC:8462-4"], "take": "last"},
        "temperatures": {"measurement": ["LOINC:8310-5"], "take": "count"},
        "lactate_age": {"measurement": ["LOINC:2524-7"], "take": "days_since"},
        "sepsis": {"condition": ["SNOMED:91302008"], "window": "visit"},
        "kidney_injuries": {"condition": ["ICD9CM:584*"], "take": "count", "window": "visit"},
        "diabetes": {"condition": ["SNOMED:73211009"]},
        "ventilated": {"observation": [VENTILATED], "values": {"yes": [YES], "no": [NO]}},
    },
}
IN_ICU = {"include": {"visit": ["icu"]}, "features": {"age": True, "sex": True}}
OTHER_COHORTS = {
    "time to death": IN_ICU | {"predict_at": "6 hours", "outcome": {"death": "30 days", "time_to_event": True}},
    "death in 30 days": IN_ICU | {"outcome": {"death": "30 days"}},
    "new sepsis": IN_ICU | {"outcome": {"condition": ["SNOMED:91302008"], "within": "visit", "first": True}},
    "lactate": IN_ICU | {
        "predict_at": "12 hours",
        "outcome": {"measurement": ["LOINC:2524-7"], "within": "24 hours", "take": "max", "unit": "mmol/L"},
    },
    "high glucose": IN_ICU | {
        "predict_at": "12 hours",
        "outcome": {"measurement": ["LOINC:2345-7"], "within": "visit", "unit": "mg/dL", "above": 180},
    },
    "heart disease": {
        "include": {
            "visit": ["inpatient"], "diagnoses": ["ICD9CM:401*", "SNOMED:49436004"], "without_diagnoses": ["ICD9CM:038*"],
            "look_back": "365 days",
        },
        "outcome": {"condition": ["ICD9CM:584*"], "within": "7 days", "complete_follow_up": False},
        "features": {"diabetes": {"condition": ["SNOMED:73211009"], "take": "days_since"}},
    },
}  # fmt: skip


def find_difference(one: CohortTable, other: CohortTable) -> str | None:
    """Name the first cell that differs."""
    if list(one.table.columns) != list(other.table.columns) or one.steps != other.steps:
        return f"{one.steps} and {other.steps}"
    for name, column in one.table.columns.items():
        compared = other.table.columns[name]
        numbers = column.dtype.kind == "f"
        equal = np.array_equal(column, compared, equal_nan=True) if numbers else np.array_equal(column, compared)
        if column.dtype != compared.dtype or not equal:
            return f"{name}: {column[:5]} and {compared[:5]}"
    return None


def read_table(plain: dict, where: Path, vocabulary: Path | None = None) -> CohortTable:
    source = open_source(where, vocabulary=vocabulary)
    try:
        return extract_table(parse_cohort(plain), source)
    finally:
        source.close()


@pytest.fixture(scope="module")
def demo(data_folder: Path) -> EicuDemo:
    return read_eicu(data_folder / "eicu_demo")


@pytest.fixture(scope="module")
def exports(demo: EicuDemo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("eicu")
    return {
        "omop": write_omop(demo.hospital, folder / "omop"),
        "omop 5.3": write_omop(demo.hospital, folder / "omop53", version="5.3"),
        "fhir": write_fhir(demo.hospital, folder / "fhir"),
        "fhir without standard codes": write_fhir(demo.hospital, folder / "fhir_plain", standard=False),
    }


@pytest.mark.data("eicu_demo")
@pytest.mark.parametrize("name", ["death in hospital", *OTHER_COHORTS])
def test_eicu_demo_as_omop_and_as_fhir_has_no_differing_cell(exports, name):
    plain = {"death in hospital": DEATH_IN_HOSPITAL, **OTHER_COHORTS}[name]
    omop = read_table(plain, exports["omop"])
    assert len(omop.table) > 150
    assert find_difference(omop, read_table(plain, exports["fhir"])) is None
    if name in ("death in hospital", "heart disease"):
        assert find_difference(omop, read_table(plain, exports["omop 5.3"])) is None
        with_vocabulary = read_table(plain, exports["fhir without standard codes"], exports["omop"])
        assert find_difference(omop, with_vocabulary) is None


@pytest.mark.data("eicu_demo")
def test_descendants_and_omop_ids_match_in_fhir_with_a_vocabulary(exports):
    features = {
        "heart": {"condition": ["SNOMED:49601007"], "take": "count", "window": "all"},
        "sepsis": {"condition": ["OMOP:ID"], "take": "count", "window": "all"},
    }
    vocabulary = open_vocabulary(exports["omop"])
    sepsis = parse_cohort({"outcome": {"death": "visit"}, "features": {"x": {"condition": ["SNOMED:91302008"]}}})
    (found,) = vocabulary.resolve(sepsis.concept_sets())
    features["sepsis"]["condition"] = [int(found.ids[0])]
    plain = {"predict_at": "24 hours", "outcome": {"death": "visit"}, "features": features}
    omop = read_table(plain, exports["omop"])
    assert omop.table.columns["heart"].sum() > 500 and omop.table.columns["sepsis"].sum() > 100
    for where in ("fhir", "fhir without standard codes"):
        assert find_difference(omop, read_table(plain, exports[where], exports["omop"])) is None


def stays_of(demo: EicuDemo) -> pd.DataFrame:
    """First hospital stay of each patient of at least 24 hours, of known age."""
    whole = demo.units.drop_duplicates("patienthealthsystemstayid").sort_values(["patient", "hospital_admit"])
    first = whole.drop_duplicates("patient")
    return first[first.hospital_leave - first.hospital_admit >= pd.Timedelta(hours=24)].copy()


@pytest.mark.data("eicu_demo")
def test_death_in_hospital_equals_pandas_on_the_tables_of_the_demo(demo, exports):
    """Computed by the demo's own stays and offsets, not by the dates that were made of them."""
    table = read_table(DEATH_IN_HOSPITAL, exports["fhir"]).table.columns
    stays = stays_of(demo)
    names = pd.Series(table["patient"].astype(int))
    stays = stays.set_index("patient").loc[names].reset_index()
    known_age = demo.units.dropna(subset="years").query("years >= 18").patient
    assert set(stays_of(demo).patient) & set(known_age) == set(names)
    assert (stays.hospitaldischargestatus == "Expired").astype(float).tolist() == table["died"].tolist()
    assert table["died"].sum() > 100
    assert [s.lower() if isinstance(s, str) else None for s in stays.gender] == table["sex"].tolist()
    assert np.abs(table["age"] - stays.years).max() <= 1

    # minutes since the admission to the hospital
    units = demo.units[["patientunitstayid", "patienthealthsystemstayid", "hospitaladmitoffset", "hospitalid"]]
    hourly = demo.hourly.drop(columns="patientunitstayid").merge(units, left_on="stay_id", right_on="patientunitstayid")
    hourly["at"] = hourly.minute - hourly.hospitaladmitoffset
    hourly = hourly[(hourly["at"] >= 0) & (hourly["at"] <= 1440)].sort_values(["patienthealthsystemstayid", "at"])
    diagnoses = demo.diagnoses.drop(columns="hospitalid").merge(units, on="patientunitstayid")
    diagnoses["at"] = diagnoses.diagnosisoffset - diagnoses.hospitaladmitoffset
    diagnoses = diagnoses[(diagnoses["at"] >= 0) & (diagnoses["at"] <= 1440)]

    def column(series: pd.Series, missing: float = np.nan) -> np.ndarray:
        return series.reindex(stays.patienthealthsystemstayid).fillna(missing).to_numpy(float)

    def grouped(name: str, since: int = 0):
        return hourly[hourly["at"] >= since].dropna(subset=name).groupby("patienthealthsystemstayid")[name]

    close = {"rtol": 2e-3, "equal_nan": True}  # where a hospital wrote mmol/L with two decimals
    plain_unit = ~uses_millimoles(stays.hospitalid).to_numpy()
    for name, expected in (("glucose", grouped("glu").last()), ("first_glucose", grouped("glu").first())):
        np.testing.assert_allclose(table[name], column(expected), **close)
        assert np.array_equal(table[name][plain_unit], column(expected)[plain_unit], equal_nan=True)
    creatinine = hourly[hourly.crea <= 10].groupby("patienthealthsystemstayid").crea.max()
    np.testing.assert_allclose(table["creatinine"], column(creatinine), **close)
    np.testing.assert_allclose(table["heart_rate"], column(grouped("hr", since=720).mean()), rtol=1e-12)
    assert np.array_equal(table["systolic"], column(grouped("sbp").min()), equal_nan=True)
    assert np.array_equal(table["temperatures"], column(grouped("temp").count(), 0))
    lactate = (1440 - hourly.dropna(subset="lact").groupby("patienthealthsystemstayid")["at"].max()) / 1440
    np.testing.assert_allclose(table["lactate_age"], column(lactate), rtol=1e-12)
    septic = diagnoses[diagnoses.code.str.startswith(("ICD9CM:038", "ICD10CM:A41"))]
    kidney = diagnoses[diagnoses.code.str.startswith("ICD9CM:584")]
    by_stay = "patienthealthsystemstayid"
    assert np.array_equal(table["sepsis"], column((septic.groupby(by_stay).size() > 0).astype(float), 0))
    assert np.array_equal(table["kidney_injuries"], column(kidney.groupby(by_stay).size(), 0))
    assert table["sepsis"].sum() > 30 and table["kidney_injuries"].sum() > 30


@pytest.mark.data("eicu_demo")
def test_time_to_death_equals_pandas_on_the_tables_of_the_demo(demo, exports):
    """Followed to death, to 30 days, or to the end of the patient's last stay; a day alone has its last second."""
    table = read_table(OTHER_COHORTS["time to death"], exports["omop"]).table.columns
    units = demo.units.sort_values(["admit", "patientunitstayid"])
    last = np.maximum(units.groupby("patient").hospital_leave.max(), units.groupby("patient").leave.max())
    deaths = {
        p.id: pd.Timestamp(p.death) if "T" in p.death else pd.Timestamp(p.death) + pd.Timedelta(seconds=86399)
        for p in demo.hospital.patients
        if p.death
    }
    expected = {}
    for u in units.itertuples():
        now = u.admit + pd.Timedelta(hours=6)
        death = deaths.get(u.patient, pd.Timestamp.max)
        horizon = now + pd.Timedelta(days=30)
        until = min(horizon, last[u.patient])
        died = death <= horizon
        end = death if died else until
        if u.leave >= now and death > now and end > now:
            expected[(str(u.patient), u.admit.isoformat())] = (float(died), (end - now).total_seconds() / 86400)
    rows = list(zip(table["patient"], table["visit_start"], strict=True))
    assert set(rows) == set(expected) and len(rows) > 2000
    assert table["died"].tolist() == [expected[r][0] for r in rows]
    np.testing.assert_allclose(table["days"], [expected[r][1] for r in rows], rtol=1e-12)


@pytest.mark.data("eicu_demo")
def test_measured_outcomes_equal_pandas_on_the_tables_of_the_demo(demo, exports):
    """Lactate of the 24 hours after the twelfth, by unit stay."""
    table = read_table(OTHER_COHORTS["lactate"], exports["fhir"]).table.columns
    later = demo.hourly[(demo.hourly.minute > 720) & (demo.hourly.minute <= 720 + 1440)].dropna(subset="lact")
    peak = later.groupby("stay_id").lact.max()
    units = demo.units[demo.units.leave - demo.units.admit >= pd.Timedelta(hours=12)]
    units = units[units.patientunitstayid.isin(peak.index)]
    expected = {(str(u.patient), u.admit.isoformat()): peak[u.patientunitstayid] for u in units.itertuples()}
    found = dict(zip(zip(table["patient"], table["visit_start"], strict=True), table["outcome"], strict=True))
    shared = set(found) & set(expected)
    assert set(expected) <= set(found) and len(shared) > 150
    assert sum(found[k] != expected[k] for k in shared) <= 5  # a patient's next unit stay may begin within the 24 hours


DAYS = st.integers(0, 400)
CODES = {
    "condition": ("SNOMED:38341003", "ICD10CM:I10", "ICD10CM:E11.9", "SNOMED:73211009"),
    "measurement": ("LOINC:2345-7", "LOINC:2160-0"),
    "observation": ("LOINC:72166-2",),
    "drug": ("RxNorm:314076", "ATC:A10BA02"),
    "procedure": ("SNOMED:430193006",),
}
SMALL = {
    "include": {"visit": ["inpatient", "emergency"]},
    "predict_at": "12 hours",
    "outcome": {"death": "30 days", "complete_follow_up": False},
    "features": {
        "age": True,
        "sex": True,
        "glucose": {"measurement": ["LOINC:2345-7"], "take": "last", "unit": "mg/dL", "window": "all"},
        "mean_creatinine": {"measurement": ["LOINC:2160-0"], "take": "mean", "window": "100 days"},
        "smoker": {"observation": ["LOINC:72166-2"], "values": {"yes": [YES], "no": [NO]}, "window": "all"},
        "hypertension": {"condition": ["SNOMED:38341003", "ICD10CM:I10*"], "take": "count", "window": "all"},
        "diabetes": {"condition": ["ICD10CM:E11*"], "take": "days_since"},
        "metformin": {"drug": ["ATC:A10*"], "take": "count"},
        "reconciled": {"procedure": ["SNOMED:430193006"]},
    },
}


@st.composite
def times(draw, day_alone: bool = True) -> str:
    """A day from 2020, or a time on it that is not midnight, which OMOP uses where the time is not known."""
    day = np.datetime64("2020-01-01") + draw(DAYS)
    if day_alone and draw(st.booleans()):
        return str(day)
    return f"{day}T{draw(st.integers(0, 23)):02}:{draw(st.integers(1, 59)):02}:00"


@st.composite
def hospitals(draw) -> Hospital:
    """A few patients with stays and events of every kind; one patient has a stay that every cohort includes."""
    births = st.sampled_from(["1950", "1961-02", "1972-02-29", None])
    patients = [
        Patient(i, draw(births), draw(st.sampled_from(["male", "female", None])), draw(st.none() | times()))
        for i in range(2, draw(st.integers(2, 5)))
    ]
    patients.append(Patient(1, "1950-01-01", "male"))
    stays = [Stay(1, 1, "inpatient", "2020-01-01T08:00:00", "2020-01-09T08:00:00")]
    for i in range(2, draw(st.integers(2, 7))):
        start, end = sorted((draw(times(False)), draw(times(False))))
        kind = draw(st.sampled_from(["inpatient", "outpatient", "emergency", "icu"]))
        stays.append(Stay(i, draw(st.integers(1, 5)), kind, start, draw(st.sampled_from([end, end[:10], None]))))
    return Hospital(patients, stays, draw(st.lists(events(), max_size=15)), {"ICD10CM:I10": "SNOMED:38341003"})


@st.composite
def events(draw) -> Event:
    domain = draw(st.sampled_from(sorted(CODES)))
    value, unit, word = None, None, None
    if domain == "measurement":
        value = draw(st.none() | st.floats(0, 500).map(lambda x: round(x, 2)))
        unit = draw(st.sampled_from(["mg/dL", "mmol/L", None]))
    if domain == "observation":
        word = draw(st.sampled_from([YES, NO, None]))
    code = draw(st.sampled_from(CODES[domain]))
    return Event(domain, draw(st.integers(1, 5)), code, draw(times()), value, unit, word)


@given(hospitals())
@settings(max_examples=25)
def test_drawn_hospitals_have_no_differing_cell(hospital):
    with tempfile.TemporaryDirectory() as folder:
        omop, fhir = write_omop(hospital, Path(folder) / "omop"), write_fhir(hospital, Path(folder) / "fhir")
        one, other = read_table(SMALL, omop), read_table(SMALL, fhir)
        assert find_difference(one, other) is None
        with_vocabulary = read_table(SMALL, write_fhir(hospital, Path(folder) / "plain", standard=False), omop)
        assert find_difference(one, with_vocabulary) is None


def test_a_prepared_read_equals_a_read_of_everything(tmp_path):
    """Lines that a cohort does not need are left out unparsed, which changes nothing."""
    codes = ["ICD10CM:E11.9", "ICD10CM:E119", "ICD10CM:E1", "SNOMED:73211009", "SNOMED:7321100", "ICD10CM:e11.65"]
    found = [Event("condition", 1, code, "2020-01-01") for code in codes]
    hospital = Hospital([Patient(1)], [Stay(1, 1, "inpatient", "2020-01-02T01:00:00", "2020-01-03T01:00:00")], found)
    cohort: Cohort = parse_cohort(
        {
            "outcome": {"death": "visit"},
            "features": {"x": {"condition": ["ICD10CM:E11*", "SNOMED:73211009"], "take": "count"}},
        }
    )
    write_fhir(hospital, tmp_path)
    source = FhirSource(tmp_path)
    concepts = cohort.features[0].concepts
    assert concepts is not None
    everything = len(source.records("condition", concepts))
    prepared = FhirSource(tmp_path)
    prepared.prepare(cohort)
    assert len(prepared.records("condition", concepts)) == everything == 4
