"""Attribute inference: guess a patient's hidden column from the other columns, the outcome and the model.

The attacker of Fredrikson et al. (2014) tries every value of the hidden column and takes the one with the largest
prior x likelihood of the outcome under the model. Such a guess is often right for patients whom the model never saw, because
disease and column go together in everybody. The leak is the *attribute advantage* of Yeom et al. (2018): accuracy on training
patients minus accuracy on patients who were not trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array

CONFIDENCE = 0.95

_SMOOTH = 1.0
"""Patients that are added to every cell of a table of counts, so that an unseen pair of values is not impossible."""


@dataclass(frozen=True)
class AttributeAttack:
    """Accuracy of guesses of one column.

    Attributes:
        column: The hidden column.
        kind: "category", or "number" in bins.
        values: Number of values to choose from.
        members: Training patients' rows whose value was guessed.
        nonmembers: Rows of patients that were not trained on.
        accuracy_members: Share of right guesses among members.
        accuracy_nonmembers: The same among non-members.
        advantage: The difference, which is the leak.
        low: Lower end of the advantage's 95% interval.
        high: Upper end.
        low_all: Lower end of an interval that holds for all columns together (Bonferroni).
        high_all: Upper end of it.
        marginal: Accuracy among members of always guessing the most frequent value.
        imputation: Accuracy among members of an attacker without the model, who predicts the column from the others.
    """

    column: str
    kind: str
    values: int
    members: int
    nonmembers: int
    accuracy_members: float
    accuracy_nonmembers: float
    advantage: float
    low: float
    high: float
    low_all: float
    high_all: float
    marginal: float
    imputation: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttributeAttack:
        """Read what `to_dict` wrote."""
        return cls(**values)


def guess_values(prior: Array, log_likelihood: Array) -> Array:
    """Guess the value of each row: the one with the largest posterior.

    Args:
        prior: Probability of each value, (V,), or for each row (n, V).
        log_likelihood: Log-likelihood of the row's outcome with each value in the hidden column, (n, V).

    Returns:
        (n,) number of the guessed value; of several equal ones the first.
    """
    with np.errstate(divide="ignore"):
        guessed: Array = (np.log(prior) + log_likelihood).argmax(axis=1)
    return guessed


def proportion_interval(
    right: Array, patient: Array | None = None, *, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Compute a share and its Wilson interval.

    Args:
        right: (n,) bool.
        patient: (n,) patient of each row; rows of one patient are not independent, and the number of rows is reduced by the
            design effect. None: each row is a patient.
        confidence: Confidence of the interval.

    Returns:
        The share, and both ends; NaN without rows.
    """
    n = len(right)
    if n == 0:
        return math.nan, 0.0, 1.0
    share = float(np.mean(right))
    size = n / _design_effect(np.asarray(right, float), patient)
    return (share, *wilson(share, size, confidence=confidence))


def wilson(share: float, n: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Compute Wilson's interval of a share of n rows.

    Args:
        share: The share.
        n: Number of rows; an effective one may be a fraction.
        confidence: Confidence of the interval.

    Returns:
        Both ends.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (0.0 if share == 0 else max(0.0, centre - half)), (1.0 if share == 1 else min(1.0, centre + half))


def difference_interval(
    members: Array,
    nonmembers: Array,
    member_patients: Array | None = None,
    nonmember_patients: Array | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> tuple[float, float, float]:
    """Compute the difference of two shares and its interval (Newcombe 1998, method 10: from two Wilson intervals).

    Args:
        members: (n,) bool: guesses that are right.
        nonmembers: (m,) bool: the same of the others.
        member_patients: (n,) patient of each row, or None.
        nonmember_patients: (m,) the same of the others.
        confidence: Confidence of the interval.

    Returns:
        The difference, and both ends.
    """
    p, p_low, p_high = proportion_interval(members, member_patients, confidence=confidence)
    q, q_low, q_high = proportion_interval(nonmembers, nonmember_patients, confidence=confidence)
    d = p - q
    return d, d - math.hypot(p - p_low, q_high - q), d + math.hypot(p_high - p, q - q_low)


def impute_values(known: Array, target: Array, values: int) -> Array:
    """Compute log-probabilities of a column's values from other columns by naive Bayes: the attacker without the model.

    Args:
        known: Indicators of the values of the other columns, (n, F), of rows whose target is known, and of those to guess.
        target: (n,) number of the value; -1 where it is to be guessed.
        values: Number of values V.

    Returns:
        (n, V) log-probabilities up to a constant, made of the rows with a known target.
    """
    taught = target >= 0
    chosen = np.eye(values)[target[taught]]
    counts = chosen.T @ known[taught]
    size = chosen.sum(axis=0)
    chance = (counts + _SMOOTH * known[taught].mean(axis=0) + 1e-9) / (size[:, None] + _SMOOTH)
    log_prior = np.log((size + _SMOOTH) / (size.sum() + _SMOOTH * values))
    out: Array = log_prior + known @ np.log(np.minimum(chance, 1.0)).T
    return out


def _design_effect(right: Array, patient: Array | None) -> float:
    """Compute by how much rows of the same patient inflate the variance of a share; at least 1."""
    n = len(right)
    if patient is None or n < 2:
        return 1.0
    _, place = np.unique(patient.astype(str), return_inverse=True)
    residual = np.bincount(place.ravel(), right - right.mean())
    if len(residual) == n:
        return 1.0
    alone = float(((right - right.mean()) ** 2).sum())
    largest = float(np.bincount(place.ravel()).max())
    return largest if alone == 0 else max(1.0, float((residual**2).sum()) / alone)
