"""Membership inference attacks, computed from a model's confidences: was this patient in the training rows?

All attacks use the log-odds that a model gives to a row's true class. The loss threshold of Yeom et al. (2018) ranks rows
by them. LiRA (Carlini et al. 2022) compares them with shadow models that did not see the row (online: also with those that
did), so an easy patient is not mistaken for a member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.metrics.classification import OccupiedBins, recall_at_specificity, roc_area, roc_interval

FPR = 0.01
"""False-positive rate at which found members are counted."""

_FURTHEST = 100.0
"""Limit of log-odds: beyond it a probability is 0 or 1 to forty digits, or the model diverged."""

_ENOUGH = 64
"""Number of shadow models from which on each row has its own variance; with fewer, all rows share one (Carlini et al., fig.
9).
"""


@dataclass(frozen=True)
class Attack:
    """Result of an attack: ROC AUC with DeLong's 95% interval, and true-positive rate at 1% false positives."""

    attack: str
    members: int
    nonmembers: int
    auc: float
    low: float
    high: float
    tpr: float

    def to_dict(self) -> dict[str, str | int | float | None]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Attack:
        fields: dict[str, Any] = {k: math.nan if v is None else v for k, v in values.items()}
        return cls(**fields)


def confidence(logits: Array, y: Array) -> Array:
    """Compute the log-odds (n,) of each row's true class from logits (n, C), or (n, 1) for two classes.

    log(p / (1 - p)) is computed without p, which rounds to 1 if a model memorised a row.
    """
    z = np.asarray(logits, float)
    if np.isnan(z).any():
        raise BadInput(
            "the model's output is NaN for some rows: its training diverged, so it cannot be attacked",
            code="diverged-model",
        )
    z = np.clip(z, -1e6, 1e6)
    if z.shape[1] == 1:
        odds = z[:, 0] * (2 * y - 1)
    else:
        rows = np.arange(len(y))
        rest = z.copy()
        rest[rows, y] = -np.inf
        top = rest.max(axis=1)
        odds = z[rows, y] - top - np.log(np.exp(rest - top[:, None]).sum(axis=1))
    return np.asarray(np.clip(odds, -_FURTHEST, _FURTHEST))


def judged(attack: str, scores: Array, member: Array) -> Attack:
    """Evaluate attack scores (n,), which should be higher for members (n,) bool; rows without a score (NaN) are ignored."""
    scored = ~np.isnan(scores)
    scores, member = scores[scored], member[scored]
    values, column = np.unique(scores, return_inverse=True)
    kinds = [np.bincount(column[of], minlength=len(values)).astype(float) for of in (~member, member)]
    totals = [np.array(kind.sum()) for kind in kinds]
    cells = OccupiedBins(np.zeros(len(values), np.intp), np.arange(len(values)), kinds[0], kinds[1], totals[0], totals[1])
    low, high = roc_interval(cells)
    return Attack(
        attack,
        members=int(member.sum()),
        nonmembers=int((~member).sum()),
        auc=float(roc_area(cells)),
        low=float(low),
        high=float(high),
        tpr=float(recall_at_specificity(cells, specificity=1 - FPR)),
    )


def offline(target: Array, shadows: Array, inside: Array) -> Array:
    """Compute LiRA's offline score (n,): the target's confidence relative to shadow models that did not see the row.

    Args:
        target: Confidences of the attacked model, (n,).
        shadows: Confidences of the shadow models, (S, n).
        inside: True for shadow models that saw the row, (S, n).

    Returns:
        Differences in standard deviations; NaN for a row that every shadow model saw.
    """
    mean, deviation = _fitted(shadows, ~inside)
    return (target - mean) / deviation


def online(target: Array, shadows: Array, inside: Array) -> Array:
    """Compute LiRA's online score (n,): the log-likelihood ratio of models that saw the row and models that did not."""
    scores = []
    for used in (inside, ~inside):
        mean, deviation = _fitted(shadows, used)
        scores.append(-np.log(deviation) - ((target - mean) / deviation) ** 2 / 2)
    return np.asarray(scores[0] - scores[1])


def _fitted(shadows: Array, used: Array) -> tuple[Array, Array]:
    """Compute mean and standard deviation (n,) of each row's confidences over the shadow models used for it."""
    count = used.sum(axis=0)
    mean = np.divide((shadows * used).sum(axis=0), count, where=count > 0, out=np.full(len(count), np.nan))
    squares = np.where(used, (shadows - mean) ** 2, 0.0).sum(axis=0)
    spare = np.maximum(count - 1, 0)
    if len(shadows) >= _ENOUGH and spare.min() > 0:
        variance = squares / spare
    else:
        variance = np.full(len(count), squares.sum() / max(int(spare.sum()), 1))
    return mean, np.sqrt(np.maximum(variance, 1e-12))


def most_hits(epsilon: float, delta: float, *, fpr: float = FPR) -> float:
    """Compute the largest true-positive rate of any attack at `fpr` against (epsilon, delta)-privacy.

    TPR <= e^epsilon FPR + delta, and the same for the rows that are not called members.
    """
    e = math.exp(min(epsilon, 700.0))
    return max(0.0, min(1.0, e * fpr + delta, 1 - (1 - delta - fpr) / e))


def most_area(epsilon: float, delta: float) -> float:
    """Compute the largest ROC AUC of any attack against (epsilon, delta)-privacy: 1 - (1 - delta)^2 / (1 + e^epsilon).

    It is the area under the curve of `most_hits`: a line of slope e^epsilon from (0, delta), then one of slope e^-epsilon.
    """
    return 1 - (1 - delta) ** 2 / (1 + math.exp(min(epsilon, 700.0)))
