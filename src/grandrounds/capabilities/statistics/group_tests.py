"""Tests for differences between groups, from summaries that add: counts, means, variances and histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array


@dataclass(frozen=True)
class GroupTest:
    """One test.

    Attributes:
        name: "Welch's t", "ANOVA", "chi-squared", "Fisher's exact" or "Kruskal-Wallis"; "binned" is added where values were
            put into bins before.
        statistic: t, F, chi-squared, the odds ratio (Fisher) or H.
        p: Two-sided p-value.
        degrees: Degrees of freedom: one or two numbers; none for Fisher's test.
    """

    name: str
    statistic: float
    p: float
    degrees: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the test as JSON values; a statistic that is not finite is None."""
        statistic = self.statistic if np.isfinite(self.statistic) else None
        return {"name": self.name, "statistic": statistic, "p": self.p, "degrees": list(self.degrees)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GroupTest:
        """Read what `to_dict` wrote."""
        statistic = np.inf if values["statistic"] is None else float(values["statistic"])
        return cls(str(values["name"]), statistic, float(values["p"]), tuple(values["degrees"]))


def compare_means(n: Array, mean: Array, variance: Array) -> GroupTest | None:
    """Test that groups have one mean: Welch's t for two groups, one-way analysis of variance for more.

    Args:
        n: (g,) rows of each group.
        mean: (g,) means.
        variance: (g,) variances with n - 1.

    Returns:
        The test; None where a group has fewer than two rows or no group varies.
    """
    from scipy import special

    n, mean, variance = (np.asarray(a, float) for a in (n, mean, variance))
    if len(n) < 2 or (n < 2).any() or not (variance > 0).any():
        return None
    if len(n) == 2:
        parts = variance / n
        error = parts.sum()
        t = float((mean[0] - mean[1]) / np.sqrt(error))
        degrees = float(error**2 / (parts**2 / (n - 1)).sum())
        return GroupTest("Welch's t", t, float(2 * special.stdtr(degrees, -abs(t))), (degrees,))
    grand = (n * mean).sum() / n.sum()
    between, within = len(n) - 1.0, float(n.sum() - len(n))
    f = float((n * (mean - grand) ** 2).sum() / between / (((n - 1) * variance).sum() / within))
    return GroupTest("ANOVA", f, float(special.fdtrc(between, within, f)), (between, within))


def compare_counts(counts: Array) -> GroupTest | None:
    """Test that levels are as frequent in every group: Fisher's exact test for small 2 x 2 tables, else chi-squared.

    Levels and groups without rows are left out. A 2 x 2 table with an expected count below 5 has Fisher's test. Chi-squared of
    a 2 x 2 table has Yates's correction, as in R and SciPy.

    Args:
        counts: (levels, groups).

    Returns:
        The test; None where fewer than two levels or groups have rows.
    """
    from scipy import special

    counts = np.asarray(counts, float)
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    if min(counts.shape) < 2:
        return None
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    if counts.shape == (2, 2) and (expected < 5).any():
        return fisher_exact(counts)
    difference = np.abs(counts - expected)
    degrees = float((counts.shape[0] - 1) * (counts.shape[1] - 1))
    if degrees == 1:
        difference = difference - np.minimum(0.5, difference)
    statistic = float((difference**2 / expected).sum())
    return GroupTest("chi-squared", statistic, float(special.chdtrc(degrees, statistic)), (degrees,))


def fisher_exact(counts: Array) -> GroupTest:
    """Compute Fisher's exact test of a 2 x 2 table, two-sided: tables that are at most as likely as this one.

    Args:
        counts: (2, 2).

    Returns:
        The test; its statistic is the sample odds ratio.
    """
    from scipy import special

    (a, b), (c, d) = np.asarray(counts, float)
    row, column, n = a + b, a + c, a + b + c + d
    inside = np.arange(max(0.0, row + column - n), min(row, column) + 1)
    log = -(
        special.gammaln(inside + 1)
        + special.gammaln(row - inside + 1)
        + special.gammaln(column - inside + 1)
        + special.gammaln(n - row - column + inside + 1)
    )
    chance = np.exp(log - log.max())
    seen = chance[int(a - inside[0])]
    p = float(chance[chance <= seen * (1 + 1e-7)].sum() / chance.sum())
    ratio = float(a * d / (b * c)) if b * c > 0 else (float("inf") if a * d > 0 else float("nan"))
    return GroupTest("Fisher's exact", ratio, min(p, 1.0))


def compare_ranks(histogram: Array, *, binned: bool = False) -> GroupTest | None:
    """Compute the Kruskal-Wallis test from a histogram; rows of one cell are ties.

    Args:
        histogram: (values, groups) rows of each group with each value, in the order of the values.
        binned: The cells are bins of several values: the test is named so.

    Returns:
        The test; None where a group is empty or all rows are in one cell.
    """
    from scipy import special

    histogram = np.asarray(histogram, float)
    n, ties = histogram.sum(0), histogram.sum(1)
    total = float(n.sum())
    if len(n) < 2 or (n == 0).any() or (ties > 0).sum() < 2:
        return None
    rank = np.cumsum(ties) - (ties - 1) / 2  # the middle rank of each cell
    # about the mean rank, so that large numbers do not cancel
    spread = float((((histogram * (rank - (total + 1) / 2)[:, None]).sum(0)) ** 2 / n).sum())
    correction = 1 - float((ties**3 - ties).sum()) / (total**3 - total)
    h = 12 / (total * (total + 1)) * spread / correction
    degrees = float(len(n) - 1)
    return GroupTest(f"Kruskal-Wallis{' (binned)' if binned else ''}", h, float(special.chdtrc(degrees, h)), (degrees,))


def difference_of_means(mean: Array, variance: Array) -> float | None:
    """Compute the absolute standardised mean difference of two groups.

    Args:
        mean: (2,) means.
        variance: (2,) variances with n - 1.

    Returns:
        |m1 - m2| / sqrt((v1 + v2) / 2); None where neither group varies but the means differ.
    """
    gap, pooled = abs(float(mean[0] - mean[1])), float(np.sum(variance)) / 2
    if pooled <= 0 or not np.isfinite(pooled):
        return 0.0 if gap == 0 and pooled == 0 else None
    return gap / float(np.sqrt(pooled))


def difference_of_shares(counts: Array) -> float | None:
    """Compute the standardised difference of a categorical column in two groups (Yang and Dalton 2012).

    Args:
        counts: (levels, 2).

    Returns:
        sqrt(d' S^-1 d) over all levels but the first that has rows; None where a group is empty or S is singular.
    """
    counts = np.asarray(counts, float)
    counts = counts[counts.sum(1) > 0]
    n = counts.sum(0)
    if (n == 0).any():
        return None
    if len(counts) < 2:
        return 0.0
    first, second = (counts / n)[1:].T
    gap = first - second
    if not gap.any():
        return 0.0
    spread = -(np.outer(first, first) + np.outer(second, second)) / 2
    spread[np.diag_indices_from(spread)] = (first * (1 - first) + second * (1 - second)) / 2
    if np.linalg.cond(spread) > 1e12:
        return None
    return float(np.sqrt(gap @ np.linalg.solve(spread, gap)))
