"""The guard: a hospital keeps what it has unless another candidate is clearly better, and tells whether it was harmed.

Choosing the lowest loss did harm in trials (it followed noise at small hospitals). So a hospital stays with the shrunk intercept,
else with the common model, unless the paired loss of another candidate is lower by two standard errors over 20 patients or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.methods.personal.parts import COMMON, HEAD, INTERCEPT

FOLDS = 5
STANDARD_ERRORS = 2.0
LEAST = 20
"""Patients below which a hospital keeps the default. Its few rows may all be of one class; then every difference is nearly the
same, its standard error is close to 0, and a model of three rows would look clearly better."""

BOOTSTRAP = 2000
"""Resamples of a hospital's test rows."""

LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Losses of the candidates of one hospital on rows that they were not fitted to.

    Attributes:
        losses: Mean loss of each candidate.
        gains: By candidate, how much lower its loss is than that of the default, and the standard error.
        rows: Number of rows.
        choice: The candidate that the hospital keeps.
    """

    losses: Mapping[str, float]
    gains: Mapping[str, tuple[float, float]]
    rows: int
    choice: str


def assign_folds(units: Array, *, seed: int, site: str, folds: int = FOLDS) -> Array:
    """Deal patients into folds of equal size; rows of one patient are in one fold.

    Args:
        units: (n,) patient of each row, or row numbers.
        seed: The run's seed.
        site: The hospital.
        folds: Number of folds.

    Returns:
        (n,) fold of each row.
    """
    words, place = np.unique(units, return_inverse=True)
    order = generator(seed, purpose="folds of the guard", site=site).permutation(len(words))
    out: Array = (order % folds)[place.ravel()]
    return out


def choose(losses: Mapping[str, Array], units: Array) -> Comparison:
    """Choose a candidate by its paired losses.

    Args:
        losses: (n,) loss of each row by candidate; the common model is one of them.
        units: (n,) patient of each row: the standard error counts patients, not rows.

    Returns:
        The comparison with the choice; the default below `LEAST` patients.
    """
    default = next((name for name in (INTERCEPT, HEAD) if name in losses), COMMON)
    n, enough = len(units), len(np.unique(units)) >= LEAST
    means = {name: float(values.mean()) if n else float("nan") for name, values in losses.items()}
    gains: dict[str, tuple[float, float]] = {}
    best, choice = 0.0, default
    for name, values in losses.items():
        gain, error = paired_difference(losses[default] - values, units)
        gains[name] = (gain, error)
        if enough and name != default and error > 0 and gain > STANDARD_ERRORS * error and gain > best:
            best, choice = gain, name
    return Comparison(means, gains, n, choice)


def paired_difference(difference: Array, units: Array) -> tuple[float, float]:
    """Compute the mean of a difference over rows and its standard error over patients.

    Args:
        difference: (n,) differences of two losses.
        units: (n,) patient of each row.

    Returns:
        Mean and standard error; both 0 for fewer than two patients.
    """
    words, place = np.unique(units, return_inverse=True)
    if len(words) < 2:
        return 0.0, 0.0
    mean = float(difference.mean())
    sums = np.bincount(place.ravel(), weights=difference - mean)
    m = len(words)
    return mean, float(np.sqrt(m / (m - 1) * (sums**2).sum())) / len(difference)


def harm_p_value(difference: Array, units: Array, *, seed: int, site: str) -> float:
    """Compute the p-value of the hypothesis that the deployed model is no worse than the better of the other two.

    Paired bootstrap over patients: the share of resamples in which the deployed model is no worse.

    Args:
        difference: (n,) loss of the deployed model less that of the better of own model and majority class, on test rows.
        units: (n,) patient of each row.
        seed: The run's seed.
        site: The hospital.

    Returns:
        The p-value, at least 1 / (resamples + 1); 1 where the deployed model is no worse in the mean.
    """
    words, place = np.unique(units, return_inverse=True)
    if len(words) < 2 or difference.mean() <= 0:
        return 1.0
    sums = np.bincount(place.ravel(), weights=difference)
    rng = generator(seed, purpose="bootstrap of harm", site=site)
    drawn = rng.integers(len(words), size=(BOOTSTRAP, len(words)))
    return float(1 + (sums[drawn].sum(axis=1) <= 0).sum()) / (BOOTSTRAP + 1)
