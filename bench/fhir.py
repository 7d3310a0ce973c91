"""Speed of reading a FHIR export: lines a second of observations, all of them and those of a cohort.

    python bench/fhir.py [--lines 200000]

Observations are as long as those of real exports (about 900 bytes) and have 50 different codes, from 1,000 patients. The
cohort reads 5 of the codes, so that nine lines in ten stay unparsed. Seconds are those of the processor; `json.loads` of
every line is the lower limit of a reader that parses all of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from pathlib import Path

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort
from grandrounds.capabilities.sources.cohort.definition import Cohort
from grandrounds.capabilities.sources.cohort.extract import extract_table
from grandrounds.capabilities.sources.cohort.fhir import FhirSource
from smoke import pick

CODES, PATIENTS = 50, 1000


def write_export(folder: Path, lines: int) -> None:
    """Write patients, one visit each, and observations."""
    with (folder / "Patient.ndjson").open("w") as file:
        for i in range(PATIENTS):
            file.write(json.dumps({"resourceType": "Patient", "id": f"p{i}", "birthDate": "1950-01-01"}) + "\n")
    with (folder / "Encounter.ndjson").open("w") as file:
        for i in range(PATIENTS):
            visit = {
                "resourceType": "Encounter", "id": f"e{i}", "status": "finished", "class": {"code": "IMP"},
                "subject": {"reference": f"Patient/p{i}"}, "period": {"start": "2020-01-01T08:00:00Z", "end": "2020-01-20"},
            }  # fmt: skip
            file.write(json.dumps(visit) + "\n")
    with gzip.open(folder / "Observation.ndjson.gz", "wt", compresslevel=1) as file:
        for i in range(lines):
            file.write(json.dumps(make_observation(i)) + "\n")


def make_observation(i: int) -> dict[str, object]:
    """Make an observation with the elements of a real export."""
    profile = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-observation-lab"
    category = {"system": "http://terminology.hl7.org/CodeSystem/observation-category", "code": "laboratory"}
    code = {"system": "http://loinc.org", "code": f"{1000 + i % CODES}-1", "display": "Substance in serum or plasma"}
    return {
        "resourceType": "Observation", "id": f"{i:08d}-6c2e-4a0e-9d8f-0e5f7a1b2c3d",
        "meta": {"profile": [profile], "lastUpdated": "2020-02-01T00:00:00.000Z"}, "status": "final",
        "category": [{"coding": [category | {"display": "Laboratory"}], "text": "Laboratory"}],
        "code": {"coding": [code], "text": "Substance in serum or plasma"},
        "subject": {"reference": f"Patient/p{i % PATIENTS}"}, "encounter": {"reference": f"Encounter/e{i % PATIENTS}"},
        "effectiveDateTime": f"2020-01-{1 + i % 15:02d}T09:30:00-05:00", "issued": "2020-01-01T10:00:00.000-05:00",
        "valueQuantity": {"value": i % 200 / 2, "unit": "mg/dL", "system": "http://unitsofmeasure.org", "code": "mg/dL"},
    }  # fmt: skip


def make_cohort() -> Cohort:
    """Make a cohort with five features."""
    features = {f"lab{k}": {"measurement": [f"LOINC:{1000 + k}-1"], "unit": "mg/dL"} for k in range(5)}
    return parse_cohort({"predict_at": "24 hours", "outcome": {"death": "visit"}, "features": features})


def main() -> None:
    """Print the speeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=pick(200_000, 2_000))
    lines: int = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_export(folder, lines)
        began = time.process_time()
        with gzip.open(folder / "Observation.ndjson.gz") as stream:
            size = sum(len(line) for line in stream if json.loads(line))
        limit = time.process_time() - began
        began = time.process_time()
        FhirSource(folder).count_concepts()
        everything = time.process_time() - began
        began = time.process_time()
        extract_table(make_cohort(), FhirSource(folder))
        cohort = time.process_time() - began
    print(f"{lines} lines, {size / 1e6:.0f} MB unpacked, {size / lines:.0f} bytes a line")
    for what, seconds in (
        ("json.loads of every line", limit),
        ("every code counted", everything),
        ("a cohort", cohort),
    ):
        print(f"{what:<26} {seconds:6.2f} s  {lines / seconds:9,.0f} lines/s  {size / seconds / 1e6:6.0f} MB/s")


if __name__ == "__main__":
    main()
