"""Candidates of a hospital: the common model, what it may add to it, a model of its own, and its majority class.

Every candidate is a vector of the same model (P,), so that it is scored, explained and stored as any other model is. A line
(slope and intercept of the scores) goes into the last layer or the line of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models import Model
from grandrounds.models.losses import CROSS_ENTROPY, POISSON, SQUARED
from grandrounds.site.stack import Part

COMMON, INTERCEPT, RECALIBRATION, OWN, MAJORITY = "common", "intercept", "recalibration", "own", "majority"
HEAD, DITTO, APFL, FINETUNE = "head", "ditto", "apfl", "finetune"

CHOICES = (COMMON, INTERCEPT, RECALIBRATION, HEAD, DITTO, APFL, FINETUNE, OWN, MAJORITY)
"""Every candidate by name; answers carry its place in this list."""

IN_ROUNDS = (HEAD, DITTO, APFL)
"""Parts that sites train in every round, beside the common model."""

IN_WORDS = {
    COMMON: "the common model",
    INTERCEPT: "the common model with its own intercept",
    RECALIBRATION: "the common model, recalibrated",
    HEAD: "the common model with its own last layer",
    DITTO: "its own model, pulled towards the common one",
    APFL: "a mixture of its own and the common model",
    FINETUNE: "the common model, trained further",
    OWN: "a model of its own rows alone",
    MAJORITY: "its most common class",
}
"""Candidates as readers see them."""

RIDGE = 1.0
"""Penalty on the coefficients of a linear model of a hospital's own, as in scikit-learn (C = 1), on scaled columns."""

_SLOPE_VARIANCE = 1.0
_STEPS, _SMALL = 50, 1e-9


@dataclass(frozen=True)
class Line:
    """Scores become slope * score + intercept, (C,) or (1,)."""

    slope: float
    intercept: Array

    def apply(self, model: Model, theta: Array) -> Array:
        """Return the model with this line in its parameters."""
        intercept: Any = self.intercept if len(self.intercept) > 1 else float(self.intercept[0])
        out: Array = model.with_platt(theta, slope=self.slope, intercept=intercept).astype(theta.dtype)
        return out


def loss_of(model: Model) -> str:
    """Return the loss that a model is trained with."""
    return str(getattr(model, "loss", CROSS_ENTROPY))


def score_rows(loss: str, scores: Array, target: Array) -> Array:
    """Compute the loss of each row, (n,).

    Args:
        loss: "cross_entropy", "squared" or "poisson".
        scores: (n, C) outputs of a model.
        target: (n, C) targets of training.

    Returns:
        Log loss, half the squared error, or the Poisson loss, by row.
    """
    z, t = np.asarray(scores, np.float64), np.asarray(target, np.float64)
    if loss == SQUARED:
        return np.asarray(0.5 * ((z - t) ** 2).sum(axis=1))
    if loss == POISSON:
        return np.asarray((np.exp(np.minimum(z, 80.0)) - t * z).sum(axis=1))
    if z.shape[1] == 1:
        return np.asarray(np.logaddexp(0.0, z[:, 0]) - t[:, 0] * z[:, 0])
    top = z.max(axis=1, keepdims=True)
    return np.asarray((top + np.log(np.exp(z - top).sum(axis=1, keepdims=True)))[:, 0] - (t * z).sum(axis=1))


def _curve(loss: str, z: Array, t: Array) -> tuple[Array, Array]:
    """Return the first derivative (n, C) and the second (n, C, C) of each row's loss with respect to its scores."""
    n, c = z.shape
    if loss == SQUARED:
        return z - t, np.broadcast_to(np.eye(c), (n, c, c))
    if loss == POISSON:
        mean = np.exp(np.minimum(z, 80.0))
        return mean - t, mean[:, :, None] * np.eye(c)
    if c == 1:
        p = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
        return p - t, (p * (1 - p))[:, :, None]
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return p - t, p[:, :, None] * np.eye(c) - p[:, :, None] * p[:, None, :]


def _solve(
    loss: str, design: Array, offset: Array, t: Array, precision: Array, start: Array | None = None
) -> tuple[Array, Array, float]:
    """Minimise the loss of offset + design @ w plus w' precision w / 2 by Newton's method with halved steps.

    design (n, C, q), offset (n, C), t (n, C), precision (q,), start (q,). Returns w, the second derivative (q, q) and the loss
    at w.
    """
    w = np.zeros(design.shape[2]) if start is None else np.asarray(start, np.float64)
    flat = design.reshape(-1, design.shape[2])

    def total(v: Array) -> float:
        return float(score_rows(loss, offset + design @ v, t).sum() + 0.5 * (precision * v * v).sum())

    value = total(w)
    curvature = np.diag(precision)
    for _ in range(_STEPS):
        first, second = _curve(loss, offset + design @ w, t)
        weighted = flat * second[:, :, 0] if design.shape[1] == 1 else (second @ design).reshape(-1, len(w))
        gradient = flat.T @ first.ravel() + precision * w
        curvature = flat.T @ weighted + np.diag(precision)
        step = np.linalg.solve(curvature + 1e-10 * np.eye(len(w)), gradient)
        size = 1.0
        while size > 1e-6 and not total(w - size * step) <= value:
            size /= 2
        if size <= 1e-6:
            break
        w = w - size * step
        value, before = total(w), value
        if before - value < _SMALL:
            break
    return w, curvature, value


def fit_line(loss: str, scores: Array, target: Array, *, variance: float, slope: bool) -> Line:
    """Fit the line of a hospital to its rows: an intercept, with a slope if asked for.

    Args:
        loss: The loss of training.
        scores: (n, C) scores of the common model.
        target: (n, C) targets.
        variance: Variance of the intercepts of hospitals, which shrinks this one; 0: no intercept of its own.
        slope: Fit a slope too, shrunk towards 1.

    Returns:
        The line.
    """
    c = scores.shape[1]
    if not len(scores) or variance <= 0:
        return Line(1.0, np.zeros(c))
    z, t = np.asarray(scores, np.float64), np.asarray(target, np.float64)
    design = np.broadcast_to(np.eye(c), (len(z), c, c))
    precision = np.full(c, 1 / variance)
    if slope:
        design = np.concatenate([design, z[:, :, None]], axis=2)
        precision = np.append(precision, 1 / _SLOPE_VARIANCE)
    w, _, _ = _solve(loss, design, z, t, precision)
    return Line(1.0 + float(w[c]) if slope else 1.0, w[:c])


def marginal_gain(loss: str, scores: Array, target: Array, variances: Array) -> Array:
    """Compute how much likelier a hospital's rows are if its intercept is drawn with each of these variances, (G,).

    Laplace's approximation of the log marginal likelihood, against no intercept of its own. Sums over hospitals estimate the
    variance (empirical Bayes).

    Args:
        loss: The loss of training.
        scores: (n, C) scores of the common model.
        target: (n, C) targets.
        variances: (G,) variances; 0 gains nothing.
    """
    z, t, c = np.asarray(scores, np.float64), np.asarray(target, np.float64), scores.shape[1]
    gains = np.zeros(len(variances))
    if not len(z):
        return gains
    start = float(score_rows(loss, z, t).sum())
    design = np.broadcast_to(np.eye(c), (len(z), c, c))
    for g, variance in enumerate(variances.tolist()):
        if variance > 0:
            _, curvature, value = _solve(loss, design, z, t, np.full(c, 1 / variance))
            gains[g] = start - value - 0.5 * (np.linalg.slogdet(curvature)[1] + c * np.log(variance))
    return gains


def fit_majority(model: Model, theta: Array, loss: str, target: Array) -> Array:
    """Return the model that gives every row the shares of the classes (or the mean outcome) at this hospital.

    Args:
        model: The model.
        theta: Any parameters of it.
        loss: The loss of training.
        target: (n, C) targets of the hospital's rows.

    Returns:
        (P,) parameters; shares are smoothed by half a row for each class, so that the loss stays finite.
    """
    t = np.asarray(target, np.float64)
    n = len(t)
    if loss == SQUARED:
        level = t.mean(axis=0) if n else np.zeros(t.shape[1])
    elif loss == POISSON:
        level = np.log((t.sum(axis=0) + 0.5) / (n + 0.5))
    elif t.shape[1] == 1:
        level = np.log((t.sum(axis=0) + 0.5) / (n - t.sum(axis=0) + 0.5))
    else:
        level = np.log((t.sum(axis=0) + 0.5) / (n + 0.5 * t.shape[1]))
    if not is_shiftable(model):
        constant: Any = model
        share = 1 / (1 + np.exp(-float(level[0])))
        out: Array = np.asarray(constant.constant(share))
        return out
    return Line(0.0, level).apply(model, theta)


def is_shiftable(model: Model) -> bool:
    """Return True if a line of its scores can be put into the model; a risk card prints its risks and has none."""
    return model.kernel not in ("card", "forest")


def is_linear(model: Model) -> bool:
    """Return True for a linear model of one output on the NumPy kernel."""
    return model.kernel == "numpy" and len(getattr(model, "widths", ())) == 2 and model.outputs == 1


def fit_linear(loss: str, x: Array, target: Array, *, ridge: float = RIDGE, start: Array | None = None) -> Array:
    """Fit a hospital's own linear model of one output to its rows by Newton's method.

    Args:
        loss: The loss of training.
        x: (n, d) inputs.
        target: (n, 1) targets.
        ridge: Penalty on the weights; the intercept has one of 0.01, which keeps it finite if all rows are of one class.
        start: Weights and intercept to start from, such as those of all folds: fewer steps to the same result.

    Returns:
        (d + 1,) weights and intercept.
    """
    x, t = np.asarray(x, np.float64), np.asarray(target, np.float64)
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    precision = np.append(np.full(x.shape[1], ridge), 0.01)
    return _solve(loss, rows[:, None, :], np.zeros((len(x), 1)), t, precision, start)[0]


def rows_of(part: Part, k: int) -> slice:
    """Return the rows of site k in a part."""
    return slice(int(part.offsets[k]), int(part.offsets[k + 1]))
