from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from grandrounds.metrics import ScoredRows, Tally, bin_centres, scores, tally
from grandrounds.metrics.classification import Z_95

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


# Rows of three sites: the place of a score among nine bins next to each other, the label, the site.
TIED = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1), st.integers(0, 2)), min_size=2, max_size=60)


@settings(max_examples=100, deadline=None)
@given(TIED, st.integers(0, 2039))
def test_scores_on_the_grid_are_ranked_exactly_by_summed_histograms(rows, first):
    place, y, site = np.array(rows).T
    z = bin_centres()[first + place]
    total: Tally = tally(z[:, None], y, group=site, groups=3, classes=2).sum()
    s = scores(total)
    if len(set(y)) < 2:
        assert np.isnan(s["auprc"])
        assert np.isnan(s["auprc_resolution"])
        return
    assert s["auprc"] == pytest.approx(average_precision_score(y, z), abs=1e-12)
    assert s["auroc"] == pytest.approx(roc_auc_score(y, z), abs=1e-12)


@pytest.mark.parametrize(("z", "y", "precision"), [([0] * 10, [1, *[0] * 9], 0.1), ([0, 0, 1, 1], [0, 1, 0, 1], 0.5)])
def test_a_tie_has_the_precision_at_its_end(z, y, precision):
    assert scores(tally(np.array(z, float)[:, None], np.array(y), classes=2))["auprc"] == precision


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(4, 60), st.sampled_from([0.001, 0.01, 0.3, 3.0]), st.floats(-6, 6))
def test_binning_costs_no_more_than_the_resolution_says(seed, n, spread, middle):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % 3 == 0).astype(int)
    z = np.round(middle + spread * (rng.normal(size=n) + y), int(rng.integers(1, 9)))
    s = scores(tally(z[:, None], y, classes=2))
    assert abs(s["auroc"] - roc_auc_score(y, z)) <= s["auroc_resolution"] + 1e-12
    assert abs(s["auprc"] - average_precision_score(y, z)) <= s["auprc_resolution"] + 1e-12


def test_rows_in_bins_of_their_own_leave_no_error_of_binning():
    s = scores(tally(np.arange(-3.0, 3.0)[:, None], np.array([0, 1, 0, 0, 1, 1]), classes=2))
    assert s["auroc_resolution"] == 0
    assert s["auprc_resolution"] == 0


def test_a_site_scores_its_own_rows_exactly():
    rng = np.random.default_rng(3)
    site = rng.integers(0, 4, 400)
    y = (rng.random(400) < 0.2).astype(int)
    z = -6 + 0.1 * (rng.normal(size=400) + y)  # a rare outcome in the first rounds: many rows share a bin
    scored = ScoredRows.from_logits(z[:, None], y, classes=2)
    own, binned = scores(scored.exact_tally(site, (4,)), threshold=0.0025), scores(scored.tally(site, (4,)))
    for k in range(4):
        held, there = z[site == k], y[site == k]
        area, error = exact_delong(there, held)
        assert own["auroc"][k] == pytest.approx(roc_auc_score(there, held), abs=1e-12)
        assert own["auprc"][k] == pytest.approx(average_precision_score(there, held), abs=1e-12)
        assert own["auroc_low"][k] == pytest.approx(max(area - Z_95 * error, 0), abs=1e-9)
        called = held >= np.log(0.0025 / 0.9975)
        assert own["sensitivity"][k] == pytest.approx(called[there == 1].mean(), abs=1e-12)
        assert own["specificity"][k] == pytest.approx(1 - called[there == 0].mean(), abs=1e-12)
    assert np.all(own["auroc_resolution"] == 0)
    assert np.all(own["auprc_resolution"] == 0)
    assert np.all(binned["auprc_resolution"] > 0.02)


def test_equal_rows_whose_scores_were_rounded_apart_are_a_tie():
    z = np.float32(0.7) * (1 + np.float32(1.2e-7) * np.arange(4))
    own = scores(ScoredRows.from_logits(z[:, None], np.array([0, 1, 0, 1]), classes=2).exact_tally(np.zeros(4, np.intp), (1,)))
    assert own["auroc"] == 0.5
    assert own["auprc"] == 0.5


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
    assert s["auprc"] == pytest.approx(0.089, abs=1e-12)
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
