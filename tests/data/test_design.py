"""Design of a regression: features, reference levels, complete rows, products, and coefficients in original units."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.plan_types import Plan
from grandrounds.data.dataset import build_dataset
from grandrounds.data.design import describe_levels, keep_complete, original_units, reference_levels
from grandrounds.data.encoding import Encoding, EncodingRules, describe_design
from grandrounds.data.loading import read_dataset
from grandrounds.data.schema import infer_schema
from grandrounds.data.table import Table
from grandrounds.runs.export import score_json, to_json, to_onnx
from grandrounds.runs.federation import assemble
from tests.support import agreed, dataset, patients, refused

REGRESSION = {"coding": "reference", "complete": True, "clip": 0.0, "least": 5}


def settings(**data):
    """The section [data] of a plan for `patients`."""
    values = {"table": "patients.csv", "label": "died", "site": "hospital", **data}
    return gr.Experiment.model_validate({"name": "t", "data": values})


def read(table: Table, **data):
    return read_dataset(Plan(settings(**data).plan()).data, table)


def without_age(sizes: list[int], rows: list[int]) -> Table:
    """Patients of whom these rows have no age."""
    table = patients(sizes, gaps=0.0)
    age = np.array(table.columns["age"])
    age[rows] = np.nan
    return table.with_columns({"age": age})


def encoding_of(data, products=(), **rules) -> Encoding:
    parts = [data.take(rows) for rows in np.array_split(np.arange(len(data)), 3)]
    return agreed(parts, **{**REGRESSION, **rules}, products=products)[0]


def test_only_listed_columns_are_features():
    data = read(patients([60, 60]), features=["ward", "age"])
    assert (data.numeric_names, data.categorical_names) == (("age",), ("ward",))
    assert next(c for c in data.schema.columns if c.name == "lactate").why == "not listed in data.features"


@pytest.mark.parametrize(
    ("features", "code", "named"),
    [(["agee"], "unknown-column", "agee"), (["died"], "conflicting-roles", "died"), (["day"], "not-a-feature", "day")],
)
def test_a_column_that_cannot_be_a_feature_is_refused(features, code, named):
    table = patients([60, 60])
    dates = np.array([f"2024-01-{d % 28 + 1:02d}" for d in range(120)], object)
    table = Table({**table.columns, "day": dates}, table.source)
    with refused(code, match=named):
        read(table, features=features)


def test_rows_with_a_missing_value_are_left_out_by_site():
    table = patients([60, 80], gaps=0.1)
    data = read(table, complete=True)
    gaps = np.isnan(np.stack([table.columns[c] for c in ("age", "lactate", "pressure")])).any(axis=0)
    assert gaps.sum() > 10
    assert len(data) == 140 - gaps.sum()
    assert sorted(data.incomplete) == sorted(table.columns["hospital"][gaps])
    assert not encoding_of(data).to_dict()["numeric"][0]["indicator"]


def test_no_complete_row_is_refused_with_the_column():
    data = dataset(patients([30, 30]))
    data.numeric[:, 1] = np.nan
    with refused("no-complete-rows", match="lactate"):
        keep_complete(data)


def test_numbers_of_incomplete_rows_are_told_and_small_ones_are_not(tmp_path):
    table = without_age([60, 60, 60], [*range(20), 60, 61])
    out = gr.run(settings(complete=True), table=table, rounds=1, out=tmp_path / "run")
    notes = out.summary["notes"]
    assert notes["a"] == ["20 rows with a missing value were left out (data.complete)"]
    assert notes["b"] == ["fewer than 5 rows with a missing value were left out (data.complete)"]
    assert "c" not in notes


def test_a_site_without_a_complete_row_is_named(tmp_path):
    table = without_age([60, 60, 60, 60], list(range(60)))
    out = gr.run(settings(complete=True), table=table, rounds=1, out=tmp_path / "run")
    assert "no row has a value in every feature at a: left out of the run (data.complete)" in out.summary["warnings"]


@pytest.mark.parametrize(
    ("counts", "reference", "levels", "other"),
    [
        ({"a": 9, "b": 20, "c": 20}, "b", ("a", "c"), False),  # ties by alphabet
        ({"a": 9, "b": 20}, "a", ("b",), False),  # two levels: as without reference coding
        ({"a": 9, "b": 20, "c": 3, "d": 3}, "b", ("a",), True),
        ({"a": 9, "b": 20, "c": 3}, "b", (), True),  # 3 rows of "other" are too few: the next level joins them
        ({"b": 20, "c": 3}, "b", (), False),  # nothing is left to join: they count as the reference
        ({"a": 2, "b": 1}, "a", (), False),
        ({}, "", (), False),
    ],
)
def test_reference_levels(counts, reference, levels, other):
    assert reference_levels(counts, most=30, least=5) == (reference, levels, other)


def test_reference_coding_leaves_out_the_most_frequent_level():
    ward = np.array(["medical"] * 50 + ["surgical"] * 40 + ["cardiac"] * 24 + ["x", "y"] * 3, object)
    table = patients([60, 60], gaps=0.0).with_columns({"ward": ward})
    data = read(table, features=["ward"])
    parts = [data.take(rows) for rows in np.array_split(np.arange(len(data)), 3)]
    encoding, total, _ = agreed(parts, **REGRESSION)
    assert encoding.features == ("ward=cardiac", "ward=surgical", "ward=other")
    np.testing.assert_array_equal(encoding.encode(data).sum(axis=0), [24, 40, 6])  # the reference is no "other"
    assert describe_design(encoding, total, EncodingRules(**REGRESSION)) == [
        "column 'ward': other = 2 levels with fewer than 5 rows (exact.least)"
    ]


def test_levels_that_count_as_the_reference_are_stated():
    counts = {"b": 20, "c": 2, "d": 1}
    assert describe_levels("ward", counts, ["b"], other=False, least=5) == [
        "column 'ward': 2 levels with fewer than 5 rows are counted as the reference (exact.least)"
    ]
    assert describe_levels("ward", {"a": 9, "b": 20}, ["a", "b"], other=False, least=5) == []


def test_a_common_level_that_joins_other_is_named_and_a_rare_one_is_not():
    counts = {"Cancer": 900, "Cirrhosis": 507, "Very rare": 2}
    assert reference_levels(counts, most=30, least=5) == ("Cancer", (), True)
    (sentence,) = describe_levels("dz", counts, ["Cancer"], other=True, least=5)
    assert sentence == "column 'dz': other = Cirrhosis (507 rows) and a level with fewer than 5 rows (exact.least)"


def test_values_that_were_filled_in_are_counted_by_column():
    table = patients([60, 60], gaps=0.0)
    age, ward = table.columns["age"].copy(), table.columns["ward"].astype(object)
    age[:7], ward[:3] = np.nan, None
    data = read(table.with_columns({"age": age, "ward": ward}), features=["age", "ward", "lactate"])
    rules = REGRESSION | {"complete": False, "impute": "mean"}
    encoding, total, _ = agreed([data.take(np.arange(60)), data.take(np.arange(60, 120))], **rules)
    first, second = describe_design(encoding, total, EncodingRules(**rules))
    assert first.startswith("column 'age': 7 missing values were filled with the mean;")
    baseline = encoding.categorical[0].baseline
    assert second.startswith(f"column 'ward': fewer than 5 missing values count as the reference '{baseline}';")


def test_a_number_from_which_few_rows_differ_is_left_out():
    table = patients([60, 60], gaps=0.0).with_columns({"age": np.r_[np.ones(3), np.zeros(117)]})
    data = read(table, features=["age", "lactate"])
    encoding = encoding_of(data)
    assert list(encoding.left_out) == ["age"]
    assert not encoding.encode(data)[:, 0].any()
    assert Encoding.from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding


def test_a_year_is_no_small_cell():
    """Nearly all years fall in one cell of the summary, and still differ."""
    year = np.r_[np.repeat(np.arange(2014.0, 2020.0), 19), 1990.0, 1991.0, 1990.0, *[2016.0] * 3]
    data = read(patients([60, 60], gaps=0.0).with_columns({"age": year}), features=["age", "lactate"])
    assert not encoding_of(data).left_out


def test_earlier_encodings_keep_their_json():
    encoding = agreed([dataset(patients([60, 60]))])[0]
    assert list(encoding.to_dict()) == ["numeric", "categorical", "classes", "class_counts", "groups"]
    assert Encoding.from_dict(encoding.to_dict()) == encoding


def test_products_of_inputs_and_their_names():
    data = read(patients([60, 60], gaps=0.0), features=["age", "lactate", "ward"])
    encoding = encoding_of(data, products=(("age", "ward"), ("lactate", "lactate"), ("age", "lactate")))
    x = encoding.encode(data, np.float64)
    names = encoding.features
    age, lactate = x[:, 0], x[:, 1]
    np.testing.assert_array_equal(x[:, names.index("lactate^2")], lactate**2)
    np.testing.assert_array_equal(x[:, names.index("age:lactate")], age * lactate)
    first = names.index(next(n for n in names if n.startswith("age:ward")))
    np.testing.assert_array_equal(x[:, first], age * x[:, 2])
    assert encoding.sources[4:] == ("age:ward", "age:ward", "lactate^2", "age:lactate")


@pytest.mark.parametrize(
    ("products", "named"),
    [
        ([["age", "agee"]], "agee"),
        ([["age"]], "age"),
        ([["ward", "ward"]], "ward"),
        ([["age", "lactate"], ["lactate", "age"]], "twice"),
        ([["age", "lactate", "pressure"], ["age", "lactate"]], "without age"),
    ],
)
def test_bad_products_are_refused(products, named):
    with refused("bad-product", match=named):
        read(patients([60, 60]), products=products)


def test_original_units_by_hand():
    """b (x - 3)/2 (z - 5)/4: 1/8 for xz, -5/8 for x, -3/8 for z, 15/8 for the intercept."""
    a = original_units([3.0, 5.0], [2.0, 4.0], [(0, 1)])
    np.testing.assert_allclose(a[:, 3], [15 / 8, -5 / 8, -3 / 8, 1 / 8])
    np.testing.assert_allclose(a[:, 1], [-3 / 2, 1 / 2, 0, 0])


def test_original_units_equal_a_regression_on_raw_columns():
    """Coefficients and errors of statsmodels on raw columns, products included, to 1e-9 relative."""
    import statsmodels.api as sm

    data = read(patients([300, 300], gaps=0.0), features=["age", "lactate", "pressure", "ward"])
    products = (("age", "lactate"), ("age", "ward"), ("pressure", "pressure"), ("lactate", "pressure"))
    products = (*products, ("age", "pressure"), ("age", "lactate", "pressure"))
    encoding = encoding_of(data, products=products)
    raw_rules = encoding.to_dict()
    raw_rules["numeric"] = [{**r, "centre": 0.0, "scale": 1.0} for r in raw_rules["numeric"]]
    raw = Encoding.from_dict(raw_rules).encode(data, np.float64)
    y = (data.label == "1").astype(float)
    fitted = sm.GLM(y, sm.add_constant(encoding.encode(data, np.float64)), sm.families.Binomial()).fit(tol=1e-12)
    scale = np.abs(np.column_stack([np.ones(len(y)), raw])).max(axis=0)  # statsmodels itself needs tame columns
    told = sm.GLM(y, np.column_stack([np.ones(len(y)), raw]) / scale, sm.families.Binomial()).fit(tol=1e-12)
    names, a = encoding.original_units()
    assert names == ("(intercept)", *encoding.features)
    np.testing.assert_allclose(a @ fitted.params, told.params / scale, rtol=1e-6)
    errors = np.sqrt(np.diag(a @ fitted.cov_params() @ a.T))
    np.testing.assert_allclose(errors, told.bse / scale, rtol=1e-6)


def test_exported_models_multiply_as_the_encoding_does(tmp_path):
    ward = np.array(["medical"] * 80 + ["surgical"] * 60 + ["cardiac"] * 30 + ["x", "y"] * 5, object)
    table = patients([60, 60, 60], gaps=0.0).with_columns({"ward": ward})
    products = [["age", "ward"], ["lactate", "lactate"]]
    experiment = settings(features=["age", "lactate", "ward"], coding="reference", products=products)
    run = gr.run(experiment, table=table, rounds=2, settings={"engine.precision": "float64"}, out=tmp_path / "run")
    assert "ward=other" in run.model.encoding.features
    expected = run.model.predict(table).probabilities
    values = to_json(run.model)
    for i in range(0, 180, 7):
        got = score_json(values, {n: table.columns[n][i] for n in ("age", "lactate", "ward")})
        np.testing.assert_allclose(got, expected[i], rtol=1e-9)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(to_onnx(run.model).SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {n: table.columns[n].astype(np.float32)[:, None] for n in ("age", "lactate")}
    feed["ward"] = table.columns["ward"].astype(object)[:, None]
    np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-4, atol=1e-6)


def test_public_encoding_knows_no_most_frequent_level():
    experiment = settings(encoding="public", coding="reference")
    with refused("conflicting-settings", match="reference"):
        gr.run(experiment, table=patients([60, 60]))


def test_simulated_sites_state_the_number_once():
    values = {"table": "p.csv", "label": "died", "drop": ["hospital"], "complete": True}
    plan = Plan(gr.Experiment.model_validate({"name": "t", "data": values, "split": {"sites": 3}}).plan())
    consortium = assemble(plan, patients([60, 60], gaps=0.1))
    assert len(consortium.data) + len(consortium.data.incomplete) == 120


def test_order_of_columns_does_not_depend_on_the_list():
    table = patients([60, 60])
    a, b = (read(table, features=f) for f in (["age", "ward"], ["ward", "age"]))
    assert a.schema == b.schema
    schema = infer_schema(table, label="died", site="hospital", features=["age"])
    assert build_dataset(table, schema, name="p").numeric.shape == (120, 1)
