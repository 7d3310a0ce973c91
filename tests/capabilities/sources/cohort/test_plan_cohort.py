"""A cohort in a plan and in a consortium: its digest, the settings that follow from it, and changes."""

from __future__ import annotations

import json
import tomllib

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort
from grandrounds.capabilities.sources.cohort.plan_cohort import (
    compare_cohorts,
    implied_settings,
    merge_cohort,
    read_agreed,
    resolve_cohort,
    write_agreed,
)
from grandrounds.core.plan_types import DataSettings
from grandrounds.data.agreement.schema_file import parse_schema
from grandrounds.data.readers import read_plan_table
from grandrounds.experiment.experiment import Experiment
from tests.capabilities.sources.cohort.omop_hospitals import COHORT, write_hospitals
from tests.support import refused

PLAIN = tomllib.loads(COHORT)


def cohort(**changes):
    return parse_cohort({"name": "test", **PLAIN, **changes})


def test_order_of_features_survives_sorted_json():
    turned = cohort(features=dict(reversed(PLAIN["features"].items())))
    stored = json.loads(json.dumps(write_agreed(turned), sort_keys=True))
    again = read_agreed(stored)
    assert [f.name for f in again.features] == ["diabetes", "glucose", "sex", "age"]
    assert again == turned
    assert again.digest() != cohort().digest()


def test_a_changed_definition_does_not_have_the_digest():
    stored = write_agreed(cohort())
    stored["definition"]["predict_at"] = "2 days"
    with refused("cohort-changed", match="digest"):
        read_agreed(stored)


def test_columns_follow_from_the_cohort_unless_set():
    implied = implied_settings(cohort(), {"kinds": {"age": "categorical"}, "patient": "person"})
    assert implied == {
        "label": "died", "time": "visit_start", "event": "1", "task": "classification",
        "kinds": {"age": "categorical", "sex": "categorical", "glucose": "numeric", "diabetes": "numeric"},
    }  # fmt: skip
    other = implied_settings(cohort(), {"label": "diabetes"})
    assert "event" not in other
    assert "task" not in other
    public = implied_settings(cohort(), {"encoding": "public"})
    assert public["levels"] == {"sex": ("female", "male", "other"), "died": ("0", "1")}


def test_a_plan_has_the_whole_cohort_and_no_path(tmp_path):
    hospitals = write_hospitals(tmp_path, "a", "b")
    (tmp_path / "e.toml").write_text('[data]\ntable = "hospitals"\ncohort = "cohort.toml"\n')
    plan = Experiment.load(tmp_path / "e.toml").plan()
    assert read_agreed(plan["data"]["cohort"]).digest() == plan["data"]["cohort"]["digest"]
    assert (plan["data"]["site"], plan["split"]["partition"], plan["split"]["by"]) == ("site", "column", "patient")
    (tmp_path / "cohort.toml").unlink()
    table = read_plan_table(DataSettings(plan["data"]))
    assert sorted(set(table.columns["site"].tolist())) == ["a", "b"]
    assert Experiment.parse(plan).plan() == plan
    assert hospitals.is_dir()


def test_a_consortium_adds_ranges_to_its_cohort_and_contradicts_nothing(tmp_path):
    (tmp_path / "c.toml").write_text(COHORT)
    data = {"cohort": "c.toml", "columns": {"glucose": {"range": [20, 900]}}, "fewest_rows": 30}
    schema = parse_schema(resolve_cohort(data, tmp_path))
    assert (schema["glucose"].unit, schema["glucose"].range, schema.fewest_rows) == ("mg/dL", (20.0, 900.0), 30)
    assert schema.cohort.name == "c"
    assert [c.name for c in schema.columns] == list(PLAIN["features"])
    for wrong, code in (
        ({"label": "dead"}, "conflicting-settings"),
        ({"columns": {"glucose": {"unit": "mmol/L"}}}, "conflicting-settings"),
        ({"columns": {"glucos": {"range": [0, 1]}}}, "unknown-column"),
    ):
        with refused(code):
            merge_cohort(wrong, cohort())


def test_changes_are_named_by_key():
    assert compare_cohorts(cohort(), cohort()) == []
    assert compare_cohorts(cohort(), cohort(include={**PLAIN["include"], "age": [40, 120]})) == [
        "include.age: [18.0, 120.0] -> [40.0, 120.0]"
    ]
    turned = cohort(features=dict(reversed(PLAIN["features"].items())))
    assert compare_cohorts(cohort(), turned) == [
        "order of features: age, sex, glucose, diabetes -> diabetes, glucose, sex, age"
    ]
    assert compare_cohorts(None, cohort())[0].startswith("cohort 'test' is new")
