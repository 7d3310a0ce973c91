"""Boosted trees as arrays: bins, the walk, and refusals of damaged arrays."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.statistics.models.column_trees import PADDING, Trees
from grandrounds.core.errors import BadInput

NAN = np.nan


def two_levels() -> Trees:
    """Root: age <= 50 left, missing right. Left child: level 0 or missing of a category left. Right child: a leaf."""
    return Trees.from_arrays(
        {
            "edges": [[40.0, 50.0, 60.0], [0.0, 1.0, PADDING]],
            "edge_counts": [3, 2],
            "column": [[0, 1, -1, -1, -1, -1, -1]],
            "low": [[0b00110, 0b0011, 0, 0, 0, 0, 0]],
            "high": [[0] * 7],
            "value": [[0, 0, 5.0, 1.0, 2.0, 0, 0]],
            "output": [0],
            "start": [0.5],
        }
    )


def test_a_value_on_an_edge_falls_into_the_bin_below_and_missing_values_into_bin_0():
    values = np.array([[39.9, 0], [40, 1], [40.1, 2], [50, NAN], [NAN, 0], [1e300, 1]])
    assert two_levels().bin(values).tolist() == [[1, 1], [1, 2], [2, 3], [2, 0], [0, 1], [4, 2]]


def test_rows_walk_by_bins_of_numbers_categories_and_missing_values():
    values = np.array([[40, 0], [50, NAN], [50, 1], [51, 0], [NAN, 0]])
    trees = two_levels()
    assert trees.leaves(trees.bin(values)).tolist() == [[3, 3, 4, 2, 2]]
    assert trees.scores(trees.bin(values)).ravel().tolist() == [1.5, 1.5, 2.5, 5.5, 5.5]


def test_bits_above_32_are_read_from_the_high_half():
    edges = np.arange(62.0)[None]
    one = {"column": [[0, -1, -1]], "low": [[0, 0, 0]], "high": [[1 << 31, 0, 0]], "value": [[0, 1.0, 2.0]]}
    trees = Trees.from_arrays({"edges": edges, "edge_counts": [62], **one, "output": [0], "start": [0.0]})
    assert trees.scores(trees.bin(np.array([[61.0], [61.5]]))).ravel().tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("column", [[2, 1, -1, -1, -1, -1, -1]]),
        ("column", [[0, 1, -1, 0, -1, -1, -1]]),
        ("column", [[0, -1, -1, -1]]),
        ("low", [[0.5] * 7]),
        ("output", [1]),
        ("edge_counts", [4, 2]),
        ("edges", [[40.0, 30.0, 60.0], [0.0, 1.0, PADDING]]),
        ("value", [[0.0] * 3]),
    ],
)
def test_damaged_arrays_are_refused(name, array):
    with pytest.raises(BadInput, match="not boosted trees"):
        Trees.from_arrays({**two_levels().arrays, name: array})
