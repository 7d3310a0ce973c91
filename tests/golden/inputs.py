"""Records and scans as hospitals have them: OMOP, FHIR, DICOM and a database."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from tests.golden.given import SIZES
from tests.golden.running import Step
from tests.support import patients

COHORT = """predict_at = "24 hours"
[include]
visit = ["inpatient"]
age = [18, 120]
[outcome]
death = "visit"
[features]
age = true
sex = true
lactate = { measurement = ["LOINC:2524-7"], take = "max", unit = "mmol/L" }
heart_failure = { condition = ["ICD10CM:I50*"] }
"""
SCANS = """
[data]
table = "manifest.csv"
pictures = "scans"
label = "dx"
site = "hospital"
patient = "patient"
part = "split"
size = 20
[data.scan]
window = "soft tissue"
[model]
name = "small-cnn"
[method]
rounds = 1
[train]
steps = 2
[engine]
device = "cpu"
"""


def write_omop(folder: Path) -> None:
    """Four hospitals with OMOP tables."""
    import importlib.util

    example = Path(__file__).resolve().parents[2] / "examples" / "omop_hospitals.py"
    spec = importlib.util.spec_from_file_location("omop_hospitals", example)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(folder / "hospitals")
    (folder / "cohort.toml").write_text(COHORT)


def write_fhir(folder: Path) -> None:
    """A FHIR export of forty stays."""
    from tests.capabilities.sources.cohort.test_fhir import LOINC, concept, condition, encounter, observation

    (folder / "export").mkdir()
    rng = np.random.default_rng(5)
    resources = []
    for k in range(40):
        subject = {"reference": f"Patient/p{k}"}
        died = {"deceasedDateTime": "2020-01-04T10:00:00Z"} if rng.random() < 0.3 else {}
        birth = f"19{rng.integers(30, 90)}-03-02"
        resources.append(
            {"resourceType": "Patient", "id": f"p{k}", "gender": ["female", "male"][k % 2], "birthDate": birth} | died
        )
        resources.append(encounter(f"e{k}", subject=subject))
        value = {
            "value": round(float(rng.lognormal(0.5, 0.5)), 2),
            "unit": "mmol/L",
            "code": "mmol/L",
            "system": "http://unitsofmeasure.org",
        }
        lactate = concept((LOINC, "2524-7"))
        resources.append(
            observation(
                f"o{k}", lactate, subject=subject, valueQuantity=value, effectiveDateTime="2020-01-01T14:00:00Z"
            )
        )
        if k % 3 == 0:
            failing = concept(("http://hl7.org/fhir/sid/icd-10-cm", "I50.9"))
            resources.append(condition(f"c{k}", subject=subject, code=failing))
    for kind in dict.fromkeys(r["resourceType"] for r in resources):
        lines = [json.dumps(r) for r in resources if r["resourceType"] == kind]
        (folder / "export" / f"{kind}.000.ndjson").write_text("\n".join(lines) + "\n")
    (folder / "cohort.toml").write_text(COHORT)


def write_scans(folder: Path) -> None:
    """DICOM series of two hospitals, with their manifest."""
    from tests.capabilities.sources.scans.make import save_ct

    rng = np.random.default_rng(0)
    rows = [["folder", "dx", "patient", "hospital", "split"]]
    for site in "AB":
        for i in range(12):
            values = rng.normal(0, 60, (3, 20, 20))
            values[:, 5:14, 5:14] += 300 * (i % 2)
            name = f"{site}/p{i:02d}"
            save_ct(folder / "scans" / name, values.astype(np.int16), study=name)
            rows.append([name, "nodule" if i % 2 else "clear", f"{site}{i}", site, "test" if i < 4 else "train"])
    with (folder / "manifest.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)
    (folder / "run.toml").write_text(SCANS)


def write_database(folder: Path) -> None:
    """Patients in a table of SQLite."""
    table = patients(SIZES)
    names = list(table.columns)
    rows = zip(*(table.columns[name].tolist() for name in names), strict=True)
    with closing(sqlite3.connect(folder / "ward.sqlite")) as database:
        database.execute(f"CREATE TABLE stays ({', '.join(names)})")
        values = [[None if isinstance(v, float) and np.isnan(v) else v for v in row] for row in rows]
        database.executemany(f"INSERT INTO stays VALUES ({', '.join('?' * len(names))})", values)
        database.commit()


CHECKED: tuple[Step, ...] = (("cohort", "check", "cohort.toml"),)
SOURCES: dict[str, tuple[Callable[[Path], object], tuple[Step, ...]]] = {
    "records in OMOP": (
        write_omop,
        (
            *CHECKED,
            ("cohort", "draft", "hospitals/north", "--out", "draft.toml"),
            ("cohort", "check", "cohort.toml", "--data", "hospitals/north", "--json"),
            ("cohort", "build", "cohort.toml", "--data", "hospitals/north", "--out", "north.csv"),
            ("run", "hospitals", "--cohort", "cohort.toml", "--set", "method.rounds=1", "-q", "--out", "run"),
        ),
    ),
    "records in FHIR": (
        write_fhir,
        (
            *CHECKED,
            ("cohort", "check", "cohort.toml", "--data", "export", "--json"),
            ("cohort", "build", "cohort.toml", "--data", "export", "--out", "table.csv"),
        ),
    ),
    "scans in DICOM": (
        write_scans,
        (("scans", "list", "scans", "--json"), ("run", "run.toml", "-q", "--out", "run"), ("show", "run")),
    ),
    "rows of a database": (
        write_database,
        (
            ("run", "sqlite:///ward.sqlite", "--query", "SELECT * FROM stays", "--label", "died", "--site", "hospital",
             "--set", "method.rounds=1", "-q", "--out", "run"),
            ("show", "run"),
        ),
    ),
}  # fmt: skip
"""Files and commands by the name of the case."""
