"""Stability of explanations across sites: drift, top-k overlap, rank correlation, divergence from the consensus.

All take sketches (K, F), one row a site. A mean over pairs is exact and never holds K^2 F numbers: L1 distance and rank
correlation need no pairs, the others are computed in blocks. Fewer than two sites have drift 0, overlap and correlation 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.sketch import Sketches, largest
from grandrounds.explain.trust import distribution, divergence

MOST_PAIRS = 64
"""Number of sites up to which a measurement stores every pair."""

_SAMPLED = 512
"""Number of sites up to which pairs are computed one by one."""

_NUMBERS = 2**17
"""Numbers held at once when pairs are computed: they stay in cache."""


def pairwise_drift(sketches: Array) -> Array:
    """L1 distance of every two sketches, (K, K): symmetric, zero on the diagonal."""
    rows = _check_stack(sketches)
    out = np.empty((len(rows), len(rows)))
    for cut in _blocks(len(rows), rows.size):
        out[cut] = np.abs(rows[cut, None] - rows).sum(axis=-1)
    return out


def cross_site_drift(sketches: Array) -> float:
    """Mean L1 distance over pairs of sites, between 0 and 2 (SSE-AGG eq. 13).

    In sorted order the gap between the i-th and the next value of a feature lies within i (K - i) pairs, so no pair
    need be looked at.
    """
    rows = _check_stack(sketches)
    count = len(rows)
    if count < 2:
        return 0.0
    below = np.arange(1, count)
    gaps = np.diff(np.sort(rows, axis=0), axis=0)
    return float((below * (count - below)) @ gaps.sum(axis=1) / (count * (count - 1) / 2))


def to_consensus(sketches: Array, consensus: Array) -> Array:
    """L1 distance of each sketch from the consensus (F,): (K,) (SSE-AGG eq. 5 and 20)."""
    rows = _check_stack(sketches)
    out: Array = np.abs(rows - _check_consensus(consensus, rows)).sum(axis=-1)
    return out


def consensus_drift(now: Array, before: Array) -> float:
    """L1 distance of this round's consensus (F,) from the last one's (SSE-AGG eq. 14)."""
    return float(to_consensus(np.asarray(now)[None], before)[0])


def pairwise_jaccard(sketches: Array, k: int) -> Array:
    """Overlap of the k most important features of every two sites, intersection over union, (K, K) (SSE-AGG eq. 15)."""
    member = _members(sketches, k)
    shared, union = _overlap(member, member)
    return shared / union


def jaccard_at_k(sketches: Array, k: int) -> float:
    """Mean overlap of the k most important features over pairs of sites, between 0 and 1 (SSE-AGG eq. 15, 24).

    A feature that does not count at all (share 0) is among nobody's most important; of equal shares the first features
    are taken. k is at most F. Pairs are counted by what they share, so the order of sites changes no bit.
    """
    member = _members(sketches, k)
    count, most = len(member), min(k, member.shape[1])
    if count < 2:
        return 1.0
    width = 2 * most + 1
    pairs = np.zeros((most + 1) * width, np.int64)  # both ways and with itself, by features shared and in the union
    for cut in _blocks(count, count):
        shared, union = _overlap(member[cut], member)
        pairs += np.bincount((shared * width + union).ravel(), minlength=len(pairs))
    ratio = np.arange(most + 1)[:, None] / np.maximum(np.arange(width), 1)
    return float((pairs @ ratio.ravel() - count) / (count * (count - 1)))


def rank_correlation(a: Array, b: Array) -> Array:
    """Spearman's correlation along the last axis, (..., F) with (..., F) to (...); equal values share their mean rank.

    It is 0 if either side is constant.
    """
    one, other = _ranks(_check_finite(a)), _ranks(_check_finite(b))
    _check_same_features(one, other)
    spread = np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))
    return _divide((one * other).sum(axis=-1), spread)


def pairwise_rank_correlation(sketches: Array) -> Array:
    """Spearman's correlation of every two sketches, (K, K); a constant one has 0 with all, itself included."""
    ranks = _ranks(_check_stack(sketches))
    squares = (ranks**2).sum(axis=-1)
    return _divide(ranks @ ranks.T, np.sqrt(squares[:, None] * squares))


def mean_rank_correlation(sketches: Array) -> float:
    """Mean of Spearman's correlation over pairs of sites: of unit vectors, (|sum u|^2 - sum |u|^2) / 2 is the sum."""
    ranks = _ranks(_check_stack(sketches))
    count = len(ranks)
    if count < 2:
        return 1.0
    squares = (ranks**2).sum(axis=-1, keepdims=True)
    units = _divide(ranks, np.sqrt(squares))
    total = (units.sum(axis=0) ** 2).sum() - np.count_nonzero(squares)
    return float(total / (count * (count - 1)))


def nsds(local: Array, consensus: Array) -> Array:
    """Compute KL(local || consensus) of raw attributions (F,) or (K, F), in nats: () or (K,) (FedXChain eq. 4, Algorithm 1).

    Absolute values, smoothed and normalised once: eq. 5 smooths again. The worked example prints 0.427; its inputs
    give 0.3340.
    """
    rows = _check_finite(local)
    return divergence(distribution(rows), distribution(_check_consensus(consensus, rows)))


def fidelity(importances: Array, reference: Array) -> Array:
    """Rank-correlate importances (..., F) with a reference of the model itself: (...). FedXChain's XAI fidelity. `reference`
    (..., F) is a linear model's coefficients on standardised inputs, or permutation
    importances with those below zero, which are noise, set to zero. Sizes are compared: the sign of a coefficient is a
    direction, not a weight.
    """
    return rank_correlation(np.abs(_check_finite(importances)), np.abs(_check_finite(reference)))


def sampling_drift(blur: Array) -> float:
    """Estimate the drift that sampling alone would give sites of equal attributions, from each site's sampling error (K,).

    Two independent errors add in squares; the mean is over pairs, of which none can pass 2. A drift not well above this is not
    significant. Of more than 512 sites, 512 evenly spaced ones are used.
    """
    sites = np.asarray(blur, float)
    if len(sites) < 2:
        return 0.0
    squares = sites[np.linspace(0, len(sites) - 1, min(len(sites), _SAMPLED)).astype(int)] ** 2
    apart = np.sqrt(squares[:, None] + squares)[np.triu_indices(len(squares), 1)]
    return float(np.minimum(apart, 2).mean())


@dataclass(frozen=True, eq=False)
class Stability:
    """All numbers of one measurement over sites. A flat site counts with its uniform sketch, and is named."""

    sketches: Sketches
    drift: float
    pairs: Array | None  # (K, K) distances; none of many sites
    to_consensus: Array
    consensus: Array
    consensus_drift: float | None
    jaccard: float
    k: int
    rank_correlation: float
    nsds: Array
    sampling: float | None  # the drift that sampling alone would give; none where sites share their rows

    @property
    def sites(self) -> tuple[str, ...]:
        return self.sketches.sites

    @property
    def flat(self) -> tuple[str, ...]:
        """Sites whose models use no feature."""
        return tuple(site for site, flat in zip(self.sites, self.sketches.flat, strict=True) if flat)

    def to_dict(self) -> dict[str, object]:
        """Convert to plain JSON; sketches, errors and pairs to six digits, which is more than they are known to."""
        pairs = None
        if self.pairs is not None:
            overlap = pairwise_jaccard(self.sketches.values, self.k)
            pairs = {"sites": list(self.sites), "drift": _round_digits(self.pairs), "jaccard": _round_digits(overlap)}
        return {
            "sketches": dict(zip(self.sites, _round_digits(self.sketches.values), strict=True)),
            "error": dict(zip(self.sites, _round_digits(self.sketches.error), strict=True)),
            "flat": list(self.flat),
            "consensus": self.consensus.tolist(),
            "drift": self.drift,
            "pairs": pairs,
            "to_consensus": dict(zip(self.sites, self.to_consensus.tolist(), strict=True)),
            "consensus_drift": self.consensus_drift,
            "jaccard": self.jaccard,
            "k": self.k,
            "density": self.sketches.density,
            "rank_correlation": self.rank_correlation,
            "nsds": dict(zip(self.sites, self.nsds.tolist(), strict=True)),
            "sampling": self.sampling,
            "blur": None
            if self.sketches.blur is None
            else dict(zip(self.sites, self.sketches.blur.tolist(), strict=True)),
        }


def stability(sketches: Sketches, *, k: int, before: Array | None = None) -> Stability:
    """Compute every number about these sketches; `before` is the consensus (F,) of the last measurement, if any."""
    values, consensus = sketches.values, sketches.consensus
    return Stability(
        sketches=sketches,
        drift=cross_site_drift(values),
        pairs=pairwise_drift(values) if len(values) <= MOST_PAIRS else None,
        to_consensus=to_consensus(values, consensus),
        consensus=consensus,
        consensus_drift=None if before is None else consensus_drift(consensus, before),
        jaccard=jaccard_at_k(values, k),
        k=min(k, values.shape[1]),
        rank_correlation=mean_rank_correlation(values),
        nsds=nsds(values, consensus),
        sampling=None if sketches.blur is None else sampling_drift(sketches.blur),
    )


def _check_stack(sketches: Array) -> Array:
    rows = _check_finite(sketches)
    if rows.ndim != 2:
        raise BadInput(
            f"sketches have shape {rows.shape}, but one row for each site is needed: (sites, features)",
            code="bad-sketch-shape",
        )
    return rows


def _check_finite(values: Array) -> Array:
    array = np.ascontiguousarray(values, float)
    if array.shape[-1] == 0:
        raise BadInput(f"sketches of shape {array.shape} have no features to compare", code="no-features")
    if not np.isfinite(array).all():
        raise BadInput(
            "sketches have values that are not finite: normalise importances first (simplex)",
            code="not-finite",
        )
    return array


def _check_consensus(consensus: Array, rows: Array) -> Array:
    agreed = _check_finite(consensus)
    if agreed.ndim != 1:
        raise BadInput(
            f"a consensus has shape {agreed.shape}, but one value for each feature is needed", code="bad-sketch-shape"
        )
    _check_same_features(rows, agreed)
    return agreed


def _check_same_features(a: Array, b: Array) -> None:
    if a.shape[-1] != b.shape[-1]:
        raise BadInput(
            f"explanations of {a.shape[-1]} and of {b.shape[-1]} features cannot be compared", code="mismatched-shapes"
        )


def _blocks(count: int, numbers: int) -> Iterator[slice]:
    """Cuts of `count` rows, each of which is worth `numbers` numbers."""
    size = max(1, _NUMBERS // max(1, numbers))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _members(sketches: Array, k: int) -> Array:
    """1 where a feature counts and is among a site's k largest, (K, F), as numbers small enough to be exact."""
    rows = _check_stack(sketches)
    if k < 1:
        raise BadInput(
            f"the overlap of the {k} most important features is asked for, but k is 1 or more", code="bad-top-count"
        )
    return (largest(rows, k) & (rows > 0)).astype(np.float32)


def _overlap(some: Array, rows: Array) -> tuple[Array, Array]:
    """|A & B| and |A | B| of each of some sets (a, F) with each of others (b, F): (a, b). A sketch's set is never empty."""
    shared = (some @ rows.T).astype(np.int64)
    sizes = (member.sum(axis=1).astype(np.int64) for member in (some, rows))
    mine, theirs = sizes
    return shared, mine[:, None] + theirs - shared


def _ranks(values: Array) -> Array:
    """Ranks less their mean along the last axis: multiples of 1/2, so sums of their products are exact."""
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    count = values.shape[-1]
    place = np.broadcast_to(np.arange(count), values.shape)
    new = np.ones(values.shape, bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = np.ones(values.shape, bool)
    ends[..., :-1] = new[..., 1:]
    first = np.maximum.accumulate(np.where(new, place, 0), axis=-1)
    last = np.minimum.accumulate(np.where(ends, place, count)[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last - (count - 1)) / 2, axis=-1)
    return ranks


def _divide(part: Array, total: Array) -> Array:
    """part / whole, 0 where the whole is 0."""
    return np.divide(part, total, out=np.zeros(np.broadcast_shapes(part.shape, total.shape)), where=total != 0)


def _round_digits(values: Array) -> list[list[float]]:
    return [[float(f"{value:.6g}") for value in row] for row in values.tolist()]
