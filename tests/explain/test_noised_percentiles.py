"""Noised percentiles: cells by hand, one patient's reach, margins that cover the noise, and nothing where it drowns them."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grandrounds.core.rng import generator
from grandrounds.data.encoding import EncodingRules
from grandrounds.data.public import PublicFacts, public_encoding
from grandrounds.explain.noised_percentiles import (
    COLUMNS,
    COUNTS,
    INNER,
    NOISE,
    ROWS,
    ColumnCells,
    column_cells,
    estimate_population,
    estimate_shares,
    estimate_spread,
    isotonic,
    max_cell_count,
    select_columns,
)
from grandrounds.explain.percentiles import MAX_MARGIN, Population
from tests.support import dataset, patients, refused

RANGES = {"age": (30, 90), "lactate": (0.5, 6), "pressure": (45, 105)}
LEVELS = {"ward": ["medical", "surgical", "cardiac"], "died": ["0", "1"]}


def people(n=300):
    return dataset(patients([n]))


def encoding(data):
    return public_encoding(data, PublicFacts(RANGES, LEVELS), label="died", rules=EncodingRules())


def test_cells_by_hand():
    data = people(6)
    x = np.array([-5.0, 0.0, 1.0, 1.5, 9.0, np.nan])
    data.numeric[:, data.numeric_names.index("age")] = x
    held = ColumnCells("age", edges=(0.0, 1.0, 2.0))
    assert held.count(data, np.arange(6)).tolist() == [1, 1, 2, 1, 1], "below, [0, 1), [1, 2), from 2 on, missing"
    assert ColumnCells("nothing", edges=(0.0, 1.0)).count(data, np.arange(6)).tolist() == [0, 0, 0, 6]
    words = [data.vocabulary[0][c] for c in data.codes[:, 0]]
    ward = ColumnCells("ward", levels=("cardiac", "medical"))
    expected = [words.count("cardiac"), words.count("medical"), words.count("surgical"), 0]
    assert ward.count(data, np.arange(6)).tolist() == expected, "levels, all others, missing"


def test_cells_are_agreed_from_usual_ranges_and_name_the_inputs_that_read_them():
    data = people()
    cells = {c.name: c for c in column_cells(encoding(data))}
    assert cells["age"].edges == pytest.approx(np.linspace(30, 90, INNER + 1))
    assert set(cells["ward"].levels) == set(LEVELS["ward"]) and len(cells["ward"].inputs) == 4
    weights = np.zeros(7)
    weights[[*cells["ward"].inputs[1:2], cells["pressure"].inputs[0]]] = 0.5, -2.0
    names = list(cells)
    chosen = select_columns(tuple(cells.values()), weights, 2).tolist()
    assert [names[j] for j in chosen] == ["pressure", "ward"]
    assert max_cell_count(tuple(cells.values()), 2) == 2 * (INNER + 3)
    assert ColumnCells.from_dict(cells["ward"].to_dict()).levels == cells["ward"].levels


@pytest.mark.parametrize(
    "wrong", [{"edges": [1.0, 1.0]}, {"edges": [0.0, math.nan]}, {}, {"edges": [0], "levels": ["a"]}]
)
def test_cells_that_tell_nothing_apart_are_refused(wrong):
    with refused("bad-cells"):
        ColumnCells.from_dict({"name": "age", **wrong})


def test_one_patient_moves_the_counts_of_c_columns_by_the_root_of_c():
    data = people()
    columns = column_cells(encoding(data))
    counts = [np.concatenate([c.count(data, np.arange(n)) for c in columns]) for n in range(290, 301)]
    assert {float(np.linalg.norm(b - a)) for a, b in pairwise(counts)} == {math.sqrt(4)}


@given(hnp.arrays(float, st.integers(1, 12), elements=st.floats(-3, 3)), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_sequence_made_to_rise_is_no_farther_from_a_rising_truth(values, seed):
    found = isotonic(values)
    assert (np.diff(found) >= -1e-12).all() and found.sum() == pytest.approx(values.sum(), abs=1e-9)
    truth = np.sort(generator(seed, purpose="truth").normal(size=len(values)))
    assert np.abs(found - truth).max() <= np.abs(values - truth).max() + 1e-12


def test_without_noise_a_percentile_is_those_in_lower_cells_and_half_of_its_own():
    spread = estimate_spread((0.0, 1.0, 2.0), np.array([10, 20, 40, 30, 25.0]), noise=0.0)
    assert [spread.percentile(v) for v in (-1, 0.0, 1.9, 7)] == pytest.approx([5, 20, 50, 85])
    assert spread.margin(1.0) == 0 and spread.missing == pytest.approx(0.2)
    shares = estimate_shares(("a", "b"), np.array([60, 30, 10, 0.0]), noise=0.0)
    assert shares.levels == {"a": 0.6, "b": 0.3} and shares.missing == 0


def test_margins_cover_the_noise():
    counts = np.array([100, 900, 2500, 3000, 1500, 700, 300, 1000.0])
    edges = tuple(range(6))
    noise, truth = 40.0, estimate_spread(edges, counts, 0.0)
    rng, values = generator(0, purpose="noise"), (-1, 0.5, 2.5, 4.5, 9.0)
    within = []
    for _ in range(300):
        found = estimate_spread(edges, counts + rng.normal(0, noise, 8), noise)
        within.append([abs(found.percentile(v) - truth.percentile(v)) <= found.margin(v) for v in values])
    assert (np.mean(within, axis=0) >= 0.92).all(), "95 % of draws, and more where shares are made to rise"
    assert 1 < found.margin(2.5) < 3


def test_where_noise_drowns_a_percentile_none_is_told():
    spread = estimate_spread((0.0, 1.0), np.array([20, 60, 20, 0.0]), noise=30.0)
    assert spread.percentile(0.5) is None and spread.margin(0.5) > MAX_MARGIN
    nobody = estimate_spread((0.0, 1.0), np.array([-5, 3, 1, 0.0]), noise=5.0)
    assert nobody.percentile(0.5) is None and all(0 <= b <= 1 for b in nobody.below)


def test_a_population_in_cells_survives_its_file_and_knows_no_mean():
    agreed = encoding(people())
    cells = column_cells(agreed)
    data = people()
    counts = np.concatenate([cells[j].count(data, np.arange(300)) for j in (0, 3)])
    held = {COLUMNS: np.array([0, 3]), COUNTS: counts, NOISE: np.array([2.0]), ROWS: np.array([300])}
    found = estimate_population(agreed, held, share=0.02)
    again = Population.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found and again.in_cells and again.rows == 300
    assert set(again.numeric) == {cells[0].name} and set(again.categorical) == {"ward"}
    assert "2% of the budget" in again.noised
    assert estimate_population(agreed, {}, share=0.02) is None
