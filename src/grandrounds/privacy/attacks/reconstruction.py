"""Reconstruction of rows from disclosed numbers: gradients of dense layers, weighted products of columns, and counts.

A gradient of a dense layer with a bias has, for each output h, sum_i d_ih x_i and sum_i d_ih, d the derivative of row i's loss
at that output. Their ratio is the row itself where one row counts, and a mixture of rows otherwise (Phong et al. 2018). For a
linear model it is the whole gradient; for a net it is the first layer.

Sums of products X'WX with a column of ones tell a patient's whole row if the patient is the only one with some category: the
category's line of the matrix is w x, and its entry at the ones is w.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array

REBUILT = 0.01
"""Largest relative error of a row that counts as rebuilt: a hundredth of what guessing the mean leaves."""

_ZERO = 1e-12
_WHOLE = 1e-6


def invert_dense_gradient(weight: Array, bias: Array) -> Array:
    """Rebuild candidate rows from the gradient, or the update, of a dense layer.

    Args:
        weight: Gradient of the weights, (d, h).
        bias: Gradient of the biases, (h,).

    Returns:
        (m, d) one candidate for each output whose bias has a gradient.
    """
    weight, bias = np.asarray(weight, float), np.asarray(bias, float)
    used = np.abs(bias) > _ZERO
    rebuilt: Array = (weight[:, used] / bias[used]).T
    return rebuilt[np.isfinite(rebuilt).all(axis=1)]


def relative_errors(candidates: Array, rows: Array, guess: Array) -> Array:
    """Compare rebuilt rows with true ones.

    Args:
        candidates: Rebuilt rows, (m, d); each true row is compared with the closest, which an attacker cannot know.
        rows: True rows, (n, d).
        guess: The attacker's guess without any gradient, (d,): the mean row.

    Returns:
        (n,) squared error relative to the guess's: 0 is exact, 1 as good as guessing the mean. Without a candidate, and where
        the best candidate is worse than the guess, it is 1, because the attacker would guess the mean.
    """
    base = ((rows - guess) ** 2).sum(axis=1)
    if not len(candidates):
        return np.ones(len(rows))
    errors = np.stack([((rows - c) ** 2).sum(axis=1) for c in candidates], axis=1).min(axis=1)
    ratio: Array = np.divide(errors, base, out=np.where(errors < _ZERO, 0.0, 1.0), where=base > _ZERO)
    return np.minimum(ratio, 1.0)


def rebuild_from_products(products: Array, binary: Array) -> tuple[Array, Array]:
    """Find rows of single patients in sums of products X'WX whose first column is of ones.

    A line of a 0/1 column is taken for a single patient's if, divided by its first entry, all its 0/1 columns read 0 or 1.
    Several patients who agree in every 0/1 column read the same, so a line may be wrong in its numbers.

    Args:
        products: (1 + d, 1 + d).
        binary: (d,) True for columns of 0 and 1.

    Returns:
        Rebuilt rows (m, d), and the column (m,) whose line each came from.
    """
    lines = np.flatnonzero(binary) + 1
    share = products[lines, 0]
    full = products[0, 0]
    lines = lines[(share > _ZERO * max(full, 1.0)) & (share < full * (1 - 1e-9))]
    rows = products[lines, 1:] / products[lines, :1]
    whole = np.abs(rows[:, binary] - np.rint(rows[:, binary])).max(axis=1, initial=0.0) < _WHOLE
    found = np.isfinite(rows).all(axis=1) & whole
    return rows[found], lines[found] - 1


def rebuild_from_centred(products: Array, mean: Array, alone: Array) -> Array:
    """Rebuild rows of single patients from centred sums of products sum w (x - m)(x - m)'.

    The line of a category that one patient has alone is w (x - m), and its own entry w (1 - m_j). The weighted mean m is not
    sent; the attacker puts the plain mean in its place.

    Args:
        products: (d, d).
        mean: Mean row, (d,), as summaries tell it.
        alone: (d,) True for categories with one patient, as summaries tell them.

    Returns:
        (m, d) rebuilt rows.
    """
    lines = np.flatnonzero(alone & (np.diag(products) > _ZERO))
    rows: Array = mean + products[lines] / np.diag(products)[lines, None] * (1 - mean[lines, None])
    return rows[np.isfinite(rows).all(axis=1)]


def rebuild_from_risk_sets(weights: Array, sums: Array) -> Array:
    """Rebuild rows from sums over risk sets: whoever leaves between two times is their difference.

    Args:
        weights: Sum of weights over the patients at risk at each time, (T,).
        sums: Sum of weight x row over them, (T, d).

    Returns:
        (m, d) one candidate for each time at which somebody leaves: the patient's row, or a mean of several.
    """
    w = weights - np.append(weights[1:], 0.0)
    x = sums - np.concatenate([sums[1:], np.zeros((1, sums.shape[1]))])
    used = w > _ZERO * max(float(weights.max(initial=0.0)), 1.0)
    rows: Array = x[used] / w[used, None]
    return rows


def alone_in_cell(cell: Array) -> Array:
    """Tell which rows are the only ones in their cell.

    Args:
        cell: (n,) whole numbers, the cell of each row; negative for none.

    Returns:
        (n,) bool.
    """
    _, place, count = np.unique(cell, return_inverse=True, return_counts=True)
    alone: Array = (count[place.ravel()] == 1) & (np.asarray(cell) >= 0)
    return alone


def link_equal(found: Array, rows: Array, tolerance: float = 1e-6) -> Array:
    """Tell which rows are among the rebuilt ones.

    Args:
        found: Rebuilt rows, (m, d).
        rows: True rows, (n, d).
        tolerance: Largest difference of an entry.

    Returns:
        (n,) bool.
    """
    out = np.zeros(len(rows), bool)
    for one in found:
        out |= np.abs(rows - one).max(axis=1, initial=0.0) < tolerance
    return out
