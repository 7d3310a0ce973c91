"""Columns that a model relies on and a table of new patients lacks."""

from __future__ import annotations

import pytest

from grandrounds.core.errors import closest
from grandrounds.data.new_patients import refuse_absent_columns
from tests.support import agreed, dataset, patients, refused

TABLE = patients([30, 30])
SHARES = {"age": 0.5, "lactate": 0.4, "pressure": 0.04, "ward": 0.02, "age:ward^2": 0.04}


@pytest.fixture(scope="module")
def encoding():
    return agreed([dataset(TABLE)])[0]


def test_absent_columns_count_by_importance_also_in_products(encoding):
    refuse_absent_columns(TABLE.without(["pressure"]), encoding, SHARES)
    with refused("missing-columns", match=r"with 6%.*'ward' \(2%\)"):
        refuse_absent_columns(TABLE.without(["ward"]), encoding, SHARES)
    with refused("missing-columns", match="with 8%"):
        refuse_absent_columns(TABLE.without(["pressure"]), encoding, {**SHARES, "pressure:lactate": 0.04})


def test_inputs_count_equally_where_a_run_stored_no_importances(encoding):
    with refused("missing-columns", match="with 25%.*no importances"):
        refuse_absent_columns(TABLE.without(["pressure"]), encoding, {})


@pytest.mark.parametrize("name", ["Kreatinin", "KREATININ", "kreatinin (mg/dl)", "Kreatinin [µmol/l]", "kreatinine"])
def test_a_hint_ignores_case_and_units(name):
    assert closest("kreatinin", ["crp", name, "age"]) == f"did you mean '{name}'?"
    assert closest("kreatinin", ["crp", "(mg)"]) == ""
