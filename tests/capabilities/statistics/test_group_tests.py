"""Tests between groups from summaries: equal to SciPy on the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from grandrounds.capabilities.statistics.group_tests import (
    GroupTest,
    compare_counts,
    compare_means,
    compare_ranks,
    difference_of_means,
    difference_of_shares,
    fisher_exact,
)

GROUPS = [np.random.default_rng(k).normal(50 + k, 5 + 3 * k, 20 + 11 * k).round(1) for k in range(4)]


def summaries(groups):
    return [np.array([f(g) for g in groups]) for f in (len, np.mean, lambda g: g.var(ddof=1))]


def test_two_groups_have_welchs_t():
    expected = stats.ttest_ind(GROUPS[0], GROUPS[3], equal_var=False)
    test = compare_means(*summaries([GROUPS[0], GROUPS[3]]))
    assert test.name == "Welch's t"
    assert (test.statistic, test.p, test.degrees[0]) == pytest.approx(
        (expected.statistic, expected.pvalue, expected.df), rel=1e-10
    )


def test_more_groups_have_an_analysis_of_variance():
    expected = stats.f_oneway(*GROUPS)
    test = compare_means(*summaries(GROUPS))
    assert test.name == "ANOVA" and test.degrees == (3, sum(map(len, GROUPS)) - 4)
    assert (test.statistic, test.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-10)


def test_means_that_cannot_be_tested():
    assert compare_means(np.array([1, 9]), np.array([1.0, 2]), np.array([np.nan, 1])) is None
    assert compare_means(np.array([9, 9]), np.array([1.0, 2]), np.zeros(2)) is None


@pytest.mark.parametrize(
    "counts", [[[30, 20], [25, 60]], [[12, 5, 9], [20, 30, 8], [7, 7, 41]], [[30, 20], [0, 0], [25, 60]]]
)
def test_levels_have_chi_squared(counts):
    full = np.array(counts)[np.array(counts).sum(1) > 0]
    expected = stats.chi2_contingency(full)
    test = compare_counts(np.array(counts))
    assert (test.name, test.degrees) == ("chi-squared", (expected.dof,))
    assert (test.statistic, test.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-10)


@pytest.mark.parametrize("counts", [[[3, 1], [1, 3]], [[8, 2], [1, 5]], [[0, 7], [9, 300]], [[1, 0], [0, 40]]])
def test_small_tables_have_fishers_test(counts):
    expected = stats.fisher_exact(counts)
    test = compare_counts(np.array(counts))
    assert test.name == "Fisher's exact"
    assert test.p == pytest.approx(expected[1], rel=1e-9)
    assert test.statistic == pytest.approx(expected[0], rel=1e-12)
    assert GroupTest.from_dict(test.to_dict()) == test


def test_fishers_tea_lady():
    assert fisher_exact(np.array([[3, 1], [1, 3]])).p == pytest.approx(34 / 70)  # Fisher 1935: 17/70 on one side


def test_one_level_has_no_test():
    assert compare_counts(np.array([[5, 9], [0, 0]])) is None


def test_ranks_equal_kruskal_and_wallis():
    whole = [np.rint(g / 3).astype(int) for g in GROUPS]
    low, high = min(map(np.min, whole)), max(map(np.max, whole))
    histogram = np.array([np.bincount(g - low, minlength=high - low + 1) for g in whole]).T
    expected = stats.kruskal(*whole)
    test = compare_ranks(histogram)
    assert (test.statistic, test.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-11)
    assert compare_ranks(histogram, binned=True).name == "Kruskal-Wallis (binned)"
    assert compare_ranks(np.array([[3, 4]])) is None, "all rows are tied"


def test_difference_of_means():
    assert difference_of_means(np.array([10.0, 12]), np.array([4.0, 12])) == pytest.approx(2 / np.sqrt(8))
    assert difference_of_means(np.array([1.0, 1]), np.zeros(2)) == 0
    assert difference_of_means(np.array([1.0, 2]), np.zeros(2)) is None


def test_difference_of_shares():
    # two levels: |p1 - p2| / sqrt((p1 q1 + p2 q2) / 2)
    by_hand = 0.3 / np.sqrt((0.2 * 0.8 + 0.5 * 0.5) / 2)
    assert difference_of_shares(np.array([[80, 20], [20, 20]])) == pytest.approx(by_hand)
    # three levels, Yang and Dalton's formula with the first level left out; the choice of that level does not matter
    counts = np.array([[10, 30], [30, 40], [60, 30]])
    p, q = counts[1:, 0] / 100, counts[1:, 1] / 100
    s = (np.diag(p) - np.outer(p, p) + np.diag(q) - np.outer(q, q)) / 2
    by_hand = np.sqrt((p - q) @ np.linalg.inv(s) @ (p - q))
    assert difference_of_shares(counts) == pytest.approx(by_hand)
    assert difference_of_shares(counts[[2, 0, 1]]) == pytest.approx(by_hand)
    assert difference_of_shares(np.array([[5, 5], [0, 0]])) == 0
    assert difference_of_shares(np.array([[5, 0], [1, 0]])) is None
