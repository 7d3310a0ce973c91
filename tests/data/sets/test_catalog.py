"""Every set of the catalog loads with the rows, classes and gaps its publisher states."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from grandrounds.data.partition import partition
from grandrounds.data.readers import read_table
from grandrounds.data.schema import infer_schema
from grandrounds.data.sets.catalog import CATALOG, download, find_entry, prepare
from grandrounds.data.sets.diabetes import icd9_chapter
from grandrounds.data.sets.embedded import breast_cancer_values, digit_values
from grandrounds.data.sets.images import IMAGE_SETS, SCORING_SETS
from grandrounds.data.store import INCLUDED, VARIABLE
from tests.support import refused

_TABLES = {}
DIABETES = pytest.mark.data("diabetes130")
EICU = pytest.mark.data("eicu_demo")
TCGA = pytest.mark.data("fed_tcga_brca")
NEEDS = {
    "diabetes-130": (DIABETES,),
    "diabetes-130-3class": (DIABETES,),
    "diabetes-130-text": (DIABETES, pytest.mark.slow),
    "eicu-demo": (EICU,),
    "eicu-demo-hospitals": (EICU,),
    "tcga-brca": (TCGA,),
}


@pytest.fixture
def table():
    """Loads a set once for this file."""

    def of(name):
        if name not in _TABLES:
            _TABLES[name] = find_entry(name).load()
        return _TABLES[name]

    return of


def count(values):
    return dict(Counter(values.tolist()))


def gaps(values):
    return sum(v is None for v in values) if values.dtype == object else int(np.isnan(values).sum())


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=NEEDS.get(n, ())) for n in sorted(set(CATALOG) - set(IMAGE_SETS | SCORING_SETS))],
)
def test_entry_describes_its_table(name, table):
    one, data = find_entry(name), table(name)
    assert one.name == name
    assert len(data) == one.rows
    named = {one.label, *one.drop, *one.schema} | {c for c in (one.site, one.patient, one.subgroup, one.part, one.duration) if c}
    assert named <= set(data.names)
    schema = infer_schema(
        data, label=one.label, site=one.site, patient=one.patient, drop=one.drop, overrides=one.schema
    )
    assert not {one.label, one.site, one.patient, *one.drop} & {c.name for c in schema.features}
    assert (one.site is None) == bool(one.partition)


def test_unknown_name_suggests_the_nearest():
    with refused("unknown-data-set", match="'hart'.*'heart'"):
        find_entry("hart")


def test_importing_the_catalog_and_loading_an_embedded_set_is_light():
    code = (
        "import sys; from grandrounds.data.sets.catalog import find_entry;"
        "find_entry('breast-cancer').load(); find_entry('digits').load();"
        "print([m for m in ('sklearn', 'scipy', 'pandas', 'pyarrow', 'pydantic') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_a_set_without_files_needs_no_download():
    assert download("digits") == download("synthetic") == ()
    assert prepare("digits") is None


def test_files_that_come_with_the_package_are_not_fetched(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [p.parent for p in download("heart")] == [INCLUDED / "heart"] * 4
    assert list(tmp_path.iterdir()) == []
    assert "CC BY 4.0" in (INCLUDED / "heart" / "LICENSE.txt").read_text()


def test_embedded_sets_equal_scikit_learns(table):
    from sklearn.datasets import load_breast_cancer, load_digits

    cancer, digits = load_breast_cancer(), load_digits()
    data = table("breast-cancer")
    assert data.names == (*(n.replace(" ", "_") for n in cancer.feature_names), "diagnosis")
    assert np.array_equal(np.column_stack([data.column(n) for n in data.names[:-1]]), cancer.data)
    assert data.column("diagnosis").tolist() == cancer.target_names[cancer.target].tolist()
    assert count(data.column("diagnosis")) == {"malignant": 212, "benign": 357}
    data = table("digits")
    assert data.names == (*digits.feature_names, "digit")
    assert np.array_equal(np.column_stack([data.column(n) for n in data.names[:-1]]), digits.data)
    assert data.column("digit").tolist() == [str(d) for d in digits.target]


def test_embedded_sets_are_the_same_where_scikit_learn_has_moved_its_files(table):
    for name, values in (("breast-cancer", breast_cancer_values(None)), ("digits", digit_values(None))):
        data = table(name)
        assert np.array_equal(np.column_stack([data.column(n) for n in data.names[:-1]]), values[:, :-1])
        assert len(set(zip(data.column(data.names[-1]), values[:, -1], strict=True))) == len(set(values[:, -1]))


def test_synthetic_is_the_table_the_studies_were_run_on(table, tmp_path):
    """As bench/stability.py used to write it to a CSV file."""
    import pandas as pd
    from sklearn.datasets import make_classification

    x, y = make_classification(3000, 30, n_informative=10, n_redundant=5, n_classes=3, random_state=0)
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(30)]).assign(label=[f"class {c}" for c in y])
    frame.to_csv(tmp_path / "synthetic.csv", index=False)
    data = table("synthetic")
    assert data.sha256() == read_table(tmp_path / "synthetic.csv").sha256()
    assert count(data.column("label")) == {"class 0": 997, "class 1": 1000, "class 2": 1003}
    first = [data.column(name)[0] for name in ("x0", "x1", "x29")]
    assert first == pytest.approx(
        [-1.535636668876556, -4.596638827218381, -5.250024653891035]
    )  # recorded: another release must not draw another table
    assert data.column("label")[:3].tolist() == ["class 0", "class 1", "class 2"]


def test_synthetic_binary_is_what_make_classification_draws_by_default(table):
    from sklearn.datasets import make_classification

    data = table("synthetic-binary")
    x, y = make_classification(1000, 20, random_state=0)
    assert np.array_equal(np.column_stack([data.column(f"x{j}") for j in range(20)]), x)
    assert data.column("label").tolist() == [f"class {c}" for c in y]
    assert data.names == (*(f"x{j}" for j in range(20)), "label")


def test_heart_has_four_hospitals_with_their_own_prevalence(table):
    data = table("heart")
    hospital, disease = data.column("hospital"), data.column("disease")
    assert count(hospital) == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    sick = {h: int((disease[hospital == h] == "yes").sum()) for h in count(hospital)}
    assert sick == {"cleveland": 139, "hungarian": 106, "switzerland": 115, "va": 149}
    assert len(data.names) == 1 + 13 + 1
    assert gaps(disease) == 0


def test_heart_zero_cholesterol_and_pressure_are_gaps(table):
    data = table("heart")
    hospital, cholesterol = data.column("hospital"), data.column("cholesterol")
    assert np.isnan(cholesterol[hospital == "switzerland"]).all()
    assert gaps(cholesterol) == 30 + 123 + 49
    assert gaps(data.column("resting_bp")) == 59 + 1
    assert np.nanmin(cholesterol) > 0


def test_heart_codes_are_words(table):
    data = table("heart")
    first = {name: data.column(name)[0] for name in data.names}
    assert first == {
        "hospital": "cleveland", "age": 63, "sex": "male", "chest_pain": "typical angina", "resting_bp": 145,
        "cholesterol": 233, "high_fasting_sugar": "yes", "resting_ecg": "left ventricular hypertrophy",
        "max_heart_rate": 150, "exercise_angina": "no", "st_depression": 2.3, "st_slope": "down", "vessels": 0,
        "thallium_scan": "fixed defect", "disease": "no",
    }  # fmt: skip
    assert count(data.column("sex")) == {"male": 726, "female": 194}
    assert gaps(data.column("thallium_scan")) == 486
    assert gaps(data.column("vessels")) == 611


@DIABETES
def test_diabetes_leaves_out_those_who_cannot_return(table):
    binary, three = table("diabetes-130"), table("diabetes-130-3class")
    assert count(three.column("readmitted")) == {"NO": 52_527, ">30": 35_502, "<30": 11_314}
    assert count(binary.column("readmitted_30")) == {"no": 88_029, "yes": 11_314}
    assert "readmitted" not in binary.names
    missing = {"11", "13", "14", "19", "20", "21"}
    assert not missing & set(binary.column("discharge_disposition_id"))
    assert len(set(binary.column("patient_nbr"))) == 69_990


@DIABETES
def test_diabetes_gaps_and_categories_are_the_publishers(table):
    data = table("diabetes-130")
    assert {n: gaps(data.column(n)) for n in ("race", "payer_code", "medical_specialty", "weight", "diag_3")} == {
        "race": 2234, "payer_code": 39_398, "medical_specialty": 48_616, "weight": 96_218, "diag_3": 1419
    }  # fmt: skip
    a1c = {"not measured": 82_509, ">8": 8137, "Norm": 4922, ">7": 3775}
    assert count(data.column("A1Cresult")) == a1c
    assert set(data.column("age")) == set(find_entry("diabetes-130").schema["age"])
    assert len(set(data.column("diag_1")) - {None}) == 9
    row = {name: data.column(name)[0] for name in ("encounter_id", "age", "admission_type_id", "diag_1", "diag_2")}
    assert row == {
        "encounter_id": 2278392, "age": "[0-10)", "admission_type_id": "6", "diag_1": "diabetes", "diag_2": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "group"),
    [
        ("250.83", "diabetes"), ("250", "diabetes"), ("251", "other"), ("428", "circulatory"), ("785", "circulatory"),
        ("786", "respiratory"), ("519", "respiratory"), ("520", "digestive"), ("996", "injury"), ("715", "musculoskeletal"),
        ("599", "genitourinary"), ("788", "genitourinary"), ("174", "neoplasms"), ("240", "other"), ("V57", "other"),
        ("E909", "other"), ("8", "other"),
    ],
)  # fmt: skip
def test_diagnoses_fall_into_nine_chapters(code, group):
    assert icd9_chapter(code) == group


@DIABETES
def test_diabetes_sites_keep_patients_whole(table):
    one, data = find_entry("diabetes-130"), table("diabetes-130")
    patient = data.column("patient_nbr")
    assert one.partition == {"partition": "dirichlet", "sites": 10, "alpha": 0.5}
    parts = partition("dirichlet", data.column(one.label), sites=10, seed=0, alpha=0.5, groups=patient)
    assert sum(len(set(patient[rows])) for rows in parts.values()) == 69_990


@EICU
def test_eicu_has_five_silos(table):
    data = table("eicu-demo")
    assert count(data.column("silo")) == {"Midwest": 503, "South": 476, "West": 354, "Northeast": 102, "unknown": 136}
    assert data.column("died_in_hospital").sum() == 138
    assert len(set(data.column("hospitalid"))) == 185
    assert len(set(data.column("uniquepid"))) == 1299


@EICU
def test_eicu_has_nothing_from_after_the_first_day(table):
    names = set(table("eicu-demo").names)
    later = {"unit_los_hours", "hours_observed", "in_hourly", "cohort24", "died_in_unit"}
    assert not later & names
    assert not [n for n in names if n.startswith("apache_iva")]


@TCGA
def test_tcga_has_flambys_rows(table):
    """Rows and events of each region's training and test rows, as FLamby's split file has them."""
    data = table("tcga-brca")
    keys = list(zip(data.column("region").tolist(), data.column("part").tolist(), strict=True))
    rows, events = Counter(keys), Counter(k for k, e in zip(keys, data.column("event"), strict=True) if e == 1)
    order = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
    assert [rows[r, "train"] for r in order] == [248, 156, 164, 129, 129, 40]
    assert [rows[r, "test"] for r in order] == [63, 40, 42, 33, 33, 11]
    assert [events[r, "train"] for r in order] == [45, 35, 14, 16, 7, 2]
    assert [events[r, "test"] for r in order] == [14, 4, 8, 3, 2, 1]
    days = data.column("days")
    assert days.min() == 0 and (days == 0).sum() == 12 and not data.column("event")[days == 0].any()
    assert len(find_entry("tcga-brca").schema) == 39
    assert set(data.names) == {"region", "part", "patient", "event", "days", *find_entry("tcga-brca").schema}


def test_tcga_is_named_where_it_is_absent(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with refused("data-not-downloaded", match="fed_tcga_brca/brca.csv is not on this machine; set GRANDROUNDS_DATA"):
        find_entry("tcga-brca").load()
