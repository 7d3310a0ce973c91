"""Time and memory of a cohort from a large OMOP table.

    python bench/omop.py                      # 5 million measurements, as CSV and as Parquet
    python bench/omop.py --rows 1000000 --formats parquet

Writes random measurements of 400 concepts into a temporary folder, reads a cohort with 20 of them, and counts all concepts.
Each measurement is a process of its own, so that the peak of its memory is known.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from smoke import pick

PEOPLE, VISITS, CONCEPTS, FEATURES = pick(50_000, 1_000), pick(200_000, 1_000), 400, 20
DAY = 86_400


def write_tables(folder: Path, rows: int, kind: str) -> None:
    """Write the four tables that the cohort reads, as CSV or Parquet."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    concept = rng.integers(3_000_000, 3_000_000 + CONCEPTS, rows)
    moment = np.datetime64("2018-01-01", "s") + rng.integers(0, 1500 * DAY, rows).astype("timedelta64[s]")
    start = np.datetime64("2018-06-01", "s") + rng.integers(0, 1200 * DAY, VISITS).astype("timedelta64[s]")
    person = np.arange(1, PEOPLE + 1)
    tables = {
        "person": {
            "person_id": person,
            "gender_concept_id": np.where(person % 2, 8507, 8532),
            "year_of_birth": rng.integers(1930, 2000, PEOPLE),
        },
        "visit_occurrence": {
            "visit_occurrence_id": np.arange(VISITS), "person_id": rng.integers(1, PEOPLE + 1, VISITS),
            "visit_concept_id": np.full(VISITS, 9201), "visit_start_date": start.astype("datetime64[D]"),
            "visit_start_datetime": start, "visit_end_date": (start + 4 * DAY).astype("datetime64[D]"),
            "visit_end_datetime": start + 4 * DAY,
        },
        "death": {"person_id": person[:1000], "death_date": np.full(1000, np.datetime64("2021-01-01", "D"))},
        "measurement": {
            "measurement_id": np.arange(rows), "person_id": rng.integers(1, PEOPLE + 1, rows),
            "measurement_concept_id": concept, "measurement_date": moment.astype("datetime64[D]"),
            "measurement_datetime": moment, "measurement_type_concept_id": np.full(rows, 32817),
            "operator_concept_id": np.full(rows, 4172703), "value_as_number": np.round(rng.normal(100, 20, rows), 1),
            "unit_concept_id": np.full(rows, 8840), "range_low": np.full(rows, 70.0), "range_high": np.full(rows, 110.0),
            "provider_id": rng.integers(1, 900, rows), "visit_occurrence_id": rng.integers(0, VISITS, rows),
            "measurement_source_value": pa.array(concept).cast(pa.string()), "measurement_source_concept_id": concept,
            "unit_source_value": pa.array(np.full(rows, "mg/dL")), "value_source_value": pa.array(np.full(rows, "100.0")),
        },
    }  # fmt: skip
    for name, columns in tables.items():
        table = pa.table(columns)
        if kind == "csv":
            pyarrow.csv.write_csv(table, folder / f"{name}.csv")
        else:
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")


def measure(folder: Path, task: str) -> None:
    """Read the cohort or count concepts, and print seconds and the peak of memory."""
    from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort
    from grandrounds.capabilities.sources.cohort.counts import count_concepts
    from grandrounds.capabilities.sources.cohort.extract import extract_table
    from grandrounds.capabilities.sources.cohort.sources import open_source

    features = {f"m{i}": {"measurement": [3_000_000 + i], "take": "mean"} for i in range(FEATURES)}
    cohort = parse_cohort(
        {"predict_at": "24 hours", "outcome": {"death": "visit"}, "features": {"age": True, "sex": True, **features}}
    )
    start, used = time.perf_counter(), time.process_time()
    source = open_source(folder)
    size = len(count_concepts(source)) if task == "counts" else len(extract_table(cohort, source).table)
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    noun = "concepts" if task == "counts" else "rows"
    print(f"{task:7} {size:9,} {noun:8} {wall:6.1f} s  {cpu:6.1f} s of CPU  {peak:6.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=pick(5_000_000, 2_000))
    parser.add_argument("--formats", nargs="+", choices=("csv", "parquet"), default=["csv", "parquet"])
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "TASK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, task = Path(options.measure[0]), options.measure[1]
        if task in ("cohort", "counts"):
            measure(folder, task)
        else:
            write_tables(folder, options.rows, task)
        return
    for kind in options.formats:
        with tempfile.TemporaryDirectory() as name:
            # in a process of its own: a child begins with the peak of its parent
            write = [sys.executable, __file__, "--rows", str(options.rows), "--measure", name, kind]
            subprocess.run(write, check=True)
            size = sum(p.stat().st_size for p in Path(name).iterdir()) / 2**20
            print(f"{kind}: {options.rows:,} measurements, {size:.0f} MiB", flush=True)
            for task in ("cohort", "counts"):
                subprocess.run([sys.executable, __file__, "--measure", name, task], check=True)


if __name__ == "__main__":
    main()
