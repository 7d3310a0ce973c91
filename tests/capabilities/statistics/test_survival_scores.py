"""C-index, Brier score and calibration from sums, against lifelines and direct computations on the pooled rows."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter, KaplanMeierFitter
from lifelines.utils import concordance_index
from scipy import integrate

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.brier import Baseline, CensoringCurve, fit_baseline
from grandrounds.capabilities.statistics.concordance import (
    count_binned_pairs,
    count_pairs,
    find_score_histogram,
    fit_concordance,
    fit_concordance_across,
)
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.capabilities.statistics.survival_scores import SurvivalScores, fit_survival_scores
from grandrounds.capabilities.statistics.time_counts import TimeCounts, count_by_cell
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.cohorts import Cohort, gbsg2, lung, tcga

SETS = [lung, gbsg2, pytest.param(tcga, marks=pytest.mark.data("fed_tcga_brca"))]


@cache
def fitted(make) -> tuple[Cohort, np.ndarray, CoxPHFitter]:
    """A cohort with inputs in standard deviations, and lifelines' coefficients on the pooled rows."""
    cohort = make()
    x = (cohort.x - cohort.x.mean(0)) / cohort.x.std(0)
    table = pd.DataFrame(x).assign(T=np.maximum(cohort.time, 0.5), E=cohort.event)
    model = CoxPHFitter(penalizer=0.1).fit(table, "T", "E")
    return replace(cohort, x=x), model.params_.to_numpy(), model


@cache
def baseline_of(make) -> Baseline:
    cohort, beta, _ = fitted(make)
    counts = fit_in_memory(count_by_cell(), cohort.rows(), ANSWERS)
    return fit_in_memory(fit_baseline(beta, counts), cohort.rows(), ANSWERS)


def pooled_brier(cohort: Cohort, survival: np.ndarray, horizons: np.ndarray) -> np.ndarray:
    """Graf's Brier score, G by day from lifelines: events leave before those censored on the same day."""
    shifted = cohort.time - 1e-3 * cohort.event
    g = KaplanMeierFitter().fit(shifted, 1 - cohort.event)
    before = g.survival_function_at_times(cohort.time - 1e-2).to_numpy()
    after = g.survival_function_at_times(horizons).to_numpy()
    out = []
    for k, t in enumerate(horizons):
        died, alive = (cohort.time <= t) & (cohort.event == 1), cohort.time > t
        s = survival[:, k]
        out.append((s[died] ** 2 / before[died]).sum() + ((1 - s[alive]) ** 2 / after[k]).sum())
    return np.array(out) / len(cohort.time)


@pytest.mark.parametrize("make", SETS)
def test_concordance_within_sites_equals_the_sum_of_lifelines_pairs(make):
    cohort, beta, _ = fitted(make)
    record = Record()
    pairs, spread = fit_in_memory(fit_concordance(beta), cohort.rows(), ANSWERS, record)
    score = cohort.x @ beta
    concordant = comparable = 0.0
    for k in np.unique(cohort.site):
        at = cohort.site == k
        own = count_pairs(cohort.time[at], cohort.event[at], score[at])
        if own.comparable:
            index = concordance_index(cohort.time[at], -score[at], cohort.event[at])
            concordant += index * own.comparable
            comparable += own.comparable
    assert pairs.index == pytest.approx(concordant / comparable, abs=1e-12)
    assert spread.mean == pytest.approx(score.mean())
    assert spread.sd == pytest.approx(score.std())
    assert record.numbers == 6


@pytest.mark.parametrize("make", SETS)
def test_concordance_across_sites_is_close_to_lifelines(make):
    cohort, beta, _ = fitted(make)
    sites = cohort.rows()
    _, spread = fit_in_memory(fit_concordance(beta), sites, ANSWERS)
    histogram = fit_in_memory(find_score_histogram(beta, spread), sites, ANSWERS)
    pairs, small = fit_in_memory(fit_concordance_across(beta, histogram), sites, ANSWERS)
    pooled = concordance_index(cohort.time, -(cohort.x @ beta), cohort.event)
    assert pairs.index == pytest.approx(pooled, abs=0.002)
    assert small > 100


def test_pairs_equal_lifelines_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 40))
        time, event, score = rng.integers(1, 8, n) * 1.0, rng.integers(0, 2, n) * 1.0, rng.integers(0, 5, n) * 1.0
        pairs = count_pairs(time, event, score)
        if pairs.comparable:
            assert pairs.index == pytest.approx(concordance_index(time, -score, event), abs=1e-12)


def test_hand_counted_pairs():
    """Events at 1 and 2 (twice), censored at 2 and 3: the first is compared with 4 rows, each of the second with 2."""
    time, event = np.array([1.0, 2, 2, 2, 3]), np.array([1.0, 1, 1, 0, 0])
    pairs = count_pairs(time, event, np.array([5.0, 4, 1, 4, 2]))
    assert (pairs.concordant, pairs.tied, pairs.comparable) == (5, 1, 8)
    assert pairs.index == pytest.approx(5.5 / 8)
    assert count_pairs(time, np.zeros(5), event).index is None
    assert count_pairs(np.empty(0), np.empty(0), np.empty(0)).comparable == 0


def test_hand_counted_table():
    """Two score bins by two time bins: an event and a censored row of one bin are compared, two events are not."""
    events, censored = np.array([[0.0, 1], [2, 0]]), np.array([[1.0, 0], [0, 1]])
    pairs = count_binned_pairs(events, censored)
    # the 2 early events with high score: against censored (low, early), event (low, late), censored (high, late)
    # the late event with low score: against the censored row (high, late)
    assert (pairs.concordant, pairs.tied, pairs.comparable) == (4, 2, 7)


def test_pairs_of_large_sites_stay_within_the_bound_of_a_secure_sum():
    rng = np.random.default_rng(0)
    n = 20_000
    rows = Rows(np.zeros((n, 0)), rng.integers(0, 2, n) * 1.0, time=rng.exponential(size=n), offset=rng.normal(size=n))
    record = Record()
    pairs, _ = fit_in_memory(fit_concordance(np.empty(0)), {"a": rows}, ANSWERS, record)
    sent = ANSWERS["concordance.sites"](record.questions[0], rows)
    assert max(float(sent[k]) for k in ("concordant", "tied", "comparable")) < 2**24
    assert pairs.comparable > 2**24
    assert pairs.comparable == int(pairs.comparable)


@pytest.mark.parametrize("make", SETS)
def test_baseline_is_close_to_breslow(make):
    cohort, _, model = fitted(make)
    baseline = baseline_of(make)
    breslow = model.baseline_cumulative_hazard_.iloc[:, 0]
    place = np.searchsorted(breslow.index, baseline.times, side="right") - 1
    survival, expected = np.exp(-np.array(baseline.hazard)), np.exp(-breslow.to_numpy()[place])
    np.testing.assert_allclose(survival, expected, rtol=0, atol=0.03)
    assert np.diff(baseline.hazard).min() > 0
    assert len(baseline.times) >= cohort.event.sum() / 10


@pytest.mark.parametrize("make", SETS)
def test_brier_scores_are_close_to_those_with_censoring_by_day(make):
    cohort, beta, _ = fitted(make)
    baseline = baseline_of(make)
    fit = fit_survival_scores(beta, baseline)
    scores = fit_in_memory(fit, cohort.rows(), ANSWERS)
    horizons = np.array(scores.brier.horizons)
    assert len(horizons) >= 4
    survival = np.exp(-np.exp(cohort.x @ beta)[:, None] * baseline.at(horizons))
    reference = pooled_brier(cohort, survival, horizons)
    np.testing.assert_allclose(scores.brier.model, reference, rtol=0, atol=0.002)
    area = integrate.trapezoid(reference, horizons)
    integrated = area / (horizons[-1] - horizons[0])
    assert scores.brier.integrated == pytest.approx(integrated, abs=0.001)
    assert scores.brier.integrated < scores.brier.integrated_null


@pytest.mark.parametrize("make", SETS)
def test_brier_scores_by_day_are_exact(make):
    cohort, beta, _ = fitted(make)
    baseline = baseline_of(make)
    horizons = np.array(baseline.times[2:-2:4])
    scores = fit_in_memory(fit_survival_scores(beta, baseline, horizons=horizons, grid="days"), cohort.rows(), ANSWERS)
    survival = np.exp(-np.exp(cohort.x @ beta)[:, None] * baseline.at(horizons))
    np.testing.assert_allclose(scores.brier.model, pooled_brier(cohort, survival, horizons), rtol=0, atol=1e-9)
    null = KaplanMeierFitter().fit(cohort.time, cohort.event).survival_function_at_times(horizons).to_numpy()
    flat = pooled_brier(cohort, np.tile(null, (len(cohort.time), 1)), horizons)
    np.testing.assert_allclose(scores.brier.null, flat, rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", SETS)
def test_calibration_equals_kaplan_meier_in_groups_of_risk(make):
    cohort, beta, _ = fitted(make)
    baseline, record = baseline_of(make), Record()
    scores = fit_in_memory(fit_survival_scores(beta, baseline), cohort.rows(), ANSWERS, record)
    asked = record.questions[-1]
    assert asked.kind == "calibration.time"
    score = cohort.x @ beta
    risk = 1 - np.exp(-np.exp(score) * baseline.at(np.array([scores.horizon])))
    order, start = np.argsort(score, kind="stable"), 0
    for group in scores.calibration:
        members = order[start : start + group.rows]
        start += group.rows
        assert group.predicted == pytest.approx(risk[members].mean(), abs=1e-9)
        own = KaplanMeierFitter().fit(cohort.time[members], cohort.event[members])
        assert group.observed == pytest.approx(1 - own.predict(scores.horizon), abs=0.01)
        ends = own.confidence_interval_.loc[: scores.horizon].iloc[-1]
        assert (group.low, group.high) == pytest.approx((1 - ends.iloc[1], 1 - ends.iloc[0]), abs=0.01)
        died = (cohort.time[members] <= scores.horizon) & (cohort.event[members] == 1)
        assert died.sum() >= 5
    assert start == len(cohort.time)
    assert len(scores.calibration) >= 4


def test_scores_of_another_model_come_as_offsets():
    cohort, beta, _ = fitted(lung)
    plain = fit_in_memory(fit_survival_scores(beta), cohort.rows(), ANSWERS)
    shifted = {k: Rows(np.zeros((len(r), 0)), r.y, time=r.time, offset=r.x @ beta) for k, r in cohort.rows().items()}
    assert fit_in_memory(fit_survival_scores(np.empty(0)), shifted, ANSWERS).within == plain.within


def test_scores_are_read_back():
    cohort, beta, _ = fitted(lung)
    for baseline, across in ((None, False), (None, True), (baseline_of(lung), True)):
        scores = fit_in_memory(fit_survival_scores(beta, baseline, across=across), cohort.rows(), ANSWERS)
        assert SurvivalScores.from_dict(json.loads(json.dumps(scores.to_dict()))) == scores
        assert (scores.across is None) != across
        assert any("1 to 4 rows" in note for note in scores.notes) == across


@pytest.mark.parametrize("make", SETS)
def test_brier_scores_at_named_horizons(make):
    cohort, beta, _ = fitted(make)
    baseline = baseline_of(make)
    horizons = np.quantile(cohort.time[cohort.event == 1], [0.2, 0.4, 0.6]).round()
    scores = fit_in_memory(fit_survival_scores(beta, baseline, horizons=horizons), cohort.rows(), ANSWERS)
    survival = np.exp(-np.exp(cohort.x @ beta)[:, None] * baseline.at(horizons))
    np.testing.assert_allclose(scores.brier.model, pooled_brier(cohort, survival, horizons), rtol=0, atol=0.002)


def test_censoring_curve_by_hand():
    """Day 1: 1 death, then 1 of the other 5 censored; day 2: 2 of 4 censored."""
    counts = TimeCounts(np.array([1.0, 2, 3]), np.array([[1.0, 0, 2]]), np.array([[1.0, 2, 0]]), np.array([0.0]))
    curve = CensoringCurve.estimate(counts, grid="days")
    assert curve.values == pytest.approx([4 / 5, 2 / 5, 2 / 5])
    assert curve.at(np.array([0.5, 1, 1.5, 2])) == pytest.approx([1, 4 / 5, 4 / 5, 2 / 5])
    assert curve.at(np.array([1.0, 2]), before=True) == pytest.approx([1, 4 / 5])
    assert CensoringCurve.estimate(counts, grid="bins").at(np.array([2.0])) == 1  # fewer than 10 censored


def test_horizons_out_of_reach_are_refused():
    cohort, beta, _ = fitted(lung)
    for horizons in ([1e6], [200.0, 100.0], [0.0]):
        with pytest.raises(BadInput, match="horizons must ascend"):
            fit_in_memory(fit_survival_scores(beta, baseline_of(lung), horizons=horizons), cohort.rows(), ANSWERS)


def test_another_number_of_coefficients_is_refused():
    with pytest.raises(BadInput, match="2 coefficients and the rows 3 inputs"):
        fit_in_memory(fit_concordance(np.zeros(2)), lung().rows(), ANSWERS)
