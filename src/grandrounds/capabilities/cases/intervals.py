"""Intervals of one patient's explanation, from the covariance of a regression's estimates.

A contribution is d'b with d = x - reference, so its variance is d'Vd, V being the covariance of b. The linear predictor of
the patient has the variance x'Vx, the intercept included. Its interval is symmetric; back-transformed (delta method on the
linear predictor) it is the interval of the risk, the rate or the hazard ratio. References count as known numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.estimates import Estimates
from grandrounds.core.arrays import Array
from grandrounds.report.estimates import is_intercept, read_estimates

_SAME = 1e-4  # relative difference of a model's weights to the estimates: float32 and rounding
_TAIL = 0.975


@dataclass(frozen=True)
class ScoreErrors:
    """Standard errors of a patient's explanation.

    Attributes:
        contributions: Of each column's contribution.
        score: Of the score itself; None where the intercept has no error, such as one that stays at its hospital.
        difference: Of the score less the score of the reference.
        width: Half the length of a 95% interval in standard errors.
    """

    contributions: Mapping[str, float]
    score: float | None
    difference: float
    width: float

    def around(self, value: float, error: float | None) -> tuple[float, float] | None:
        """Return the 95% interval around a value; None without an error."""
        return None if error is None else (value - self.width * error, value + self.width * error)


def score_errors(
    estimates: Estimates, x: Array, reference: Array, *, inputs: Sequence[str], columns: Sequence[str]
) -> ScoreErrors:
    """Compute the standard errors of contributions and of the score.

    Args:
        estimates: Estimates in the units of the inputs.
        x: (d,) the patient's inputs.
        reference: (d,) the inputs that contributions start from.
        inputs: (d,) names of the inputs.
        columns: (d,) the clinical column of each input.

    Returns:
        The standard errors. An input that was left out of the fit contributes none.
    """
    covariance = np.asarray(estimates.covariance, float)
    place = {name: k for k, name in enumerate(estimates.names)}
    away, here = np.zeros(len(place)), np.zeros(len(place))
    parts = {column: np.zeros(len(place)) for column in columns}
    for value, start, name, column in zip(x, reference, inputs, columns, strict=True):
        if name in place:
            here[place[name]], away[place[name]] = value, value - start
            parts[column][place[name]] = value - start
    intercepts = [c.name for c in estimates.coefficients if c.estimate is not None and is_intercept(c)]
    for name in intercepts:
        here[place[name]] = 1.0
    return ScoreErrors(
        {column: _error(covariance, d) for column, d in parts.items()},
        _error(covariance, here) if intercepts else None,
        _error(covariance, away),
        _width(estimates.degrees),
    )


def matching_estimates(summary: Mapping[str, Any], weights: Array, inputs: Sequence[str]) -> Estimates | None:
    """Return the run's estimates if a model's weights are the estimates themselves; None for any other model.

    A model that was fine-tuned or calibrated has other weights, and the covariance is not that of them. Intercepts are not
    compared, since hospitals may have their own.

    Args:
        summary: The summary of the run.
        weights: (d,) the weights of a linear model, of the event or of the other class.
        inputs: (d,) names of the inputs.
    """
    record = read_estimates(summary)
    if record is None:
        return None
    known = {c.name: c.estimate or 0.0 for c in record.fitted.coefficients}
    if any(name not in known for name in inputs):
        return None
    expected = np.array([known[name] for name in inputs])
    slack = _SAME * float(np.abs(expected).max(initial=0.0)) + 1e-12
    near = any(np.allclose(weights, sign * expected, rtol=_SAME, atol=slack) for sign in (1.0, -1.0))
    return record.fitted if near else None


def intercept_note(summary: Mapping[str, Any]) -> str:
    """Say which intercept a model of all hospitals uses, where each hospital keeps its own; "" for a common one."""
    record = read_estimates(summary)
    kind = "" if record is None else record.fitted.facts.get("intercept")
    if kind not in ("own", "random") or record is None:
        return ""
    if kind == "own" and record.fitted.facts.get("mean_intercept") is None:
        return (
            "each hospital keeps its own intercept and no mean of them was disclosed: contributions hold at every hospital, "
            "the prediction itself is that of an intercept of zero"
        )
    return "each hospital keeps its own intercept: this prediction uses their mean, as for a new hospital"


def _error(covariance: Array, direction: Array) -> float:
    return float(max(0.0, float(direction @ covariance @ direction)) ** 0.5)


def _width(degrees: float | None) -> float:
    from scipy import special

    return float(special.ndtri(_TAIL) if degrees is None else special.stdtrit(degrees, _TAIL))
