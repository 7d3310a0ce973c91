"""Decisions at one threshold: counts, shares with intervals, net benefit and gain over the majority class."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from grandrounds.metrics import scores, tally
from grandrounds.metrics.confusion import (
    Decisions,
    compare_unpaired,
    majority_gain,
    observed_to_expected,
    read_decisions,
    subtract_shares,
)
from grandrounds.metrics.statistics import share_interval

COUNTS = ("caught", "missed", "false_alarms", "spared")
TEN = Decisions(0.2, caught=3, missed=1, false_alarms=2, spared=4)


def test_figures_of_ten_patients_by_hand():
    assert TEN.sensitivity.value == 0.75
    assert TEN.specificity.value == pytest.approx(4 / 6)
    assert TEN.ppv.value == 0.6
    assert TEN.npv.value == 0.8
    assert TEN.alerts_per_100.value == 50
    assert TEN.accuracy.value == 0.7
    assert TEN.net_benefit.value == pytest.approx((3 - 0.25 * 2) / 10)
    assert TEN.default_benefit == pytest.approx((4 - 0.25 * 6) / 10)
    assert TEN.gain.value == pytest.approx(0.7 - 0.6)
    assert (TEN.sensitivity.low, TEN.sensitivity.high) == share_interval(0.75, 4)


def test_shares_of_nothing_are_absent():
    none = Decisions(0.5, caught=0, missed=0, false_alarms=0, spared=6)
    assert none.sensitivity is None and none.ppv is None
    assert none.specificity.value == 1.0
    assert Decisions(0.5, 0, 0, 0, 0).gain is None
    assert Decisions(1.0, 1, 1, 1, 1).net_benefit is None


def test_always_answering_the_majority_class_gains_nothing():
    constant = Decisions(0.9, caught=0, missed=8, false_alarms=0, spared=92)
    assert constant.gain.value == 0
    assert constant.gain.low < 0 < constant.gain.high


def test_interval_of_a_weighted_difference_by_hand():
    rows, p, q = 50, 12 / 50, 2 / 50
    p_low, q_high = share_interval(p, rows)[0], share_interval(q, rows)[1]
    a, b, correlation = p - p_low, 0.5 * (q_high - q), -math.sqrt(p * q / ((1 - p) * (1 - q)))
    found = subtract_shares(12, 2, rows, second_weight=0.5)
    assert found.value == pytest.approx(p - q / 2)
    assert found.low == pytest.approx(p - q / 2 - math.sqrt(a * a - 2 * correlation * a * b + b * b))
    assert subtract_shares(0, 0, 0) is None


@pytest.mark.parametrize("counts", [(5, 3, 9, 40), (40, 9, 3, 5), (0, 4, 0, 6)])
def test_at_one_half_the_gain_in_net_benefit_is_the_gain_over_the_majority_class(counts):
    found = Decisions(0.5, *counts)
    assert found.benefit_gain == found.gain


def test_gain_in_net_benefit_is_over_the_better_of_everyone_and_nobody():
    common = Decisions(0.1, caught=50, missed=10, false_alarms=20, spared=20)
    assert common.default_benefit == pytest.approx(0.6 - 0.4 / 9)
    assert common.benefit_gain.value == pytest.approx(common.net_benefit.value - common.default_benefit)
    rare = Decisions(0.5, caught=3, missed=2, false_alarms=1, spared=94)
    assert rare.default_benefit == 0 and rare.benefit_gain == rare.net_benefit


def test_gains_of_several_hospitals_are_over_the_best_rule_of_each():
    """Both hospitals have 20 patients; always answering their most common class is right for 16 of a and 15 of b."""
    a, b = Decisions(0.5, caught=15, missed=1, false_alarms=2, spared=2), Decisions(0.5, 3, 2, 1, 14)
    both = Decisions(0.5, 18, 3, 3, 16, hospitals=(a, b))
    assert both.gain.value == pytest.approx((17 + 17 - 16 - 15) / 40) == pytest.approx((a.gain.value + b.gain.value) / 2)
    assert both.gain == both.benefit_gain
    spread = [np.hypot(20 * (a.gain.value - a.gain.low), 20 * (b.gain.value - b.gain.low)) / 40]
    assert both.gain.value - both.gain.low == pytest.approx(spread[0])
    low = Decisions(0.1, 18, 3, 3, 16, hospitals=(replace(a, threshold=0.1), replace(b, threshold=0.1)))
    assert low.default_benefit == pytest.approx((16 - 4 / 9 + 5 - 15 / 9) / 40)  # at 10% everyone is treated at both
    assert low.benefit_gain.value == pytest.approx(low.net_benefit.value - low.default_benefit)


def test_the_interval_of_the_gain_of_several_hospitals_covers_the_true_value():
    rng = np.random.default_rng(6)
    cells = np.array([[0.18, 0.10, 0.12, 0.60], [0.55, 0.15, 0.10, 0.20]])
    gain = 0.25 * (0.18 - 0.12) + 0.75 * (0.20 - 0.15)
    held = 0
    for _ in range(2000):
        sites = tuple(Decisions(0.5, *rng.multinomial(n, p)) for n, p in zip((40, 120), cells, strict=True))
        found = Decisions(0.5, *(sum(getattr(s, k) for s in sites) for k in COUNTS), hospitals=sites).gain
        held += found.low <= gain <= found.high
    assert 0.93 < held / 2000 < 0.975


def test_intervals_of_gain_and_net_benefit_cover_the_true_values():
    """Of 3,000 samples of 80 patients 93 to 97% of the intervals include the value of the population."""
    rng = np.random.default_rng(5)
    cells = np.array([0.18, 0.10, 0.12, 0.60])  # caught, missed, false alarms, spared
    gain = (cells[0] + cells[3]) - (cells[2] + cells[3])
    samples = [Decisions(0.2, *rng.multinomial(80, cells)) for _ in range(3000)]
    assert 0.93 < np.mean([d.gain.low <= gain <= d.gain.high for d in samples]) < 0.97
    benefit = cells[0] - 0.25 * cells[2]
    assert 0.93 < np.mean([d.net_benefit.low <= benefit <= d.net_benefit.high for d in samples]) < 0.97


def test_counts_of_a_site_are_read_from_its_scores():
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=(300, 1)), (rng.random(300) < 0.3).astype(int)
    figures = {k: float(v) for k, v in scores(tally(z, y, classes=2), threshold=0.5).items()}
    decisions = read_decisions(figures, 0.5)
    (spared, false_alarms), (missed, caught) = confusion_matrix(y, z[:, 0] >= 0)
    assert (decisions.caught, decisions.missed, decisions.false_alarms, decisions.spared) == (
        caught, missed, false_alarms, spared,
    )  # fmt: skip
    assert decisions.gain.value == pytest.approx(figures["decision_accuracy"] - figures["majority"])


def test_gain_of_several_classes_has_a_wide_interval():
    figures = {"count": 100.0, "events": None, "decision_accuracy": 0.7, "accuracy": 0.7, "majority": 0.5}
    found = majority_gain(figures, 0.5)
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(compare_unpaired(0.7, 0.5, 100).low)
    assert majority_gain({"count": 0.0}, 0.5) is None


def test_observed_to_expected_by_hand():
    found = observed_to_expected(20, 25, 100)
    assert found.value == 0.8
    assert found.low == pytest.approx(0.8 * math.exp(-1.959964 * math.sqrt(0.8 / 20)))
    assert observed_to_expected(0, 3, 100) is None
