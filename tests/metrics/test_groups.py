"""Figures of groups, gaps between them and hidden counts: against reference packages, a bootstrap and simulated tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss, roc_auc_score
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from grandrounds.metrics import tally, tally_outcome
from grandrounds.metrics.gaps import GAP_METRICS, MIN_CASES, Gap, correct_by_holm, find_gaps, t_quantile, two_sided_p
from grandrounds.metrics.groups import group_figures, group_scores, hide_small_groups, outcome_figures, worst_class

THRESHOLD = 0.5


def table(sizes, seed=0, *, harder=0.0):
    """Rows of groups with the same model: log-odds, outcome, group. `harder`: the second group's events score lower by this."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    z = rng.normal(-0.8, 1.3, len(group))
    y = (rng.random(len(group)) < 1 / (1 + np.exp(-z))).astype(int)
    return np.where((group == 1) & (y == 1), z - harder, z), y, group


def scored(z, y, group):
    return group_scores(tally(z[:, None], y, classes=2, group=group, groups=int(group.max()) + 1), THRESHOLD)


def gaps_of(scores, names="abcdefgh"):
    rows, events = scores.rows.tolist(), scores.events.tolist()
    return find_gaps("x", list(names[: len(rows)]), scores, hide_small_groups(rows, events, 5))


def test_figures_are_those_of_the_rows():
    z, y, group = table([300, 120])
    p, called = 1 / (1 + np.exp(-z)), z >= 0
    for g, figures in enumerate(group_figures(scored(z, y, group))):
        mine = group == g
        (tn, fp), (fn, tp) = confusion_matrix(y[mine], called[mine])
        assert (figures["count"], figures["events"]) == (mine.sum(), y[mine].sum())
        assert figures["sensitivity"] == tp / (tp + fn) and figures["specificity"] == tn / (tn + fp)
        assert figures["ppv"] == tp / (tp + fp) and figures["alert_rate"] == (tp + fp) / mine.sum()
        assert figures["auroc"] == pytest.approx(roc_auc_score(y[mine], z[mine]), abs=2e-3)
        assert figures["brier"] == pytest.approx(brier_score_loss(y[mine], p[mine]))
        assert figures["log_loss"] == pytest.approx(log_loss(y[mine], p[mine]))
        assert figures["calibration"] == pytest.approx((y - p)[mine].mean())
        assert figures["observed_expected"] == pytest.approx(y[mine].sum() / p[mine].sum())
        ends = proportion_confint(tp, tp + fn, method="wilson")
        assert (figures["sensitivity_low"], figures["sensitivity_high"]) == pytest.approx(ends, abs=1e-6)


def test_intervals_are_those_of_a_bootstrap():
    z, y, _ = table([600])
    p = 1 / (1 + np.exp(-z))
    figures = group_figures(scored(z, y, np.zeros(600, int)))[0]
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(1500):
        rows = rng.integers(0, 600, 600)
        yy, pp, rank = y[rows], p[rows], stats.rankdata(z[rows])
        m = yy.sum()
        auroc = (rank[yy == 1].sum() - m * (m + 1) / 2) / (m * (600 - m))
        loss = -np.where(yy == 1, np.log(pp), np.log1p(-pp))
        drawn.append((auroc, (yy - pp).mean(), m / pp.sum(), ((yy - pp) ** 2).mean(), loss.mean()))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    for k, name in enumerate(("auroc", "calibration", "observed_expected", "brier", "log_loss")):
        width = high[k] - low[k]
        assert figures[f"{name}_low"] == pytest.approx(low[k], abs=0.09 * width), name
        assert figures[f"{name}_high"] == pytest.approx(high[k], abs=0.09 * width), name


def test_gaps_of_shares_are_agresti_and_caffos():
    scores = scored(*table([400, 150]))
    found = {gap.metric: gap for gap in gaps_of(scores)[0]}
    for metric in ("sensitivity", "ppv"):
        counted, of = scores.share_of(metric)
        low, high = confint_proportions_2indep(counted[1], of[1], counted[0], of[0], method="agresti-caffo", compare="diff")
        assert found[metric].low + found[metric].high == pytest.approx(low + high, abs=1e-6)
        widened = (found[metric].high - found[metric].low) / (high - low)  # Student's t in place of the normal distribution
        assert 1 < widened < t_quantile(min(of) + 1) / t_quantile(np.inf) + 1e-9
        assert found[metric].difference == counted[1] / of[1] - counted[0] / of[0]


def test_p_values_are_students():
    for freedom in (9, 20, 200):
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=2e-3)
        for t in (0.5, 2.0, 3.0):
            assert two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=0.02)
        assert two_sided_p(t_quantile(freedom), freedom) == pytest.approx(0.05, abs=1e-6)


def test_holms_correction_is_that_of_statsmodels():
    p = np.random.default_rng(3).uniform(0, 0.08, 9)
    gaps = correct_by_holm([Gap("x", str(k), "a", "auroc", 0.1, 0.01, 0.2, v, excludes_zero=v < 0.05) for k, v in enumerate(p)])
    reject, corrected, *_ = multipletests(p, method="holm")
    assert [gap.p_holm for gap in gaps] == pytest.approx(corrected.tolist())
    assert [gap.flagged for gap in gaps] == reject.tolist()


@pytest.mark.parametrize("sizes", [(400, 300, 100, 60), (1500, 1000, 700)])
def test_false_alarms_are_rare_in_tables_without_a_difference(sizes):
    """At most 5% of tables have a flagged gap; 200 tables, so that up to 17 are within the sampling error (99.5%)."""
    alarms = sum(any(g.flagged for g in correct_by_holm(gaps_of(scored(*table(sizes, seed)))[0])) for seed in range(200))
    assert alarms <= 17


def test_a_planted_gap_is_found():
    found, false_alarms = 0, 0
    for seed in range(40):
        gaps = correct_by_holm(gaps_of(scored(*table((600, 500, 300), seed, harder=1.0)))[0])
        worse = {(g.group, g.metric) for g in gaps if g.flagged and g.difference < 0}
        found += ("b", "sensitivity") in worse
        false_alarms += any(group == "c" for group, _ in worse)  # the third group is as the first
    assert found >= 38 and false_alarms <= 5


def test_groups_of_few_cases_are_not_compared():
    scores = scored(*table([300, 30]))
    gaps, reference, few = gaps_of(scores)
    assert reference == "a" and scores.events[1] >= 5
    compared = {g.metric for g in gaps}
    assert ("auroc" in compared) == (min(scores.events[1], 30 - scores.events[1]) >= MIN_CASES)
    assert len(gaps) + few == len(GAP_METRICS)


def test_the_worst_of_three_classes_is_set_against_the_rest():
    rng = np.random.default_rng(0)
    y, group = rng.integers(0, 3, 900), rng.integers(0, 2, 900)
    logits = rng.normal(size=(900, 3)) + np.where(y[:, None] == np.arange(3), [2.0, 2.0, 0.3], 0)
    total = tally(logits, y, classes=3, group=group, groups=2)
    c = worst_class(total)
    figures = group_figures(group_scores(total, 0.5, c))
    assert c == 2
    for g in range(2):
        called = (logits.argmax(axis=1) == 2) & (group == g)
        assert figures[g]["sensitivity"] == (called & (y == 2)).sum() / ((y == 2) & (group == g)).sum()
        assert figures[g]["events"] == ((y == 2) & (group == g)).sum()


def test_mean_errors_of_numbers_and_their_gap():
    rng = np.random.default_rng(0)
    y, group = rng.normal(size=400), np.repeat([0, 1], [250, 150])
    z = y + rng.normal(0, 0.5, 400) + 0.15 * (group == 1)
    total = tally_outcome("regression", z, y, group, (2,), scale=10.0)
    error = 10 * (z - y)
    for g, figures in enumerate(outcome_figures(total)):
        ends = stats.norm.interval(0.95, error[group == g].mean(), stats.sem(error[group == g]))
        assert (figures["mean_error_low"], figures["mean_error_high"]) == pytest.approx(ends, abs=1e-4)
    gaps, _, _ = find_gaps("x", ["a", "b"], total, hide_small_groups([250, 150], None, 5))
    test = stats.ttest_ind(error[group == 1], error[group == 0], equal_var=False)
    difference = error[group == 1].mean() - error[group == 0].mean()
    assert gaps[0].metric == "mean_error" and gaps[0].difference == pytest.approx(difference)
    assert gaps[0].p == pytest.approx(test.pvalue, rel=0.05)


def hidden(rows, events=None):
    """The hidden counts of each group: r rows, e events, s the group itself is small."""
    chosen = hide_small_groups(rows, events, 5)
    return ["".join(c for c, on in (("r", h.rows), ("e", h.events), ("s", h.small)) if on) for h in chosen]


def test_small_groups_are_hidden_and_a_second_one_where_the_total_would_tell():
    assert hidden([50, 60], [20, 30]) == ["", ""]
    assert hidden([50, 60, 3], [20, 30, 1]) == ["re", "", "res"]  # 113 rows in all would tell the 3
    assert hidden([50, 60, 40], [20, 30, 2]) == ["e", "", "es"]  # rows are large, events are few
    assert hidden([50, 60, 40], [20, 30, 38]) == ["e", "", "es"]  # few without the event
    assert hidden([50, 3, 4, 60], [20, 1, 2, 30]) == ["e", "res", "res", ""]  # 3 hidden events in all would tell
    assert hidden([50, 0, 60], [20, 0, 30]) == ["", "", ""]
    assert hidden([50, 60, 40], [20, 30, 0]) == ["", "", ""]  # none has the event: a zero is no small count
    assert hidden([50, 4, 60]) == ["re", "res", ""]


def test_no_hidden_count_follows_from_the_total():
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows = rng.integers(0, 40, 5)
        events = rng.binomial(rows, 0.3)
        flags = hide_small_groups(rows.tolist(), events.tolist(), 5)
        for counts, off in ((rows, [f.rows for f in flags]), (events, [f.events for f in flags])):
            unknown = [int(n) for n, h in zip(counts, off, strict=True) if h]
            shown = [int(n) for n, h in zip(counts, off, strict=True) if not h]
            assert all(n == 0 or n >= 5 for n in shown)
            if any(0 < n < 5 for n in unknown) and len(shown) > sum(n == 0 for n in shown):
                assert sum(unknown) >= 5
