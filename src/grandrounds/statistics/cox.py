"""Cox regression from sums over hospitals: hazard ratios equal to those of the pooled rows.

    fit = fit_cox(CoxTerms(("age", "sex")))

is a generator over questions and totals (`grandrounds.statistics.question`). The default is stratified by hospital.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.statistics.cox_strata import STRATA, STRATA_ERRORS, answer_strata, answer_strata_errors, fit_strata
from grandrounds.statistics.cox_terms import CoxTerms
from grandrounds.statistics.estimates import Estimates
from grandrounds.statistics.question import Answer, Fit, Rows, fit_in_memory

__all__ = ["COX_ANSWERS", "CoxTerms", "fit_cox", "fit_rows"]

COX_ANSWERS: dict[str, Answer] = {STRATA: answer_strata, STRATA_ERRORS: answer_strata_errors}
"""The sites' halves of Cox regression, by kind of question."""


def fit_cox(terms: CoxTerms) -> Fit[Estimates]:
    """Fit a Cox regression over all sites.

    Args:
        terms: The terms.

    Returns:
        The estimates: log hazard ratios for one unit of each input.

    Raises:
        BadInput: Fewer than 5 events, separation, or no convergence.
    """
    return (yield from fit_strata(terms, float(terms.ridge)))


def fit_rows(terms: CoxTerms, rows: Rows) -> tuple[Array, Array] | None:
    """Fit a Cox regression to the rows of one site.

    Args:
        terms: The terms; the baseline is the site's own.
        rows: The site's rows.

    Returns:
        (p,) estimates and (p, p) covariance; None where the rows do not allow a fit of all inputs: too few events,
        separation, a constant column.
    """
    if isinstance(terms.ridge, str):
        raise BadInput("one site's own fit needs a ridge penalty that is a number, not 'cv'", code="bad-setting")
    try:
        estimates = fit_in_memory(fit_strata(terms, terms.ridge), {"site": rows}, COX_ANSWERS)
    except BadInput as problem:
        if problem.code in ("few-events", "separated", "diverged", "singular", "constant", "not-converged"):
            return None
        raise
    if len(estimates.names) < len(terms.names):
        return None
    return estimates.beta, np.asarray(estimates.covariance)
