"""Cost of reading tables: CPU seconds and peak memory of CSV and Parquet files, ours and pandas'.

    python bench/readers.py [--rows 100000] [--passes 9] [--without-memory]

The made table has 50 columns: 24 measurements (8 with missing values), 4 numbers of full precision, 12 counts, 8 categories, a
patient id and a date. It is written as CSV, as CSV with semicolons and decimal commas, and as Parquet. With GRANDROUNDS_DATA the
files of diabetes-130 and of the eICU demo are read, too. Both readers run in this process, in turn; seconds are medians over the
passes. "Strict" is our reader that goes through every cell: it reads files that are small or irregular, and names faults. Each
peak is that of a new process that reads the file once, less the memory before. Imports are not counted. Exits with status 1 if a
ratio of CPU seconds is above the bar, or if the two readers of ours differ.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grandrounds.core.rng import generator
from grandrounds.data import text_file
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table
from smoke import SMOKE, pick

BAR = 1.5
REAL = ("diabetes130/diabetic_data.csv.gz", "eicu_demo/eicu_24h.csv.gz", "eicu_demo/eicu_hourly.parquet")
LEVELS = (
    ("female", "male"),
    ("yes", "no", None),
    ("ward A", "ward B", "intensive care"),
    ("I10", "E11.9", "J18.9", "N17.0", "A41.9"),
)


def make_table(rows: int) -> pd.DataFrame:
    """Make a table of 50 columns, as an export of a hospital has them."""
    rng = generator(0, purpose="readers")
    columns: dict[str, Any] = {}
    for j in range(24):
        values = rng.normal(80, 20, rows).round(j % 4 + 1)
        if j % 3 == 0:
            values[rng.random(rows) < 0.1] = np.nan
        columns[f"lab{j}"] = values
    columns |= {f"raw{j}": rng.standard_normal(rows) for j in range(4)}
    columns |= {f"count{j}": rng.integers(0, 10 ** (j % 5 + 1), rows) for j in range(12)}
    columns["patient"] = [f"P{i:07d}" for i in rng.permutation(rows)]
    columns["admitted"] = (np.datetime64("2019-01-01") + rng.integers(0, 1500, rows)).astype(str)
    for j in range(8):
        levels = np.array(LEVELS[j % 4], dtype=object)
        columns[f"level{j}"] = levels[rng.integers(0, len(levels), rows)]
    return pd.DataFrame(columns)


def read_by_pandas(path: Path) -> pd.DataFrame:
    """Read a file as a user of pandas would, with the separator and the decimal mark stated."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path, sep=";", decimal=",") if path.name.startswith("semicolon") else pd.read_csv(path)


def read_strictly(path: Path) -> Table:
    """Read a text file cell by cell."""
    usual = text_file.read_text.__kwdefaults__
    before, usual["fast_size"] = usual["fast_size"], sys.maxsize
    try:
        return read_table(path)
    finally:
        usual["fast_size"] = before


def measure(call: Callable[[], object]) -> tuple[float, float]:
    """Return CPU seconds and clock seconds of a call."""
    began, clock = time.process_time(), time.perf_counter()
    result = call()
    seconds = time.process_time() - began, time.perf_counter() - clock
    del result
    return seconds


def peak_megabytes(reader: str, path: Path) -> float:
    """Return the memory that one reading adds at its peak, in a process of its own."""
    code = (
        "import sys; from pathlib import Path; import numpy, pandas, pyarrow.csv, pyarrow.parquet, pyarrow.compute\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import readers\n"
        "def status(key):\n"
        "    line = next(l for l in open('/proc/self/status') if l.startswith(key))\n"
        "    return int(line.split()[1]) / 1024\n"
        "before = status('VmRSS')\n"
        f"table = readers.{reader}(Path({str(path)!r}))\n"
        "print(status('VmHWM') - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def compare(path: Path, passes: int, memory: bool) -> bool:
    """Print the line of one file; return True if the bar is missed."""
    ours, theirs = [], []
    read_table(path), read_by_pandas(path)
    for _ in range(passes):
        ours.append(measure(lambda: read_table(path)))
        theirs.append(measure(lambda: read_by_pandas(path)))
    (cpu, clock), (cpu_pandas, clock_pandas) = (
        (statistics.median(x) for x in zip(*s, strict=True)) for s in (ours, theirs)
    )
    missed, strict = not SMOKE and cpu > BAR * cpu_pandas, "-"
    if path.suffix != ".parquet":
        strict = f"{measure(lambda: read_strictly(path))[0]:.2f}"
        if read_table(path).sha256() != read_strictly(path).sha256():
            print(f"{path.name}: the readers differ")
            missed = True
    peaks = [f"{peak_megabytes(name, path):.0f}" if memory else "-" for name in ("read_table", "read_by_pandas")]
    print(
        f"| {path.name} | {path.stat().st_size / 1e6:.1f} | {cpu:.3f} ({clock:.3f}) | {cpu_pandas:.3f} ({clock_pandas:.3f}) "
        f"| {cpu / cpu_pandas:.2f} | {strict} | {' / '.join(peaks)} |",
        flush=True,
    )
    return missed


def main() -> int:
    """Print the table; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description="Cost of reading tables.")
    parser.add_argument("--rows", type=int, default=pick(100_000, 2_000))
    parser.add_argument("--passes", type=int, default=pick(9, 1))
    parser.add_argument("--without-memory", action="store_true", default=SMOKE)
    terms = parser.parse_args()
    table = make_table(terms.rows)
    print(f"pandas {pd.__version__}; CPU seconds (clock), median of {terms.passes}\n")
    print("| file | MB | ours s | pandas s | ratio | strict s | peak MB: ours / pandas |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        made = [Path(folder) / name for name in ("table.csv", "semicolon.csv", "table.parquet")]
        table.to_csv(made[0], index=False)
        table.to_csv(made[1], index=False, sep=";", decimal=",")
        table.to_parquet(made[2])
        home = os.environ.get("GRANDROUNDS_DATA")
        real = [Path(home) / name for name in REAL] if home and not SMOKE else []
        for path in [*made, *(path for path in real if path.exists())]:
            if compare(path, terms.passes, not terms.without_memory):
                missed.append(path.name)
    print(
        f"\nbar: at most {BAR:g} times the CPU seconds of pandas: {'missed by ' + ', '.join(missed) if missed else 'met'}"
    )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
