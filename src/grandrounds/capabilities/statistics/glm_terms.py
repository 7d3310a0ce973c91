"""Terms of a generalised linear model: family, penalty, standard errors and intercepts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.families import find_family
from grandrounds.capabilities.statistics.intercepts import COMMON, KINDS
from grandrounds.core.errors import BadInput, nearest

ERRORS = ("model", "rows", "patients", "hospitals")
"""Standard errors from the model, or robust ones by row, patient or hospital."""

TAU2 = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variances of shrunk intercepts that are tried side by side."""


@dataclass(frozen=True)
class GLMTerms:
    """Terms of a generalised linear model.

    Attributes:
        family: "logistic", "linear" or "poisson".
        names: Names of the columns of X, without the intercept.
        ridge: Penalty 0.5 ridge sum b^2 on the total log-likelihood, the intercept excepted (scikit-learn's C is 1 / ridge).
        errors: "model", or robust errors by "rows", "patients" or "hospitals", which take one more exchange.
        correction: True: multiply robust covariances of G clusters by G / (G - 1).
        intercept: "common"; "own": a free one for each hospital, which is not sent; "random": shrunk ones. Without secure
            aggregation the server can compute a shrunk one from the hospital's score.
        tau2: Variances of shrunk intercepts to choose from (linear: divided by the residual variance); one value: fixed.
        firth: True: Firth's correction of logistic regression, for separated outcomes.
        most_exchanges: Exchanges after which the fit is given up.
        offset: True: rows have an offset of the linear predictor.
        centre: Public value that is subtracted from the outcome of linear regression. Estimates are converted back.
        unit: Public value by which the outcome of linear regression is divided. Estimates are converted back.
        spans: Range of each column in its units, for the rule on separation; empty: 1 for each.
        mean_intercept: True: free intercepts come with their weighted mean, for new hospitals. Without secure aggregation the
            server could read each hospital's intercept from it. False: sums of columns come instead, once, and new hospitals
            have the intercept of the mean outcome at the mean of all columns.
        start: Coefficients at which the first weighted least-squares problem is posed, the intercept first unless each
            hospital has a free one; empty: at a start that follows from the outcome.
    """

    family: str
    names: tuple[str, ...]
    ridge: float = 0.0
    errors: str = "model"
    correction: bool = False
    intercept: str = COMMON
    tau2: tuple[float, ...] = TAU2
    firth: bool = False
    most_exchanges: int = 100
    offset: bool = False
    centre: float = 0.0
    unit: float = 1.0
    spans: tuple[float, ...] = ()
    mean_intercept: bool = True
    start: tuple[float, ...] = ()


def check_terms(terms: GLMTerms) -> None:
    """Check terms before the first exchange.

    Args:
        terms: The terms.

    Raises:
        BadInput: A term is unknown, out of range, or does not go with another.
    """
    find_family(terms.family)
    for name, value, known in (("errors", terms.errors, ERRORS), ("intercept", terms.intercept, KINDS)):
        if value not in known:
            raise BadInput(f"{name} = '{value}' of a regression is unknown; {nearest(value, known)}", code="bad-value")
    if not (np.isfinite(terms.ridge) and terms.ridge >= 0):
        raise BadInput(f"ridge = {terms.ridge} must be zero or more; 0 is no penalty", code="bad-value")
    if not terms.tau2 or not all(np.isfinite(t) and t > 0 for t in terms.tau2):
        raise BadInput(f"tau2 = {list(terms.tau2)} must be one or more variances above zero", code="bad-value")
    if not (np.isfinite(terms.unit) and terms.unit > 0 and np.isfinite(terms.centre)):
        raise BadInput(f"the outcome's unit = {terms.unit} must be above zero and its centre finite", code="bad-value")
    if terms.family != "linear" and (terms.unit != 1 or terms.centre != 0):
        raise BadInput(
            "only the outcome of a linear regression has a centre and a unit; leave both out", code="bad-value"
        )
    if terms.spans and len(terms.spans) != len(terms.names):
        raise BadInput(f"{len(terms.spans)} spans do not match {len(terms.names)} columns", code="bad-value")
    others = terms.family != "logistic" or terms.intercept != COMMON or terms.ridge or terms.errors != "model"
    if terms.firth and others:
        raise BadInput(
            "Firth's correction is for logistic regression with a common intercept, errors of the model and no ridge; "
            "leave firth out or change these",
            code="bad-firth",
        )
