from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from grandrounds.metrics import describe, paired_t

pytestmark = pytest.mark.filterwarnings("error")


def test_one_to_five_by_hand():
    s = describe([1, 2, 3, 4, 5])
    assert (s.n, s.mean) == (5, 3.0)
    assert s.std == pytest.approx(math.sqrt(10 / 4))
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert s.low == pytest.approx(3 - half, abs=1e-6)
    assert s.high == pytest.approx(3 + half, abs=1e-6)
    assert s.low == pytest.approx(1.036757, abs=1e-6)
    assert s.cv == pytest.approx(52.704628, abs=1e-6)


def test_two_values_by_hand():
    s = describe([2.0, 4.0])
    assert s.std == pytest.approx(math.sqrt(2))
    assert s.low == pytest.approx(3 - 12.7062047, abs=1e-6)
    assert s.high == pytest.approx(3 + 12.7062047, abs=1e-6)


def test_a_single_value_has_a_mean_and_nothing_more():
    s = describe([0.8])
    assert (s.n, s.mean) == (1, 0.8)
    assert all(math.isnan(v) for v in (s.std, s.low, s.high, s.cv))


def test_no_values_and_undefined_values_are_undefined():
    assert describe([]).n == 0
    assert math.isnan(describe([]).mean)
    holed = describe([0.5, math.nan, 0.7])
    assert holed.n == 3
    assert all(math.isnan(v) for v in (holed.mean, holed.std, holed.low, holed.high, holed.cv))


def test_variation_is_relative_to_the_size_of_the_mean():
    assert describe([-1, -2, -3]).cv == pytest.approx(50.0)
    assert math.isnan(describe([-1, 1]).cv)
    same = describe([0.5, 0.5, 0.5])
    assert (same.std, same.low, same.high, same.cv) == (0.0, 0.5, 0.5, 0.0)


def test_three_pairs_by_hand():
    r = paired_t([3, 5, 4], [1, 2, 3])
    assert (r.n, r.difference) == (3, 2.0)
    assert r.t == pytest.approx(2 * math.sqrt(3))
    assert r.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    assert r.low == pytest.approx(2 - 4.3026527 / math.sqrt(3), abs=1e-6)
    assert r.high == pytest.approx(2 + 4.3026527 / math.sqrt(3), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.sampled_from([0.0, 0.01, 5.0]))
def test_the_paired_test_is_that_of_scipy(seed, n, shift):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    b = a + shift + 0.3 * rng.normal(size=n)
    ours, theirs = paired_t(a, b), ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-9)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-7)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-7)
    back = paired_t(b, a)
    assert (back.t, back.p) == pytest.approx((-ours.t, ours.p))


def test_differences_that_do_not_vary_cannot_be_tested():
    a = np.array([0.1, 0.2, 0.3, 0.7])
    for b in (a, a + 0.1):
        r = paired_t(a, b)
        assert math.isnan(r.t)
        assert math.isnan(r.p)
        assert r.difference == pytest.approx(a[0] - b[0])
    alone = paired_t([1.0], [2.0])
    assert (alone.n, alone.difference) == (1, -1.0)
    assert math.isnan(alone.p)
    assert math.isnan(paired_t([1.0, math.nan], [2.0, 3.0]).p)
    assert paired_t([], []).n == 0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="2 against 3"):
        paired_t([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="shape"):
        describe([[1, 2], [3, 4]])


def test_intervals_for_people_stay_within_the_possible_and_need_three_runs():
    from grandrounds.metrics.names import metric_range
    from grandrounds.metrics.statistics import clip_pair, describe_bounded

    two = describe_bounded([0.88, 0.92], metric_range("accuracy"))
    assert two.mean == pytest.approx(0.90) and np.isnan(two.low) and np.isnan(two.high)
    high = describe_bounded([0.99, 1.0, 0.97], metric_range("finetuned_auroc"))
    assert high.high == 1.0 and high.low == describe([0.99, 1.0, 0.97]).low
    assert describe_bounded([0.01, 0.05, 0.001], metric_range("log_loss")).low == 0.0
    assert describe_bounded([3.0, 5.0, 9.0], metric_range("a_metric_of_our_own")) == describe([3.0, 5.0, 9.0])
    pair = paired_t([1.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    assert pair.low < -1 and clip_pair(pair, (0.0, 1.0)).low == -1.0
    assert np.isnan(clip_pair(paired_t([0.9, 0.8], [0.7, 0.7]), (0.0, 1.0)).low)


def test_every_metric_of_a_summary_has_a_range_or_is_known_to_have_none():
    from grandrounds.analysis.compare import GAP, SUMMARY_METRICS, WORST, WORST_AUROC
    from grandrounds.metrics import DESCRIPTIONS
    from grandrounds.metrics.names import metric_range

    without = {m for m in (*DESCRIPTIONS, *SUMMARY_METRICS, GAP, WORST, WORST_AUROC) if metric_range(m) is None}
    line = ("calibration_slope", "calibration_intercept", "calibration_in_the_large")
    assert without == {f"{name}{end}" for name in line for end in ("", "_low", "_high")}
