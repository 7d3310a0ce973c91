"""Splits of boosted trees from summed histograms, for all nodes, columns and bins at once.

The gain of a split is GL^2 / (HL + ridge) + GR^2 / (HR + ridge) - G^2 / (H + ridge). Every cut of a number is tried with missing
values on either side. The levels of a category, with "missing" as one of them, are sorted by G / (H + 10), and every prefix is
tried. Ties go to the first column, then to the lowest cut. Sums are whole numbers, so equal histograms give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

SMOOTHING = 10.0
"""Added to H where levels are sorted: levels with few rows are close to 0."""

LEAST_GAIN = 1e-9
"""A split with a smaller gain, relative to the number of rows, is rounding."""

_LEAST_H = 2.0**-20

G, H, N = 0, 1, 2
"""Entries of the last axis of a histogram: gradients, curvatures, rows."""


@dataclass(frozen=True, eq=False)
class SplitRules:
    """Rules that splits obey.

    Attributes:
        scale: Whole numbers of gradients and curvatures are values times this.
        ridge: Penalty on leaves.
        least: Fewest rows of a leaf.
        is_constrained: True if a column is monotone: leaves are then kept within the bounds of their nodes.
    """

    scale: float
    ridge: float
    least: int
    is_constrained: bool = False


@dataclass(frozen=True, eq=False)
class Splits:
    """The best split of each of A nodes.

    Attributes:
        gain: (A,); 0 where no split is allowed.
        place: (A,) number of the column among the tree's columns.
        mask: (A,) uint64, the bins that go left.
        left: (A, 3) sums of the left child.
        right: (A, 3) sums of the right child.
    """

    gain: Array
    place: Array
    mask: Array
    left: Array
    right: Array


def find_splits(
    histograms: Array, widths: Array, is_category: Array, signs: Array, bounds: Array, rules: SplitRules
) -> Splits:
    """Find the best split of each node.

    Args:
        histograms: (A, m, B, 3) whole numbers: sums by node, column of its tree, and bin; bin 0 holds missing values.
        widths: (A, m) bins of each column.
        is_category: (A, m).
        signs: (A, m): 1 if the effect of a column may only rise, -1 if it may only fall, else 0.
        bounds: (A, 2) least and largest value of the node's leaves.
        rules: The rules.

    Returns:
        The splits.
    """
    nodes, columns, width, _ = histograms.shape
    total = histograms[:, 0].sum(axis=1)  # the same for every column
    order = _sort_levels(histograms, is_category, rules.scale)
    sums = np.take_along_axis(histograms, order[..., None], axis=2).cumsum(axis=2)
    is_missing_left = np.array([False, True])
    left = sums[:, :, :-1, None, :].repeat(2, axis=3)  # (A, m, B - 1, 2, 3): cut, missing right or left
    missing = np.where(is_category[..., None], 0, histograms[:, :, 0])
    left[..., 1, :] += missing[:, :, None, :]
    right = total[:, None, None, None, :] - left
    allowed = (left[..., N] >= rules.least) & (right[..., N] >= rules.least)
    allowed &= ~(is_category[..., None, None] & is_missing_left)
    score, value_left, value_right = _score(left, right, bounds, rules)
    gain = score - _node_score(total, bounds, rules)[:, None, None, None]
    if rules.is_constrained:
        allowed &= signs[..., None, None] * (value_right - value_left) >= 0
    gain = np.where(allowed, gain, -np.inf).reshape(nodes, -1)
    best = gain.argmax(axis=1)
    place, cut, side = np.unravel_index(best, (columns, width - 1, 2))
    at = np.arange(nodes)
    found = gain[at, best]
    return Splits(
        gain=np.where(found > LEAST_GAIN * total[:, N], found, 0.0),
        place=place,
        mask=_masks(histograms[at, place], order[at, place], is_category[at, place], cut, side, widths[at, place]),
        left=left[at, place, cut, side],
        right=right[at, place, cut, side],
    )


def leaf_values(sums: Array, bounds: Array, rules: SplitRules) -> Array:
    """Compute the values -G / (H + ridge) of leaves, within their bounds.

    Args:
        sums: (..., 3).
        bounds: (..., 2).
        rules: The rules.
    """
    g, h = sums[..., G] / rules.scale, sums[..., H] / rules.scale
    value = -g / np.maximum(h + rules.ridge, _LEAST_H)
    return np.asarray(np.clip(value, bounds[..., 0], bounds[..., 1]) if rules.is_constrained else value)


def _sort_levels(histograms: Array, is_category: Array, scale: float) -> Array:
    """Return the order in which bins move to the left child, (A, m, B): bins 1, 2, ... of a number, 0 last; sorted levels of a
    category, those without rows last.
    """
    width = histograms.shape[2]
    ratio = histograms[..., G] / (histograms[..., H] + SMOOTHING * scale)
    ratio = np.where(histograms[..., N] > 0, ratio, np.inf)
    by_number = np.broadcast_to(np.roll(np.arange(width), -1), ratio.shape)
    return np.where(is_category[..., None], np.argsort(ratio, axis=2, kind="stable"), by_number)


def _score(left: Array, right: Array, bounds: Array, rules: SplitRules) -> tuple[Array, Array, Array]:
    """Return the sum of both children's scores, and the values that their leaves would have."""
    if not rules.is_constrained:
        empty = np.empty(0)
        return _free_score(left, rules) + _free_score(right, rules), empty, empty
    limits = bounds[:, None, None, None, :]
    values = [leaf_values(child, limits, rules) for child in (left, right)]
    scores = [_score_at(child, value, rules) for child, value in zip((left, right), values, strict=True)]
    return scores[0] + scores[1], values[0], values[1]


def _node_score(total: Array, bounds: Array, rules: SplitRules) -> Array:
    if not rules.is_constrained:
        return _free_score(total, rules)
    return _score_at(total, leaf_values(total, bounds, rules), rules)


def _free_score(sums: Array, rules: SplitRules) -> Array:
    g, h = sums[..., G] / rules.scale, sums[..., H] / rules.scale
    return np.asarray(g * g / np.maximum(h + rules.ridge, _LEAST_H))


def _score_at(sums: Array, value: Array, rules: SplitRules) -> Array:
    """Return twice the decrease of the penalised loss at leaves with these values."""
    g, h = sums[..., G] / rules.scale, sums[..., H] / rules.scale
    return np.asarray(-2 * g * value - (h + rules.ridge) * value * value)


def _masks(histogram: Array, order: Array, is_category: Array, cut: Array, side: Array, widths: Array) -> Array:
    """Return the bins that go left, (A,) uint64. Bins without rows in the node follow the larger child, except that the bins of
    a number stay on their side of the cut.
    """
    nodes, width, _ = histogram.shape
    bins = np.arange(width)
    goes_left = np.zeros((nodes, width), bool)
    np.put_along_axis(goes_left, order, bins <= cut[:, None], axis=1)
    goes_left[:, 0] |= (side == 1) & ~is_category
    rows = histogram[..., N]
    larger_left = 2 * np.where(goes_left, rows, 0).sum(axis=1) >= rows.sum(axis=1)
    follows = (rows == 0) & (is_category[:, None] | (bins == 0))
    goes_left = np.where(follows, larger_left[:, None], goes_left) & (bins < widths[:, None])
    weights = np.left_shift(np.uint64(1), bins.astype(np.uint64))
    return np.asarray(np.where(goes_left, weights, np.uint64(0)).sum(axis=1, dtype=np.uint64))
