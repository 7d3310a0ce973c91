"""Compare the counts of one site with those of the others, block by block.

The effect is the total variation distance of two distributions: the share of rows that would have to be in other bins for the two
to be equal, less the distance that sampling and noise alone would give. A site is named if its effect against the pooled others
and against at least half of the other sites reaches a threshold, is several times the usual effect between the other sites, and
does not follow from chance after Holm's correction over all tests. Hospitals differ; so tests alone would name most of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.bins import ROWS, AgreedBins, ColumnBins
from grandrounds.data.agreement.units import Conversion, conversions

USUAL = 2.0
"""A named effect is at least this many times the usual effect between the other sites."""

FEWEST = 20
"""Fewest rows with a value of a comparison."""

_MOST_SITES = 200  # other sites that each is compared with, one by one
_FITS = 0.5  # share of the distance that may remain after a conversion of units


@dataclass(frozen=True)
class Rules:
    """Rules of a comparison.

    Attributes:
        level: Chance that equal sites are named as different.
        effect: Smallest effect that is named.
        least: Fewest patients of a count that is shown.
        noise: Standard deviation of the noise in every count of a site; 0: none.
    """

    level: float = 0.01
    effect: float = 0.25
    least: int = 5
    noise: float = 0.0


@dataclass(frozen=True)
class Effect:
    """Difference of a site from the others in one block: effect against all, against half of them, the usual one, p-value."""

    pooled: float
    typical: float
    usual: float
    p: float

    def is_large(self, least: float) -> bool:
        """Tell whether the effect is large for this block."""
        return min(self.pooled, self.typical) >= least and self.typical >= USUAL * self.usual


NO_EFFECT = Effect(0.0, 0.0, 0.0, 1.0)


def fill_hidden(bins: AgreedBins, sites: Mapping[str, Array], *, noise: float = 0.0) -> dict[str, dict[str, Array]]:
    """Divide the answers of sites into blocks, with hidden counts estimated.

    The rows of a site that are in no shown bin of a block are divided among its hidden bins in proportion to the shown counts of
    all sites. So a hidden count never makes a site differ from the others.

    Args:
        bins: The agreed bins.
        sites: The answer of each site; hidden counts are negative.
        noise: Standard deviation of the noise; with noise no count is hidden, and negative ones are set to 0.

    Returns:
        Counts by site and block; all 0 for a site with few rows.
    """
    blocks = {site: bins.split(vector) for site, vector in sites.items()}
    shown = {name: np.sum([np.maximum(b[name], 0.0) for b in blocks.values()], axis=0) for name in bins.blocks}
    if noise:
        return {site: {name: np.maximum(c, 0.0) for name, c in own.items()} for site, own in blocks.items()}
    return {
        site: {name: fill_block(counts, own[ROWS][0], shown[name]) for name, counts in own.items()}
        for site, own in blocks.items()
    }


def fill_block(counts: Array, rows: float, like: Array) -> Array:
    """Estimate hidden counts of one block.

    Args:
        counts: (b,) counts; hidden ones are negative.
        rows: All rows of the block.
        like: (b,) counts in whose proportion the hidden rows are divided.
    """
    hidden = counts < 0
    weights = np.where(hidden, np.maximum(like, 0.0) + 0.5, 0.0)
    rest = max(0.0, float(rows) - float(counts[~hidden].sum()))
    return np.where(hidden, rest * weights / max(float(weights.sum()), 1e-9), counts)


def compare_block(counts: Array, *, noise: float = 0.0) -> list[Effect]:
    """Compare each site with the others in one block.

    Args:
        counts: (K, b) counts of K sites.
        noise: Standard deviation of the noise in every count.

    Returns:
        The effect of each site; none for sites with few rows.
    """
    n = counts.sum(axis=1)
    used = np.flatnonzero(n >= FEWEST)
    out = [NO_EFFECT] * len(counts)
    if len(used) < 2:
        return out
    usable = counts[used]
    total = usable.sum(axis=0)
    pairs = _pair_effects(usable, noise)
    for i, k in enumerate(used.tolist()):
        rest = total - usable[i]
        pooled, p = measure_effect(usable[i], rest, noise=noise, sites=len(used) - 1)
        away = np.sort(np.delete(pairs[i], i)[~np.isnan(np.delete(pairs[i], i))])
        others = np.delete(np.delete(pairs, i, axis=0), i, axis=1)
        among = others[np.triu_indices(len(others), 1)]
        among = among[~np.isnan(among)]
        typical = float(away[(len(away) - 1) // 2]) if len(away) else pooled
        out[k] = Effect(pooled, typical, float(np.median(among)) if len(among) else 0.0, p)
    return out


def measure_effect(own: Array, others: Array, *, noise: float = 0.0, sites: int = 1) -> tuple[float, float]:
    """Measure how far a site's distribution is from that of the others.

    Args:
        own: (b,) counts of the site.
        others: (b,) counts of the other sites.
        noise: Standard deviation of the noise in a count of one site.
        sites: Number of the other sites.

    Returns:
        Effect, from 0 to 1, and the p-value of equal distributions (Bonferroni over bins).
    """
    own, others = np.maximum(own, 0.0), np.maximum(others, 0.0)
    n, m = float(own.sum()), float(others.sum())
    if min(n, m) < FEWEST:
        return 0.0, 1.0
    both = np.clip((own + others) / (n + m), 0.0, 1.0)
    variance = both * (1 - both) * (1 / n + 1 / m) + noise**2 * (1 / n**2 + sites / m**2)
    away = np.abs(own / n - others / m)
    distance, chance = 0.5 * float(away.sum()), 0.5 * float(np.sqrt(2 / np.pi * variance).sum())
    corrected = np.maximum(away - 0.5 / n, 0.0)
    tested = variance > 0
    z = corrected[tested] / np.sqrt(variance[tested])
    p = math.erfc(float(z.max(initial=0.0)) / math.sqrt(2)) * max(1, int(tested.sum()))
    return max(0.0, distance - chance), min(1.0, p)


def _pair_effects(counts: Array, noise: float) -> Array:
    """Return the effect between each two sites, (K, K); NaN beyond the first sites of many."""
    positive = np.maximum(counts, 0.0)
    n = np.maximum(positive.sum(axis=1), 1.0)
    shares = positive / n[:, None]
    out = np.full((len(counts), len(counts)), np.nan)
    for i in range(len(counts)):
        j = np.arange(min(len(counts), _MOST_SITES))
        both = (positive[i] + positive[j]) / (n[i] + n[j])[:, None]
        variance = both * (1 - both) * (1 / n[i] + 1 / n[j])[:, None] + noise**2 * (1 / n[i] ** 2 + 1 / n[j] ** 2)[:, None]
        distance = 0.5 * np.abs(shares[i] - shares[j]).sum(axis=1) - 0.5 * np.sqrt(2 / np.pi * variance).sum(axis=1)
        out[i, j] = np.maximum(distance, 0.0)
    return out


def guess_unit(column: ColumnBins, own: Array, others: Array) -> Conversion | None:
    """Guess the unit of a site's numbers from counts: a conversion after which its distribution is that of the others.

    Args:
        column: The bins of the column.
        own: (b,) counts of the site, that of missing values first.
        others: (b,) counts of the other sites.

    Returns:
        The conversion from the site's unit to the agreed one; None where none fits.
    """
    if len(column.edges) < 2 or own[1:].sum() < FEWEST or others[1:].sum() < FEWEST:
        return None
    here, there = (np.maximum(c[1:], 0.0) / np.maximum(c[1:], 0.0).sum() for c in (own, others))
    edges = np.array(column.edges)
    reached = np.cumsum(there)[:-1]
    before = 0.5 * float(np.abs(here - there).sum())
    best: tuple[float, Conversion | None] = (_FITS * before, None)
    for c in conversions(column.name, unit=column.unit, median=_median(edges, there)):
        expected = np.diff([0.0, *_share_below(edges, reached, c.factor * edges + c.offset), 1.0])
        after = 0.5 * float(np.abs(here - expected).sum())
        if after < best[0]:
            best = (after, c)
    return best[1]


def _share_below(edges: Array, reached: Array, values: Array) -> Array:
    """Interpolate the share of rows below each value; beyond the outer edges values spread as far as half of the range."""
    reach = (edges[-1] - edges[0]) / 2
    points = np.array([edges[0] - reach, *edges, edges[-1] + reach])
    return np.asarray(np.interp(values, points, [0.0, *reached, 1.0]))


def _median(edges: Array, shares: Array) -> float:
    """Estimate the median from counts in bins."""
    reached = np.cumsum(shares)[:-1]
    return float(np.interp(0.5, reached, edges)) if len(edges) > 1 else float(edges[0])


def stack_block(sites: Mapping[str, Mapping[str, Array]], block: str) -> Array:
    """Return one block of all sites, (K, b)."""
    return np.array([counts[block] for counts in sites.values()], float)
