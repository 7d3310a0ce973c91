"""The guard: a hospital keeps what it has unless another candidate is clearly better, and tells whether it was harmed.

Choosing the lowest loss did harm in trials (it followed noise at small hospitals). So a hospital stays with the shrunk intercept,
else with the common model, unless the paired loss of another candidate is lower by two standard errors over 20 patients or more,
five of each of two classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.methods.guard.candidates import COMMON, HEAD, INTERCEPT
from grandrounds.metrics.fairness import MIN_PER_CLASS

FOLDS = 5
STANDARD_ERRORS = 2.0

LEAST = 20
"""Patients below which a hospital keeps the default. If its few rows are of one class, every difference is nearly the same, its
standard error is close to 0, and a model of three rows would look clearly better."""

LEVEL = 0.05
"""Probability that any hospital of a consortium is called harmed by chance."""

BOOTSTRAP, MOST_BOOTSTRAP, ENOUGH = 2000, 40_000, 20
"""Resamples at once and at most, and resamples beyond the observed value after which no more are drawn."""

_COARSE = 0.01
_TINY = 1e-12


@dataclass(frozen=True)
class Comparison:
    """Losses of the candidates of one hospital on rows that they were not fitted to.

    Attributes:
        losses: Mean loss of each candidate.
        gains: By candidate, how much lower its loss is than that of the default, and the standard error.
        rows: Number of rows.
        patients: Number of patients.
        choice: The candidate that the hospital keeps.
    """

    losses: Mapping[str, float]
    gains: Mapping[str, tuple[float, float]]
    rows: int
    patients: int
    choice: str


def assign_folds(units: Array, *, seed: int, site: str, folds: int = FOLDS) -> Array:
    """Deal patients into folds of equal size; rows of one patient are in one fold.

    Args:
        units: (n,) patient of each row, or row numbers.
        seed: The run's seed.
        site: The hospital.
        folds: Number of folds.

    Returns:
        (n,) fold of each row. It depends on this hospital's patients alone.
    """
    words, place = np.unique(units, return_inverse=True)
    order = generator(seed, purpose="folds of the guard", site=site).permutation(len(words))
    out: Array = (order % folds)[place.ravel()]
    return out


def choose(losses: Mapping[str, Array], units: Array, *, rarer: int | None = None) -> Comparison:
    """Choose a candidate by its paired losses.

    Args:
        losses: (n,) loss of each row by candidate; the common model is one of them.
        units: (n,) patient of each row: the standard error counts patients, not rows.
        rarer: Patients of the rarer of two classes; None for other outcomes.

    Returns:
        The comparison with the choice; the default below `LEAST` patients, or five of each class. A candidate without a finite
        loss is never chosen.
    """
    finite = [name for name, values in losses.items() if np.isfinite(values).all()]
    default = next((name for name in (INTERCEPT, HEAD) if name in finite), COMMON)
    n, patients = len(units), len(np.unique(units))
    means = {name: float(values.mean()) if n else float("nan") for name, values in losses.items()}
    gains: dict[str, tuple[float, float]] = {}
    best, choice = 0.0, default
    enough = patients >= LEAST and (rarer is None or rarer >= MIN_PER_CLASS)
    for name in finite if default in finite else ():
        gain, error = paired_difference(losses[default] - losses[name], units)
        gains[name] = (gain, error)
        clear = enough and error > 0 and gain > STANDARD_ERRORS * error
        if name != default and clear and gain > best:
            best, choice = gain, name
    return Comparison(means, gains, n, patients, choice)


def paired_difference(difference: Array, units: Array) -> tuple[float, float]:
    """Compute the mean of a difference over rows and its standard error over patients.

    Args:
        difference: (n,) differences of two losses.
        units: (n,) patient of each row.

    Returns:
        Mean and standard error (that of a mean whose rows are drawn by patient); both 0 for fewer than two patients.
    """
    words, place = np.unique(units, return_inverse=True)
    if len(words) < 2:
        return 0.0, 0.0
    mean = float(difference.mean())
    sums = np.bincount(place.ravel(), weights=difference - mean)
    m = len(words)
    return mean, float(np.sqrt(m / (m - 1) * (sums**2).sum())) / len(difference)


def harm_p_value(differences: Sequence[Array], units: Array, *, seed: int, site: str) -> float:
    """Compute the p-value of the hypothesis that the deployed model is no worse than either of two others.

    Paired bootstrap over patients. The statistic is the larger t value of the differences, and a resample gives the same
    statistic of differences from the observed means: so the two comparisons are corrected for each other. At 10 patients a
    bootstrap of the larger mean alone raises four times as many false alarms.

    A model that is wrong and sure of it at one patient in 50 has seldom met that patient among 24, and looks better than it is.
    So one patient is added for whom the other model does as much worse as the largest difference seen. Without it, in runs of
    five identical hospitals of 24 test patients, some hospital was called harmed in 9 of 100. Differences with rare large values
    on the side of the deployed model still reach the level, or just pass it (6% for exponential ones at 25 patients).

    Args:
        differences: For the hospital's own model and for its majority class, (n,) loss of the deployed model less that of the
            other, on test rows.
        units: (n,) patient of each row.
        seed: The run's seed.
        site: The hospital.

    Returns:
        The p-value, 1 where the deployed model is no worse in the mean. Resamples are drawn until enough exceed the observed
        value (Besag and Clifford 1991), so that a consortium of 1,000 hospitals can still find one that is harmed.
    """
    words, place = np.unique(units, return_inverse=True)
    m = len(words)
    differing = [d for d in differences if np.abs(d).max(initial=0.0) > _TINY]
    if m < 2 or not differing or not all(np.isfinite(d).all() for d in differing):
        return 1.0
    rows = np.bincount(place.ravel()).astype(np.float64)
    sums = np.stack([np.bincount(place.ravel(), weights=d) for d in differing])  # (c, m)
    unseen = -np.abs(sums / rows).max(axis=1, keepdims=True) * rows.mean()
    sums, rows, m = np.hstack([sums, unseen]), np.append(rows, rows.mean()), m + 1
    mean = sums.sum(axis=1) / rows.sum()
    observed = float(_t_values(sums[:, None, :], np.broadcast_to(rows, (1, m)), np.zeros(len(mean))).max())
    if observed <= 0:
        return 1.0
    rng = generator(seed, purpose="bootstrap of harm", site=site)
    drawn, beyond = 0, 0
    size = max(1, min(BOOTSTRAP, 4_000_000 // m))
    while drawn < MOST_BOOTSTRAP and beyond < ENOUGH:
        resample = rng.integers(m, size=(size, m))
        t = _t_values(sums[:, resample], rows[resample], mean).max(axis=0)
        drawn, beyond = drawn + size, beyond + int((t >= observed).sum())
    return min(1.0, (1 + beyond) / (1 + drawn))


def least_of_each_class(level: float) -> int:
    """Return the test patients of each class that a hospital needs to be called harmed at a level.

    At stricter levels than 1%, for consortia of more than five hospitals, five are needed: among fewer, one patient decides
    which model looks best.

    Args:
        level: The level of the test.
    """
    return 1 if level >= _COARSE else MIN_PER_CLASS


def _t_values(sums: Array, rows: Array, centre: Array) -> Array:
    """Compute (mean - centre) / standard error for sums (c, B, m) of differences by patient with rows (B, m), (c, B).

    Patients without any spread give an infinite value, so that a resample of one patient counts against harm.
    """
    m, n = rows.shape[1], rows.sum(axis=1)
    mean = sums.sum(axis=2) / n
    apart = sums - mean[:, :, None] * rows
    error = np.sqrt(m / (m - 1) * (apart**2).sum(axis=2)) / n
    value = mean - centre[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        out: Array = np.where(error > _TINY, value / np.maximum(error, _TINY), np.where(value < 0, -np.inf, np.inf))
    return out
