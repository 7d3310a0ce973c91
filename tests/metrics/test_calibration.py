from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit

from grandrounds.metrics import ScoredRows, Tally, bin_centres, scores, tally
from grandrounds.metrics.classification import bin_index

from .cohort import binary_cohort, log_odds

pytestmark = pytest.mark.filterwarnings("error")


def exact_line(y: np.ndarray, z: np.ndarray) -> tuple[float, float]:
    """Slope and intercept of the unpenalised logistic regression of y on z, by plain Newton on the rows."""
    x = np.stack([np.ones_like(z), z], axis=1)
    beta = np.zeros(2)
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ beta))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x, x.T @ (y - p))
        beta += step
        if np.abs(step).max() < 1e-12:
            return float(beta[1]), float(beta[0])
    raise AssertionError("Newton did not settle")


@pytest.mark.thinned(5)
@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("prevalence", [0.089, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_line_of_summed_sites_is_that_of_pooled_rows(seed, prevalence, sharpness):
    cohort = binary_cohort(seed, prevalence=prevalence, sharpness=sharpness)
    s = scores(cohort.federated())
    slope, intercept = exact_line(cohort.y, cohort.logits[:, 0])
    assert s["calibration_slope"] == pytest.approx(slope, abs=1e-3)
    assert s["calibration_intercept"] == pytest.approx(intercept, rel=1e-3, abs=1e-3)


def test_a_calibrated_model_has_slope_one_and_an_overconfident_one_less():
    rng = np.random.default_rng(0)
    z = 1.5 * rng.normal(size=40_000) - 1.0
    y = (rng.random(40_000) < 1 / (1 + np.exp(-z))).astype(int)
    honest, sharp = (scores(tally(k * z[:, None], y, classes=2)) for k in (1.0, 2.0))
    assert honest["calibration_slope"] == pytest.approx(1.0, abs=0.04)
    assert honest["calibration_intercept"] == pytest.approx(0.0, abs=0.04)
    assert honest["ece"] < 0.01
    assert sharp["calibration_slope"] == pytest.approx(honest["calibration_slope"] / 2, rel=1e-3)
    assert sharp["ece"] > 0.05


def test_two_by_two_by_hand():
    z = np.array([-1.0] * 4 + [1.0] * 4)[:, None]
    y = np.array([1, 0, 0, 0, 1, 1, 1, 0])
    s = scores(tally(z, y, classes=2))
    assert s["calibration_slope"] == pytest.approx(np.log(3), rel=0.01)
    assert s["calibration_intercept"] == pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize(
    ("z", "y"),
    [
        ([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1]),
        ([-2.0, -1.0, 1.0, 2.0], [1, 1, 0, 0]),
        ([-2.0, 0.5, 0.5, 2.0], [0, 0, 1, 1]),
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1]),
        ([-2.0, -1.0, 1.0, 2.0], [1, 1, 1, 1]),
        ([-2.0, -1.0, 1.0, 2.0], [0, 0, 0, 0]),
        ([], []),
    ],
    ids=["separated", "reversed", "touching", "constant", "positives", "negatives", "empty"],
)
def test_a_line_that_does_not_exist_is_undefined(z, y):
    s = scores(tally(np.array(z).reshape(-1, 1), np.array(y, int), classes=2))
    assert np.isnan(s["calibration_slope"])
    assert np.isnan(s["calibration_intercept"])


def test_undefined_sites_do_not_disturb_the_others():
    cohort = binary_cohort(1, rows=2000)
    usual = tally(cohort.logits, cohort.y, classes=2)
    apart = tally(np.array([[-1.0], [1.0]]), np.array([0, 1]), classes=2)
    empty = tally(np.zeros((0, 1)), np.zeros(0, int), classes=2)
    order = [empty, usual, apart, usual, empty]
    several = Tally.from_arrays({k: np.stack([t.arrays()[k] for t in order]) for k in usual.arrays()})
    slope = scores(several)["calibration_slope"]
    assert np.isnan(slope).tolist() == [True, False, True, False, True]
    assert slope[1] == pytest.approx(float(scores(usual)["calibration_slope"]), abs=1e-9)
    assert slope[3] == pytest.approx(slope[1], abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(4, 300),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from([0.01, 1.0, 5.0, 30.0]),
    st.sampled_from([0.0, 1.0, 6.0]),
    st.booleans(),
)
@example(253, 251, 0.5, 0.01, 6.0, True)  # a slope in the hundreds
def test_the_fit_solves_its_equations_or_says_it_cannot(seed, rows, prevalence, scale, separation, wild):
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < prevalence).astype(int)
    noise = rng.standard_cauchy(rows) if wild else rng.normal(size=rows)
    z = bin_centres()[bin_index(scale * (noise + separation * y))]
    s = scores(tally(z[:, None], y, classes=2))
    exists = 0 < y.sum() < rows and bool(z[y == 1].min() < z[y == 0].max() and z[y == 0].min() < z[y == 1].max())
    assert np.isfinite(s["calibration_slope"]) == np.isfinite(s["calibration_intercept"]) == exists
    if exists:
        residual = y - expit(s["calibration_intercept"] + s["calibration_slope"] * z)
        assert residual.sum() == pytest.approx(0.0, abs=1e-6)
        assert (residual * z).sum() == pytest.approx(0.0, abs=1e-6 * (1 + np.abs(z).max()))


def test_calibration_error_by_hand():
    apart = scores(tally(log_odds([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1]), classes=2))
    assert apart["ece"] == pytest.approx(0.35)
    one_bin = scores(tally(log_odds([0.61, 0.65]), np.array([1, 0]), classes=2))
    assert one_bin["ece"] == pytest.approx(abs(0.61 + 0.65 - 1) / 2)
    three = scores(tally(np.log([[0.7, 0.2, 0.1], [0.1, 0.69, 0.21]]), np.array([0, 2]), classes=3))
    assert three["ece"] == pytest.approx(abs(0.7 + 0.69 - 1) / 2)


def test_slope_intercept_and_calibration_in_the_large_are_those_of_statsmodels():
    """Two sites, exact scores: estimates and 95% intervals of the joint fit and of the fit with the log-odds as offset."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(8)
    z, owner = rng.normal(-0.5, 1.5, 400), np.repeat([0, 1], [250, 150])
    y = (rng.random(400) < expit(0.6 * z + 0.8)).astype(int)
    exact = ScoredRows.from_logits(z[:, None], y, classes=2).exact_tally(owner, (2,))
    found = scores(exact)
    for k in (0, 1):
        at = owner == k
        joint = sm.GLM(y[at], sm.add_constant(z[at]), family=sm.families.Binomial()).fit(tol=1e-14)
        large = sm.GLM(y[at], np.ones(at.sum()), family=sm.families.Binomial(), offset=z[at]).fit(tol=1e-14)
        for metric, fit, j in (
            ("calibration_slope", joint, 1),
            ("calibration_intercept", joint, 0),
            ("calibration_in_the_large", large, 0),
        ):
            expected = (fit.params[j], *fit.conf_int()[j])
            ends = [found[f"{metric}{end}"][k] for end in ("", "_low", "_high")]
            assert ends == pytest.approx(expected, rel=1e-6), metric


def test_calibration_in_the_large_needs_both_classes_and_no_overlap():
    separated = scores(tally(np.array([[-1.0], [-2.0], [1.0]]), np.array([0, 0, 1]), classes=2))
    assert np.isnan(separated["calibration_slope"]) and np.isfinite(separated["calibration_in_the_large"])
    assert np.isnan(scores(tally(np.array([[-1.0], [2.0]]), np.array([0, 0]), classes=2))["calibration_in_the_large"])
