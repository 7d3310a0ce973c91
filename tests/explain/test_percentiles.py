"""Percentiles from merged sketches: as good as promised, by hand, and the same however the patients are dealt to sites."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grandrounds.core.rng import generator
from grandrounds.data.dataset import build_dataset
from grandrounds.data.schema import infer_schema
from grandrounds.data.summary import Summary, grid_index
from grandrounds.data.table import Table
from grandrounds.explain.percentiles import FEWEST, STEPS, Population, Spread
from tests.support import agreed, dataset, patients, refused


def population(data, sizes, **rules) -> tuple[Population, object]:
    """What the summaries of sites of these sizes add up to, and the encoding they agree on."""
    edges = np.cumsum([0, *sizes])
    parts = [data.take(np.arange(a, b)) for a, b in pairwise(edges)]
    encoding, _, moments = agreed(parts, **rules)
    return Population.from_summaries(map(Summary.from_dataset, parts), encoding, mean=moments.mean), encoding


def of_values(values) -> Spread:
    table = Table.from_mapping({"x": values, "died": np.arange(len(values)) % 2}, source="x.csv")
    schema = infer_schema(table, label="died", overrides={"x": "numeric"})
    data = build_dataset(table, schema, name="x")
    return population(data, [len(values)])[0].numeric["x"]


def test_percentiles_by_hand():
    spread = Spread((10.0, 20.0, 20.0, 30.0, 40.0), mean=24.0, missing=0.0)
    assert spread.percentile(20.0) == pytest.approx(40), "one below, and half of two alike, of five"
    assert spread.percentile(5.0) == 0
    assert spread.percentile(35.0) == pytest.approx(80)
    assert spread.percentile(41.0) == 100
    assert spread.percentile(20.001) == pytest.approx(40), "what shares a cell counts as alike"
    assert spread.tolerance == 20
    assert Spread((), 0.0, 1.0).percentile(3.0) is None


@pytest.mark.parametrize("draw", ["normal", "lognormal", "standard_cauchy"])
def test_they_keep_their_promise_against_numpy(draw):
    x = getattr(generator(0, purpose="values"), draw)(size=10_000)
    spread = of_values(x)
    assert len(spread.quantiles) == STEPS
    assert spread.tolerance == 0.5
    asked = np.linspace(0.3, 99.7, 150)
    found = [spread.percentile(float(v)) for v in np.percentile(x, asked, method="inverted_cdf")]
    np.testing.assert_allclose(found, asked, atol=spread.tolerance)


FINITE = st.floats(-1e6, 1e6)


@given(hnp.arrays(float, st.integers(20, 120), elements=FINITE), FINITE)
def test_a_percentile_is_a_place_in_the_order(others, value):
    if len(np.unique(others)) < 2:
        others[0] += 1000
    spread = of_values(others)
    cells, cell = grid_index(others), grid_index(np.array([value]))[0]
    exact = 100 * ((cells < cell).mean() + (cells == cell).mean() / 2)
    assert spread.percentile(value) == pytest.approx(exact, abs=spread.tolerance)
    assert spread.percentile(value + 1) >= spread.percentile(value)


def test_each_quantile_stands_for_at_least_five_patients_and_shows_neither_end():
    x = np.arange(1.0, 101)
    spread = of_values(x)
    assert len(spread.quantiles) == 100 // FEWEST
    assert min(spread.quantiles) > 2
    assert max(spread.quantiles) < 99
    assert of_values(np.arange(1.0, 20)).quantiles == (), "of nineteen patients nothing is kept"


def test_dealing_patients_to_other_sites_changes_nothing():
    data = dataset(patients([80, 60, 50]))
    one, _ = population(data, [190])
    many, _ = population(data, [17, 63, 110])
    assert many.rows == one.rows == 190
    for name, spread in one.numeric.items():
        assert many.numeric[name].quantiles == spread.quantiles
        assert many.numeric[name].mean == pytest.approx(spread.mean)
    assert many.categorical == one.categorical


@pytest.mark.parametrize("rules", [{}, {"clip": 0.05}, {"scale": "none"}, {"scale": "robust", "impute": "mean"}])
def test_the_mean_patient_is_that_of_the_rows(rules):
    data = dataset(patients([300, 200]))
    found, encoding = population(data, [300, 200], **rules)
    np.testing.assert_allclose(found.mean_inputs(encoding), encoding.encode(data, float).mean(axis=0), atol=2e-3)


def test_rare_levels_are_not_kept():
    table = patients([80, 60, 50])
    wards = np.array(table.columns["ward"], object)
    wards[:4], wards[4:9] = "attic", "cellar"
    table = Table.from_mapping({**table.columns, "ward": wards}, source="patients.csv")
    found, encoding = population(dataset(table), [190])
    shares = found.categorical["ward"]
    assert "attic" not in shares.levels
    assert shares.levels["cellar"] == pytest.approx(5 / 190)
    assert "attic" in encoding.categorical[0].levels
    few, small = population(dataset(table), [190], max_categories=2)
    rest = 1 - sum(few.categorical["ward"].levels[level] for level in small.categorical[0].levels)
    assert few.mean_inputs(small)[-1] == pytest.approx(rest), "levels that are read as 'other' count as such"


def test_it_is_written_and_read_back_the_same_and_damage_is_refused():
    found, _ = population(dataset(patients([80, 60, 50])), [190])
    text = json.dumps(found.to_dict())
    assert Population.from_dict(json.loads(text)) == found
    for change in (
        {"numeric": 3},
        {"rows": "many"},
        {"numeric": {"age": {"quantiles": [2, 1], "mean": 1, "missing": 0}}},
    ):
        with refused("damaged-file"):
            Population.from_dict({**json.loads(text), **change})
