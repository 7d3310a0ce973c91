"""Was this patient among the training rows? Attacks that ask so, as arithmetic on a model's confidences.

Everything starts from the log-odds that a model gives to a row's true class. The loss threshold of Yeom et al. (2018)
ranks rows by them alone. LiRA (Carlini et al. 2022) asks how confident models are in the same row that never saw it (and,
online, that did see it), from shadow models, and so does not take an easy patient for a member.
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
"""The share of non-members that may be called members where the attack's hits are counted."""

_FURTHEST = 100.0
"""Log-odds are drawn in to this: beyond it a probability is 0 or 1 to forty digits, or the model diverged."""

_ENOUGH = 64
"""Shadow models from which on a row has a variance of its own; with fewer, all rows share one (Carlini et al., fig. 9)."""


@dataclass(frozen=True)
class Attack:
    """How well an attack told members from non-members: ROC area with DeLong's 95% interval, hits at 1% false alarms."""

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
    """The log-odds (n,) of each row's true class from logits (n, C), or (n, 1) for two classes.

    log(p / (1 - p)) without going through p, which rounds to 1 where a model has learnt a row by heart.
    """
    z = np.asarray(logits, float)
    if np.isnan(z).any():
        raise BadInput(
            "the model gives no number for some rows: its training diverged, so there is nothing to attack",
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
    """What scores (n,) are worth that should be higher for members (n,) bool; rows without a score (NaN) do not count."""
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
    """LiRA's offline score (n,): by how many deviations the target's confidence (n,) exceeds that of shadow models
    (S, n) which did not see the row; `inside` (S, n) says which saw it. NaN for a row that every shadow saw.
    """
    mean, deviation = _fitted(shadows, ~inside)
    return (target - mean) / deviation


def online(target: Array, shadows: Array, inside: Array) -> Array:
    """LiRA's online score (n,): the log of how much likelier the target's confidence is from models that saw the row."""
    scores = []
    for used in (inside, ~inside):
        mean, deviation = _fitted(shadows, used)
        scores.append(-np.log(deviation) - ((target - mean) / deviation) ** 2 / 2)
    return np.asarray(scores[0] - scores[1])


def _fitted(shadows: Array, used: Array) -> tuple[Array, Array]:
    """Mean and deviation (n,) of each row's confidences over the shadow models that are used for it."""
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
    """The most members that any attack can find at `fpr` false alarms against (epsilon, delta)-privacy.

    TPR <= e^epsilon FPR + delta, and the same of the rows that are not called members.
    """
    e = math.exp(min(epsilon, 700.0))
    return max(0.0, min(1.0, e * fpr + delta, 1 - (1 - delta - fpr) / e))


def most_area(epsilon: float, delta: float) -> float:
    """The largest ROC area of any attack against (epsilon, delta)-privacy: 1 - (1 - delta)^2 / (1 + e^epsilon).

    The area under the curve of `most_hits`: a line of slope e^epsilon from (0, delta), then one of slope e^-epsilon.
    """
    return 1 - (1 - delta) ** 2 / (1 + math.exp(min(epsilon, 700.0)))
