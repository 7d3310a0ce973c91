"""Slope and intercept against statsmodels and scikit-learn, the closed test by hand, and rows of one patient."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from grandrounds.capabilities.watch.recalibration.figures import cross_validate, decide, measure_calibration
from grandrounds.capabilities.watch.recalibration.line_fit import INTERCEPT, NONE, SLOPE, choose_update, fit_line_freely
from grandrounds.core.rng import generator
from grandrounds.metrics import scores, tally
from grandrounds.models.dense import targets
from tests.support import refused


def drawn(n: int, *, slope: float = 1.0, intercept: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of a model (n, 1), and outcomes (n,) whose log-odds are slope * score + intercept."""
    rng = generator(seed, purpose="recalibration tests")
    z = rng.normal(-0.5, 1.5, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-slope * z - intercept))).astype(int)
    return z[:, None], y


def alone(n: int) -> np.ndarray:
    return np.arange(n)


def test_slope_and_intercept_are_those_of_statsmodels_and_scikit_learn():
    sm, linear = pytest.importorskip("statsmodels.api"), pytest.importorskip("sklearn.linear_model")
    z, y = drawn(400, slope=0.6, intercept=0.8)
    both = fit_line_freely(z, y[:, None], alone(400), slope=True)
    reference = sm.GLM(y, sm.add_constant(z), family=sm.families.Binomial()).fit(tol=1e-12)
    np.testing.assert_allclose([both.line.intercept[0], both.line.slope], reference.params, atol=1e-6)
    np.testing.assert_allclose([both.intercept_error, both.slope_error], reference.bse, rtol=1e-5)
    assert both.log_likelihood == pytest.approx(reference.llf, abs=1e-8)
    fitted = linear.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(z, y)
    np.testing.assert_allclose([both.line.intercept[0], both.line.slope], [fitted.intercept_[0], fitted.coef_[0, 0]], atol=1e-5)
    large = fit_line_freely(z, y[:, None], alone(400), slope=False)
    offset = sm.GLM(y, np.ones((400, 1)), family=sm.families.Binomial(), offset=z[:, 0]).fit(tol=1e-12)
    assert large.line.slope == 1 and large.line.intercept[0] == pytest.approx(offset.params[0], abs=1e-6)
    assert large.intercept_error == pytest.approx(offset.bse[0], rel=1e-5) and large.slope_error is None


def test_errors_of_patients_with_several_rows_are_those_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    z, y = drawn(300, slope=0.7)
    units = generator(1, purpose="recalibration tests").integers(0, 120, 300)
    units = np.unique(units, return_inverse=True)[1]
    fit, patients = fit_line_freely(z, y[:, None], units, slope=True), units.max() + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = sm.GLM(y, sm.add_constant(z), family=sm.families.Binomial()).fit(
            cov_type="cluster", cov_kwds={"groups": units, "use_correction": False}, tol=1e-12
        )
    expected = reference.bse * np.sqrt(patients / (patients - 1))
    np.testing.assert_allclose([fit.intercept_error, fit.slope_error], expected, rtol=1e-5)


@pytest.mark.parametrize(("slope", "intercept", "kind"), [(1.0, 0.0, NONE), (1.0, 1.0, INTERCEPT), (0.4, 0.6, SLOPE)])
def test_the_closed_test_by_hand(slope, intercept, kind):
    """Statistics are twice the differences of log-likelihoods; 5.99 and 3.84 are the 5% points of 2 and 1 degrees."""
    z, y = drawn(500, slope=slope, intercept=intercept, seed=3)
    t, units = y[:, None].astype(float), alone(500)
    update = choose_update(z, t, units, intercept_only=False)
    likelihood = float((y * z[:, 0] - np.logaddexp(0, z[:, 0])).sum())
    both, large = (fit_line_freely(z, t, units, slope=s).log_likelihood for s in (True, False))
    first = 2 * (both - likelihood)
    assert update.kind == kind
    assert update.tests[0].statistic == pytest.approx(first) and (first > 5.991) == (kind != NONE)
    assert update.tests[0].p == pytest.approx(np.exp(-first / 2), rel=1e-9), "chi-squared of two degrees"
    assert len(update.tests) == (1 if kind == NONE else 2)
    if kind != NONE:
        assert update.tests[1].statistic == pytest.approx(2 * (both - large))
        assert (update.tests[1].statistic > 3.841) == (kind == SLOPE)


def test_a_calibrated_model_is_left_alone_in_95_percent_of_cases():
    def is_kept(seed: int) -> bool:
        z, y = drawn(200, seed=seed)
        return choose_update(z, y[:, None].astype(float), alone(200), intercept_only=False).kind == NONE

    assert 0.92 <= np.mean([is_kept(seed) for seed in range(300)]) <= 0.98


def test_rows_of_one_patient_count_once():
    """A patient who is in the table four times is one patient: test and intervals are those of one row each."""
    z, y = drawn(150, intercept=0.45, seed=5)
    t = y[:, None].astype(float)
    once = choose_update(z, t, alone(150), intercept_only=False)
    more = np.repeat(z, 4, axis=0), np.repeat(t, 4, axis=0)
    again = choose_update(*more, np.repeat(alone(150), 4), intercept_only=False)
    wrong = choose_update(*more, alone(600), intercept_only=False)
    assert again.tests[0].statistic == pytest.approx(once.tests[0].statistic)
    assert wrong.tests[0].statistic == pytest.approx(4 * once.tests[0].statistic)
    figures = [
        measure_calibration(np.repeat(z, k, 0), np.repeat(y, k), np.repeat(alone(150), k), seed=0, site="a") for k in (1, 4)
    ]
    assert figures[1].log_loss.low == pytest.approx(figures[0].log_loss.low)
    assert figures[1].ece.low == pytest.approx(figures[0].ece.low)


def test_several_classes_have_one_slope_and_an_intercept_each():
    """The gradient of the softmax likelihood by slope and intercepts is zero at the fit."""
    rng = generator(2, purpose="recalibration tests")
    z = rng.normal(0, 1.5, (600, 3))
    true = 0.5 * z + np.array([0.6, 0.0, -0.6])
    p = np.exp(true) / np.exp(true).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((600, 1))).sum(axis=1)
    t = targets(y, 3, np.float64)
    update = choose_update(z, t, alone(600), intercept_only=False)
    assert update.kind == SLOPE and [test.degrees for test in update.tests] == [3, 1]
    line = update.fit.line
    assert line.intercept.sum() == pytest.approx(0, abs=1e-12)
    assert line.slope == pytest.approx(0.5, abs=0.1) and line.intercept == pytest.approx([0.6, 0, -0.6], abs=0.25)
    moved = line.slope * z + line.intercept
    q = np.exp(moved) / np.exp(moved).sum(axis=1, keepdims=True)
    assert np.abs((q - t).sum(axis=0)).max() < 1e-6 and abs(((q - t) * z).sum()) < 1e-6
    figures = measure_calibration(moved, y, alone(600), seed=0, site="a")
    assert figures.expected == pytest.approx(figures.observed, abs=1e-8) and figures.slope.value == pytest.approx(1)


def test_separated_scores_have_no_slope_and_still_an_intercept():
    z, y = np.linspace(-2, 2, 60)[:, None], (np.arange(60) >= 30).astype(int)
    with refused("separated-classes"):
        choose_update(z, y[:, None].astype(float), alone(60), intercept_only=False)
    assert choose_update(z, y[:, None].astype(float), alone(60), intercept_only=True).kind == NONE
    assert measure_calibration(z, y, alone(60), seed=0, site="a").slope is None
    with refused("separated-classes"):
        fit_line_freely(z, np.ones((60, 1)), alone(60), slope=False)


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_equal_risks_have_no_slope_and_still_an_intercept(noise):
    z, y = np.full((60, 1), -1.3), (np.arange(60) % 3 == 0).astype(int)
    z += noise * np.random.default_rng(0).normal(size=z.shape)
    with refused("equal-risks"):
        choose_update(z, y[:, None].astype(float), alone(60), intercept_only=False)
    assert choose_update(z, y[:, None].astype(float), alone(60), intercept_only=True).tests
    assert measure_calibration(z, y, alone(60), seed=0, site="a").slope is None


def test_figures_are_those_of_rounds_evaluate():
    z, y = drawn(300, slope=0.7, intercept=0.3)
    figures = measure_calibration(z, y, alone(300), seed=0, site="a")
    known = scores(tally(z, y, classes=2), threshold=0.3)
    assert figures.ece.value == pytest.approx(float(known["ece"]))
    assert figures.log_loss.value == pytest.approx(float(known["log_loss"]))
    assert figures.slope.value == pytest.approx(float(known["calibration_slope"]), abs=0.01), "tallies have bins"
    made = decide(z, y, 0.3)
    p = 1 / (1 + np.exp(-z[:, 0]))
    hits, false = ((p >= 0.3) & (y == 1)).sum(), ((p >= 0.3) & (y == 0)).sum()
    assert made.flagged == hits + false and made.sensitivity == hits / y.sum()
    assert made.net_benefit == pytest.approx((hits - false * 0.3 / 0.7) / 300)


def test_cross_validation_fits_no_row_to_itself():
    """Another outcome of a patient changes nothing of the scores in that patient's own fold."""
    z, y = drawn(250, slope=0.5, intercept=1.0)
    units = np.arange(250) // 2
    after, kinds = cross_validate(z, y, units, intercept_only=False, seed=0, site="a")
    assert set(kinds) <= {INTERCEPT, SLOPE} and np.abs(after - z).min() > 0
    other = y.copy()
    other[:2] = 1 - other[:2]
    changed, _ = cross_validate(z, other, units, intercept_only=False, seed=0, site="a")
    own = (changed == after).ravel()
    assert own[:2].all() and 40 <= own.sum() <= 60, "the fold of the patient, and no other"
