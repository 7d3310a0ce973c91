"""Compare new patients with reference patients from counts and sums: at one site, and over all sites.

Every comparison is three numbers: the `observed` sum over new patients, the sum `expected` if they were like the site's own
reference patients, and the `variance` of the difference. The three add over sites, so that the sum over sites compares every
site with its own reference patients: a consortium in which one site sends more patients than before does not look shifted.

Differential privacy adds noise to the counts before anything is computed from them. Its variance is part of `variance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

FEWEST = 10
"""Fewest new and reference patients for the comparison of means."""


@dataclass(frozen=True)
class Comparison:
    """Observed and expected sums with the variance of their difference, (b,) each."""

    observed: Array
    expected: Array
    variance: Array

    def pack(self) -> Array:
        """Return the three as one vector."""
        return np.concatenate([self.observed, self.expected, self.variance])

    @classmethod
    def unpack(cls, vector: Array) -> Comparison:
        """Read what `pack` wrote, or a sum of it."""
        return cls(*np.asarray(vector, float).reshape(3, -1))

    def hide(self, hidden: Array) -> Comparison:
        """Return the comparison without these bins."""
        return Comparison(*(np.where(hidden, 0.0, a) for a in (self.observed, self.expected, self.variance)))

    def add_bins(self) -> Comparison:
        """Return the comparison of the total over bins."""
        return Comparison(*(np.array([a.sum()]) for a in (self.observed, self.expected, self.variance)))

    def bin_p(self, *, counts: bool) -> Array:
        """Compute the two-sided p-value of each bin from the normal distribution; `counts`: with a continuity correction."""
        away = np.abs(self.observed - self.expected)
        if counts:
            away = np.maximum(away - 0.5, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(self.variance > 0, away / np.sqrt(self.variance), 0.0)
        return two_sided(z)

    def p(self, *, counts: bool = True) -> float:
        """Compute the p-value of the hypothesis that no bin differs: Bonferroni over bins."""
        used = int((self.variance > 0).sum())
        return min(1.0, used * float(self.bin_p(counts=counts).min(initial=1.0))) if used else 1.0


def two_sided(z: Array) -> Array:
    """Return two-sided p-values of the normal distribution."""
    return np.array([math.erfc(abs(float(v)) / math.sqrt(2)) for v in np.ravel(z)]).reshape(np.shape(z))


def compare_counts(new: Array, reference: Array, *, noise: float = 0.0, n: float = 0.0, n_reference: float = 0.0) -> Comparison:
    """Compare counts of new patients with those of reference patients.

    Args:
        new: (b,) new patients by bin.
        reference: (b,) reference patients by bin.
        noise: Standard deviation of the noise in every count.
        n: New patients, where counts are noised; 0: the sum of the counts.
        n_reference: Reference patients, the same.
    """
    new, reference = np.asarray(new, float), np.asarray(reference, float)
    n, m = max(n or new.sum(), 1.0), max(n_reference or reference.sum(), 1.0)
    ratio = n / m
    common = np.clip((new + reference) / (n + m), 1 / (n + m), 1.0)
    spread = n * common * (1 - common) * (1 + ratio) + noise**2 * (1 + ratio**2)
    used = np.ones(len(new), bool) if noise else (new + reference) > 0
    return Comparison(new, reference * ratio, np.where(used, np.maximum(spread, 1e-9), 0.0))


def compare_means(new: Array, reference: Array) -> Comparison:
    """Compare sums of values of new patients (n, k) with those of reference patients (m, k)."""
    n, m = len(new), len(reference)
    if n < 2 or m < 2:
        none = np.zeros(new.shape[1])
        return Comparison(none, none, none)
    spread = n * new.var(axis=0, ddof=1) + n**2 / m * reference.var(axis=0, ddof=1)
    return Comparison(new.sum(axis=0), n * reference.mean(axis=0), spread)


def compare_shares(new: Array, reference: Array, *, noise: float, n: float, n_reference: float) -> Comparison:
    """Compare noised sums of shares, which are between 0 and 1, so that their variance is at most m (1 - m) for a mean m."""
    ratio = n / n_reference
    mean = np.clip((new + reference) / (n + n_reference), 0.0, 1.0)
    spread = n * mean * (1 - mean) * (1 + ratio) + noise**2 * (1 + ratio**2)
    return Comparison(np.asarray(new, float), reference * ratio, spread)


def fisher_p(new: Array, reference: Array) -> Array:
    """Compute Fisher's exact test of each bin against all others: tables that are at most as likely as the one seen.

    Args:
        new: (b,) new patients by bin.
        reference: (b,) reference patients by bin.

    Returns:
        Two-sided p-values (b,).
    """
    new, reference = np.asarray(new, np.int64), np.asarray(reference, np.int64)
    n, m = int(new.sum()), int(reference.sum())
    log = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + m + 1)))])
    out = np.ones(len(new))
    for b, (a, r) in enumerate(zip(new.tolist(), reference.tolist(), strict=True)):
        inside = a + r
        k = np.arange(max(0, inside - m), min(inside, n) + 1)
        chance = -(log[k] + log[n - k] + log[inside - k] + log[m - inside + k])
        chance = np.exp(chance - chance.max())
        seen = chance[a - int(k[0])]
        out[b] = min(1.0, float(chance[chance <= seen * (1 + 1e-7)].sum() / chance.sum()))
    return out


def trend_p(
    new: Array, reference: Array, *, noise: float = 0.0, n: float = 0.0, n_reference: float = 0.0
) -> float:
    """Test that ordered bins are not higher or lower: the rank-sum test of binned values, or with noise one of fixed scores.

    Without noise bins have the mean rank of their patients (Wilcoxon's test with ties, normal distribution). With noise ranks
    would follow from noisy counts, so bins have the scores 0 to 1 in equal steps, and the noise is part of the variance.

    Args:
        new: (b,) new patients by bin, in order.
        reference: (b,) reference patients by bin.
        noise: Standard deviation of the noise in every count.
        n: New patients, where counts are noised.
        n_reference: Reference patients, the same.

    Returns:
        Two-sided p-value; 1 where there are too few patients.
    """
    new, reference = np.asarray(new, float), np.asarray(reference, float)
    n, m = (n, n_reference) if noise else (new.sum(), reference.sum())
    if min(n, m) < FEWEST or len(new) < 2:
        return 1.0
    both = new + reference
    score = np.arange(len(new)) / (len(new) - 1) if noise else (np.cumsum(both) - both / 2) / max(both.sum(), 1.0)
    share = np.clip(both / (n + m), 0.0, 1.0)
    centre = float((share * score).sum() / max(share.sum(), 1e-12))
    spread = float((share * (score - centre) ** 2).sum())
    variance = spread * (1 / n + 1 / m) + noise**2 * float(((score - centre) ** 2).sum()) * (1 / n**2 + 1 / m**2)
    if not variance:
        return 1.0
    change = float(((score - centre) * (new / n - reference / m)).sum())
    return float(two_sided(np.array([change / math.sqrt(variance)]))[0])


def join_p(bins: float, trend: float) -> float:
    """Join the p-values of single bins and of the trend over bins (Bonferroni)."""
    return min(1.0, 2 * bins, 2 * trend)


def student_p(comparison: Comparison, *, fewest: int) -> Array:
    """Compute two-sided p-values of means by Student's t with `fewest` - 1 degrees of freedom (Wallace's approximation)."""
    degrees = max(1, fewest - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t2 = (comparison.observed - comparison.expected) ** 2 / comparison.variance
    z = (8 * degrees + 1) / (8 * degrees + 3) * np.sqrt(degrees * np.log1p(np.nan_to_num(t2, nan=0.0, posinf=0.0) / degrees))
    return two_sided(z)


def holm(p: Sequence[float], level: float) -> Array:
    """Return the hypotheses that Holm's procedure rejects, (k,) of bool: the chance of any false rejection is at most `level`."""
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    passed = values[order] <= level / np.arange(len(values), 0, -1)
    count = int(np.argmin(passed)) if not passed.all() else len(values)
    out = np.zeros(len(values), bool)
    out[order[:count]] = True
    return out


def stability_index(comparison: Comparison) -> float:
    """Compute the population stability index between the observed and the expected distribution.

    Half a patient is added to each bin, so that an empty one does not make it infinite. Above 0.1 a shift is called moderate,
    above 0.25 large.
    """
    used = (comparison.observed > 0) | (comparison.expected > 0)
    o, e = (np.maximum(a[used], 0.0) + 0.5 for a in (comparison.observed, comparison.expected))
    if not len(o):
        return 0.0
    o, e = o / o.sum(), e / e.sum()
    return float(((o - e) * np.log(o / e)).sum())
