"""Limits of data files: one budget for every reader, and the page that states it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pyreadstat
import pytest

from grandrounds.core.arrays import largest_unpacked
from grandrounds.data import limits
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table
from tests.support import refused

ROOT = Path(__file__).parents[2]


def wide(columns: int, rows: int = 2) -> str:
    lines = [",".join(f"c{k}" for k in range(columns)), *[",".join("1" * columns)] * rows]
    return "\n".join(lines) + "\n"


def test_columns_are_refused_from_the_header_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_COLUMNS", 50)
    path = tmp_path / "t.csv"
    for rows in (2, 5000):  # cell by cell, and by Arrow
        path.write_text(wide(50, rows))
        assert len(read_table(path).names) == 50
        path.write_text(wide(51, rows) + "and,a,line,that,is,too,short\n")
        with refused("too-many-columns", match="51 columns"):
            read_table(path)
    with refused("too-many-columns"):
        Table.from_pandas(pd.DataFrame([[0] * 51]))


def test_a_million_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(wide(10**6))
    with refused("too-many-columns", match="1,000,000 columns"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("cell", ["1", '"1"'])
def test_cells_of_text_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(("a,b\n" + f"{cell},2\n" * 100_000).encode()))
    assert len(read_table(path)) == 100_000
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "2M")
    with refused("unpacks-too-large"):
        read_table(path)


def test_a_file_of_more_bytes_than_the_budget_is_not_opened(tmp_path: Path) -> None:
    with (tmp_path / "t.csv").open("wb") as f:
        f.truncate(2**31 + 1)  # without a byte on the disk
    with refused("file-too-large"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("ending", ["sav", "dta", "xpt", "por"])
def test_files_of_statistics_packages_are_counted_also_where_they_state_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    write = {"xpt": pyreadstat.write_xport}.get(ending, getattr(pyreadstat, f"write_{ending}", None))
    for frame, size in (
        (pd.DataFrame({"a": range(9000), "b": range(9000)}), "3000K"),
        (pd.DataFrame({"a": range(3000), "b": ["x" * 200, "y"] * 1500}), "600K"),
    ):
        write(frame, tmp_path / f"t.{ending}")
        assert len(read_table(tmp_path / f"t.{ending}")) == len(frame)
        monkeypatch.setenv("GRANDROUNDS_LARGEST", size)
        with refused("unpacks-too-large" if (tmp_path / f"t.{ending}").stat().st_size < 600_000 else "file-too-large"):
            read_table(tmp_path / f"t.{ending}")
        monkeypatch.delenv("GRANDROUNDS_LARGEST")


def test_the_page_states_the_limits() -> None:
    budget = largest_unpacked()
    rows = [
        ("bytes of a file *", budget),
        ("bytes after unpacking *", budget),
        ("bytes after unpacking *", budget // limits.XML_BYTE),
        ("columns", limits.MOST_COLUMNS),
        *(("rows of 20 columns *", budget // (24 * cell)) for cell in (limits.CELL, limits.OBJECT_CELL)),
        ("cells with a value *", budget // limits.EXCEL_CELL),
        ("characters in all cells *", budget // limits.CHARACTER),
        ("values of a scan *", budget // limits.VOXEL),
        ("bytes of a line", limits.LONGEST_LINE),
    ]
    section = (ROOT / "docs" / "own-data.md").read_text().split("## Limits of files")[1].split("\n## ")[0]
    table = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")][1:]
    assert [(name.strip(), int(value.replace(",", ""))) for name, value in table] == rows
    assert f"{budget // limits.STYLE_BYTE:,}" in section and limits.WORKING_COLUMNS == 4
