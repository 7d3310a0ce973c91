"""Whether a site's table fits: each fault by a table made for it, and units on real hospitals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from grandrounds.data.agreement import check as fit
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.agreement.units import conversions, distance, plain_unit, suspect_unit
from grandrounds.data.sets import eicu, heart
from grandrounds.data.table import Table
from tests.command import rounds
from tests.data.agreement.unit_rates import HEART, eicu_units, halves, rates

SCHEMA = DataSchema.from_dict({
    "label": "died", "classes": ["no", "yes"], "patient": "pid", "fewest_rows": 6,
    "columns": {
        "age": {"kind": "number", "range": [18, 110]},
        "ward": {"kind": "category", "values": ["medical", "surgical"]},
        "grade": {"kind": "ordinal", "values": ["low", "high"]},
        "glucose": {"kind": "number", "unit": "mg/dL", "quantiles": [80, 100, 120, 150, 220]},
    },
})  # fmt: skip


def table(**changes) -> Table:
    n = 12
    columns = {
        "pid": [f"p{i}" for i in range(n)],
        "age": np.linspace(30, 90, n),
        "ward": ["medical", "surgical"] * 6,
        "grade": ["low", "high"] * 6,
        "glucose": np.linspace(80, 200, n),
        "died": ["no", "yes"] * 6,
    }
    return Table.from_mapping({k: v for k, v in {**columns, **changes}.items() if v is not None}, source="t.csv")


def told(**changes):
    return [(f.level, f.code, f.column) for f in fit.check_table(table(**changes), SCHEMA)]


def test_a_table_that_fits_says_nothing():
    assert told() == []


def many(value, other, n=12):
    return [value, *[other] * (n - 1)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"age": None, "Age ": np.arange(12.0)}, [("error", "missing-column", "age"), ("warning", "extra-column", "")]),
        ({"age": many("sixty", "60")}, [("error", "not-a-number", "age")]),
        ({"age": many("070", "60")}, []),
        ({"age": many(190.0, 60.0)}, [("warning", "out-of-range", "age")]),
        ({"age": [5.0] * 12}, [("error", "out-of-range", "age")]),
        ({"age": [*[np.nan] * 8, 30.0, 40.0, 50.0, 60.0]}, [("warning", "mostly-missing", "age")]),
        ({"age": [np.nan] * 12}, [("warning", "all-missing", "age")]),
        ({"ward": many("maternity", "medical")}, [("warning", "unknown-value", "ward")]),
        ({"ward": ["Medical"] * 12}, [("error", "unknown-value", "ward")]),
        ({"grade": many("middling", "low")}, [("error", "unknown-value", "grade")]),
        ({"died": many("maybe", "no")}, [("error", "label-values", "died")]),
        ({"died": many(None, "no")}, [("error", "no-label", "died"), ("error", "one-class", "died")]),
        ({"died": ["no"] * 12}, [("error", "one-class", "died")]),
        ({"pid": many(None, "p1")[:1] + [f"p{i}" for i in range(11)]}, [("error", "no-patient", "pid")]),
        ({"pid": ["p0", "p0", *[f"q{i}" for i in range(10)]]}, [("warning", "repeated-patients", "pid")]),
        ({"glucose": np.linspace(80, 200, 12) / 18.016}, [("error", "units", "glucose")]),
        ({"age": [*np.linspace(30, 90, 11), np.inf]}, [("warning", "out-of-range", "age"), ("error", "unreadable", "")]),
    ],
)  # fmt: skip
def test_each_fault_is_told_once(changes, expected):
    assert sorted(told(**changes)) == sorted(expected)


def test_few_rows_and_copies():
    few = table().take([0, 0, 1])
    assert [f.code for f in fit.check_table(few, SCHEMA)] == ["too-few-rows", "repeated-rows", "repeated-patients"]


def test_what_leaves_is_fixed_words_and_agreed_columns_alone():
    findings = fit.check_table(table(age=None, secret_column=["HIV"] * 12, ward=many("leprosy", "medical")), SCHEMA)
    assert any("leprosy" in f.text for f in findings) and any("secret_column" in f.text for f in findings)
    remaining = json.dumps(fit.shareable_codes(findings, SCHEMA))
    assert "leprosy" not in remaining and "secret_column" not in remaining
    assert {"level": "error", "code": "missing-column", "column": "age"} in fit.shareable_codes(findings, SCHEMA)


def test_the_evidence_and_the_way_out_are_in_the_words():
    result = fit.check_table(table(glucose=np.linspace(80, 200, 12) / 18.016), SCHEMA)[0].text
    assert "looks like mmol/L where mg/dL is agreed" in result and "multiply by 18.02" in result
    assert "its median is 7.771" in result and "the consortium's 120" in result


@pytest.mark.parametrize(
    ("name", "unit", "here", "factor", "offset"),
    [
        ("chol", "mg/dL", "mmol/l", 38.67, 0),
        ("glu_mean", "mmol/L", "mg/dl", 1 / 18.016, 0),
        ("creatinine", "µmol/L", "mg/dl", 88.4, 0),
        ("bun", "mg/dl", "mmol/l", 2.8014, 0),
        ("hemoglobin", "g/L", "g/dl", 10, 0),
        ("temp_max", "°F", "c", 1.8, 32),
        ("temp_std", "°C", "f", 5 / 9, 0),
        ("admissionweight", "kg", "lb", 0.45359, 0),
        ("body_height", "in", "cm", 1 / 2.54, 0),
        ("HbA1c", "mmol/mol", "%", 10.931, -23.524),
        ("mystery", "mmHg", "kpa", 7.50062, 0),
    ],
)
def test_known_conversions(name, unit, here, factor, offset):
    result = next(c for c in conversions(name, unit=unit) if c.site_unit == here)
    assert result.factor == pytest.approx(factor, rel=1e-3) and result.offset == pytest.approx(offset, rel=1e-3)
    assert result.agreed == plain_unit(unit)


def test_without_a_unit_the_name_and_the_median_decide():
    assert {c.agreed for c in conversions("cholesterol", median=200)} == {"mg/dl"}
    assert {c.agreed for c in conversions("cholesterol", median=5)} == {"mmol/l"}
    assert conversions("ca", median=0.5) == ()  # vessels of the heart set, no calcium of a living patient
    assert conversions("cholesterol") == () and conversions("xyz", median=5) == ()


def test_distance_is_nought_for_the_consortium_itself_and_grows_by_its_deviations():
    rng = np.random.default_rng(0)
    values = rng.normal(-100, 5, 20_001)
    agreed = tuple(np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]))
    assert distance(agreed, values) < 0.03
    assert distance(agreed, values + 10) == pytest.approx(2, abs=0.05)


def test_without_quantiles_the_range_tells():
    column = AgreedColumn("cholesterol", "number", "mg/dL", range=(60.0, 700.0))
    result = suspect_unit(column, np.array([4.1, 5.0, 5.2, 6.3, 4.8]))
    assert result is not None and result.conversion.site_unit == "mmol/l"
    assert suspect_unit(column, np.array([180.0, 200, 220, 240, 190])) is None


def test_units_of_the_four_heart_hospitals():
    rows = heart.load()
    site = rows.column("hospital")
    result = rates(rows, site, HEART, list(dict.fromkeys(site.tolist())))
    assert result.alarms == [] and result.mistakes == len(result.told) == 15


@pytest.mark.data("eicu_demo")
def test_units_of_the_eicu_hospitals_that_no_threshold_was_chosen_on():
    rows = eicu.load()
    some = ("glu_mean", "crea_mean", "bili_mean", "hgb_mean", "ca_mean", "alb_mean", "temp_mean", "sbp_mean", "bun_mean",
            "admissionheight", "admissionweight")  # fmt: skip
    units = {name: unit for name, unit in eicu_units(rows).items() if name in some}
    result = rates(rows, rows.column("hospitalid"), units, halves(rows.column("hospitalid"))[1][:40])
    assert result.alarms == [] and result.misnamed == 0 and result.columns > 300
    assert len(result.told) / result.mistakes > 0.9
    assert {column for (column, _), n in result.missed.items() if n > 2} <= {"bun_mean", "hgb_mean", "admissionweight"}


def test_the_command_lists_what_differs_and_says_so_by_its_exit_code(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA.to_dict()))
    rows = [f"p{i},{40 + i},medical,low,{90 + 9 * i},{'yes' if i % 2 else 'no'}" for i in range(12)]
    (tmp_path / "good.csv").write_text("\n".join(["pid,age,ward,grade,glucose,died", *rows]))
    (tmp_path / "bad.csv").write_text((tmp_path / "good.csv").read_text().replace("glucose", "Glucose"))
    good = rounds("site", "check", "--data", "good.csv", "--schema", "schema.json", cwd=tmp_path)
    assert (good.returncode, good.stdout) == (0, "12 rows, 4 agreed columns: fits\n")
    bad = rounds("site", "check", "--data", "bad.csv", cwd=tmp_path)
    assert bad.returncode == 1 and "glucose: the table has no such column; is it 'Glucose'? rename it" in bad.stdout
    as_json = json.loads(rounds("site", "check", "--data", "bad.csv", "--json", cwd=tmp_path).stdout)
    assert not as_json["fits"] and "Glucose" not in json.dumps(as_json["leaves"])
    missing = rounds("site", "check", "--data", "good.csv", "--schema", "no.json", cwd=tmp_path)
    assert missing.returncode == 2 and "the schema no.json cannot be read" in missing.stderr
