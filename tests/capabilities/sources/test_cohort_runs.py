"""Runs on the records of four hospitals by a cohort file: trained, resumed, described, and used for new patients."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.estimates import tables
from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
from grandrounds.capabilities.sources.cohort.hospitals import read_cohort_table
from grandrounds.cli import app
from grandrounds.runs.run import Run, resume
from tests.capabilities.sources.cohort.omop_hospitals import write_hospital, write_hospitals
from tests.support import refused


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort")
    write_hospitals(folder)
    return folder


@pytest.fixture(scope="module")
def finished(place):
    out = place / "run"
    command = ["run", "--cohort", str(place / "cohort.toml"), "--table", str(place / "hospitals"), "--out", str(out)]
    told = CliRunner().invoke(app, [*command, "--set", "method.rounds=2"])
    assert told.exit_code == 0, told.output
    assert "cohort 'cohort' at 4 hospitals: all visits 480, visits of type inpatient 240" in " ".join(told.output.split())
    return Run(out)


def pooled(place) -> pd.DataFrame:
    table = read_cohort_table(read_cohort(place / "cohort.toml"), place / "hospitals")
    return pd.DataFrame(dict(table.columns))


def test_a_run_records_its_cohort_and_the_selection_at_each_hospital(place, finished):
    cohort = read_cohort(place / "cohort.toml")
    assert finished.plan["data"]["cohort"]["digest"] == cohort.digest() == finished.summary["cohort"]["digest"]
    assert finished.plan["data"]["sha256"] == read_cohort_table(cohort, place / "hospitals").sha256()
    steps = dict(finished.summary["cohort"]["steps"])
    assert steps["all visits"] == dict.fromkeys("abcd", 120)
    assert steps["visits of type inpatient"] == dict.fromkeys("abcd", 60)
    report = (finished.folder / "report.html").read_text()
    assert "Selection of patients: cohort &#x27;cohort&#x27;" in report
    assert cohort.digest() in report


def test_a_changed_record_is_other_data(place, finished, tmp_path):
    hospitals = write_hospitals(tmp_path)
    again = gr.run(hospitals, cohort=tmp_path / "cohort.toml", rounds=1, out=tmp_path / "one", progress=False)
    assert resume(again.folder, settings=["method.rounds=2"]).summary["final"] == finished.summary["final"]
    (hospitals / "a" / "death.csv").write_text("person_id,death_date,death_datetime\n")
    with refused("data-changed"):
        resume(again.folder, settings=["method.rounds=3"])


def test_an_epsilon_hides_the_selection(place, tmp_path):
    settings = {
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
        "data.encoding": "public", "data.ranges": {"age": [18, 95], "glucose": [40, 250], "diabetes": [0, 1]},
    }  # fmt: skip
    run = gr.run(
        place / "hospitals", cohort=place / "cohort.toml", model="gam", settings=settings, out=tmp_path / "run", progress=False
    )
    assert set(run.summary["cohort"]) == {"name", "digest"}
    assert "assumed" not in run.summary
    assert "assumed" not in json.loads((run.folder / "schema.json").read_text())


def test_new_patients_come_from_records(place, finished, tmp_path):
    folder = write_hospital(tmp_path, "new", patients=20, going_on=4)
    predicted = gr.predict(finished, str(folder))
    assert len(predicted) == 20
    told = CliRunner().invoke(app, ["predict", str(finished.folder), "--table", str(folder), "--out", str(tmp_path / "p.csv")])
    assert told.exit_code == 0, told.output
    frame = pd.read_csv(tmp_path / "p.csv")
    assert list(frame.columns[:3]) == ["row", "patient", "visit_start"]
    evaluated = CliRunner().invoke(app, ["evaluate", str(finished.folder), "--table", str(folder), "--json"])
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.stdout[evaluated.stdout.index("{") :])["overall"]["count"] == 16


def test_table_one_equals_pandas_on_the_pooled_tables(place, tmp_path):
    found = gr.table1(place / "hospitals", cohort=place / "cohort.toml", out=tmp_path / "run", progress=False)
    frame = pooled(place)
    assert found["glucose"].unit == "mg/dL"
    assert found.to_frame().index[1] == ("age (years)", "mean (SD)")
    for name in ("age", "glucose"):
        for site, rows in [("Overall", frame), *frame.groupby("site")]:
            cell = found.cell(name, site)
            assert (cell.n, cell.missing) == (rows[name].count(), rows[name].isna().sum())
            np.testing.assert_allclose([cell.mean, cell.sd], [rows[name].mean(), rows[name].std()], rtol=1e-9)
    for name in ("sex", "diabetes", "died"):
        variable, counts = found[name], frame[name].map(lambda v: f"{v:g}" if isinstance(v, float) else v).value_counts()
        assert dict(zip(variable.levels, variable.cells[0].counts, strict=True)) == counts.to_dict()
    summary = Run(tmp_path / "run").summary
    assert dict(summary["cohort"]["steps"])["visits of type inpatient"] == dict.fromkeys("abcd", 60)
    shown = {t.title: t for t in tables(RunIndex(tmp_path), "run")}
    assert list(shown) == ["Selection of patients: cohort 'cohort'", "Table 1"]
    assert shown["Selection of patients: cohort 'cohort'"].rows[0] == ["all visits", "480", "120", "120", "120", "120"]
    assert ["glucose (mg/dL)", "mean (SD)", str(frame["glucose"].isna().sum())] == shown["Table 1"].rows[4][:3]
