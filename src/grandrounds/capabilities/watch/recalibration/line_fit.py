"""Fit slope and intercept of a model's log-odds, and choose by a closed test how much of the model to update.

Logistic recalibration (Cox 1958): log-odds z of the event become intercept + slope * z. Several classes have one slope and an
intercept for each class. The amount of updating is chosen by the closed testing procedure of Vergouwe et al. (Statistics in
Medicine 2017): nothing, the intercept, or slope and intercept, by likelihood-ratio tests, so that a model that is calibrated is
left alone in about 95% of cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.methods.guard.candidates import Line, derivatives, minimise, score_rows
from grandrounds.models.losses import CROSS_ENTROPY

NONE, INTERCEPT, SLOPE = "none", "intercept", "slope and intercept"
"""Updates of a model, from the least to the most."""

LEVEL = 0.05
"""Level of each test of the closed procedure."""

_CLOSE = 1e-8
_LEAST_SPREAD = 1e-6  # of log-odds: less is rounding
_LARGEST = 30.0  # median log-odds beyond which classes are separated: a probability of 1e-13


@dataclass(frozen=True)
class LineFit:
    """A line that was fitted by maximum likelihood, with standard errors that count patients.

    Attributes:
        line: Slope and intercepts. Intercepts of several classes add up to zero.
        slope_error: Standard error of the slope; None where it was not fitted.
        intercept_error: Standard error of the intercept of two classes; None for several.
        log_likelihood: Of the rows.
        design_effect: Factor by which several rows of a patient widen a test of all fitted numbers; 1 with one row each.
        slope_design_effect: The same for a test of the slope alone.
    """

    line: Line
    slope_error: float | None
    intercept_error: float | None
    log_likelihood: float
    design_effect: float = 1.0
    slope_design_effect: float = 1.0


@dataclass(frozen=True)
class LikelihoodRatioTest:
    """A likelihood-ratio test of two updates.

    Attributes:
        smaller: The update that is kept unless the test rejects it.
        larger: The update with more freedom.
        statistic: Twice the difference of the log-likelihoods, divided by the design effect of patients with several rows.
        degrees: Degrees of freedom.
        p: P-value.
    """

    smaller: str
    larger: str
    statistic: float
    degrees: int
    p: float

    @property
    def sentence(self) -> str:
        """The test for readers."""
        names = {NONE: "the model as it is", INTERCEPT: "an own intercept", SLOPE: "own slope and intercept"}
        digits = f"p = {self.p:.3f}" if self.p >= 0.001 else "p < 0.001"
        return (
            f"{names[self.smaller]} against {names[self.larger]}: chi-squared {self.statistic:.2f}, "
            f"{self.degrees} degree{'s' if self.degrees > 1 else ''} of freedom, {digits}"
        )


@dataclass(frozen=True)
class Update:
    """The update that the closed test chose.

    Attributes:
        kind: "none", "intercept" or "slope and intercept".
        fit: The fitted line; slope 1 and intercept 0 for "none".
        tests: The tests in their order.
    """

    kind: str
    fit: LineFit
    tests: tuple[LikelihoodRatioTest, ...]

    @property
    def reason(self) -> str:
        """One sentence on the choice."""
        first = self.tests[0]
        if self.kind == NONE:
            return f"The model is kept as it is: {first.larger} fit no better than chance explains (p = {first.p:.2f})."
        if self.kind == SLOPE:
            return "Slope and intercept are updated: both tests reject the smaller update at the 5% level."
        if len(self.tests) > 1:
            return f"The intercept alone is updated: a slope fits no better than chance explains (p = {self.tests[1].p:.2f})."
        return "The intercept is updated: the test rejects the model as it is at the 5% level."


def fit_line_freely(scores: Array, target: Array, units: Array, *, slope: bool) -> LineFit:
    """Fit a line of log-odds by maximum likelihood, without shrinkage.

    Args:
        scores: (n, C) log-odds of the event (C = 1), or scores of the classes.
        target: (n, C) 1 for the event, or for the class.
        units: (n,) number of each row's patient, from 0.
        slope: Fit the slope too; else it is 1.

    Returns:
        The fit.

    Raises:
        BadInput: No finite line fits best: a class is missing, the scores separate the classes, or are all equal.
    """
    z, t = np.asarray(scores, np.float64), np.asarray(target, np.float64)
    if slope and np.ptp(z, axis=0).max() <= _LEAST_SPREAD * max(1.0, float(np.abs(z).max())):
        raise BadInput(
            f"the model gives all {len(z)} rows the same risk, so that no slope can be fitted: give patients with different "
            "features, or fit the intercept alone (--intercept-only)",
            code="equal-risks",
        )
    _refuse_separated(z, t, slope=slope)
    design = _design(z, slope=slope)
    free = np.zeros(design.shape[2])
    w, _, _ = minimise(CROSS_ENTROPY, design, z, t, free, close=_CLOSE)
    moved = z + design @ w
    if not np.isfinite(moved).all() or np.median(np.abs(moved)) > _LARGEST:
        raise BadInput(_SEPARATED, code="separated-classes")
    first, second = derivatives(CROSS_ENTROPY, moved, t)
    try:  # one step more, since the last one was not checked
        w = w - np.linalg.solve(_curvature(design, second), np.einsum("ncq,nc->q", design, first))
        return _describe(z, t, units, design, w, slope=slope)
    except np.linalg.LinAlgError:
        raise BadInput(_SEPARATED, code="separated-classes") from None


def _design(z: Array, *, slope: bool) -> Array:
    """Return the derivative of the scores by intercepts and slope, (n, C, q); the first of several classes has no intercept."""
    c = z.shape[1]
    free = np.eye(c)[:, 1 if c > 1 else 0 :]
    design = np.broadcast_to(free, (len(z), *free.shape))
    return np.concatenate([design, z[:, :, None]], axis=2) if slope else design


def _curvature(design: Array, second: Array) -> Array:
    out: Array = np.einsum("ncq,ncd,ndr->qr", design, second, design, optimize=True)
    return out


def _describe(z: Array, t: Array, units: Array, design: Array, w: Array, *, slope: bool) -> LineFit:
    """Compute likelihood and errors of a fitted line: by row, or by patient where patients have several rows."""
    c, moved = z.shape[1], z + design @ w
    first, second = derivatives(CROSS_ENTROPY, moved, t)
    inverse = np.linalg.inv(_curvature(design, second))
    by_row = np.einsum("ncq,nc->nq", design, first)
    patients = int(units.max()) + 1
    covariance, effect, slope_effect = inverse, 1.0, 1.0
    if patients < len(units):
        by_patient = np.zeros((patients, len(w)))
        np.add.at(by_patient, units, by_row)
        rows, grouped = by_row.T @ by_row, by_patient.T @ by_patient
        covariance = inverse @ grouped @ inverse * patients / max(1, patients - 1)
        effect = max(1.0, float(np.trace(inverse @ grouped) / np.trace(inverse @ rows)))
        slope_effect = max(1.0, float((inverse @ grouped @ inverse)[-1, -1] / (inverse @ rows @ inverse)[-1, -1]))
    errors = np.sqrt(np.diag(covariance))
    intercepts = w[: len(w) - slope]
    if c > 1:
        intercepts = np.concatenate([[0.0], intercepts])
        intercepts = intercepts - intercepts.mean()
    line = Line(1.0 + float(w[-1]) if slope else 1.0, intercepts)
    return LineFit(
        line,
        float(errors[-1]) if slope else None,
        float(errors[0]) if c == 1 else None,
        log_likelihood(moved, t),
        effect,
        slope_effect if slope else 1.0,
    )


def log_likelihood(scores: Array, target: Array) -> float:
    """Return the log-likelihood of classes under scores (n, C), with targets (n, C)."""
    return -float(score_rows(CROSS_ENTROPY, scores, target).sum())


_SEPARATED = "no line fits best, because scores separate the classes of these patients or a class is missing: give more patients"


def _refuse_separated(scores: Array, target: Array, *, slope: bool) -> None:
    """Refuse rows for which no finite line fits best (Albert and Anderson 1984)."""
    counts = target.sum(axis=0) if target.shape[1] > 1 else np.array([target.sum(), len(target) - target.sum()])
    separated = False
    if slope and target.shape[1] == 1 and counts.all():
        events, others = scores[target[:, 0] == 1, 0], scores[target[:, 0] == 0, 0]
        separated = events.min() >= others.max() or others.min() >= events.max()
    if separated or not counts.all():
        raise BadInput(_SEPARATED, code="separated-classes")


def choose_update(scores: Array, target: Array, units: Array, *, intercept_only: bool) -> Update:
    """Choose between no update, an intercept, and slope and intercept by the closed test.

    The model as it is is tested against the largest update first. If that test rejects it, the intercept is tested against slope
    and intercept. Each test has the 5% level, and the procedure as a whole keeps it.

    Args:
        scores: (n, C) log-odds of the event (C = 1), or scores of the classes.
        target: (n, C) 1 for the event, or for the class.
        units: (n,) number of each row's patient, from 0.
        intercept_only: Leave slope and intercept out; one test decides.

    Returns:
        The update.

    Raises:
        BadInput: No finite line fits best.
    """
    z, t = np.asarray(scores, np.float64), np.asarray(target, np.float64)
    as_it_is, count = log_likelihood(z, t), max(1, z.shape[1] - 1)
    largest = fit_line_freely(z, t, units, slope=not intercept_only)
    kind, degrees = (INTERCEPT, count) if intercept_only else (SLOPE, count + 1)
    tests = [_test(NONE, kind, largest.log_likelihood - as_it_is, largest.design_effect, degrees)]
    if tests[0].p > LEVEL:
        unchanged = LineFit(Line(1.0, np.zeros(z.shape[1])), None, None, as_it_is)
        return Update(NONE, unchanged, tuple(tests))
    if intercept_only:
        return Update(INTERCEPT, largest, tuple(tests))
    smaller = fit_line_freely(z, t, units, slope=False)
    gain = largest.log_likelihood - smaller.log_likelihood
    tests.append(_test(INTERCEPT, SLOPE, gain, largest.slope_design_effect, 1))
    chosen = smaller if tests[1].p > LEVEL else largest
    return Update(INTERCEPT if chosen is smaller else SLOPE, chosen, tuple(tests))


def _test(smaller: str, larger: str, gain: float, design_effect: float, degrees: int) -> LikelihoodRatioTest:
    from scipy import special

    statistic = max(0.0, 2 * gain / design_effect)
    return LikelihoodRatioTest(smaller, larger, statistic, degrees, float(special.chdtrc(degrees, statistic)))


def apply_line(line: Line, scores: Array) -> Array:
    """Return the scores (n, C) after a line."""
    out: Array = line.slope * np.asarray(scores, np.float64) + line.intercept
    return out


def line_to_dict(line: Line) -> dict[str, Any]:
    """Return a line as JSON values."""
    return {"slope": float(line.slope), "intercept": [float(v) for v in line.intercept]}
