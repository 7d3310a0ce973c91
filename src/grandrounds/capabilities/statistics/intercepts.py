"""Intercepts of hospitals: each is solved at its own site from the common slopes and never leaves it."""

from __future__ import annotations

import numpy as np

from grandrounds.capabilities.statistics.families import Family, find_family
from grandrounds.capabilities.statistics.question import Rows
from grandrounds.core.arrays import Array

COMMON, OWN, RANDOM = "common", "own", "random"
KINDS = (COMMON, OWN, RANDOM)
"""One intercept for all hospitals; one for each, free; one for each, shrunk towards the common one."""

_MOST = 100  # iterations of the one-dimensional solver
_NEAR = 1e-8  # a step after which the root is exact: its error is the square of the step
_CAP = 4.0  # largest step while the root is not yet between two points


def is_silent(family: Family, y: Array, weight: Array) -> bool:
    """Return True if a hospital's own intercept is infinite or absent, so that it has no information on slopes.

    Args:
        family: The family.
        y: (n,) outcomes of the hospital.
        weight: (n,) weights.

    Returns:
        True without rows, and where all outcomes are of one class (logistic) or zero (Poisson).
    """
    y = y[weight > 0]
    if not len(y):
        return True
    if family.name == "logistic":
        return bool(y.min() == y.max())
    return bool(family.name == "poisson" and y.max() == 0)


def solve_intercept(
    family: Family, y: Array, eta: Array, weight: Array, *, tau2: float | None = None, start: float = 0.0
) -> float:
    """Solve sum a (y - mu(eta + d)) - d / tau2 = 0 for a hospital's intercept d.

    Newton's method between two points that enclose the root: the left side falls in d.

    Args:
        family: The family.
        y: (n,) outcomes, not silent unless `tau2` is given.
        eta: (n,) linear predictor without the hospital's intercept.
        weight: (n,) weights.
        tau2: Variance of the intercepts; None: free.
        start: First guess.

    Returns:
        The intercept d, relative to `eta`.
    """
    pull = 0.0 if tau2 is None else 1.0 / tau2
    if family.name == "linear":
        return float(weight @ (y - eta) / (weight.sum() + pull))
    if family.name == "poisson" and tau2 is None:
        return float(np.log(weight @ y / (weight @ family.predict(eta)[0])))
    d, low, high = start, -np.inf, np.inf
    for _ in range(_MOST):
        mu, slope = family.predict(eta + d)
        value = float(weight @ (y - mu)) - pull * d
        if value > 0:
            low = d
        else:
            high = d
        step = value / max(float(weight @ slope) + pull, 1e-300)
        if abs(step) < _NEAR:
            return d + step
        new = d + min(max(step, -_CAP), _CAP)
        if not low < new < high and low > -np.inf and high < np.inf:
            new = (low + high) / 2
        d = new
    return d


def own_intercept(beta: Array, rows: Rows, *, family: str, tau2: float | None = None) -> float:
    """Compute a hospital's own intercept from final coefficients, at the site, for its predictions.

    Args:
        beta: (1 + p,) intercept and slopes: with `tau2` the fitted ones, without it the mean intercept of all hospitals.
        rows: The hospital's rows.
        family: "logistic", "linear" or "poisson".
        tau2: Variance of shrunk intercepts; None: free intercepts.

    Returns:
        The intercept in the units of `beta`. A hospital whose free intercept is infinite uses that of `beta`.
    """
    kind = find_family(family)
    beta = np.asarray(beta, float)
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    if tau2 is None and is_silent(kind, rows.y, weight):
        return float(beta[0])
    eta = beta[0] + rows.x @ beta[1:] + (0.0 if rows.offset is None else rows.offset)
    return float(beta[0]) + solve_intercept(kind, rows.y, eta, weight, tau2=tau2)
