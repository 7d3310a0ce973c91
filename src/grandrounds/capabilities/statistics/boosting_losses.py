"""Losses of boosted trees: gradients, curvatures and losses of rows, and the score before the first tree.

Gradients of a row are bounded, so that whole-number sums over all rows fit into 30 bits: a gradient beyond its bound is clipped,
as in Huber's loss. With m intervals of time, a survival row has one gradient: the sum over the intervals in which it was at risk.

| loss | outcome | gradient | curvature |
|---|---|---|---|
| logistic | 0 or 1 | p - y | p (1 - p) |
| softmax | class number | p_k - [y = k] | 2 p_k (1 - p_k) |
| squared | in standard deviations | F - y | 1 |
| poisson | divided by its mean | exp(F) - y | exp(F) |
| hazard | time and event | sum_j p_j - d, p_j = expit(F + baseline_j) | sum_j p_j (1 - p_j) |
| cox | time and event | exp(F) sum_j d_j / S_j - d | exp(F) sum_j d_j / S_j - exp(2F) sum_j d_j / S_j^2 |

Sums over j are over the intervals up to the row's time; S_j is the sum of exp(F) over the rows at risk (Breslow).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.question import Rows
from grandrounds.capabilities.statistics.time_counts import survival_outcome
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL

LOGISTIC, SOFTMAX, SQUARED, POISSON, HAZARD, COX = "logistic", "softmax", "squared", "poisson", "hazard", "cox"

BOUNDS = {LOGISTIC: 1.0, SOFTMAX: 1.0, SQUARED: 16.0, POISSON: 32.0, HAZARD: 16.0, COX: 16.0}
"""Largest gradient and curvature of a row."""

MOST_LOSS = 32.0
"""Largest loss of a row in a validation loss."""

LARGEST_SCORE = 6.0
"""Scores of counts and hazards are within +-6 where they are exponentiated: factors of 400."""

_LEAST_CURVATURE = 2.0**-16


@dataclass(frozen=True, eq=False)
class LossTerms:
    """A loss and its public values.

    Attributes:
        name: "logistic", "softmax", "squared", "poisson", "hazard" or "cox".
        outputs: Number of scores: of classes, or 1.
        centre: Subtracted from the outcome ("squared").
        unit: The outcome is divided by it ("squared", "poisson").
        ends: Ends of the m intervals of time, (m,).
        baseline: Log-odds of an event in each interval ("hazard"); events d_j / S_j ("cox"), (m,).
        spread: Events d_j / S_j^2 ("cox"), (m,).
    """

    name: str
    outputs: int = 1
    centre: float = 0.0
    unit: float = 1.0
    ends: Array | None = None
    baseline: Array | None = None
    spread: Array | None = None

    @property
    def bound(self) -> float:
        """Largest gradient and curvature of a row."""
        return BOUNDS[self.name]

    @property
    def has_curvature(self) -> bool:
        """False if every row has curvature 1, which need not be sent."""
        return self.name != SQUARED

    @property
    def is_survival(self) -> bool:
        return self.name in (HAZARD, COX)


def loss_of_task(task: str, classes: int, *, survival: str = HAZARD) -> str:
    """Return the loss of a task.

    Args:
        task: The type of the outcome.
        classes: Number of classes.
        survival: The loss of survival: "hazard" or "cox".
    """
    if task == CLASSIFICATION:
        return SOFTMAX if classes > 2 else LOGISTIC
    return {REGRESSION: SQUARED, COUNT: POISSON, SURVIVAL: survival}[task]


def read_outcome(loss: LossTerms, rows: Rows) -> tuple[Array, Array | None]:
    """Read the outcome of rows in the units of a loss.

    Args:
        loss: The loss.
        rows: The site's rows.

    Returns:
        The outcome (n,), and for survival the number of intervals in which each row was at risk (n,).

    Raises:
        BadInput: An outcome does not fit the loss.
    """
    y = np.ascontiguousarray(rows.y, np.float64)
    if loss.is_survival:
        time, event = survival_outcome(rows)
        assert loss.ends is not None
        last = np.searchsorted(loss.ends, time)
        inside = last < len(loss.ends)
        return np.where(inside, event, 0.0), np.minimum(last + 1, len(loss.ends))
    if not np.isfinite(y).all():
        raise BadInput(f"{int((~np.isfinite(y)).sum())} of {len(y)} outcomes are not finite", code="bad-outcome")
    if loss.name in (LOGISTIC, SOFTMAX):
        if not ((y >= 0) & (y < max(2, loss.outputs)) & (y == np.rint(y))).all():
            raise BadInput(f"an outcome is no class from 0 to {max(2, loss.outputs) - 1}", code="bad-outcome")
        return y, None
    if loss.name == POISSON:
        if (y < 0).any():
            raise BadInput(f"{int((y < 0).sum())} of {len(y)} counts are negative: correct them", code="bad-outcome")
        return y / loss.unit, None
    return (y - loss.centre) / loss.unit, None


def gradients(loss: LossTerms, y: Array, last: Array | None, scores: Array) -> tuple[Array, Array]:
    """Compute gradients and curvatures, within +-`loss.bound`.

    Args:
        loss: The loss.
        y: Outcome, as `read_outcome` returns it, (n,).
        last: Intervals at risk, (n,), for survival.
        scores: (outputs, n), contiguous.

    Returns:
        Both (outputs, n).
    """
    if loss.name == LOGISTIC:
        p = expit(scores)
        return p - y, p * (1 - p)
    if loss.name == SOFTMAX:
        p = softmax(scores)
        g = p.copy()
        g[y.astype(int), np.arange(len(y))] -= 1.0
        return g, 2 * p * (1 - p)
    if loss.name == SQUARED:
        return np.clip(scores - y, -loss.bound, loss.bound), np.ones_like(scores)
    if loss.name == POISSON:
        mean = np.exp(np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE))
        g, h = mean - y, mean
    elif loss.name == HAZARD:
        p, odds = interval_hazards(loss, last, scores[0])
        g, h = (_add_rows(p) - y)[None], _add_rows(p * odds)[None]
    else:
        risk = np.exp(np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE))
        assert loss.baseline is not None and loss.spread is not None
        first, second = (np.concatenate([[0.0], np.cumsum(v)])[last] for v in (loss.baseline, loss.spread))
        g, h = risk * first - y, np.maximum(risk * first - risk**2 * second, 0.0)
    return np.clip(g, -loss.bound, loss.bound), np.clip(h, _LEAST_CURVATURE, loss.bound)


def row_losses(loss: LossTerms, y: Array, last: Array | None, scores: Array) -> Array:
    """Compute the loss of each row, (n,), between 0 and `MOST_LOSS`.

    Args:
        loss: The loss.
        y: Outcome, (n,).
        last: Intervals at risk, (n,), for survival.
        scores: (outputs, n).
    """
    if loss.name == LOGISTIC:
        out = np.logaddexp(0.0, scores[0]) - y * scores[0]
    elif loss.name == SOFTMAX:
        out = -np.log(np.maximum(softmax(scores)[y.astype(int), np.arange(len(y))], 1e-12))
    elif loss.name == SQUARED:
        out = 0.5 * (scores[0] - y) ** 2
    elif loss.name == POISSON:
        f = np.clip(scores[0], -LARGEST_SCORE, LARGEST_SCORE)
        full = y * np.log(np.maximum(y, 1e-12)) - y  # the deviance is never negative
        out = np.exp(f) - y * f + full
    elif loss.name == HAZARD:
        p, odds = interval_hazards(loss, last, scores[0])
        at_end = (np.arange(len(p))[:, None] == np.asarray(last) - 1) & (y > 0)
        out = -_add_rows(np.log(np.maximum(np.where(at_end, p, odds), 1e-12)))
    else:
        assert loss.baseline is not None
        f = np.clip(scores[0], -LARGEST_SCORE, LARGEST_SCORE)
        total = np.concatenate([[0.0], np.cumsum(loss.baseline)])[last]
        hazard = loss.baseline[np.maximum(np.asarray(last), 1) - 1]
        out = np.exp(f) * total - y * (f + np.log(np.maximum(hazard, 1e-12)))
    return np.asarray(np.clip(out, 0.0, MOST_LOSS))


def interval_hazards(loss: LossTerms, last: Array | None, scores: Array) -> tuple[Array, Array]:
    """Compute the probability p of an event in each interval and 1 - p, (m, n); 0 and 1 where a row is not at risk.

    Args:
        loss: The loss "hazard".
        last: Intervals at risk, (n,).
        scores: (n,).
    """
    assert loss.baseline is not None and last is not None
    p = expit(np.ascontiguousarray(loss.baseline[:, None] + scores))
    at_risk = np.arange(len(loss.baseline))[:, None] < last
    return np.where(at_risk, p, 0.0), np.where(at_risk, 1 - p, 1.0)


def expit(scores: Array) -> Array:
    """Compute 1 / (1 + exp(-scores))."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-scores)))


def softmax(scores: Array) -> Array:
    """Compute the probabilities of classes, (outputs, n)."""
    odds = np.exp(scores - scores.max(axis=0))
    return np.asarray(odds / _add_rows(odds))


def _add_rows(terms: Array) -> Array:
    """Add the rows of (m, n) one after the other. NumPy adds those of a single column in another order, with other bits."""
    out = np.zeros(terms.shape[1:])
    for row in terms:
        out += row
    return out
