"""Drive regressions in tests, and compare them with statsmodels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.estimates import Estimates
from grandrounds.capabilities.statistics.glm import fit_glm
from grandrounds.capabilities.statistics.glm_terms import GLMTerms
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from tests.capabilities.statistics.ring import fit_in_ring


def drive(way: str, terms: GLMTerms, sites: Mapping[str, Rows]) -> tuple[Estimates, Record]:
    """Fit a regression, with sums in the clear or through the 64-bit ring."""
    record = Record()
    if way == "ring":
        return fit_in_ring(fit_glm(terms), sites, record), record
    return fit_in_memory(fit_glm(terms), sites, ANSWERS, record), record


def errors_of(estimates: Estimates) -> np.ndarray:
    """Return the standard errors of the coefficients that were estimated."""
    return np.array([c.error for c in estimates.coefficients if c.error is not None])


def assert_equal_to_pooled(estimates: Estimates, reference: Any, first: int | None = None) -> None:
    """Compare coefficients, errors, p-values and intervals with the first ones of a result of statsmodels."""
    some = slice(None, first)
    np.testing.assert_allclose(estimates.beta, np.asarray(reference.params)[some], rtol=1e-6, atol=0)
    np.testing.assert_allclose(errors_of(estimates), np.asarray(reference.bse)[some], rtol=1e-6, atol=0)
    p = [c.p for c in estimates.coefficients if c.p is not None]
    np.testing.assert_allclose(p, np.asarray(reference.pvalues)[some], rtol=0, atol=1e-6)
    interval = np.array([(c.low, c.high) for c in estimates.coefficients if c.estimate is not None])
    np.testing.assert_allclose(interval, np.asarray(reference.conf_int())[some], rtol=1e-5, atol=1e-7)
