"""Corrections by group from summed histograms: equal sensitivity, shrunken recalibration, and their cost on test rows."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.metrics import roc_auc_score

from grandrounds.metrics import tally
from grandrounds.metrics.groups import Hidden, hide_small_groups, merge_small_groups
from grandrounds.metrics.mitigation import GroupRule, fit_line, fit_rules, measure, mitigate, threshold_for_sensitivity


def rows(sizes, seed, shift=(0.0, -0.8)):
    """Log-odds, outcome and group; the model's log-odds of group g are off by shift[g]."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    truth = rng.normal(-1.0, 1.2, len(group))
    y = (rng.random(len(group)) < 1 / (1 + np.exp(-truth))).astype(int)
    return truth + np.array(shift)[group], y, group


def counted(z, y, group):
    return tally(z[:, None], y, classes=2, group=group, groups=int(group.max()) + 1)


def test_a_threshold_finds_the_wanted_share_of_events():
    z, y, group = rows([800, 700], 0)
    histogram = counted(z, y, group).histogram[0, 0, 1].astype(float)
    mine = z[(group == 0) & (y == 1)]
    for target in (0.3, 0.6, 0.95):
        found = (1 / (1 + np.exp(-mine)) >= threshold_for_sensitivity(histogram, target)).mean()
        assert target <= found <= target + 6 / len(mine)  # events that share a bin are taken together


def test_thresholds_by_group_equalise_sensitivity_on_new_rows():
    val, test = (counted(*rows([4000, 4000], seed)) for seed in (0, 1))
    record, rules = mitigate("thresholds", "sex", ["f", "m"], val, test, [Hidden()] * 2, threshold=0.3, least=5)
    assert all(rule.changed for rule in rules) and rules[1].threshold < rules[0].threshold
    assert record["largest_gap"]["before"] > 0.2 and record["largest_gap"]["after"] < 0.05
    after = record["groups"]["m"]["after"]
    assert after["sensitivity"] > record["groups"]["m"]["before"]["sensitivity"]  # and its price
    assert after["alert_rate"] > record["groups"]["m"]["before"]["alert_rate"] and after["specificity"] < 1


def test_the_cost_is_that_of_the_rows():
    z, y, group = rows([900, 600], 3)
    rules = [GroupRule(0.4), GroupRule(0.5, slope=0.8, intercept=0.3, changed=True)]
    each, overall = measure(counted(z, y, group), rules, 0.4)
    new = np.where(group == 1, 0.8 * z + 0.3, z)
    p, limit = 1 / (1 + np.exp(-new)), np.where(group == 1, 0.5, 0.4)
    called = p >= limit
    for figures, mine in ((overall, group >= 0), (each[1], group == 1)):
        assert figures["sensitivity"] == pytest.approx(called[mine & (y == 1)].mean(), abs=0.004)
        assert figures["accuracy"] == pytest.approx((called == y)[mine].mean(), abs=0.004)
        assert figures["brier"] == pytest.approx(((p - y) ** 2)[mine].mean(), abs=1e-3)
        assert figures["calibration"] == pytest.approx((y - p)[mine].mean(), abs=1e-3)
        benefit = (called & (y == 1))[mine].mean() - 0.4 / 0.6 * (called & (y == 0))[mine].mean()
        assert figures["net_benefit"] == pytest.approx(benefit, abs=0.004)
    assert overall["auroc"] == pytest.approx(roc_auc_score(y, new), abs=2e-3)


def test_a_recalibration_is_a_logistic_regression_on_the_log_odds():
    z, y, group = rows([3000], 5)
    histogram = counted(0.5 * z + 1, y, group).histogram[0, 0].astype(float)
    slope, intercept, error = fit_line(histogram[0], histogram[1])
    fit = sm.Logit(y, sm.add_constant(0.5 * z + 1)).fit(disp=0)
    assert (intercept, slope) == pytest.approx(tuple(fit.params), abs=0.01)
    alone = fit_line(histogram[0], histogram[1], 2.0)
    expected = sm.GLM(y, np.ones(3000), sm.families.Binomial(), offset=z + 2).fit()
    assert alone[1] == pytest.approx(expected.params[0], abs=0.01) and alone[2] == pytest.approx(expected.bse[0], rel=0.01)
    assert error > 0


def test_intercepts_are_shrunk_where_sampling_explains_their_differences():
    same = fit_rules(counted(*rows([300, 300, 300], 0, (0, 0, 0))), "recalibration", 0.5)
    apart = fit_rules(counted(*rows([300, 300, 300], 0, (0, 0, -1.5))), "recalibration", 0.5)
    assert np.ptp([r.intercept for r in same]) < 0.25 < 0.9 < np.ptp([r.intercept for r in apart])
    val, test = (counted(*rows([2000, 2000], seed)) for seed in (0, 1))
    record, _ = mitigate("recalibration", "sex", ["f", "m"], val, test, [Hidden()] * 2, threshold=0.3, least=5)
    assert record["largest_gap"]["before"] > 0.08 and record["largest_gap"]["after"] < 0.03
    assert record["overall"]["after"]["log_loss"] < record["overall"]["before"]["log_loss"]


def test_groups_of_few_events_keep_the_common_rule_and_hidden_ones_no_figure():
    val, test = (counted(*rows([900, 40], seed)) for seed in (0, 1))
    hidden = hide_small_groups([900, 40], [300, 4], 5)
    record, rules = mitigate("thresholds", "sex", ["f", "m"], val, test, hidden, threshold=0.3, least=5)
    assert not rules[1].changed and rules[1].threshold == 0.3
    assert record["groups"]["m"] == {"threshold": 0.3, "changed": False, "hidden": "<5"}


def test_a_single_patient_of_another_group_is_counted_with_the_largest():
    z, y, group = rows([500, 400, 1], 0, (0, 0, 0))
    merged, moved, largest = merge_small_groups(counted(z, y, group), 5)
    assert (moved, largest, merged.count.tolist()) == ([2], 0, [501, 400, 0])
    assert merge_small_groups(counted(*rows([60, 40, 3], 0, (0, 0, 0))), 5)[1] == []  # 5% of the largest group: hidden instead
