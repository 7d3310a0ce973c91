"""Metrics of numbers, counts and hazards from sums of sites, against scikit-learn, statsmodels and lifelines on all rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import d2_tweedie_score, mean_absolute_error, mean_poisson_deviance, mean_squared_error, r2_score

from grandrounds.core.outcome import COUNT, REGRESSION, SURVIVAL
from grandrounds.metrics import LOSS, metrics_of, scores, shown_in, tally_outcome
from grandrounds.metrics.outcomes import OutcomeTally, count_pairs, partial_likelihood_loss
from grandrounds.metrics.scores import HEADLINE, Place

RNG = np.random.default_rng(5)
N = 300
SITE = RNG.integers(0, 4, N)


def test_sums_of_sites_give_the_errors_of_all_rows():
    y, predicted = 1e4 + 50 * RNG.normal(size=N), 1e4 + 50 * RNG.normal(size=N)
    centre, scale = y.mean(), y.std()
    tally = tally_outcome(REGRESSION, (predicted - centre) / scale, (y - centre) / scale, SITE, (4,), scale=scale)
    total = scores(tally.sum(axis=0))
    assert total["mse"] == pytest.approx(mean_squared_error(y, predicted), rel=1e-9)
    assert total["rmse"] == pytest.approx(np.sqrt(mean_squared_error(y, predicted)), rel=1e-9)
    assert total["mae"] == pytest.approx(mean_absolute_error(y, predicted), rel=1e-9)
    assert total["r2"] == pytest.approx(r2_score(y, predicted), rel=1e-9)
    assert total["bias"] == pytest.approx((predicted - y).mean(), rel=1e-6)
    mine = SITE == 2
    assert scores(tally)["r2"][2] == pytest.approx(r2_score(y[mine], predicted[mine]), rel=1e-9)


def test_sums_of_sites_give_the_deviance_of_all_rows():
    y, mean = RNG.poisson(4.0, N).astype(float), np.exp(RNG.normal(1.2, 0.4, N))
    scale = y.mean()
    tally = tally_outcome(COUNT, np.log(mean / scale), y / scale, SITE, (4,), scale=scale)
    total = scores(tally.sum(axis=0))
    assert total["deviance"] == pytest.approx(mean_poisson_deviance(y, mean), rel=1e-9)
    assert total["d2"] == pytest.approx(d2_tweedie_score(y, mean, power=1), rel=1e-9)
    assert total["mae"] == pytest.approx(mean_absolute_error(y, mean), rel=1e-9)


@pytest.mark.parametrize("rows", [3, 40, 2500])
def test_the_c_index_of_one_site_is_that_of_lifelines(rows):
    concordance_index = pytest.importorskip("lifelines.utils").concordance_index
    time = RNG.integers(0, max(2, rows // 3), rows).astype(float)  # with ties
    event, score = RNG.integers(0, 2, rows), np.round(RNG.normal(size=rows), 1)
    event[0] = 1
    time[0] = 0
    tally = tally_outcome(SURVIVAL, score, event, np.zeros(rows, int), (1,), time=time)
    assert scores(tally)["c_index"][0] == pytest.approx(concordance_index(time, -score, event), abs=1e-12)


def test_pairs_within_sites_add_up():
    time, event, score = RNG.exponential(size=N), RNG.integers(0, 2, N), RNG.normal(size=N)
    total = tally_outcome(SURVIVAL, score, event, SITE, (4,), time=time).sum(axis=0)
    pairs = np.sum([count_pairs(score[k == SITE], event[k == SITE], time[k == SITE]) for k in range(4)], axis=0)
    assert scores(total)["c_index"] == pytest.approx((pairs[1] + pairs[2] / 2) / pairs[0])
    assert total.of("events") == event.sum()


def test_the_cox_loss_is_the_partial_likelihood_of_statsmodels():
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression")
    x = RNG.normal(size=(N, 2))
    beta, time, event = np.array([0.5, -0.2]), RNG.integers(1, 60, N).astype(float), RNG.integers(0, 2, N)
    expected = -phreg.PHReg(time, x, status=event, ties="breslow").loglike(beta)
    assert partial_likelihood_loss(x @ beta, event, time) == pytest.approx(expected, rel=1e-10)


def test_an_output_that_is_not_finite_shows():
    tally = tally_outcome(REGRESSION, np.array([np.inf, 0.0]), np.zeros(2), np.array([0, 1]), (2,))
    assert not np.isfinite(scores(tally)["rmse"][0]) and scores(tally)["rmse"][1] == 0
    tally = tally_outcome(SURVIVAL, np.array([np.nan, 0.0]), np.ones(2), np.zeros(2, int), (1,), time=np.arange(2.0))
    assert np.isnan(scores(tally)["c_index"][0])


def test_sites_without_rows_have_no_metrics():
    for task in (REGRESSION, COUNT, SURVIVAL):
        tally = tally_outcome(task, np.zeros(0), np.zeros(0), np.zeros(0, int), (2,), time=np.zeros(0))
        values = scores(tally)
        assert all(np.isnan(v).all() for name, v in values.items() if name != "count")
        assert OutcomeTally.from_arrays(tally.arrays(), task=task, scale=1.0).shape == (2,)


@pytest.mark.parametrize("task", [REGRESSION, COUNT, SURVIVAL])
def test_every_task_has_its_loss_and_headline_where_they_are_shown(task):
    names = [m.name for m in metrics_of(task)]
    assert LOSS[task] in names and HEADLINE[task] in names and "auroc" not in names
    assert LOSS[task] in shown_in(Place.ROUND, task) and HEADLINE[task] in shown_in(Place.COURSE, task)
