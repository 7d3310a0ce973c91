"""Write the OMOP tables of four hospitals that do not exist, for the tutorial on records: one folder of CSV files for each.

    python examples/omop_hospitals.py hospitals

Patients are generated with a fixed seed. One hospital records glucose in mmol/L, the others in mg/dL. The CONCEPT table has
only the dozen codes that are used here (ids from 2,000,000,000 on are for a hospital's own use); a real hospital has the
vocabularies that it downloaded from Athena.
"""

from __future__ import annotations

import csv
import datetime
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

HOSPITALS = {"north": 420, "south": 360, "harbour": 300, "valley": 240}
IN_MMOL = "harbour"
FIRST_ID = 2_000_000_001
MEASUREMENTS = {  # name: (LOINC code, unit, usual value, spread, change with the risk)
    "Heart rate": ("8867-4", "/min", 84.0, 14.0, 9.0),
    "Systolic blood pressure": ("8480-6", "mm[Hg]", 126.0, 18.0, -10.0),
    "Lactate in blood": ("2524-7", "mmol/L", 1.7, 0.6, 0.9),
    "Creatinine in serum": ("2160-0", "mg/dL", 1.1, 0.35, 0.3),
    "Glucose in serum": ("2345-7", "mg/dL", 135.0, 38.0, 12.0),
}
CONDITIONS = {"Diabetes": ("E11.9", 0.3), "Heart failure": ("I50.9", 0.2), "Chronic kidney disease": ("N18.3", 0.15)}
DRUGS = {"Insulin": ("A10AC01", 0.2), "Furosemide": ("C03CA01", 0.25)}
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)


def concept_rows() -> list[tuple[object, ...]]:
    """List the concepts in use."""
    names = [(n, "Measurement", "LOINC", v[0]) for n, v in MEASUREMENTS.items()]
    names += [(n, "Condition", "ICD10CM", v[0]) for n, v in CONDITIONS.items()]
    names += [(n, "Drug", "ATC", v[0]) for n, v in DRUGS.items()]
    units = {v[1]: (v[1], "Unit", "UCUM", v[1]) for v in MEASUREMENTS.values()}
    return [(FIRST_ID + i, *row, "S") for i, row in enumerate([*names, *units.values()])]


def write_hospital(folder: Path, name: str, patients: int, rng: np.random.Generator) -> None:
    """Write the tables of one hospital."""
    concept = {(row[2], row[4]): int(str(row[0])) for row in concept_rows()}
    person, visit, death, period, measured, condition, drug = ([] for _ in range(7))
    for i in range(1, patients + 1):
        age, female = int(np.clip(rng.normal(66, 14), 19, 95)), bool(rng.random() < 0.47)
        start = datetime.datetime(2023, 1, 1, 8) + int(rng.integers(0, 700)) * DAY + int(rng.integers(0, 12)) * HOUR
        born = start.year - age
        person.append((i, 8532 if female else 8507, born, 1 + i % 12, 1 + i % 28))
        severity = float(rng.normal())
        known = {c: rng.random() < share for c, (_, share) in CONDITIONS.items()}
        risk = -3.1 + 1.3 * severity + 0.04 * (age - 66) + 0.8 * known["Heart failure"]
        dies = rng.random() < 1 / (1 + np.exp(-risk))
        end = start + float(rng.uniform(1.5, 12)) * DAY
        visit.append((i, i, 9201, start.date(), start, end.date(), end.replace(microsecond=0)))
        if dies:
            death.append((i, end.date()))
        period.append((i, i, (start - int(rng.integers(200, 2000)) * DAY).date(), end.date()))
        for c, has in known.items():
            if has:
                row = (len(condition) + 1, i, concept["Condition", CONDITIONS[c][0]])
                condition.append((*row, (start - int(rng.integers(30, 900)) * DAY).date(), CONDITIONS[c][0]))
        for d, (code, share) in DRUGS.items():
            if rng.random() < share + 0.3 * known["Diabetes"] * (d == "Insulin"):
                row = (len(drug) + 1, i, concept["Drug", code])
                drug.append((*row, (start - int(rng.integers(1, 200)) * DAY).date(), code))
        for label, (code, unit, usual, spread, change) in MEASUREMENTS.items():
            if rng.random() < 0.08:
                continue  # not measured
            for hour in sorted(rng.uniform(0.5, 40, 4)):
                value = max(usual + change * severity + spread * float(rng.normal()), 0.2 * usual)
                here = unit
                if name == IN_MMOL and label == "Glucose in serum":
                    value, here = value / 18.016, "mmol/L"
                then = (start + hour * HOUR).replace(microsecond=0)
                row = (len(measured) + 1, i, concept["Measurement", code], then.date(), then)
                measured.append((*row, round(value, 2), concept["Unit", here], i, code, here))
    occurrence = ("person_id", "{0}_concept_id", "{0}_start_date", "{0}_source_value")
    exposure = ("person_id", "drug_concept_id", "drug_exposure_start_date", "drug_source_value")
    tables = {
        "person": (("person_id", "gender_concept_id", "year_of_birth", "month_of_birth", "day_of_birth"), person),
        "visit_occurrence": (
            ("visit_occurrence_id", "person_id", "visit_concept_id", "visit_start_date", "visit_start_datetime",
             "visit_end_date", "visit_end_datetime"), visit),
        "death": (("person_id", "death_date"), death),
        "observation_period": (
            ("observation_period_id", "person_id", "observation_period_start_date", "observation_period_end_date"), period),
        "measurement": (
            ("measurement_id", "person_id", "measurement_concept_id", "measurement_date", "measurement_datetime",
             "value_as_number", "unit_concept_id", "visit_occurrence_id",
             "measurement_source_value", "unit_source_value"), measured),
        "condition_occurrence": (("condition_occurrence_id", *(c.format("condition") for c in occurrence)), condition),
        "drug_exposure": (("drug_exposure_id", *exposure), drug),
        "concept": (
            ("concept_id", "concept_name", "domain_id", "vocabulary_id", "concept_code", "standard_concept"), concept_rows()),
    }  # fmt: skip
    folder.mkdir(parents=True)
    for table, (header, rows) in tables.items():
        write_table(folder / f"{table}.csv", header, rows)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write one table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main(out: Path) -> None:
    """Write all hospitals."""
    for seed, (name, patients) in enumerate(HOSPITALS.items()):
        write_hospital(out / name, name, patients, np.random.default_rng([34, seed]))
        print(f"{out / name}: {patients} patients")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals"))
