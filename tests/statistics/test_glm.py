"""Logistic, linear and Poisson regression from sums, compared with statsmodels on pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from grandrounds.statistics import ANSWERS
from grandrounds.statistics.estimates import Estimates
from grandrounds.statistics.glm import fit_glm
from grandrounds.statistics.glm_terms import GLMTerms
from grandrounds.statistics.question import Record, fit_in_memory
from tests.statistics.hospital_rows import HEART, by_site, heart_rows
from tests.statistics.ring import fit_in_ring


def errors_of(estimates: Estimates) -> np.ndarray:
    return np.array([c.error for c in estimates.coefficients if c.error is not None])


def p_of(estimates: Estimates) -> np.ndarray:
    return np.array([c.p for c in estimates.coefficients if c.p is not None])


def assert_equal_to_pooled(estimates: Estimates, reference, tolerance: float = 1e-6) -> None:
    """Compare coefficients, errors, p-values and intervals with a result of statsmodels."""
    np.testing.assert_allclose(estimates.beta, reference.params, rtol=tolerance, atol=0)
    np.testing.assert_allclose(errors_of(estimates), reference.bse, rtol=tolerance, atol=0)
    np.testing.assert_allclose(p_of(estimates), reference.pvalues, rtol=0, atol=1e-6)
    interval = np.array([(c.low, c.high) for c in estimates.coefficients if c.estimate is not None])
    np.testing.assert_allclose(interval, reference.conf_int(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("drive", ["clear", "ring"])
def test_logistic_regression_of_four_hospitals_equals_pooled(drive):
    x, y, site = heart_rows()
    assert len(y) == 740 and [(site == k).sum() for k in range(4)] == [303, 261, 46, 130]
    sites, record = by_site(x, y, site), Record()
    fit = fit_glm(GLMTerms("logistic", HEART))
    result = fit_in_memory(fit, sites, ANSWERS, record) if drive == "clear" else fit_in_ring(fit, sites, record)
    reference = sm.GLM(y, sm.add_constant(x), sm.families.Binomial()).fit(tol=1e-14)
    assert_equal_to_pooled(result, reference)
    assert record.exchanges == result.facts["exchanges"] == 6
    assert result.facts["log_likelihood"] == pytest.approx(reference.llf, rel=1e-9)
    assert result.facts["aic"] == pytest.approx(reference.aic, rel=1e-9)
    assert result.facts["deviance"] == pytest.approx(reference.deviance, rel=1e-9)
    assert result.facts["n"] == pytest.approx(740) and result.facts["events"] == pytest.approx(y.sum())
