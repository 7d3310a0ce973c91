"""Excel workbooks and files of statistics packages wherever a command takes a table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest

from grandrounds.api.running import run
from grandrounds.core.rng import generator
from tests.command import rounds

ROLES = ("--label", "died", "--site", "hospital")
BOOK_RUN = "runs/book-fedavg-seed0"
FEW = ("--set", "method.rounds=2", "--quiet")


def patients(n: int = 160) -> pd.DataFrame:
    rng = generator(5, purpose="spreadsheets")
    age = rng.integers(20, 95, n)
    return pd.DataFrame(
        {
            "age": age,
            "crp": np.round(rng.lognormal(2, 1, n), 1),
            "sex": np.where(rng.random(n) < 0.5, 2, 1),
            "hospital": [("north", "south", "east", "west")[i % 4] for i in range(n)],
            "died": (age + rng.normal(0, 25, n) > 70).astype(int),
        }
    )


def write_book(path: Path, frame: pd.DataFrame) -> Path:
    """Write a workbook as hospitals have them: a title, the table, and a second sheet with remarks."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Patients"
    sheet.append(["Export of ward 3"])
    sheet.append(list(frame.columns))
    for row in frame.itertuples(index=False):
        sheet.append([v.item() if hasattr(v, "item") else v for v in row])
    book.create_sheet("Remarks")["A1"] = "made by hand"
    book.save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("spreadsheets")
    frame = patients()
    write_book(where / "book.xlsx", frame)
    frame.to_csv(where / "book.csv", index=False)
    labels = {"sex": {1: "male", 2: "female"}, "died": {0: "no", 1: "yes"}}
    pyreadstat.write_sav(frame, where / "book.sav", variable_value_labels=labels)
    process = rounds("run", "book.xlsx", *ROLES, "--sheet", "Patients", *FEW, cwd=where)
    assert process.returncode == 0, process.stderr
    return where


def test_a_workbook_trains_the_same_model_as_its_csv(folder: Path) -> None:
    process = rounds("run", "book.csv", *ROLES, *FEW, cwd=folder)
    assert process.returncode == 0, process.stderr
    runs = (BOOK_RUN, process.stdout.strip())
    first, second = (json.loads((folder / name / "summary.json").read_text()) for name in runs)
    assert runs[0] != runs[1] and first["final"] == second["final"]


def test_the_sheet_is_asked_for_and_named_by_a_flag(folder: Path) -> None:
    process = rounds("data", "check", "book.xlsx", *ROLES, cwd=folder)
    assert process.returncode == 2 and "2 sheets with cells: 'Patients', 'Remarks'" in process.stderr
    process = rounds("data", "check", "book.xlsx", *ROLES, "--sheet", "Patients", cwd=folder, env={"COLUMNS": "200"})
    assert process.returncode == 0
    assert "assumed: header in row 2; 1 row above it not read ('Export of ward 3')" in process.stdout
    process = rounds("run", "book.csv", *ROLES, "--sheet", "Patients", cwd=folder)
    assert process.returncode == 2 and "is no Excel workbook; leave --sheet out" in process.stderr


def test_new_patients_may_be_in_another_kind_of_file(folder: Path) -> None:
    tables = (("book.csv",), ("book.xlsx", "--sheet", "Patients"), ("book.xlsx",))  # the last: the sheet of the run
    scored = [rounds("predict", BOOK_RUN, "--table", *table, cwd=folder) for table in tables]
    assert [p.returncode for p in scored] == [0, 0, 0], scored[-1].stderr
    assert scored[0].stdout == scored[1].stdout == scored[2].stdout
    process = rounds("evaluate", BOOK_RUN, "--table", "book.csv", cwd=folder)
    assert process.returncode == 0 and "this is the table that the run was trained on" in process.stdout + process.stderr


def test_codes_of_spss_are_the_words_of_their_labels(folder: Path) -> None:
    process = rounds("data", "check", "book.sav", *ROLES, cwd=folder, env={"COLUMNS": "200"})
    assert process.returncode == 0, process.stderr
    assert "assumed: value labels in place of codes in columns sex, died (sex: 1 is 'male', 2 is 'female')" in process.stdout
    assert "event: died = yes" in process.stdout


def test_a_site_checks_a_workbook_against_the_schema(folder: Path) -> None:
    drafted = rounds("site", "schema", "book.sav", *ROLES, cwd=folder)
    assert drafted.returncode == 0, drafted.stderr
    (folder / "consortium.toml").write_text(drafted.stdout)
    fits = rounds("site", "check", "--data", "book.sav", "--schema", "consortium.toml", cwd=folder)
    assert fits.returncode == 0, fits.stdout + fits.stderr
    codes = rounds("site", "check", "--data", "book.xlsx", "--sheet", "Patients", "--schema", "consortium.toml", cwd=folder)
    assert codes.returncode == 1 and "error: died: 160 cells" in codes.stdout


def test_table_one_is_the_same_from_a_workbook_and_from_text(folder: Path) -> None:
    flags = ("--site", "hospital", "--json")
    book = rounds("table1", "--table", "book.xlsx", "--sheet", "Patients", *flags, cwd=folder)
    text = rounds("table1", "--table", "book.csv", *flags, cwd=folder)
    assert book.returncode == text.returncode == 0, book.stderr
    assert book.stdout.replace("book.xlsx", "book.csv") == text.stdout


def test_a_watch_reads_a_folder_of_workbooks_and_text(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    write_book(new / "may.xlsx", patients().iloc[:30])
    patients().iloc[30:60].to_csv(new / "june.csv", index=False)
    (new / "~$may.xlsx").write_bytes(b"\0" * 165)  # Excel has it open
    flags = ("--site", "north", "--baseline-table", "book.csv", "--sheet", "Patients", "--json")
    process = rounds("watch", BOOK_RUN, "--table", new, *flags, cwd=folder)
    assert process.returncode in (0, 3), process.stderr
    assert json.loads(process.stdout.splitlines()[-1])["new"] == 15


def test_python_takes_the_path_of_a_workbook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    trained = run("book.sav", label="died", site="hospital", rounds=1)
    assert trained.finished and trained.plan["data"]["kinds"]["sex"] == "categorical"


def test_the_guide_shows_what_its_example_prints(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("ward_workbook", root / "examples" / "ward_workbook.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.write_workbook(tmp_path / "ward.xlsx")
    process = rounds("data", "check", "ward.xlsx", *ROLES, cwd=tmp_path, env={"COLUMNS": "200"})
    assert process.returncode == 0, process.stderr
    section = (root / "docs" / "own-data.md").read_text().split("$ rounds data check ward.xlsx")[1].split("```")[0]
    shown = [line for line in section.splitlines() if line.startswith("assumed:")]
    assert len(shown) == 5 and shown == [line for line in process.stdout.splitlines() if line.startswith("assumed:")]
