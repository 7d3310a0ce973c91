from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from grandrounds.metrics import choose_threshold, scores, tally
from grandrounds.metrics.classification import edge_probability, grid_position
from tests.support import refused

from .cohort import binary_cohort, log_odds, sigmoid

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("prevalence", [0.089, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_youden_on_sums_is_as_good_as_on_rows(seed, prevalence):
    cohort = binary_cohort(seed, prevalence=prevalence)
    at = choose_threshold(cohort.federated(), "youden")
    called = sigmoid(cohort.logits[:, 0]) >= at
    chosen = called[cohort.y == 1].mean() - called[cohort.y == 0].mean()
    false_alarms, found, _ = roc_curve(cohort.y, cohort.logits[:, 0])
    best = (found - false_alarms).max()
    assert best - 5e-3 <= chosen <= best
    assert choose_threshold(cohort.federated()) == at


@pytest.mark.parametrize("target", [0.5, 0.8, 0.9, 0.99])
def test_a_target_specificity_is_kept_and_one_bin_lower_it_is_not(target):
    cohort = binary_cohort(3)
    at = choose_threshold(cohort.federated(), specificity=target)
    p = sigmoid(cohort.logits[cohort.y == 0, 0])
    one_lower = edge_probability(round(grid_position(at)) - 1)
    assert (p < one_lower).mean() < target <= (p < at).mean()
    assert scores(cohort.federated(), threshold=at)["specificity"] == pytest.approx((p < at).mean(), abs=1e-9)


def test_four_rows_by_hand():
    t = tally(log_odds([0.1, 0.3, 0.6, 0.8]), np.array([0, 0, 1, 1]), classes=2)
    at = choose_threshold(t)
    assert 0.3 < at < 0.6
    assert at == pytest.approx(0.445, abs=0.03)
    half = choose_threshold(t, specificity=0.5)
    assert 0.1 < half < 0.11
    assert choose_threshold(t, specificity=0.0) == 0.0
    assert 0.3 < choose_threshold(t, specificity=1.0) < 0.31


def test_the_middle_of_the_first_best_stretch_is_taken():
    t = tally(log_odds([0.2, 0.4, 0.6, 0.8]), np.array([0, 1, 0, 1]), classes=2)
    assert 0.2 < choose_threshold(t) < 0.4


def test_nothing_is_called_when_a_negative_tops_the_grid():
    t = tally(np.array([[1e3], [0.0]]), np.array([0, 1]), classes=2)
    assert choose_threshold(t, specificity=1.0) == 1.0
    assert scores(t, threshold=1.0)["specificity"] == 1.0


def test_without_rows_to_judge_by_there_is_no_threshold():
    only = {y: tally(np.zeros((3, 1)), np.full(3, y), classes=2) for y in (0, 1)}
    assert np.isnan(choose_threshold(only[0]))
    assert np.isnan(choose_threshold(only[1]))
    assert np.isnan(choose_threshold(only[1], specificity=0.9))
    assert choose_threshold(only[0], specificity=0.9) > 0.5


def test_what_does_not_fit_is_refused():
    t = tally(np.zeros((1, 1)), np.zeros(1, int), classes=2)
    with refused("unknown-rule", match="'youden'"):
        choose_threshold(t, "yuden")
    with refused("setting-out-of-range", match="90"):
        choose_threshold(t, specificity=90)
    with pytest.raises(ValueError, match="not both"):
        choose_threshold(t, "youden", specificity=0.9)
    with pytest.raises(ValueError, match="3 classes"):
        choose_threshold(tally(np.zeros((1, 3)), np.zeros(1, int), classes=3))
    with pytest.raises(ValueError, match="sites summed"):
        choose_threshold(tally(np.zeros((1, 1)), np.zeros(1), group=np.zeros(1), groups=2, classes=2))
