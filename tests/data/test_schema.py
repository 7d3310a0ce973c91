"""Schema inference: each rule, the reasons given, and what the user may overrule."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.data.schema import KINDS, Column, Schema, infer_schema
from grandrounds.data.table import Table

N = 200
RNG = np.random.default_rng(0)


def kind_of(values: Sequence[object], name: str = "x", **settings: object) -> Column:
    table = Table.from_mapping(
        {name: values, "other": np.arange(len(values)) % 7, "y": np.arange(len(values)) % 2}, source="t.csv"
    )
    schema = infer_schema(table, label="y", **settings)  # type: ignore[arg-type]
    return schema.columns[0]


def test_numbers_are_numeric_also_zero_and_one() -> None:
    assert kind_of(RNG.normal(size=N)).kind == "numeric"
    assert kind_of([0, 1] * 50).kind == "numeric"
    assert kind_of([1, None] * 49 + [2, 2]).kind == "numeric"


@pytest.mark.parametrize("name", ["id", "ID", "stay_id", "encounterid", "mrn", "patient_nbr", "index", "Unnamed: 0"])
def test_row_numbers_under_an_id_name_are_ids(name: str) -> None:
    assert kind_of(np.arange(N) * 3, name=name).kind == "id"
    assert kind_of(np.arange(N) * 3, name="platelets").kind == "numeric"


@pytest.mark.parametrize("name", ["uric_acid", "steroid", "fluid", "covid", "thyroid", "lipid", "patient_age"])
def test_clinical_words_are_not_ids(name: str) -> None:
    assert kind_of(np.arange(20), name=name).kind == "numeric"


def test_a_patient_number_that_repeats_is_still_an_id() -> None:
    assert kind_of(np.repeat(np.arange(100), 2), name="patient_nbr").kind == "id"
    assert kind_of([f"p{i // 2}" for i in range(N)], name="uniquepid").kind == "id"
    assert kind_of(np.arange(N) % 8, name="admission_type_id").kind == "numeric"


def test_fractions_under_an_id_name_are_measurements() -> None:
    assert kind_of(np.arange(N) + 0.5, name="id").kind == "numeric"


def test_text_is_categorical_until_nearly_every_row_differs() -> None:
    assert kind_of(["a", "b"] * 20).kind == "categorical"
    assert kind_of([f"w{i}" for i in range(50)]).kind == "categorical"
    notes = kind_of([f"note {i}" for i in range(51)])
    assert notes.kind == "id"
    assert "free text" in notes.why


def test_codes_with_leading_zeros_are_categories_even_when_most_are_numbers() -> None:
    assert kind_of(["02139", *["10001", "94110"] * 30]).kind == "categorical"
    assert kind_of(["007", *["1", "2"] * 30, "V57"]).kind == "categorical"


def test_dates_are_left_out_with_a_reason() -> None:
    column = kind_of(["2024-05-31", "2024-06-01T08:00:00Z", None, "2024-06-02 09:30"] * 5)
    assert column.kind == "drop"
    assert "date" in column.why


def test_one_value_or_none_is_constant() -> None:
    assert kind_of([3] * 10) == Column("x", "constant", "one value only (3)")
    assert kind_of([None] * 10) == Column("x", "constant", "no value in any row")
    assert kind_of(["yes", None] * 5) == Column("x", "constant", "one value only ('yes', 5 rows without)")


def test_roles_and_dropped_columns_are_never_features() -> None:
    table = Table.from_mapping(
        {
            "a": [1.5, 2.5, 3], "b": ["u", "v", "u"], "h": ["x", "x", "y"], "p": [1, 2, 2],
            "t": [3, 1, 2], "z": [7, 8, 9], "y": [0, 1, 0],
        }
    )  # fmt: skip
    schema = infer_schema(
        table, label="y", site="h", patient="p", time="t", drop=["z"], overrides={"y": "numeric", "p": "categorical"}
    )
    assert [c.name for c in schema.columns] == list(table.names)
    assert [c.name for c in schema.features] == ["a", "b"]
    assert [c.name for c in schema.numeric_like] == ["a"]
    assert [c.name for c in schema.categorical] == ["b"]
    assert (schema.label, schema.site, schema.patient, schema.time) == ("y", "h", "p", "t")


def test_overrides() -> None:
    assert kind_of([1, 2, 3], overrides={"x": "categorical"}).kind == "categorical"
    assert kind_of([1, 2, 3], overrides={"x": "id"}).kind == "id"
    assert kind_of([1, 2, 3], overrides={"x": "drop"}).kind == "drop"
    assert kind_of(["1", "007", None], overrides={"x": "numeric"}).kind == "numeric"
    assert kind_of([*["1"] * 30, "?!"], overrides={"x": "categorical"}).kind == "categorical"
    mild = kind_of(["mild", "severe", None], overrides={"x": ["none", "mild", "severe"]})
    assert (mild.kind, mild.order) == ("ordinal", ("none", "mild", "severe"))
    assert kind_of([1, 3, 2], overrides={"x": [1.0, 2.0, 3.0]}).order == ("1", "2", "3")


def test_ordinal_without_levels_uses_numbers_in_them() -> None:
    assert kind_of([10, 9, None, 11], overrides={"x": "ordinal"}).order == ("9", "10", "11")
    ages = kind_of(["[10-20)", "[0-10)", "[100-110)"], overrides={"x": "ordinal"})
    assert ages.order == ("[0-10)", "[10-20)", "[100-110)")


NAMES = st.text(max_size=6)
COLUMNS = st.builds(
    Column, name=NAMES, kind=st.sampled_from(KINDS), why=NAMES, order=st.lists(NAMES, max_size=3).map(tuple)
)
MAYBE = st.one_of(st.none(), NAMES)


@given(
    st.builds(
        Schema, columns=st.lists(COLUMNS, max_size=5).map(tuple), label=NAMES, site=MAYBE, patient=MAYBE, time=MAYBE
    )
)
def test_a_schema_survives_json(schema: Schema) -> None:
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
