"""The consortium's schema: what it refuses, that it reads a table as a simulation does, and a first one from a table."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.check import check_table
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.agreement.schema_file import read_schema
from grandrounds.data.table import Table
from tests.command import rounds
from tests.support import patients, refused

PLAIN = {
    "label": "died",
    "positive": "1",
    "columns": {
        "age": {"kind": "number", "unit": "years", "range": [0, 120], "quantiles": [40, 52, 60, 68, 80]},
        "ward": {"kind": "category", "values": ["medical", "surgical", "cardiac"]},
        "lactate": {"kind": "numeric"},
        "severity": {"kind": "ordinal", "values": ["mild", "severe"]},
        "smoker": {"kind": "binary"},
        "sex": {"kind": "binary", "values": ["female", "male"]},
    },
}


def changed(**changes):
    out = json.loads(json.dumps(PLAIN))
    for path, value in changes.items():
        *way, last = path.split("__")
        place = out
        for name in way:
            place = place[name]
        place[last] = value
    return out


@pytest.mark.parametrize("plain", [PLAIN, {**PLAIN, "missing": []}, {**PLAIN, "patient": "pid", "time": "at"}])
def test_it_travels_through_json_and_toml_unchanged(tmp_path, plain):
    schema = DataSchema.from_dict(plain)
    (tmp_path / "schema.json").write_text(json.dumps(schema.to_dict()))
    (tmp_path / "consortium.toml").write_text(dumps({"name": "x", "data": plain}))
    assert read_schema(tmp_path / "schema.json") == read_schema(tmp_path / "consortium.toml") == schema


def test_every_feature_has_a_kind_that_a_plan_knows():
    schema = DataSchema.from_dict(PLAIN)
    assert schema.kinds() == {
        "age": "numeric", "ward": "categorical", "lactate": "numeric", "severity": ["mild", "severe"],
        "smoker": "numeric", "sex": "categorical",
    }  # fmt: skip
    assert schema.numeric_names == ("age", "lactate", "severity", "smoker")
    assert schema.categorical_names == ("ward", "sex")


@pytest.mark.parametrize(
    ("plain", "code", "value"),
    [
        (changed(lable="x"), "unknown-key", "'lable'.*'label'"),
        (changed(columns__age__units="y"), "unknown-key", "'units'.*'unit'"),
        (changed(columns__age__kind="numbr"), "unknown-kind", "'numbr'.*'number'"),
        (changed(columns__severity__values=[]), "invalid-levels", None),
        (changed(columns__smoker__values=["a", "b", "c"]), "invalid-levels", "3"),
        (changed(columns__age__quantiles=[5, 4, 3, 2, 1]), "unordered-range", None),
        (changed(columns__age__quantiles=[1, 2]), "wrong-type", "5 numbers"),
        (changed(columns__ward__unit="kg"), "conflicting-settings", "'s kind is '"),
        (changed(label="age"), "conflicting-roles", "'age'"),
        (changed(label=None), "label-not-set", None),
        (changed(columns={}), "no-columns", None),
        (changed(classes=["no", "yes"]), "unknown-class", "'1'"),
        (changed(schema=7), "schema-version", "7, this.*1"),
        ("text", "not-a-section", None),
    ],
)
def test_what_it_cannot_mean_is_refused_in_words(plain, code, value):
    with refused(code, match=value):
        DataSchema.from_dict(plain)


def test_a_site_reads_its_rows_as_the_simulation_does(tmp_path):
    """The same numbers, codes and vocabularies, whatever the order of the site's columns and whatever it has besides."""
    table = patients([40, 30])
    schema = draft_schema(table, label="died", site="hospital")
    process = gr.run(
        gr.Experiment.parse({
            "data": {"label": "died", "site": "hospital", "kinds": schema.kinds()}, "method": {"rounds": 1},
        }),
        table=table, out=tmp_path / "r",
    )  # fmt: skip
    assert process.plan["data"]["kinds"] == schema.kinds()
    from grandrounds.data.dataset import build_dataset
    from grandrounds.data.schema import infer_schema

    full = build_dataset(
        table, infer_schema(table, label="died", site="hospital", overrides=schema.kinds()), name="all"
    )
    mine = np.flatnonzero(full.site == "b")
    columns = {n: table.columns[n][mine] for n in ("ward", "died", "pressure", "age", "lactate")}
    present = schema.dataset(Table({**columns, "extra": columns["age"]}, "b.csv"), name="b")
    assert present.numeric_names == full.numeric_names and present.categorical_names == full.categorical_names
    np.testing.assert_array_equal(present.numeric, full.numeric[mine])
    words = np.array(full.vocabulary[0])[full.codes[mine, 0]]
    np.testing.assert_array_equal(np.array(present.vocabulary[0])[present.codes[:, 0]], words)
    np.testing.assert_array_equal(present.label, full.label[mine])


def test_a_column_that_is_constant_or_empty_at_one_site_stays_a_feature():
    schema = DataSchema.from_dict({"label": "y", "columns": {"a": {"kind": "number"}, "b": {"kind": "category"}}})
    table = Table.from_mapping({"y": ["n", "p"], "a": [1.0, 1.0], "b": [None, None]}, source="t")
    data = schema.dataset(table, name="t")
    assert data.numeric.tolist() == [[1.0], [1.0]] and data.codes.tolist() == [[-1], [-1]]


def test_a_first_schema_names_no_rare_category_and_no_extreme_value(tmp_path):
    table = patients([60, 60])
    ward = table.columns["ward"].copy()
    ward[:3] = "leprosarium"
    table = table.with_columns({"ward": ward, "smoker": np.arange(120.0) % 2})
    bare = draft_schema(table, label="died", site="hospital")
    assert bare["ward"].values == ("cardiac", "medical", "surgical") and bare["smoker"].kind == "binary"
    assert bare["age"].quantiles == () and bare["age"].range is None
    reported = draft_schema(table, label="died", site="hospital", quantiles=True)["lactate"]
    lactate = table.columns["lactate"]
    np.testing.assert_allclose(reported.quantiles, np.nanquantile(lactate, [0.05, 0.25, 0.5, 0.75, 0.95]), rtol=0.006)
    assert reported.range[0] == 0 and reported.range[1] > 1.3 * np.nanmax(lactate)


def test_codes_that_look_like_numbers_can_be_named_categories():
    table = patients([30, 30]).with_columns({"chest_pain": np.arange(60.0) % 4 + 1})
    result = draft_schema(table, label="died", site="hospital", categories=("chest_pain",))["chest_pain"]
    assert (result.kind, result.values) == ("category", ("1", "2", "3", "4"))


def test_the_command_writes_a_section_that_is_read_back(tmp_path):
    table = patients([60, 60])
    lines = [",".join(table.names)]
    lines += [
        ",".join("" if v is None or v != v else str(v) for v in row)
        for row in zip(*table.columns.values(), strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    result = rounds("site", "schema", tmp_path / "t.csv", "--label", "died", "--site", "hospital", "--quantiles")
    assert result.returncode == 0
    schema = DataSchema.from_dict(tomllib.loads(result.stdout)["data"])
    assert schema == draft_schema(table, label="died", site="hospital", quantiles=True)


def test_a_consortium_agrees_on_the_task_and_the_follow_up_time():
    plain = {"label": "died", "duration": "days", "columns": {"age": {"kind": "number"}}}
    schema = DataSchema.from_dict(plain)
    assert schema.task == "survival" and schema.names == ("died", "days", "age")
    assert {k: schema.settings()[k] for k in ("task", "duration")} == {"task": "survival", "duration": "days"}
    assert DataSchema.from_dict(schema.to_dict()) == schema
    columns = {"died": [0, 1] * 10, "days": np.arange(20) + 1, "age": np.arange(20)}
    data = schema.dataset(Table.from_mapping(columns), name="x")
    assert data.duration is not None and data.schema.task == "survival"
    assert not [f for f in check_table(Table.from_mapping(columns), schema) if f.level == "error"]
    late = Table.from_mapping({**columns, "days": [-1.0, *range(19)]})
    assert any("negative in 1 row" in f.text for f in check_table(late, schema))
    with refused("no-duration"):
        DataSchema.from_dict({**plain, "duration": None, "task": "survival"})
    with refused("unknown-task"):
        DataSchema.from_dict({**plain, "duration": None, "task": "regresion"})
    with refused("conflicting-settings"):
        DataSchema.from_dict({**plain, "duration": None, "task": "count", "classes": ["0", "1"]})
    drafted = draft_schema(Table.from_mapping(columns), label="died", duration="days")
    assert drafted.task == "survival" and drafted.classes == ("0", "1")
