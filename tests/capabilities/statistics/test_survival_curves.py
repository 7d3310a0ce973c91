"""Kaplan-Meier curves and log-rank tests from sums equal those of lifelines and statsmodels on the pooled rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test
from lifelines.utils import median_survival_times, restricted_mean_survival_time
from statsmodels.duration.survfunc import survdiff

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, estimate_curve, fit_kaplan_meier
from grandrounds.capabilities.statistics.log_rank import compare_within_sites
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.capabilities.statistics.time_counts import TimeCounts, ask_time_counts, count_small_cells, merge_cells
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.cohorts import Cohort, gbsg2, lung, tcga

SETS = [lung, gbsg2, pytest.param(tcga, marks=pytest.mark.data("fed_tcga_brca"))]


def fit(cohort: Cohort, **options) -> KaplanMeier:
    return fit_in_memory(fit_kaplan_meier(cohort.names(), **options), cohort.rows(), ANSWERS)


def small(time, event, group=None) -> Rows:
    n = len(time)
    return Rows(
        np.zeros((n, 0)),
        np.array(event, float),
        time=np.array(time, float),
        group=None if group is None else np.array(group),
    )


@pytest.mark.parametrize("make", SETS)
def test_curve_by_day_equals_lifelines(make):
    cohort = make()
    result = fit(cohort, grid="days")
    masks = [np.ones(len(cohort.time), bool), *(cohort.group == g for g in range(len(result.groups)))]
    for curve, at in zip((result.overall, *result.groups), masks, strict=True):
        pooled = KaplanMeierFitter().fit(cohort.time[at], cohort.event[at])
        interval = pooled.confidence_interval_
        seen = np.isin(curve.times, pooled.timeline)
        for values, reference in (
            (curve.survival, pooled.survival_function_.iloc[:, 0]),
            (curve.low, interval.iloc[:, 0]),
            (curve.high, interval.iloc[:, 1]),
        ):
            times = np.array(curve.times)[seen]
            np.testing.assert_allclose(np.array(values)[seen], reference.loc[times], rtol=0, atol=1e-9)
        np.testing.assert_array_equal(
            np.array(curve.at_risk)[seen], pooled.event_table["at_risk"].loc[np.array(curve.times)[seen]]
        )
        ends = median_survival_times(interval).to_numpy()[0]
        assert [v or np.inf for v in vars(curve.median).values()] == [pooled.median_survival_time_, *ends]
        mean = restricted_mean_survival_time(pooled, curve.horizon)
        assert curve.restricted_mean.value == pytest.approx(mean, rel=1e-9)


def test_restricted_mean_of_lung_equals_r():
    """R: print(survfit(Surv(time, status) ~ 1, lung), rmean = "common"): 376.3, se 19.7."""
    mean = fit(lung(), grid="days", horizon=1022).overall.restricted_mean
    assert mean.value == pytest.approx(376.3, abs=0.05)
    assert (mean.high - mean.value) / 1.959964 == pytest.approx(19.7, abs=0.05)


@pytest.mark.parametrize("make", SETS)
def test_groups_are_compared_within_sites_on_both_grids(make):
    cohort = make()
    expected = survdiff(cohort.time, cohort.event, cohort.group, strata=cohort.site)
    for grid in ("bins", "days"):
        test = fit(cohort, grid=grid).log_rank
        assert (test.statistic, test.p) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("make", SETS)
def test_the_log_rank_test_of_one_site_equals_lifelines(make):
    cohort = make()
    one = {"a": small(cohort.time, cohort.event, cohort.group)}
    test = fit_in_memory(compare_within_sites(cohort.names()), one, ANSWERS)
    pooled = multivariate_logrank_test(cohort.time, cohort.group, cohort.event)
    assert (test.statistic, test.p) == pytest.approx((pooled.test_statistic, pooled.p_value), rel=1e-9)


def test_a_note_says_why_the_events_of_groups_do_not_add_up():
    found = fit(gbsg2(), grid="bins")
    events = [c.events for c in found.groups]
    (note,) = (n for n in found.notes if "need not add up" in n)
    assert sum(events) < found.overall.events
    assert all(f"{c.times[-1]:.4g} ({c.group})" in note for c in (found.overall, *found.groups))


@pytest.mark.parametrize("make", SETS)
def test_log_rank_within_sites_equals_statsmodels(make):
    cohort = make()
    record = Record()
    test = fit_in_memory(compare_within_sites(cohort.names()), cohort.rows(), ANSWERS, record)
    statistic, p = survdiff(cohort.time, cohort.event, cohort.group, strata=cohort.site)
    assert test.statistic == pytest.approx(statistic, rel=1e-9)
    assert test.p == pytest.approx(p, rel=1e-9)
    assert sum(test.expected) == pytest.approx(cohort.event.sum())
    assert record.exchanges == 1


@pytest.mark.parametrize("make", SETS)
def test_curve_on_bins_is_close_to_lifelines(make):
    cohort = make()
    record = Record()
    result = fit_in_memory(fit_kaplan_meier(grid="bins"), cohort.rows(), ANSWERS, record)
    curve = result.overall
    pooled = KaplanMeierFitter().fit(cohort.time, cohort.event)
    np.testing.assert_allclose(curve.survival, pooled.survival_function_at_times(curve.times), rtol=0, atol=0.01)
    assert len(curve.times) >= cohort.event.sum() / 10
    assert min(curve.died) >= 5
    assert curve.at_risk[-1] - curve.died[-1] - curve.censored[-1] >= 5
    assert curve.median.value == pytest.approx(pooled.median_survival_time_, rel=0.02)
    assert record.exchanges == 3
    assert record.numbers <= 2 * len(cohort.time)  # numbers sent <= numbers held


def test_hand_computed_curve_with_ties():
    """Times 1, 2, 2, 2+, 3+, 4: survival 5/6, 5/6 * 3/5 = 1/2, and 0; deaths of a day precede those censored on it."""
    sites = {"a": small([1, 2, 2], [1, 1, 0]), "b": small([2, 3, 4], [1, 0, 1])}
    curve = fit_in_memory(fit_kaplan_meier(grid="days"), sites, ANSWERS).overall
    assert curve.times == (1, 2, 3, 4)
    assert curve.survival == pytest.approx((5 / 6, 1 / 2, 1 / 2, 0))
    assert curve.at_risk == (6, 5, 2, 1)
    assert (curve.died, curve.censored) == ((1, 2, 0, 1), (0, 1, 1, 0))
    assert curve.median.value == 2
    assert curve.restricted_mean.value == pytest.approx(1 + 5 / 6 + 1 / 2 + 1 / 2)
    assert (curve.low[-1], curve.high[-1]) == (0, 0)
    assert [curve.at_risk_at(t) for t in (0, 1, 1.5, 2.5, 4, 5)] == [6, 6, 5, 2, 1, 0]
    assert curve.survival_at(2.5).value == pytest.approx(1 / 2)
    assert curve.survival_at(4.5).value is None


def test_hand_computed_actuarial_estimate():
    """10 rows, one cell with 2 deaths and 2 censored, another with 2 deaths: 1 - 2/9, then times 1 - 2/6."""
    cells = TimeCounts(np.array([5.0, 10.0]), np.array([[2.0, 2.0]]), np.array([[2.0, 0.0]]), np.array([4.0]))
    curve = estimate_curve("all", cells, grid="bins", least=2)
    assert curve.survival == pytest.approx((7 / 9, 7 / 9 * 4 / 6))
    assert curve.at_risk == (10, 6)
    assert curve.at_risk_at(10) == 4
    assert curve.restricted_mean.value == pytest.approx(5 * (1 + 7 / 9) / 2 + 5 * (7 / 9 + 14 / 27) / 2)


def test_cells_are_merged_until_intervals_are_large_enough():
    events, censored = np.array([[1.0, 1, 3, 0, 4, 1, 2]]), np.array([[0.0, 2, 0, 1, 0, 0, 0]])
    cells = TimeCounts(np.arange(1.0, 8), events, censored, np.array([3.0]))
    merged = merge_cells(cells, 5)
    assert merged.ends.tolist() == [3, 6]
    assert merged.events.tolist() == [[5, 5]]
    assert merged.censored.tolist() == [[2, 1]]
    assert merged.beyond.tolist() == [5]
    assert merged.at_risk.tolist() == [[18, 11]]
    assert merge_cells(cells, 6).ends.tolist() == [5]  # a further interval would leave 3 rows
    assert count_small_cells(cells, 5) == 8


def test_group_with_few_events_has_no_curve_and_no_count():
    rng = np.random.default_rng(0)
    time, event = rng.integers(1, 100, 60), np.ones(60)
    group = np.zeros(60, int)
    group[:3], group[30:] = 1, 2
    sites = {"a": small(time[:30], event[:30], group[:30]), "b": small(time[30:], event[30:], group[30:])}
    result = fit_in_memory(fit_kaplan_meier(["x", "rare", "y"]), sites, ANSWERS)
    rare = result.groups[1]
    assert rare.times == () and rare.rows is None and rare.events is None
    assert any("fewer than 5 rows are left out of all curves: rare" in note for note in result.notes)
    assert result.overall.rows == 57, "the total less the other groups does not give the small group away"
    assert result.log_rank.observed == (None, None, 30)
    sites["b"] = small(time[30:], np.zeros(30), group[30:])
    quiet = fit_in_memory(fit_kaplan_meier(["x", "rare", "y"]), sites, ANSWERS).groups[2]
    assert quiet.times == () and quiet.rows == 30 and quiet.events is None


def test_day_grid_says_that_days_are_disclosed():
    notes = fit(lung(), grid="days").notes
    assert "time of every single event and censoring can be read" in notes[0]


def test_results_are_read_back():
    for grid in ("days", "bins"):
        result = fit(lung(), grid=grid)
        assert KaplanMeier.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_times_in_years_have_fine_cells():
    cohort = lung()
    sites = {k: small(r.time / 365.25, r.y) for k, r in cohort.rows().items()}
    curve = fit_in_memory(fit_kaplan_meier(unit=1 / 365.25), sites, ANSWERS).overall
    pooled = KaplanMeierFitter().fit(cohort.time / 365.25, cohort.event)
    np.testing.assert_allclose(curve.survival, pooled.survival_function_at_times(curve.times), rtol=0, atol=0.01)


def test_counts_have_a_last_cell_for_longer_times():
    sites = {"a": small([1, 2, 9], [1, 0, 1]), "b": small([0, 2.5], [1, 1])}
    counts, off = fit_in_memory(ask_time_counts(np.array([2.0, 3.0])), sites, ANSWERS)
    assert counts.events.tolist() == [[2, 1]]
    assert counts.censored.tolist() == [[1, 0]]
    assert counts.beyond.tolist() == [1]
    assert off == 4


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        (small([1, -2, 3], [1, 1, 1]), {}, "1 of 3 follow-up times are negative"),
        (small([1, np.nan, 3], [1, 1, 1]), {}, "1 of 3 follow-up times are negative or missing"),
        (small([1, 2, 3], [1, 2, 1]), {}, "1 of 3 events are neither 0"),
        (Rows(np.zeros((3, 0)), np.ones(3)), {}, "the rows have none"),
        (small([1, 2.5, 3], [1, 1, 1]), {"grid": "days"}, "1 follow-up times are not multiples of 1"),
        (small([1, 2, 3], [1, 1, 1]), {}, "fewer than 5 events"),
        (small([1, 2, 3], [0, 0, 0]), {"grid": "days"}, "no events"),
        (small([1, 2, 3], [1, 1, 1]), {"grid": "weeks"}, "unknown grid 'weeks'"),
        (small([1, 2, 3e9], [1, 1, 1]), {}, "give them in a larger unit"),
        (small([1, 2, 3e6], [1, 1, 1]), {"grid": "days"}, "choose a larger unit"),
        (small([], []), {}, "no row of any site"),
        (small([1, 2, 3], [1, 1, 1]), {"unit": 0}, "must be above 0"),
    ],
)
def test_bad_input_is_named(rows, options, sentence):
    with pytest.raises(BadInput, match=sentence):
        fit_in_memory(fit_kaplan_meier(**options), {"a": rows}, ANSWERS)


def test_log_rank_needs_groups():
    with pytest.raises(BadInput, match="two or more groups"):
        fit_in_memory(compare_within_sites(["one"]), {"a": small([1], [1])}, ANSWERS)
    with pytest.raises(BadInput, match="the rows have none"):
        fit_in_memory(compare_within_sites(["one", "two"]), {"a": small([1], [1])}, ANSWERS)
