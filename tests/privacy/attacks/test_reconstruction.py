"""Reconstruction by algebra: a gradient of one row, products of columns, and cells of one."""

from __future__ import annotations

import numpy as np

from grandrounds.models.dense import Dense
from grandrounds.privacy.attacks.reconstruction import (
    alone_in_cell,
    invert_dense_gradient,
    rebuild_from_centred,
    rebuild_from_products,
    rebuild_from_risk_sets,
    relative_errors,
)


def test_the_gradient_of_one_row_is_the_row():
    """By hand: y = 1, theta = 0, so p - y = -1/2; the gradient is -x / 2, its bias -1/2."""
    x = np.array([2.0, -1.0, 0.5])
    net = Dense((3, 1))
    gradient = np.empty((1, net.layout.size))
    net.gradient(np.zeros((1, 4)), x[None, None], np.ones((1, 1, 1)), np.ones((1, 1)), gradient)
    assert gradient[0].tolist() == [-1.0, 0.5, -0.25, -0.5]
    weight, bias = net.layers(gradient[0])[0]
    assert invert_dense_gradient(weight, bias).tolist() == [x.tolist()]


def test_two_rows_are_a_mixture_and_a_net_keeps_rows_that_one_unit_sees_alone():
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    mixed = invert_dense_gradient(np.array([[0.3], [-0.1]]), np.array([0.2]))
    assert np.allclose(mixed, [[1.5, -0.5]])  # (0.3, -0.1) / 0.2: neither row
    assert (relative_errors(mixed, rows, rows.mean(axis=0)) >= 0.99).all()
    seen_alone = invert_dense_gradient(np.array([[0.3, 0.0], [0.0, -0.1]]), np.array([0.3, -0.1]))
    assert relative_errors(seen_alone, rows, rows.mean(axis=0)).tolist() == [0.0, 0.0]
    assert relative_errors(np.empty((0, 2)), rows, rows.mean(axis=0)).tolist() == [1.0, 1.0]


def test_products_of_columns_tell_the_row_of_a_patient_alone_in_a_category():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, 2, 30), rng.normal(size=30), np.arange(30) == 7])
    w = rng.uniform(0.1, 0.3, 30)
    ones = np.column_stack([np.ones(30), x])
    found, lines = rebuild_from_products((ones * w[:, None]).T @ ones, np.array([True, False, True]))
    assert np.allclose(found[lines.tolist().index(2)], x[7])
    centre = x.mean(axis=0)
    equal = (x - centre).T @ (x - centre)
    assert np.allclose(rebuild_from_centred(equal, centre, np.array([False, False, True])), x[7])


def test_sums_over_risk_sets_tell_the_row_of_a_patient_who_leaves_alone():
    x, w = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]), np.array([0.5, 1.0, 2.0, 1.0])
    at_risk = [slice(0, 4), slice(1, 4), slice(3, 4)]  # one leaves, then two together, then the last
    weights = np.array([w[a].sum() for a in at_risk])
    sums = np.array([w[a] @ x[a] for a in at_risk])
    assert np.allclose(rebuild_from_risk_sets(weights, sums), [[1, 2], [13 / 3, 16 / 3], [7, 8]])


def test_cells_of_one():
    assert alone_in_cell(np.array([3, 3, 5, -1, 8])).tolist() == [False, False, True, False, True]
