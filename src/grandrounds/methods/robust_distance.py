"""Robust rules that look at how far updates lie apart: Krum's scores and the geometric median.

Both work on the Gram matrix G (K, K) of the updates about their coordinate-wise median, so the long (K, P) array is
read once. About a centre that bad sites cannot move, distances between honest sites keep their digits even where a
bad update is a billion times longer; about zero or the mean they would drown in its rounding error.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.robust_coordinate import blocks

SMOOTHING = 1e-6
"""nu of the smoothed Weiszfeld algorithm, as a share of the sites' weighted median distance from the centre."""

STEPS = 10_000
TOLERANCE = 1e-10

_ROUNDING = 1e-13
_TIE = 1e-9
_TINY = 1e-150


def centred_gram(updates: Array) -> Array:
    """G_ij = <u_i - c, u_j - c> (K, K) in double precision, with c the coordinate-wise median of updates (K, P)."""
    gram = np.zeros((len(updates), len(updates)))
    for block in blocks(updates.shape):
        values = updates[:, block].astype(float)
        values -= np.median(values, axis=0)
        gram += values @ values.T
    return gram


def squared_distances(gram: Array) -> Array:
    """||u_i - u_j||^2 (K, K) from a Gram matrix; what is below rounding error is zero."""
    lengths = np.diagonal(gram)
    reach = lengths[:, None] + lengths[None, :]
    apart: Array = reach - 2 * gram
    apart[apart < _ROUNDING * reach] = 0.0
    np.fill_diagonal(apart, 0.0)
    return apart


def krum_scores(gram: Array, *, neighbours: int) -> Array:
    """s(i) = the sum of ||u_i - u_j||^2 over the `neighbours` updates nearest to i (Blanchard et al. 2017, sec. 4)."""
    nearest = np.sort(squared_distances(gram), axis=1)[:, 1 : neighbours + 1]
    scores: Array = nearest.sum(axis=1)
    return scores


def lowest(scores: Array, *, keep: int) -> Array:
    """The place (K,) of each site among the `keep` lowest scores: 1 in, 0 out; sites that tie at the edge share.

    The paper gives a tie to the site with the smaller number. Ties are no rarity: with one neighbour, the two closest
    sites always tie. Sharing keeps the result free of the order of sites, and the mean of two vectors that Krum may
    choose lies no further out than the worse of them.
    """
    edge = np.sort(scores)[keep - 1]
    below = scores < edge * (1 - _TIE)
    level = ~below & (scores <= edge * (1 + _TIE))
    places: Array = below + level * ((keep - below.sum()) / level.sum())
    return places


def weiszfeld(gram: Array, weights: Array) -> tuple[Array, Array, bool]:
    """The geometric median argmin_z sum_k w_k ||z - u_k|| by the smoothed Weiszfeld algorithm of RFA.

    z = sum_k b_k u_k with b_k proportional to w_k / max(nu, ||z - u_k||), again and again until b stands still.
    Returns b (K,), the distances ||z - u_k|| (K,) and whether it stood still within `STEPS`. As z is always a mean of
    the updates, ||z - u_k||^2 = G_kk - 2 (G b)_k + b'G b and no step touches the (K, P) array.

    Departures from Pillutla et al. (2022): nu is relative to the size of the updates, so that the rule does not change
    with their unit; we stop on a tolerance where they take a few steps, as a step costs next to nothing here; and we
    start from w_k over site k's median distance to all, not from the mean, which one huge update can carry off.
    """
    nu = max(SMOOTHING * float(_weighted_median(np.sqrt(np.diagonal(gram))[None, :], weights)[0]), _TINY)
    share = on_simplex(weights / np.maximum(_weighted_median(np.sqrt(squared_distances(gram)), weights), nu))
    distance = _from_mean(gram, share)
    for _ in range(STEPS):
        previous, share = share, on_simplex(weights / np.maximum(distance, nu))
        distance = _from_mean(gram, share)
        if np.abs(share - previous).sum() <= TOLERANCE:
            return share, distance, True
    return share, distance, False


def _weighted_median(rows: Array, weights: Array) -> Array:
    """The least value of each row of (n, K) at which half the weight is reached; zero only where half of it lies there."""
    order = np.argsort(rows, axis=1)
    reached = np.cumsum(weights[order], axis=1)
    at = np.argmax(reached >= (0.5 - _TIE) * reached[:, -1:], axis=1)
    picked: Array = np.take_along_axis(rows, np.take_along_axis(order, at[:, None], axis=1), axis=1)[:, 0]
    return picked


def _from_mean(gram: Array, share: Array) -> Array:
    along = gram @ share
    squared: Array = np.diagonal(gram) - 2 * along + share @ along
    return np.sqrt(np.maximum(squared, 0.0))


def on_simplex(values: Array) -> Array:
    """Values (K,) of zero or more divided by their sum; all zeros stay zeros."""
    total = float(values.sum())
    return values / total if total > 0 else np.zeros(len(values))
