"""Candidates of a hospital: the common model, what it may add to it, a model of its own, and its majority class.

Every candidate is a vector of the same model (P,), so that it is scored, explained and stored as any other model is. A line
(slope and intercept of the scores) goes into the last layer or the line of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.capability import PersonalPart, collect
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.models import Model
from grandrounds.models.losses import CROSS_ENTROPY, POISSON, SQUARED
from grandrounds.site.stack import Part, Stack

COMMON, INTERCEPT, RECALIBRATION, OWN, MAJORITY = "common", "intercept", "recalibration", "own", "majority"
HEAD, DITTO, APFL, FINETUNE = "head", "ditto", "apfl", "finetune"

CHOICES = (COMMON, INTERCEPT, RECALIBRATION, HEAD, DITTO, APFL, FINETUNE, OWN, MAJORITY)
"""Every candidate by name; answers carry its place in this list."""

LINES = {
    INTERCEPT: "the site's own intercept, shrunk towards the common one; fitted after the rounds",
    RECALIBRATION: "slope and intercept of the scores, shrunk; fitted after the rounds",
}
"""Personal parts that are a line of the scores, with what a site fits and keeps."""

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


def trained_parts() -> dict[str, PersonalPart]:
    """Return the personal parts that sites train; capabilities add them."""
    return collect("parts")


def part_titles() -> dict[str, str]:
    """Return all personal parts with what a site fits or trains, and keeps."""
    return {**LINES, **{name: part.title for name, part in trained_parts().items()}}


def trains_in_rounds(part: str) -> bool:
    """Return True if sites train a personal part in every round, beside the common model."""
    return part in (parts := trained_parts()) and bool(parts[part].site)


def refuse_unknown_part(part: str) -> None:
    """Refuse a personal part that is not installed here."""
    if part not in ("none", *LINES, *trained_parts()):
        raise BadInput(f"personal part '{part[:40]}' is unknown: install the same version everywhere", code="unknown-part")


def describe_candidate(name: str, task: str = CLASSIFICATION) -> str:
    """Describe a candidate of a comparison for readers.

    Args:
        name: The candidate.
        task: The type of the outcome; without classes there is no most common one.
    """
    return "its mean outcome" if name == MAJORITY and task != CLASSIFICATION else IN_WORDS.get(name, name)


def describe_choice(name: str, task: str = CLASSIFICATION) -> str:
    """Describe the candidate that a hospital deploys; its most common class is no model."""
    words = describe_candidate(name, task)
    return f"no model ({words})" if name == MAJORITY else words


def describe_base(part: str) -> str:
    """Name the models of a run's own figures: the common one, or with a head for each site those with the sites' own heads."""
    return "own last layer" if part == HEAD else "common model"


RIDGE = 1.0
"""Penalty on the coefficients of a linear model of a hospital's own, as in scikit-learn (C = 1), on scaled columns."""

_SLOPE_VARIANCE = 1.0
_STEPS, _SMALL, _CLOSE, _CLOSE_ENOUGH = 50, 1e-9, 1e-6, 3e-3
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_NODE_WEIGHTS = _NODE_WEIGHTS / np.sqrt(2 * np.pi)
_MANY = 2000  # rows beyond which Laplace's term is exact enough


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


def derivatives(loss: str, z: Array, t: Array) -> tuple[Array, Array]:
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


def minimise(
    loss: str,
    design: Array,
    offset: Array,
    t: Array,
    precision: Array,
    *,
    start: Array | None = None,
    close: float = _CLOSE,
) -> tuple[Array, Array, float]:
    """Minimise the loss of offset + design @ w plus w' precision w / 2 by Newton's method with halved steps.

    design (n, C, q), offset (n, C), t (n, C), precision (q,). Returns w, the second derivative (q, q) and the value
    at w. A step below `close` is the last one: the next would be of the order of its square.
    """
    q = design.shape[2]
    w = np.zeros(q) if start is None else np.asarray(start, np.float64)

    def total(v: Array) -> float:
        return float(score_rows(loss, offset + design @ v, t).sum() + 0.5 * (precision * v * v).sum())

    value = total(w)
    flat = design.reshape(-1, q)
    for _ in range(_STEPS):
        first, second = derivatives(loss, offset + design @ w, t)
        gradient = flat.T @ first.ravel() + precision * w
        if design.shape[1] == 1:
            rooted = flat * np.sqrt(second[:, 0, 0])[:, None]
            curvature = rooted.T @ rooted + np.diag(precision)  # a symmetric product takes half the time
        else:
            curvature = flat.T @ (second @ design).reshape(-1, q) + np.diag(precision)
        if not np.isfinite(gradient).all() or np.abs(gradient).max() < _SMALL:
            break
        step = np.linalg.solve(curvature + 1e-10 * np.eye(q), gradient)
        size = 1.0
        while size > 1e-6 and not total(w - size * step) <= value:
            size /= 2
        if size <= 1e-6:
            break
        w = w - size * step
        value = total(w)
        if size == 1 and np.abs(step).max() < close:
            break
    return w, curvature, value


def fit_line(loss: str, scores: Array, target: Array, *, variance: float, slope: bool) -> Line:
    """Fit the line of a hospital to its rows: an intercept, with a slope if asked for.

    Args:
        loss: The loss of training.
        scores: (n, C) scores of the common model.
        target: (n, C) targets.
        variance: Variance of the intercepts of hospitals, which shrinks this one; 0: no intercept of its own. For the squared
            loss in units of the residual variance.
        slope: Fit a slope too, shrunk towards 1.

    Returns:
        The line.
    """
    c = scores.shape[1]
    if not len(scores) or (variance <= 0 and not slope):
        return Line(1.0, np.zeros(c))
    z, t = np.asarray(scores, np.float64), np.asarray(target, np.float64)
    design = np.broadcast_to(np.eye(c), (len(z), c, c))
    precision = np.full(c, 1 / max(variance, _SMALL))
    if slope:
        design = np.concatenate([design, z[:, :, None]], axis=2)
        precision = np.append(precision, 1 / _SLOPE_VARIANCE)
    w, _, _ = minimise(loss, design, z, t, precision)
    return Line(1.0 + float(w[c]) if slope else 1.0, w[:c])


def spread_sums(loss: str, scores: Array, target: Array, variances: Array) -> tuple[Array, Array]:
    """Compute the likelihood of a hospital's rows if its intercept is drawn with each of these variances.

    Sums over hospitals estimate the variance (empirical Bayes). The log marginal likelihood is -(losses + widths): the smallest
    penalised loss, and Laplace's term for the width of the likelihood, which for one output is corrected by adaptive
    Gauss-Hermite quadrature.

    Args:
        loss: The loss of training.
        scores: (n, C) scores of the common model.
        target: (n, C) targets.
        variances: (G,) variances, rising from 0.

    Returns:
        losses (G,) and widths (G,).
    """
    z, t, c = np.asarray(scores, np.float64), np.asarray(target, np.float64), scores.shape[1]
    losses, widths = np.zeros(len(variances)), np.zeros(len(variances))
    if not len(z):
        return losses, widths
    losses[:] = float(score_rows(loss, z, t).sum())
    drawn = np.flatnonzero(variances > 0)
    if c == 1:
        losses[drawn], widths[drawn] = _one_output_sums(loss, z[:, 0], t[:, 0], variances[drawn])
        return losses, widths
    design = np.broadcast_to(np.eye(c), (len(z), c, c))
    w: Array | None = None
    for g in drawn.tolist():
        w, curvature, losses[g] = minimise(loss, design, z, t, np.full(c, 1 / variances[g]), start=w)
        widths[g] = 0.5 * (np.linalg.slogdet(curvature)[1] + c * np.log(variances[g]))
    return losses, widths


def _one_output_sums(loss: str, z: Array, t: Array, variances: Array) -> tuple[Array, Array]:
    """Compute `spread_sums` of one output for all variances at once: Newton's method for G intercepts, then quadrature.

    A step is at most 2, so that the Poisson loss does not overshoot.
    """
    count = len(variances)

    def penalised(shift: Array) -> Array:  # (G, Q) intercepts
        moved = (z[:, None] + shift.ravel()).reshape(-1, 1)
        each = score_rows(loss, moved, np.repeat(t, shift.size)[:, None]).reshape(len(z), -1)
        out: Array = each.sum(axis=0).reshape(shift.shape) + 0.5 * shift**2 / variances[:, None]
        return out

    w = np.zeros(count)
    for _ in range(2 * _STEPS):
        first, second = derivatives(loss, (z[:, None] + w).reshape(-1, 1), np.repeat(t, count)[:, None])
        curvature = second.reshape(len(z), count).sum(axis=0) + 1 / variances
        step = np.clip((first.reshape(len(z), count).sum(axis=0) + w / variances) / curvature, -2, 2)
        w = w - step
        if not np.abs(step).max() > _SMALL:
            break
    losses = penalised(w[:, None])[:, 0]
    widths = 0.5 * (np.log(curvature) + np.log(variances))
    if loss != SQUARED and len(z) <= _MANY:
        values = penalised(w[:, None] + _NODES / np.sqrt(curvature)[:, None]) - losses[:, None]
        widths = widths - np.log((_NODE_WEIGHTS * np.exp(0.5 * _NODES**2 - values)).sum(axis=1))
    return losses, widths


def unweighted_shift(class_weight: Array | None, outputs: int) -> Array:
    """Return what is added to the scores of a model that was trained with class weights, so that its risks are those of the
    classes as they occur, (outputs,): the log odds less the log of the weights' ratio (King and Zeng 2001).

    Args:
        class_weight: (C,) weights of training; None: 1 each.
        outputs: Scores of a row; the one score of two classes is the log odds of the second.
    """
    if class_weight is None:
        return np.zeros(outputs)
    logs = -np.log(np.asarray(class_weight, np.float64))
    return logs[1:] - logs[0] if outputs == 1 else logs


def undo_class_weights(model: Model, theta: Array, class_weight: Array | None) -> Array:
    """Return a model that was trained with class weights with the risks of the classes as they occur.

    Hospitals compare and deploy such models: a weighted one would lose to a constant, however well it ranks patients.
    """
    if class_weight is None or not is_shiftable(model):
        return theta
    return Line(1.0, unweighted_shift(class_weight, model.outputs)).apply(model, theta)


def fit_majority(model: Model, theta: Array, loss: str, target: Array) -> Array | None:
    """Return the model that gives every row the shares of the classes (or the mean outcome) at this hospital.

    Args:
        model: The model.
        theta: Any parameters of it.
        loss: The loss of training.
        target: (n, C) targets of the hospital's rows.

    Returns:
        (P,) parameters; shares are smoothed by half a row for each class, so that the loss stays finite. None for a model
        that cannot answer every row alike.
    """
    t = np.asarray(target, np.float64)
    n, total = len(t), t.sum(axis=0)
    if loss == SQUARED:
        level = total / n if n else np.zeros(t.shape[1])
    elif loss == POISSON:
        level = np.log((total + 0.5) / (n + 0.5))
    elif t.shape[1] == 1:
        level = np.log((total + 0.5) / (n - total + 0.5))
    else:
        level = np.log((total + 0.5) / (n + 0.5 * t.shape[1]))
    if is_shiftable(model):
        return Line(0.0, level).apply(model, theta)
    if model.kernel != "card":
        return None
    card: Any = model
    sign = float(card.read(theta)["line"][0])  # -1: the event is the first class, and the card prints its risk
    risk = 1 / (1 + np.exp(-sign * float(level[0])))
    out: Array = card.pack({**card.start(), "risk": np.array([risk]), "line": np.array([sign, 0.0])})
    return out


def is_shiftable(model: Model) -> bool:
    """Return True if a line of its scores can be put into the model.

    A risk card prints its risks and has none; a net needs a last linear layer with a bias.
    """
    net: Any = model
    if model.kernel == "torch":
        return bool(getattr(net, "ends_linear", True)) and f"{net.last_layer}.bias" in net.trainable
    return model.kernel not in ("card", "forest", "boosted")


def is_linear(model: Model) -> bool:
    """Return True for a linear model of one output on the NumPy kernel."""
    return model.kernel == "numpy" and len(getattr(model, "widths", ())) == 2 and model.outputs == 1


def fit_linear(
    loss: str,
    x: Array,
    target: Array,
    *,
    ridge: float = RIDGE,
    start: Array | None = None,
) -> Array:
    """Fit a hospital's own linear model of one output to its rows by Newton's method.

    Args:
        loss: The loss of training.
        x: (n, d) inputs.
        target: (n, 1) targets.
        ridge: Penalty on the weights; the intercept has one of 0.01, which keeps it finite if all rows are of one class.
        start: Weights and intercept to start from, such as those of all folds: fewer steps to the same result, to 1e-5.

    Returns:
        (d + 1,) weights and intercept.
    """
    x, t = np.asarray(x, np.float64), np.asarray(target, np.float64)
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    precision = np.append(np.full(x.shape[1], ridge), 0.01)
    close = _CLOSE if start is None else _CLOSE_ENOUGH
    none = np.zeros((len(x), 1))
    return minimise(loss, rows[:, None, :], none, t, precision, start=start, close=close)[0]


def rows_of(part: Part, k: int) -> slice:
    """Return the rows of site k in a part."""
    return slice(int(part.offsets[k]), int(part.offsets[k + 1]))


def patients_of(stack: Stack, k: int, splits: Sequence[str]) -> Array:
    """Return the patient of each of site k's rows of these splits; row numbers without a patient column."""
    rows = np.concatenate([getattr(stack.rows[k], split) for split in splits])
    if stack.data.patient is not None:
        return np.asarray(stack.data.patient[rows].astype(str))
    return np.arange(len(rows))


def rows_at(part: Part, k: int, chosen: Array) -> Part:
    """Return the part with these rows of site k alone, (n,) of bool; all other sites have no rows in it.

    Other sites' rows are not copied: with many sites that took longer than the fits.
    """
    rows = rows_of(part, k)
    sites = len(part.offsets) - 1
    ends = np.where(np.arange(sites + 1) > k, int(np.count_nonzero(chosen)), 0)
    time = None if part.time is None else part.time[rows][chosen]
    return Part(part.x[rows][chosen], part.y[rows][chosen], part.target[rows][chosen], part.group[rows][chosen], ends, time=time)
