"""Robust rules that look at one coordinate at a time: the trimmed mean and, as its extreme, the median."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models.combine import average

BLOCK = 1 << 18
"""How many numbers of a (K, P) array are worked on at once: what a rule needs beside its input stays at a few MB."""


def blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices that cover the P coordinates of a (K, P) array, each of about `BLOCK` numbers."""
    sites, size = shape
    step = max(1, BLOCK // sites)
    return (slice(at, at + step) for at in range(0, size, step))


def weighted_mean(updates: Array, weights: Array) -> Array:
    """sum_k w_k * update_k over updates (K, P), added in double precision, given in the updates' own type."""
    mean = np.empty(updates.shape[1], updates.dtype)
    for block in blocks(updates.shape):
        mean[block] = average(updates[:, block], weights)
    return mean


def trimmed_mean(updates: Array, *, cut: int) -> tuple[Array, Array]:
    """The mean (P,) of what is left when `cut` values are taken off each end of every coordinate (Yin et al. 2018).

    With cut = (K - 1) // 2 it is the median: one value is left, or the two middle ones where K is even. Also gives
    the share (K,) of the values left that each site supplied. Sites with the same value share its places equally,
    so that the shares do not depend on the order of sites.
    """
    sites, size = updates.shape
    left = sites - 2 * cut
    mean, supplied = np.empty(size, updates.dtype), np.zeros(sites)
    for block in blocks(updates.shape):
        values = updates[:, block]
        ordered = np.sort(values, axis=0)
        mean[block] = ordered[cut : sites - cut].mean(axis=0, dtype=float)
        supplied += _supplied(values, low=ordered[cut], high=ordered[sites - cut - 1], cut=cut, left=left)
    return mean, supplied / (left * size)


def _supplied(values: Array, *, low: Array, high: Array, cut: int, left: int) -> Array:
    """How many of the `left` places between `low` and `high` (B,) each row of values (K, B) fills, ties shared."""
    at_low, at_high = values == low, values == high
    flat = low == high
    places_low = np.where(flat, left, (values <= low).sum(axis=0) - cut) / at_low.sum(axis=0)
    places_high = np.where(flat, 0, (values >= high).sum(axis=0) - cut) / at_high.sum(axis=0)
    inside = ((values > low) & (values < high)).sum(axis=1)
    filled: Array = inside + at_low @ places_low + at_high @ places_high
    return filled
