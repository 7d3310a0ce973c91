"""Clinical names and units of columns: of the catalog, of a plan, and of a consortium's agreed schema."""

from __future__ import annotations

import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.case_page import event_name, value_with_unit
from grandrounds.data.agreement.schema_file import parse_schema
from grandrounds.data.sets import eicu
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report.findings import describe_findings
from tests.support import patients, refused


@pytest.mark.parametrize(
    ("data", "column", "name", "unit"),
    [
        ("heart", "resting_bp", "resting blood pressure", "mmHg"),
        ("icu-cohort", "gcs_motor_min", "lowest motor response of the Glasgow Coma Scale", ""),
        ("icu-cohort", "lactate", "lactate", "mmol/l"),
        ("icu-cohort", "heart_rate_std", "spread (SD) of heart rate", "beats/min"),
        ("eicu-demo", "map_mean", "mean arterial pressure", "mmHg"),
        ("eicu-demo-hospitals", "wbc_mean", "mean white cell count", "10⁹/l"),
        ("diabetes-130-3class", "number_inpatient", "inpatient stays in the year before", ""),
        ("visits.csv", "resting_bp", "resting bp", ""),
    ],
)
def test_columns_of_the_catalog_have_clinical_names_and_units(data, column, name, unit):
    found = ColumnLabels(data).find(column)
    assert (found.name, found.unit) == (name, unit)


def test_no_event_of_the_catalog_is_an_adjective_alone():
    """A page says "risk of malignant lesion"."""
    said = {name: ColumnLabels(name).name_event(e.label, e.event) for name, e in CATALOG.items() if e.event == "malignant"}
    assert set(said) >= {"breast-cancer", "ham10000-malignant", "ham10000-six"}
    assert all(text in ("malignant tumour", "malignant lesion") for text in said.values()), said


@pytest.mark.parametrize("data", ["heart", "fed-heart-disease", "icu-cohort"])
def test_every_measured_column_of_an_included_data_set_is_known(data):
    table, labels = CATALOG[data].load(), ColumnLabels(data)
    unnamed = {name for name in table.names if "_" in name and labels.find(name).name == name.replace("_", " ")}
    same = {"heart_failure", "metastatic_cancer", "chest_pain", "anion_gap", "base_excess", "thallium_scan", "creatine_kinase"}
    keys = {"stay_id", "patient_id", "teaching_hospital", "hospital_beds"}
    assert unnamed <= same | keys


def test_units_of_the_eicu_demo_are_those_of_its_table():
    labels, written = ColumnLabels("eicu-demo"), {"C": "°C", "10^9/L": "10⁹/l"}
    for unit, measures in eicu.LAB_UNITS.items():
        for measure in measures:
            assert labels.find(f"{measure}_mean").unit == written.get(unit, unit.replace("L", "l"))


def test_what_a_plan_states_comes_before_the_catalog():
    labels = ColumnLabels.of_plan({"name": "heart", "names": {"age": "age at admission"}, "units": {"cholesterol": "mmol/l"}})
    assert labels.find("age").name == "age at admission" and labels.find("age").unit == "years"
    assert labels.find("cholesterol").with_unit("5.2") == "5.2 mmol/l"
    assert ColumnLabels.of_plan({"name": None}).find("age").unit == ""


def test_a_consortiums_plans_have_the_agreed_units():
    agreed = parse_schema({
        "schema": 1, "label": "died", "classes": ["0", "1"],
        "columns": {"lactate": {"kind": "number", "unit": "mmol/l"}, "age": {"kind": "number"}},
    })  # fmt: skip
    assert agreed.settings()["units"] == {"lactate": "mmol/l"}


LABELS = {"names": {"pressure": "mean arterial pressure", "died": "death"}, "units": {"pressure": "mmHg", "lactate": "mmol/l"}}


def experiment(**data: object) -> gr.Experiment:
    return gr.Experiment.parse({
        "data": {"table": "patients.csv", "label": "died", "site": "hospital", **data},
        "model": {"name": "gam"},
    })  # fmt: skip


def test_names_and_units_of_an_own_table_are_on_the_page_of_a_patient_and_in_the_findings(tmp_path):
    rows = patients([80, 80, 80])
    run = gr.run(experiment(**LABELS), out=tmp_path / "run", table=rows)
    case = gr.explain_case(run, 3, table=rows)
    values = {a.column: value_with_unit(a, case.labels) for a in case.attributions}
    assert values["pressure"].endswith(" mmHg") and values["lactate"].endswith(" mmol/l") and " " not in values["age"]
    assert event_name(case) == "death"
    assert run.summary["labels"] == LABELS
    assert any("Mean arterial pressure" in line or "mean arterial pressure" in line for line in describe_findings(run.summary))


def test_a_unit_of_an_unknown_column_is_refused(tmp_path):
    with refused("unknown-column", match="data.units"):
        gr.run(experiment(units={"lactat": "mmol/l"}), out=tmp_path / "run", table=patients([30, 30]))
