"""Small cells are hidden, and no subtraction brings them back."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.statistics.small_cells import hide_cells, hide_groups


def hide(counts):
    """Hide cells of a table whose columns and rows both have known totals."""
    counts = np.array(counts)
    place = np.arange(counts.size).reshape(counts.shape)
    return hide_cells(counts.ravel(), [*place, *place.T]).reshape(counts.shape)


def test_nothing_is_hidden_without_small_counts():
    assert not hide([[5, 9], [0, 20]]).any()


def test_a_second_cell_of_the_line_is_hidden():
    line = np.arange(4)
    assert hide_cells(np.array([3, 50, 8, 0]), [line]).tolist() == [True, False, True, False]


def test_small_counts_that_follow_from_their_sum():
    line = np.arange(3)
    assert hide_cells(np.array([1, 1, 30]), [line]).all(), "two counts with the sum 2 are 1 and 1"
    assert hide_cells(np.array([4, 4, 30]), [line]).all(), "two counts below 5 with the sum 8 are 4 and 4"
    assert hide_cells(np.array([1, 3, 30]), [line]).tolist() == [True, True, False]


@pytest.mark.parametrize("seed", range(20))
def test_no_line_has_a_single_hidden_cell(seed):
    counts = np.random.default_rng(seed).negative_binomial(1, 0.06, (5, 4))
    hidden = hide(counts)
    assert hidden[(counts > 0) & (counts < 5)].all() and not hidden[counts == 0].any()
    for line, out in [*zip(counts, hidden, strict=True), *zip(counts.T, hidden.T, strict=True)]:
        assert out.sum() != 1 or (line > 0).sum() == 1


def test_groups_with_few_rows_take_the_next_with_them():
    assert hide_groups(np.array([100, 3, 40, 0])).tolist() == [False, True, True, False]
    assert hide_groups(np.array([100, 3, 4])).tolist() == [False, True, True]
    assert not hide_groups(np.array([100, 5])).any()
