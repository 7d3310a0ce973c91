"""`rounds cohort`: a draft from a hospital's concepts, the meaning of a file, and its table."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
from tests.command import rounds

ROOT = Path(__file__).resolve().parents[3]
COHORT = """predict_at = "24 hours"
[include]
visit = ["inpatient"]
age = [18, 120]
[outcome]
death = "visit"
[features]
age = true
lactate = { measurement = ["LOINC:2524-7"], take = "max", unit = "mmol/L" }
heart_failure = { condition = ["ICD10CM:I50*"] }
"""


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    spec = importlib.util.spec_from_file_location("omop_hospitals", ROOT / "examples" / "omop_hospitals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("records") / "hospitals"
    module.main(folder)
    return folder


def test_a_draft_is_a_cohort_file_that_names_no_count(hospitals, tmp_path):
    done = rounds("cohort", "draft", hospitals / "north", "--out", "cohort.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "cohort.toml").read_text()
    cohort = read_cohort(tmp_path / "cohort.toml")
    assert cohort.include.visits == ("inpatient",) and cohort.outcome.kind == "death" and cohort.predict_at == 86400
    codes = {str(code) for concepts in cohort.concept_sets() for code in concepts.codes}
    assert {"LOINC:2524-7", "LOINC:2345-7", "ICD10CM:I50.9", "ATC:A10AC01"} <= codes
    assert {f.unit for f in cohort.features if f.domain == "measurement"} == {"/min", "mm[Hg]", "mmol/L", "mg/dL"}
    counts = set(re.findall(r"([\d,]+) (?:patients|records)", done.stdout))
    assert counts and not any(re.search(rf"(?<![\d.:-]){c}(?![\d.-])", text) for c in counts if len(c) > 2)
    again = rounds("cohort", "draft", hospitals / "north", "--out", "cohort.toml", cwd=tmp_path)
    assert again.returncode == 2 and "exists" in again.stderr and (tmp_path / "cohort.toml").read_text() == text


def test_a_concept_of_few_patients_is_not_in_a_draft(hospitals, tmp_path):
    done = rounds("cohort", "draft", hospitals / "valley", "--fewest", "200", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cohort = read_cohort(tmp_path / "cohort.toml")
    assert {f.domain for f in cohort.features} == {"age", "sex", "measurement"}
    none = rounds("cohort", "draft", hospitals / "valley", "--fewest", "5000", "--out", "x.toml", cwd=tmp_path)
    assert none.returncode == 2 and "5000 patients" in none.stderr and not (tmp_path / "x.toml").exists()


def test_check_says_what_the_file_means_and_whom_each_step_leaves(hospitals, tmp_path):
    (tmp_path / "cohort.toml").write_text(COHORT)
    done = rounds("cohort", "check", "cohort.toml", cwd=tmp_path)
    assert "outcome: died = death until the visit ends (classification)" in done.stdout
    digest = read_cohort(tmp_path / "cohort.toml").digest()
    assert f"digest: {digest}" in done.stdout
    (tmp_path / "other.toml").write_text('# a comment\nname = "cohort"\n' + COHORT)
    assert read_cohort(tmp_path / "other.toml").digest() == digest
    checked = rounds("cohort", "check", "cohort.toml", "--data", hospitals / "north", "--json", cwd=tmp_path)
    result = json.loads(checked.stdout)
    assert result["steps"][0] == ["all visits", 420] and result["columns"]["heart_failure"]["missing"] == 0


def test_a_code_that_a_hospital_does_not_use_is_named(hospitals, tmp_path):
    (tmp_path / "cohort.toml").write_text(COHORT.replace("I50*", "I51*"))
    done = rounds("cohort", "check", "cohort.toml", "--data", hospitals / "north", cwd=tmp_path)
    assert done.returncode == 0 and "no record at all of heart_failure" in done.stdout
    checked = rounds("cohort", "check", "cohort.toml", "--data", hospitals / "north", "--json", cwd=tmp_path)
    records = {one["name"]: one["records"] for one in json.loads(checked.stdout)["coverage"]}
    measured = pd.read_csv(hospitals / "north" / "measurement.csv")
    assert records == {"lactate": int((measured.measurement_source_value == "2524-7").sum()), "heart_failure": 0}


def test_the_table_equals_one_computed_from_the_files(hospitals, tmp_path):
    (tmp_path / "cohort.toml").write_text(COHORT)
    folder = hospitals / "south"
    done = rounds("cohort", "build", "cohort.toml", "--data", folder, "--out", "p.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((tmp_path / "p.csv").stat().st_mode) == 0o600
    table = pd.read_csv(tmp_path / "p.csv").set_index("patient")
    visits = pd.read_csv(folder / "visit_occurrence.csv", parse_dates=["visit_start_datetime", "visit_end_datetime"])
    now = visits.visit_start_datetime + pd.Timedelta(hours=24)
    visits = visits[visits.visit_end_datetime >= now].set_index("person_id")
    assert sorted(table.index) == sorted(visits.index)
    dead = set(pd.read_csv(folder / "death.csv").person_id)
    assert (table.died == [int(p in dead) for p in table.index]).all()
    measured = pd.read_csv(folder / "measurement.csv", parse_dates=["measurement_datetime"])
    measured = measured[measured.measurement_source_value == "2524-7"].join(visits[["visit_start_datetime"]], on="person_id")
    hours = (measured.measurement_datetime - measured.visit_start_datetime).dt.total_seconds() / 3600
    highest = measured[(hours >= 0) & (hours <= 24)].groupby("person_id").value_as_number.max()
    assert np.array_equal(table.lactate, highest.reindex(table.index), equal_nan=True)
    failing = pd.read_csv(folder / "condition_occurrence.csv").query("condition_source_value == 'I50.9'").person_id
    assert (table.heart_failure == [int(p in set(failing)) for p in table.index]).all()
    rounds("cohort", "build", "cohort.toml", "--data", folder, "--out", "p.parquet", cwd=tmp_path)
    frame = gr.cohort_table(tmp_path / "cohort.toml", folder)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "p.parquet"), frame, check_dtype=False)


def test_a_hospital_in_mmol_gets_the_same_unit(hospitals):
    cohort = {
        "predict_at": "24 hours",
        "outcome": {"death": "visit"},
        "features": {"glucose": {"measurement": ["LOINC:2345-7"], "take": "mean", "unit": "mg/dL"}},
    }
    medians = {name: gr.cohort_table(cohort, hospitals / name).glucose.median() for name in ("harbour", "north")}
    assert medians["harbour"] == pytest.approx(medians["north"], rel=0.1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("death", "dead"), "unknown key 'dead' in [outcome] of cohort.toml; did you mean 'death'?"),
        (("LOINC:2524-7", "LONIC:2524-7"), "lactate: measurement names vocabulary 'LONIC'; did you mean 'LOINC'?"),
        (('"max"', '"median"'), "lactate: take is 'median'; "),
        (("24 hours", "one day"), "cohort.toml: predict_at is 'one day'; write a time such as \"24 hours\""),
        (("inpatient", "ward"), "[include] of cohort.toml: visit names 'ward'; known: inpatient"),
        (("age = [18, 120]", "age = [200, 300]"), "after the step 'age 200 to 300'"),
    ],
)
def test_a_mistake_is_one_sentence(hospitals, tmp_path, change, sentence):
    (tmp_path / "cohort.toml").write_text(COHORT.replace(*change))
    done = rounds("cohort", "check", "cohort.toml", "--data", hospitals / "north", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert sentence in " ".join(done.stderr.split())


def test_a_site_checks_its_records_with_a_vocabulary_of_its_own(hospitals, tmp_path):
    (tmp_path / "cohort.toml").write_text(COHORT)
    (tmp_path / "consortium.toml").write_text(
        'name = "c"\nserver = { address = "127.0.0.1" }\nsites = [{ name = "north" }]\n[data]\ncohort = "cohort.toml"\n'
    )
    shutil.copytree(hospitals / "north", tmp_path / "north")
    (tmp_path / "athena").mkdir()
    (tmp_path / "north" / "concept.csv").rename(tmp_path / "athena" / "CONCEPT.csv")
    check = ("site", "check", "--data", "north", "--schema", "consortium.toml")
    without = rounds(*check, cwd=tmp_path)
    assert without.returncode == 0 and "north has no CONCEPT table" in without.stdout
    done = rounds(*check, "--vocabulary", "athena", cwd=tmp_path)
    assert done.returncode == 0 and "no CONCEPT table" not in done.stdout
    assert without.stdout.splitlines()[-1] == done.stdout.splitlines()[-1] == "420 rows, 3 agreed columns: fits"
