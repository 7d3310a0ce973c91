"""Tables of a cohort from the records of several hospitals, and of patients whose outcome is not known yet."""

from __future__ import annotations

import shutil

import numpy as np

from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
from grandrounds.capabilities.sources.cohort.hospitals import find_hospitals, has_records, is_records, read_cohort_table
from grandrounds.data.formats import align_steps
from tests.capabilities.sources.cohort.omop_hospitals import write_hospital, write_hospitals
from tests.support import refused


def test_each_folder_or_zip_is_a_hospital_of_its_own(tmp_path):
    hospitals = write_hospitals(tmp_path, "a", "b")
    (hospitals / "README.txt").write_text("no records")
    cohort = read_cohort(tmp_path / "cohort.toml")
    whole = read_cohort_table(cohort, hospitals)
    shutil.make_archive(str(hospitals / "b"), "zip", hospitals / "b")
    shutil.rmtree(hospitals / "b")
    assert read_cohort_table(cohort, hospitals).sha256() == whole.sha256()
    one = read_cohort_table(cohort, hospitals / "a")
    assert "site" not in one.columns
    mine = whole.take(whole.columns["site"] == "a").without(["site"])
    assert mine.sha256() == one.sha256()
    assert whole.reading is not None
    assert dict(whole.reading.selection["a"])["all visits"] == 120
    assert dict(whole.reading.selection["a"])["visits of type inpatient"] == 60


def test_two_hospitals_of_one_name_and_a_folder_without_records_are_refused(tmp_path):
    hospitals = write_hospitals(tmp_path, "a")
    shutil.make_archive(str(hospitals / "a"), "zip", hospitals / "a")
    with refused("repeated-site", match="'a'"):
        find_hospitals(hospitals)
    (tmp_path / "empty").mkdir()
    with refused("no-records"):
        find_hospitals(tmp_path / "empty")
    assert not has_records(tmp_path / "empty")
    assert has_records(hospitals / "a")


def test_a_query_reads_a_table_of_a_database_and_not_its_records():
    assert is_records("postgresql://host/omop")
    assert is_records("postgresql://host/omop", "cdm")
    assert not is_records("postgresql://host/omop", "SELECT * FROM patients")
    assert not is_records("patients.csv")


def test_visits_that_go_on_have_no_outcome_and_are_for_predictions_alone(tmp_path):
    write_hospitals(tmp_path, "b")
    folder = write_hospital(tmp_path, "a", patients=20, going_on=4)
    cohort = read_cohort(tmp_path / "cohort.toml")
    known, all_visits = read_cohort_table(cohort, folder), read_cohort_table(cohort, folder, pending=True)
    assert (len(known), len(all_visits)) == (16, 20)
    label = all_visits.columns["died"]
    assert np.isnan(label).sum() == 4
    assert sorted(all_visits.columns["patient"][np.isnan(label)].tolist()) == ["16", "17", "18", "19"]
    shown = all_visits.take(~np.isnan(label))
    assert shown.sha256() == known.sha256()


def test_a_step_that_a_hospital_did_not_need_leaves_its_rows():
    longer, shorter = (("all visits", 9), ("date of death is known", 7), ("age", 5)), (("all visits", 4), ("age", 3))
    steps = align_steps({"a": longer, "b": shorter})
    assert steps == {
        "all visits": {"a": 9, "b": 4}, "date of death is known": {"a": 7, "b": 4}, "age": {"a": 5, "b": 3},
    }  # fmt: skip
