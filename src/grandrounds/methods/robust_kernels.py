"""Arithmetic of robust aggregation: coordinate-wise, by direction and by distance, with large models in blocks.

Krum's scores and the geometric median work on the Gram matrix G (K, K) of the updates about their coordinate-wise median, so the
long (K, P) array is read once. With this centre, which bad sites cannot move, distances between honest sites stay exact even if
a bad update is a billion times longer. With zero or the mean they would be lost in rounding error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.averaging import average

BLOCK_SIZE = 1 << 18
"""Numbers of a (K, P) array that are processed at once: working memory stays at a few MB."""


def coordinate_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices that cover the P coordinates of a (K, P) array, each of about `BLOCK_SIZE` numbers."""
    sites, size = shape
    step = max(1, BLOCK_SIZE // sites)
    return (slice(start, start + step) for start in range(0, size, step))


def weighted_mean(updates: Array, weights: Array) -> Array:
    """Compute sum_k w_k * update_k over updates (K, P) in double precision, returned in the updates' dtype."""
    mean = np.empty(updates.shape[1], updates.dtype)
    for block in coordinate_blocks(updates.shape):
        mean[block] = average(updates[:, block], weights)
    return mean


def trimmed_mean(updates: Array, *, cut: int) -> tuple[Array, Array]:
    """Return the mean (P,) of every coordinate without `cut` values at each end (Yin et al. 2018).

    With cut = (K - 1) // 2 it is the median. Also return the share (K,) of the remaining values that each site supplied. Sites
    with equal values share equally, so that the shares do not depend on the order of sites.
    """
    sites, size = updates.shape
    remaining = sites - 2 * cut
    mean, supplied = np.empty(size, updates.dtype), np.zeros(sites)
    for block in coordinate_blocks(updates.shape):
        values = updates[:, block]
        ordered = np.sort(values, axis=0)
        mean[block] = ordered[cut : sites - cut].mean(axis=0, dtype=float)
        supplied += _count_supplied(values, low=ordered[cut], high=ordered[sites - cut - 1], cut=cut, remaining=remaining)
    return mean, supplied / (remaining * size)


def _count_supplied(values: Array, *, low: Array, high: Array, cut: int, remaining: int) -> Array:
    """Count the `remaining` places between `low` and `high` (B,) that each row of values (K, B) fills; ties are shared."""
    at_low, at_high = values == low, values == high
    flat = low == high
    places_low = np.where(flat, remaining, (values <= low).sum(axis=0) - cut) / at_low.sum(axis=0)
    places_high = np.where(flat, 0, (values >= high).sum(axis=0) - cut) / at_high.sum(axis=0)
    inside = ((values > low) & (values < high)).sum(axis=1)
    filled: Array = inside + at_low @ places_low + at_high @ places_high
    return filled


_COSINE_TOLERANCE = 1e-9
"""Cosines this close to 0 or 1 are set to 0 or 1: otherwise a rule would turn rounding error into trust."""

_MIN_NORM = 1e-150
_MAX_RATE = 0.99


def update_norms(updates: Array) -> Array:
    """||u_k|| (K,) in double precision; inf or NaN where an update is not finite or too long for a double."""
    squared = np.zeros(len(updates))
    with np.errstate(over="ignore", invalid="ignore"):
        for block in coordinate_blocks(updates.shape):
            values = updates[:, block].astype(float)
            squared += np.einsum("kp,kp->k", values, values)
    return np.sqrt(squared)


def inverse_norms(length: Array) -> Array:
    """Compute 1 / ||u_k|| (K,), with 0 for a zero update, which has no direction."""
    long = length > _MIN_NORM
    return np.where(long, 1 / np.where(long, length, 1.0), 0.0)


def cosines_to_reference(updates: Array, root: Array) -> Array:
    """Compute cos(u_k, root) (K,); 0 if either is zero."""
    product = np.zeros(len(updates))
    unit = root.astype(float) * inverse_norms(update_norms(root[None, :]))
    for block in coordinate_blocks(updates.shape):
        product += updates[:, block].astype(float) @ unit[block]
    return np.clip(product * inverse_norms(update_norms(updates)), -1.0, 1.0)


def pairwise_cosines(updates: Array) -> Array:
    """cos(u_i, u_j) (K, K), with zeros on the diagonal."""
    similar = np.zeros((len(updates), len(updates)))
    scale = inverse_norms(update_norms(updates))[:, None]
    for block in coordinate_blocks(updates.shape):
        units = updates[:, block] * scale
        similar += units @ units.T
    np.fill_diagonal(similar, 0.0)
    return np.clip(similar, -1.0, 1.0)


def trust_scores(cosine: Array) -> Array:
    """TS_k = ReLU(cos(u_k, root)) (K,) (Cao et al. 2021)."""
    return np.where(cosine > _COSINE_TOLERANCE, cosine, 0.0)


def foolsgold_rates(similar: Array) -> Array:
    """FoolsGold's learning rates alpha (K,) in [0, 1] from cosines (K, K) (Fung et al. 2020, Algorithm 1).

    v_i = max_j cs_ij; pardoning, cs_ij * v_i / v_j where v_j > v_i, spares an honest site that resembles a sybil more
    than its own kind; alpha_i = 1 - max_j cs_ij is stretched to a largest value of 1 and through ln(a / (1 - a)) + 0.5
    (kappa = 1) to the ends of [0, 1]. As in the authors' code, a largest value of 1 becomes 0.99 and infinities become 0 or 1.
    If every alpha is 0, because all sites are copies, their code divides by zero; here no site is trusted. The paper's optional
    feature weights are left out, as in the authors' code for deep networks.
    """
    closest = similar.max(axis=1)
    mine, theirs = closest[:, None], closest[None, :]
    pardon = np.where(mine < theirs, mine / np.where(theirs > 0, theirs, 1.0), 1.0)
    alpha = np.clip(1 - (similar * pardon).max(axis=1), 0.0, 1.0)
    largest = float(alpha.max())
    if largest <= _COSINE_TOLERANCE:
        return np.zeros(len(alpha))
    stretched = np.clip(alpha / largest, _COSINE_TOLERANCE, _MAX_RATE)
    rates: Array = np.clip(np.log(stretched / (1 - stretched)) + 0.5, 0.0, 1.0)
    return rates


SMOOTHING = 1e-6
"""nu of the smoothed Weiszfeld algorithm, as a share of the sites' weighted median distance from the centre."""

MAX_STEPS = 10_000
TOLERANCE = 1e-10

_ROUNDING = 1e-13
_TIE = 1e-9
_TINY = 1e-150


def centred_gram(updates: Array) -> Array:
    """G_ij = <u_i - c, u_j - c> (K, K) in double precision, with c the coordinate-wise median of updates (K, P)."""
    gram = np.zeros((len(updates), len(updates)))
    for block in coordinate_blocks(updates.shape):
        values = updates[:, block].astype(float)
        values -= np.median(values, axis=0)
        gram += values @ values.T
    return gram


def squared_distances(gram: Array) -> Array:
    """||u_i - u_j||^2 (K, K) from a Gram matrix; values below rounding error are zero."""
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


def select_lowest(scores: Array, *, keep: int) -> Array:
    """Return the membership (K,) of each site in the `keep` lowest scores: 1 in, 0 out; ties at the edge share.

    The paper breaks ties by site number. Ties are common: with one neighbour, the two closest sites always tie. Sharing makes
    the result independent of the order of sites, and the mean of two candidates is no further out than the worse of them.
    """
    edge = np.sort(scores)[keep - 1]
    below = scores < edge * (1 - _TIE)
    level = ~below & (scores <= edge * (1 + _TIE))
    places: Array = below + level * ((keep - below.sum()) / level.sum())
    return places


def weiszfeld(gram: Array, weights: Array) -> tuple[Array, Array, bool]:
    """Return the geometric median argmin_z sum_k w_k ||z - u_k|| by the smoothed Weiszfeld algorithm of RFA.

    z = sum_k b_k u_k with b_k proportional to w_k / max(nu, ||z - u_k||), iterated until b converges.
    Returns b (K,), the distances ||z - u_k|| (K,) and whether it converged within `MAX_STEPS`. As z is always a mean of
    the updates, ||z - u_k||^2 = G_kk - 2 (G b)_k + b'G b and no step touches the (K, P) array.

    Departures from Pillutla et al. (2022): nu is relative to the size of the updates, so that the rule does not depend on their
    unit. We stop at a tolerance instead of after a few steps, because a step is cheap here. We start from w_k over site k's
    median distance to all, not from the mean, which one huge update can move.
    """
    nu = max(SMOOTHING * float(_weighted_median(np.sqrt(np.diagonal(gram))[None, :], weights)[0]), _TINY)
    share = normalise(weights / np.maximum(_weighted_median(np.sqrt(squared_distances(gram)), weights), nu))
    distance = _distances_to_mean(gram, share)
    for _ in range(MAX_STEPS):
        previous, share = share, normalise(weights / np.maximum(distance, nu))
        distance = _distances_to_mean(gram, share)
        if np.abs(share - previous).sum() <= TOLERANCE:
            return share, distance, True
    return share, distance, False


def _weighted_median(rows: Array, weights: Array) -> Array:
    """Return the weighted median of each row of (n, K); zero only if half of the weight is at zero."""
    order = np.argsort(rows, axis=1)
    reached = np.cumsum(weights[order], axis=1)
    crossing = np.argmax(reached >= (0.5 - _TIE) * reached[:, -1:], axis=1)
    picked: Array = np.take_along_axis(rows, np.take_along_axis(order, crossing[:, None], axis=1), axis=1)[:, 0]
    return picked


def _distances_to_mean(gram: Array, share: Array) -> Array:
    along = gram @ share
    squared: Array = np.diagonal(gram) - 2 * along + share @ along
    return np.sqrt(np.maximum(squared, 0.0))


def normalise(values: Array) -> Array:
    """Divide non-negative values (K,) by their sum; all zeros stay zeros."""
    total = float(values.sum())
    return values / total if total > 0 else np.zeros(len(values))


LAZY_SIZE = 1 << 23
"""Total size of all models above which their differences are not stored."""


def model_updates(models: Any, rows: Array, start: Array) -> Array:
    """Compute models[rows] - start, (m, P), with one `start` (P,) for all or one per row (m, P).

    For many large models it returns an array-like object that subtracts slices of coordinates `[:, a:b]` when the robust rules
    read them. The numbers are the same.
    """
    stacked = np.asarray(models)
    if stacked.size < LAZY_SIZE or stacked.ndim != 2:
        out: Array = stacked[rows] - start
        return out
    return cast("Array", _LazyUpdates(stacked, rows, start))


class _LazyUpdates:
    """The subset of the array interface that the robust rules need."""

    ndim = 2

    def __init__(self, models: Array, rows: Array, start: Array) -> None:
        self._models, self._rows, self._start = models, rows, start
        self._all = np.array_equal(rows, np.arange(len(models)))
        self.dtype = np.result_type(models, start)
        self.shape = (len(rows), models.shape[1])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            _, coordinates = index
            models = self._models[:, coordinates] if self._all else self._models[self._rows, coordinates]
            return models - self._start[..., coordinates]
        if isinstance(index, int):
            return self._models[self._rows[index]] - (self._start if self._start.ndim == 1 else self._start[index])
        start = self._start if self._start.ndim == 1 else self._start[index]
        return _LazyUpdates(self._models, self._rows[index], start)
