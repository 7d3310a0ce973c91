"""Files that cases start from, made from a seed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from grandrounds.data.table import Table
from tests.support import bright_squares, patients

SIZES = [60, 50, 40, 45]


def write_patients(folder: Path) -> None:
    """Patients of four hospitals with two classes, and new ones of a fifth."""
    write_csv(folder / "patients.csv", patients(SIZES))
    write_csv(folder / "new.csv", patients([25], seed=7))


def write_tables(folder: Path) -> None:
    """A table for every type of outcome, and images."""
    write_patients(folder)
    write_csv(folder / "wards.csv", patients(SIZES, classes=3))
    write_csv(folder / "stays.csv", stays())
    bright_squares(folder / "squares.npz", 72, ("north", "south", "west"), purpose="pictures")


def stays(n: int = 200) -> Table:
    """Patients with a number, a count and a time to the event."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(n, 2)).round(4)
    sex = rng.integers(0, 2, n)
    eta = 0.6 * x[:, 0] - 0.4 * x[:, 1] + 0.3 * sex
    death, censoring = rng.exponential(100 * np.exp(-eta)), rng.exponential(150, n)
    columns = {
        "a": x[:, 0], "b": x[:, 1], "sex": np.where(sex == 1, "m", "f"), "hospital": np.array(list("NESW"))[np.arange(n) % 4],
        "los": (40 + 12 * eta + 3 * rng.normal(size=n)).round(3), "visits": rng.poisson(np.exp(1.2 + 0.5 * eta)).astype(float),
        "days": np.ceil(np.minimum(death, censoring)), "died": (death <= censoring).astype(float),
    }  # fmt: skip
    return Table.from_mapping(columns, source="stays.csv")


def write_csv(path: Path, table: Table) -> None:
    """Write a table with all digits; an empty cell is a missing value."""
    with path.open("w", newline="") as opened:
        out = csv.writer(opened)
        out.writerow(table.columns)
        for row in zip(*(table.columns[name].tolist() for name in table.columns), strict=True):
            out.writerow(["" if isinstance(v, float) and np.isnan(v) else v for v in row])
