"""Heterogeneity of the AUROC across hospitals, against the formulas worked by hand and scipy's t distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from grandrounds.metrics.meta_analysis import combine_estimates
from grandrounds.metrics.site_auroc import combine_auroc, read_logit


def figures(auroc: float, half: float) -> dict[str, float]:
    return {"auroc": auroc, "auroc_low": max(0.0, auroc - half), "auroc_high": min(1.0, auroc + half)}


def test_three_estimates_by_hand():
    """Estimates 1, 2, 4 of variance 1: Q = 14/3, I2 = 1 - 2 / Q = 4/7, tau2 = (Q - 2) / (3 - 1) = 4/3, mean 7/3."""
    found = combine_estimates("x", [1.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    assert found.q == pytest.approx(14 / 3) and found.i2 == pytest.approx(4 / 7) and found.tau2 == pytest.approx(4 / 3)
    assert found.estimate == pytest.approx(7 / 3) and found.error == pytest.approx(math.sqrt((1 + 4 / 3) / 3))
    wide = stats.t.ppf(0.975, 1) * math.sqrt(4 / 3 + found.error**2)
    assert (found.prediction_low, found.prediction_high) == pytest.approx((7 / 3 - wide, 7 / 3 + wide))
    assert found.q_p == pytest.approx(stats.chi2.sf(14 / 3, 2))


def test_aurocs_are_combined_on_the_logit_scale():
    half = {"a": (0.7, 0.05), "b": (0.8, 0.04), "c": (0.9, 0.03), "d": (0.75, 0.1), "e": (0.82, 0.06)}
    found = combine_auroc({site: figures(*values) for site, values in half.items()})
    a = np.array([v for v, _ in half.values()])
    y, v = np.log(a / (1 - a)), (np.array([h for _, h in half.values()]) / 1.959963984540054 / (a * (1 - a))) ** 2
    w = 1 / v
    q = (w * (y - (w * y).sum() / w.sum()) ** 2).sum()
    tau2 = max(0.0, (q - 4) / (w.sum() - (w**2).sum() / w.sum()))
    r = 1 / (v + tau2)
    mean, wide = (r * y).sum() / r.sum(), stats.t.ppf(0.975, 3) * math.sqrt(tau2 + 1 / r.sum())
    assert found.i2 == pytest.approx(1 - 4 / q) and found.tau2 == pytest.approx(tau2)
    assert found.estimate == pytest.approx(1 / (1 + math.exp(-mean)))
    assert found.prediction_low == pytest.approx(1 / (1 + math.exp(-(mean - wide))))
    assert found.prediction_high == pytest.approx(1 / (1 + math.exp(-(mean + wide))))


def test_few_hospitals_do_not_tell_what_to_expect_at_another():
    """Of three hospitals the interval was 0.135 to 0.998: it says nothing, and a sentence says why there is none."""
    three = combine_auroc({site: figures(a, 0.05) for site, a in (("a", 0.7), ("b", 0.8), ("c", 0.9))})
    assert three.estimate is not None and three.prediction_low is None
    assert three.sentence.startswith("3 hospitals with an AUROC and its interval are too few")


def test_equal_aurocs_show_no_heterogeneity():
    found = combine_auroc({site: figures(0.8, 0.05) for site in "abcde"})
    assert found.i2 == 0 and found.tau2 == 0 and found.estimate == pytest.approx(0.8)


def test_an_end_that_is_cut_at_one_does_not_narrow_the_interval():
    assert read_logit(figures(0.95, 0.2)) == pytest.approx((math.log(19), (0.2 / 1.959963984540054 / 0.0475) ** 2))


def test_hospitals_without_an_interval_are_left_out_with_the_cause():
    per_site = {"a": figures(0.7, 0.1), "b": figures(0.8, 0.1), "c": figures(1.0, 0.0), "d": {"auroc": None}, "e": {"auroc": 0.9}}
    found = combine_auroc({**per_site, "f": figures(0.5, 0.6)})
    assert found.sites == ("a", "b") and found.i2 is None and found.prediction_low is None
    assert list(found.left_out) == ["c", "d", "e", "f"] and len(set(found.left_out.values())) == 4
