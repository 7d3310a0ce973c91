"""Mechanisms of differential privacy with a stated sensitivity.

Each takes its random generator from the caller. In a run it is keyed by the site's own secret (`noise_generator`), never by
the experiment's seed. Each docstring names the `Event` to charge. Real-valued noise is float64, whose rounding the usual
proofs ignore; use the exact samplers of `discrete` for counts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg.keys import Secret


def noise_generator(secret: Secret, purpose: str) -> np.random.Generator:
    """Create a generator for one purpose, keyed by 128 bits of the site's secret."""
    return np.random.Generator(np.random.Philox(key=np.frombuffer(secret.bytes(purpose, 16), "<u8")))


def exponential_top_k(scores: Array, *, epsilon: float, sensitivity: float, k: int, rng: np.random.Generator) -> Array:
    """Draw k candidates without replacement, with a total of epsilon-DP.

    Each draw is an exponential mechanism of epsilon_0 = epsilon / k: candidate j is drawn with probability proportional to
    exp(epsilon_0 * score_j / (2 * sensitivity)) among those left. Gumbel noise added to all exponents, with the k largest
    taken in order, is exactly that (Durfee & Rogers 2019). It works in log space, so no score is too large.

    Charge `Event("exponential", ..., count=k, epsilon=epsilon / k)`: its range is bounded, so many draws compose better
    than their sum.

    Args:
        scores: Scores of the candidates, (..., d). Each (feature, direction) is a candidate.
        epsilon: Privacy parameter of all draws.
        sensitivity: Largest change of a score by one patient.
        k: Number of draws.
        rng: Random generator.

    Returns:
        Indices (..., k).

    Raises:
        BadInput: A score is not finite, or an argument is out of range.
    """
    utilities = _real(scores, "scores")
    if utilities.ndim < 1 or not 1 <= k <= utilities.shape[-1]:
        raise BadInput(
            f"cannot draw {k} of {utilities.shape[-1] if utilities.ndim else 0} candidates: choose a number from 1 to "
            "the number of candidates",
            code="bad-count",
        )
    _above_zero(epsilon=epsilon, sensitivity=sensitivity)
    exponents = (utilities - utilities.max(axis=-1, keepdims=True)) * (epsilon / k / (2 * sensitivity))
    drawn = exponents + rng.gumbel(size=utilities.shape)
    return np.argsort(-drawn, axis=-1, kind="stable")[..., :k]


def report_noisy_max(
    scores: Array,
    *,
    epsilon: float,
    sensitivity: float,
    rng: np.random.Generator,
    noise: Literal["gumbel", "laplace"] = "gumbel",
) -> int:
    """Select the candidate with the largest noisy score, with epsilon-DP.

    Gumbel noise is the exponential mechanism: charge `Event("exponential", epsilon=epsilon)`. Laplace noise of scale 2 *
    sensitivity / epsilon has no bounded range: charge `Event("laplace", epsilon=epsilon)`.

    Args:
        scores: Scores of the candidates, (d,).
        epsilon: Privacy parameter.
        sensitivity: Largest change of a score by one patient.
        rng: Random generator.
        noise: Distribution of the noise.

    Returns:
        The index of the candidate.

    Raises:
        BadInput: The scores are not a list of finite numbers, or an argument is out of range.
    """
    utilities = _real(scores, "scores")
    if utilities.ndim != 1 or not len(utilities):
        raise BadInput("a noisy maximum needs a flat list of at least one score", code="wrong-shape")
    if noise == "gumbel":
        return int(exponential_top_k(utilities, epsilon=epsilon, sensitivity=sensitivity, k=1, rng=rng)[0])
    if noise != "laplace":
        raise BadInput(f"noise '{noise}' is unknown for a noisy maximum: use gumbel or laplace", code="unknown-noise")
    _above_zero(epsilon=epsilon, sensitivity=sensitivity)
    return int(np.argmax(utilities + rng.laplace(0.0, 2 * sensitivity / epsilon, len(utilities))))


def gaussian(values: Array, *, sigma: float, sensitivity: float, rng: np.random.Generator) -> Array:
    """Add normal noise of standard deviation sigma * sensitivity. Charge `Event("gaussian", sigma=sigma)`.

    Args:
        values: The exact values.
        sigma: Noise multiplier.
        sensitivity: Largest L2 change of the values by one patient.
        rng: Random generator.

    Returns:
        The noisy values.

    Raises:
        BadInput: A value is not finite, or an argument is not above 0.
    """
    exact = _real(values, "values")
    _above_zero(sigma=sigma, sensitivity=sensitivity)
    return exact + rng.normal(0.0, sigma * sensitivity, exact.shape)


def laplace(values: Array, *, epsilon: float, sensitivity: float, rng: np.random.Generator) -> Array:
    """Add Laplace noise of scale sensitivity / epsilon. Charge `Event("laplace", epsilon=epsilon)`.

    Args:
        values: The exact values.
        epsilon: Privacy parameter.
        sensitivity: Largest L1 change of the values by one patient.
        rng: Random generator.

    Returns:
        The noisy values.

    Raises:
        BadInput: A value is not finite, or an argument is not above 0.
    """
    exact = _real(values, "values")
    _above_zero(epsilon=epsilon, sensitivity=sensitivity)
    return exact + rng.laplace(0.0, sensitivity / epsilon, exact.shape)


def randomised_response(answers: Array, *, epsilon: float, categories: int, rng: np.random.Generator) -> Array:
    """Keep each answer with probability e^epsilon / (e^epsilon + categories - 1), else replace it by another.

    Each patient's report is epsilon-DP; the number of reports is not hidden. Charge `Event("randomised_response",
    epsilon=epsilon)` once if each patient is in one report.

    Args:
        answers: Integers from 0 to categories - 1.
        epsilon: Privacy parameter.
        categories: Number of categories, at least 2.
        rng: Random generator.

    Returns:
        The reports.

    Raises:
        BadInput: An answer or an argument is out of range.
    """
    given_answers = np.asarray(answers)
    if (
        given_answers.dtype.kind not in "iub"
        or categories < 2
        or (given_answers.size and not 0 <= given_answers.min() <= given_answers.max() < categories)
    ):
        raise BadInput(
            f"randomised response needs integers from 0 to {categories - 1} and at least two categories",
            code="bad-category",
        )
    _above_zero(epsilon=epsilon)
    truth = given_answers.astype(np.int64)
    changed = (truth + rng.integers(1, categories, given_answers.shape)) % categories
    return np.where(rng.random(given_answers.shape) < _kept(epsilon, categories), truth, changed)


def shares_behind(reports: Array, *, epsilon: float, categories: int) -> Array:
    """Estimate the shares of the true answers from randomised reports.

    Args:
        reports: The reports.
        epsilon: Privacy parameter of the reports.
        categories: Number of categories.

    Returns:
        Unbiased shares (categories,); one may be below 0 or above 1.

    Raises:
        BadInput: There are no reports.
    """
    counts = np.asarray(reports)
    if not counts.size:
        raise BadInput("there are no reports to estimate shares from", code="no-reports")
    _above_zero(epsilon=epsilon)
    chance = _kept(epsilon, categories)
    other = (1 - chance) / (categories - 1)
    return (np.bincount(counts.ravel(), minlength=categories) / counts.size - other) / (chance - other)


def _kept(epsilon: float, categories: int) -> float:
    return 1 / (1 + (categories - 1) * float(np.exp(-epsilon)))


def _real(values: Array, name: str) -> Array:
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "fiub":
        raise BadInput(f"{name} of a mechanism must be real numbers", code="not-numeric")
    numbers = numbers.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise BadInput(
            f"{name} of a mechanism must be finite: one is missing, infinite or not a number", code="not-finite"
        )
    return numbers


def _above_zero(**settings: float) -> None:
    for name, value in settings.items():
        if not (np.isfinite(value) and value > 0):
            raise BadInput(
                f"{name} = {value} of a mechanism must be a finite number above 0", code="bad-privacy-parameter"
            )
