"""The guard at hospitals with few patients, and the fit of a hospital's own linear model."""

import numpy as np
import pytest

from grandrounds.methods.guard.candidates import COMMON, INTERCEPT, MAJORITY, OWN, fit_linear
from grandrounds.methods.guard.choice import LEAST, choose


def one_class(n: int) -> dict[str, np.ndarray]:
    """Losses of a hospital without an event: a model of its own is better at every row, by almost the same amount."""
    jitter = np.random.default_rng(0).normal(0, 1e-3, n)
    common = np.full(n, 0.1) + jitter
    return {COMMON: common, INTERCEPT: common - 0.01, OWN: np.full(n, 0.01), MAJORITY: np.full(n, 0.02)}


@pytest.mark.parametrize("n", [2, 5, LEAST - 1])
def test_few_patients_of_one_class_keep_the_shrunk_intercept(n: int) -> None:
    losses = one_class(n)
    found = choose(losses, np.arange(n))
    assert found.choice == INTERCEPT
    if n > 2:
        gain, error = found.gains[OWN]
        assert gain > 2 * error > 0  # it is the number of patients that decides


def test_enough_patients_take_what_is_clearly_better() -> None:
    assert choose(one_class(LEAST), np.arange(LEAST)).choice == OWN


def test_rows_of_few_patients_are_few_patients() -> None:
    """Forty rows of ten patients are ten patients."""
    assert choose(one_class(40), np.repeat(np.arange(10), 4)).choice == INTERCEPT


def test_own_model_is_the_penalised_optimum_from_any_start() -> None:
    """At the optimum the gradient of log loss plus penalty is zero; the start only saves steps."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 5))
    y = (x[:, :1] + rng.normal(size=(80, 1)) > 0).astype(float)
    cold = fit_linear("cross_entropy", x, y)
    p = 1 / (1 + np.exp(-(x @ cold[:5] + cold[5])))
    np.testing.assert_allclose(x.T @ (p - y[:, 0]) + cold[:5], 0, atol=1e-4)
    assert (p - y[:, 0]).sum() + 0.01 * cold[5] == pytest.approx(0, abs=1e-4)
    warm = fit_linear("cross_entropy", x, y, start=cold + rng.normal(0, 0.3, 6))
    np.testing.assert_allclose(warm, cold, atol=1e-5)
