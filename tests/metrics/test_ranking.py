from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from grandrounds.metrics import scores, tally
from grandrounds.metrics.ranking import Z_95

from .cohort import binary_cohort, log_odds

pytestmark = pytest.mark.filterwarnings("error")


def exact_delong(y: np.ndarray, z: np.ndarray) -> tuple[float, float]:
    """Area and standard error from every pair of a positive and a negative (DeLong et al., 1988)."""
    wins = np.sign(z[y == 1][:, None] - z[y == 0][None, :]) / 2 + 0.5
    m, n = wins.shape
    variance = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    return float(wins.mean()), float(np.sqrt(variance))


def test_two_and_two_by_hand():
    s = scores(tally(np.array([[-1.0], [1.0], [0.0], [2.0]]), np.array([0, 0, 1, 1]), classes=2))
    assert s["auroc"] == 0.75
    assert s["auroc_low"] == pytest.approx(0.75 - 1.959964 * np.sqrt(0.125))
    assert s["auroc_high"] == 1.0


@pytest.mark.parametrize("sharpness", [1.0, 8.0])
@pytest.mark.parametrize("prevalence", [0.089, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_interval_of_summed_sites_is_that_of_pooled_rows(seed, prevalence, sharpness):
    cohort = binary_cohort(seed, rows=3000, prevalence=prevalence, sharpness=sharpness)
    s = scores(cohort.federated())
    area, error = exact_delong(cohort.y, cohort.logits[:, 0])
    assert s["auroc_low"] == pytest.approx(area - Z_95 * error, abs=1e-3)
    assert s["auroc_high"] == pytest.approx(area + Z_95 * error, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=4, max_size=40))
def test_ties_get_half_credit_exactly(rows):
    z, y = np.array(rows, float).T
    s = scores(tally(z[:, None], y.astype(int), classes=2))
    if min(y.sum(), (1 - y).sum()) < 2:
        assert np.isnan(s["auroc_low"])
        return
    area, error = exact_delong(y, z)
    assert s["auroc"] == pytest.approx(area, abs=1e-12)
    assert s["auroc"] == pytest.approx(roc_auc_score(y, z), abs=1e-12)
    assert s["auroc_low"] == pytest.approx(max(area - Z_95 * error, 0.0), abs=1e-9)
    assert s["auroc_high"] == pytest.approx(min(area + Z_95 * error, 1.0), abs=1e-9)


def test_a_single_positive_is_ranked_but_has_no_interval():
    s = scores(tally(np.array([[0.0], [1.0], [2.0]]), np.array([0, 1, 0]), classes=2))
    assert s["auroc"] == 0.5
    assert np.isnan(s["auroc_low"])
    assert np.isnan(s["auroc_high"])


def test_a_perfect_ranking_is_sure_of_itself():
    s = scores(tally(np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1]), classes=2))
    assert [float(s[name]) for name in ("auroc", "auroc_low", "auroc_high", "auprc")] == [1, 1, 1, 1]
    assert s["recall_at_90_specificity"] == 1.0


def test_a_model_that_says_nothing_has_the_prevalence_as_precision():
    y = np.zeros(2000, int)
    y[:178] = 1
    s = scores(tally(np.full((2000, 1), -2.3), y, classes=2))
    assert s["auroc"] == 0.5
    assert s["auprc"] == pytest.approx(0.089, abs=1e-3)
    assert s["recall_at_90_specificity"] == pytest.approx(0.1)


def test_average_precision_by_hand():
    s = scores(tally(log_odds([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([1, 0, 1, 0, 1]), classes=2))
    assert s["auprc"] == pytest.approx((1 / 1 + 2 / 3 + 3 / 5) / 3)


def test_recall_counts_positives_above_the_first_negative_too_many():
    z = np.arange(20.0, 0.0, -1.0)
    y = np.ones(20, int)
    y[[3, 9, *range(12, 20)]] = 0
    s = scores(tally(z[:, None], y, classes=2))
    assert s["recall_at_90_specificity"] == pytest.approx(8 / 10)
