from __future__ import annotations

import numpy as np
import pytest

from grandrounds.metrics.classification import (
    BINS,
    LIMIT,
    bin_centres,
    bin_edges,
    bin_index,
    edge_probability,
    grid_position,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_centres_lie_inside_their_bins():
    edges, centres = bin_edges(), bin_centres()
    assert edges.shape == (BINS + 1,)
    assert centres.shape == (BINS,)
    assert np.all(edges[:-1] < centres)
    assert np.all(centres < edges[1:])
    assert np.array_equal(bin_index(centres), np.arange(BINS))


def test_the_grid_runs_from_limit_to_limit_and_is_symmetric():
    edges = bin_edges()
    assert edges[0] == pytest.approx(-LIMIT)
    assert edges[-1] == pytest.approx(LIMIT)
    assert np.array_equal(edges, -edges[::-1])


def test_zero_is_exactly_an_edge():
    assert bin_edges()[BINS // 2] == 0.0
    assert bin_index(np.array([0.0, -0.0, 5e-324, -5e-324, -1e-300])).tolist() == [
        BINS // 2,
        BINS // 2,
        BINS // 2,
        BINS // 2 - 1,
        BINS // 2 - 1,
    ]


def test_what_lies_beyond_goes_to_the_end_bins():
    assert bin_index(np.array([-1e300, -101.0, 101.0, 1e300])).tolist() == [0, 0, BINS - 1, BINS - 1]


def test_bins_are_fine_where_models_score():
    width = np.diff(bin_edges())
    inside = np.abs(bin_centres()) < 4
    assert width[inside].max() < 0.025
    assert width[np.abs(bin_centres()) < 0.2].max() < 0.0035


def test_an_edge_survives_the_way_through_its_probability():
    for edge in [700, 900, 1000, 1024, 1025, 1200, 1400]:
        assert grid_position(edge_probability(edge)) == edge
    assert edge_probability(0) == 0.0
    assert edge_probability(BINS) == 1.0
    assert grid_position(0.0) == 0.0
    assert grid_position(1.0) == BINS
    assert grid_position(0.5) == BINS // 2
    assert np.isnan(grid_position(float("nan")))


@pytest.mark.parametrize("wrong", [-0.1, 1.5])
def test_a_place_needs_a_probability(wrong):
    with pytest.raises(ValueError, match="between 0 and 1"):
        grid_position(wrong)
