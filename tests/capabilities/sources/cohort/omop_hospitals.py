"""Hospitals with OMOP tables, made up from a fixed seed: inpatients with age, sex, glucose and diabetes, some of whom die."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from grandrounds.core.rng import generator

COHORT = """
predict_at = "24 hours"
[include]
visit = ["inpatient"]
first_visit = true
age = [18, 120]
[outcome]
death = "visit"
[features]
age = true
sex = true
glucose = { measurement = ["LOINC:2345-7"], unit = "mg/dL" }
diabetes = { condition = ["SNOMED:73211009"], window = "all" }
"""
CONCEPTS = (
    (3004501, "Measurement", "LOINC", "2345-7"), (201820, "Condition", "SNOMED", "73211009"), (8840, "Unit", "UCUM", "mg/dL"),
    (8507, "Gender", "Gender", "M"), (8532, "Gender", "Gender", "F"), (9201, "Visit", "Visit", "IP"),
    (9202, "Visit", "Visit", "OP"),
)  # fmt: skip


def write_hospital(folder: Path, name: str, *, patients: int = 60, going_on: int = 0) -> Path:
    """Write the OMOP tables of a hospital; the last `going_on` visits have not ended."""
    rng = generator(seed=7, site=name, purpose="hospital")
    age, glucose = rng.integers(18, 95, patients), rng.normal(120, 35, patients).round(1)
    dies = rng.random(patients) < 1 / (1 + np.exp(-(0.05 * (age - 60) + 0.01 * (glucose - 120))))
    person = [[i, 8507 if i % 2 else 8532, 2020 - int(age[i]), 6, 15] for i in range(patients)]
    visits, measured, found, dead = [], [], [], []
    for i in range(patients):
        start, end = f"2020-{i % 11 + 1:02d}-10", f"2020-{i % 11 + 1:02d}-20"
        last = ("", "") if i >= patients - going_on else (end, f"{end} 12:00:00")
        visits.append([i, i, 9201, start, f"{start} 08:00:00", *last])
        visits.append([i + 1000, i, 9202, "2020-12-24", "2020-12-24 08:00:00", "2020-12-24", "2020-12-24 09:00:00"])
        if i % 6:
            measured.append([i, i, 3004501, start, f"{start} 10:00:00", glucose[i], 8840, "mg/dL"])
        if i % 3 == 0:
            found.append([i, i, 201820, "2019-01-01"])
        if dies[i] and last[0]:
            dead.append([i, end, f"{end} 11:00:00"])
    concepts = [[i, code, domain, vocabulary, "S", code] for i, domain, vocabulary, code in CONCEPTS]
    dates = ("visit_start_date", "visit_start_datetime", "visit_end_date", "visit_end_datetime")
    tables = {
        "person": (("person_id", "gender_concept_id", "year_of_birth", "month_of_birth", "day_of_birth"), person),
        "visit_occurrence": (("visit_occurrence_id", "person_id", "visit_concept_id", *dates), visits),
        "measurement": (
            ("measurement_id", "person_id", "measurement_concept_id", "measurement_date", "measurement_datetime",
             "value_as_number", "unit_concept_id", "unit_source_value"),
            measured,
        ),
        "condition_occurrence": (
            ("condition_occurrence_id", "person_id", "condition_concept_id", "condition_start_date"), found
        ),
        "death": (("person_id", "death_date", "death_datetime"), dead),
        "concept": (
            ("concept_id", "concept_name", "domain_id", "vocabulary_id", "standard_concept", "concept_code"), concepts
        ),
    }  # fmt: skip
    folder = folder / name
    folder.mkdir(parents=True)
    for table, (head, rows) in tables.items():
        with (folder / f"{table}.csv").open("w", newline="") as f:
            csv.writer(f).writerows([head, *rows])
    return folder


def write_hospitals(folder: Path, *names: str) -> Path:
    """Write hospitals and a cohort file beside them; returns the folder of the hospitals."""
    for name in names or ("a", "b", "c", "d"):
        write_hospital(folder / "hospitals", name)
    (folder / "cohort.toml").write_text(COHORT)
    return folder / "hospitals"
