from __future__ import annotations

import numpy as np
import pytest

from grandrounds.metrics import decision_curve, tally

from .cohort import binary_cohort, log_odds, sigmoid

pytestmark = pytest.mark.filterwarnings("error")


def test_net_benefit_by_hand():
    t = tally(log_odds([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1]), classes=2)
    curve = decision_curve(t, [0.05, 0.3, 0.5, 0.75])
    assert curve.thresholds.tolist() == [0.05, 0.3, 0.5, 0.75]
    np.testing.assert_allclose(curve.model, [0.5 - 0.5 / 19, 0.5 - 0.25 * 3 / 7, 0.25 - 0.25, 0.25])
    np.testing.assert_allclose(curve.treat_all, [0.5 - 0.5 / 19, 0.5 - 0.5 * 3 / 7, 0.0, 0.5 - 0.5 * 3])


@pytest.mark.parametrize("sharpness", [1.0, 8.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_curve_of_summed_sites_is_that_of_pooled_rows(seed, sharpness):
    cohort = binary_cohort(seed, sharpness=sharpness)
    at = np.arange(1, 60) / 100
    curve = decision_curve(cohort.federated(), at)
    called = sigmoid(cohort.logits) >= at
    hits = (called & (cohort.y == 1)[:, None]).mean(axis=0)
    alarms = (called & (cohort.y == 0)[:, None]).mean(axis=0)
    np.testing.assert_allclose(curve.model, hits - alarms * at / (1 - at), atol=1e-3)
    prevalence = cohort.y.mean()
    np.testing.assert_allclose(curve.treat_all, prevalence - (1 - prevalence) * at / (1 - at), atol=1e-12)


def test_sites_have_curves_of_their_own():
    cohort = binary_cohort(2, rows=1000)
    t = tally(cohort.logits, cohort.y, group=cohort.site, groups=13, classes=2)
    curve = decision_curve(t, [0.1, 0.2])
    assert curve.model.shape == curve.treat_all.shape == (13, 2)
    assert np.isnan(curve.model[12]).all()
    np.testing.assert_allclose(curve.model[3], decision_curve(t[3], [0.1, 0.2]).model)


def test_a_single_threshold_is_a_curve_of_one():
    t = tally(np.zeros((2, 1)), np.array([0, 1]), classes=2)
    assert decision_curve(t, 0.5).model.tolist() == [0.0]


@pytest.mark.parametrize("wrong", [[0.0], [1.0], [0.5, np.nan], [[0.1, 0.2]]])
def test_thresholds_lie_strictly_between_zero_and_one(wrong):
    t = tally(np.zeros((2, 1)), np.array([0, 1]), classes=2)
    with pytest.raises(ValueError, match="strictly between"):
        decision_curve(t, wrong)


def test_several_classes_are_refused():
    with pytest.raises(ValueError, match="two classes, not 3"):
        decision_curve(tally(np.zeros((1, 3)), np.zeros(1, int), classes=3), [0.1])
