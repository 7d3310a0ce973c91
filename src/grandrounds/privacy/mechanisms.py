"""Mechanisms with a stated sensitivity: what may leave a site once it has been drawn or noised by one of these.

Each takes its generator from the caller: in a run it is keyed by the site's own secret (`noise_generator`), never by the
experiment's seed. Which `Event` to charge is said at each. Real-valued noise is float64: what it adds up to is rounded,
which the usual proofs leave out; counts take the exact samplers of `discrete`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg.keys import Secret


def noise_generator(secret: Secret, purpose: str) -> np.random.Generator:
    """A generator for one purpose, keyed by 128 bits of the site's secret, as noise in shares is."""
    return np.random.Generator(np.random.Philox(key=np.frombuffer(secret.bytes(purpose, 16), "<u8")))


def exponential_top_k(scores: Array, *, epsilon: float, sensitivity: float, k: int, rng: np.random.Generator) -> Array:
    """Indices (..., k) of k of the candidates (..., d), drawn one after the other without replacement; epsilon-DP in all.

    Each draw is an exponential mechanism of epsilon_0 = epsilon / k: candidate j is drawn with a chance proportional to
    exp(epsilon_0 * score_j / (2 * sensitivity)) among those left. One patient may move every score by `sensitivity`, up or
    down; candidates (feature, direction) are scores of their own. Gumbel noise added to all exponents and the k largest
    taken, in order, is exactly that (Durfee & Rogers 2019), and works in log space, so no score is too large.

    Charge `Event("exponential", ..., count=k, epsilon=epsilon / k)`: it has a bounded range, so many draws compose better
    than their sum.
    """
    utilities = _real(scores, "scores")
    if utilities.ndim < 1 or not 1 <= k <= utilities.shape[-1]:
        raise BadInput(
            f"cannot draw {k} of {utilities.shape[-1] if utilities.ndim else 0} candidates: ask for 1 to all of them",
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
    """The candidate with the largest noised score; epsilon-DP where one patient moves each score by `sensitivity`.

    Gumbel noise is the exponential mechanism: charge `Event("exponential", epsilon=epsilon)`. Laplace noise of scale 2 *
    sensitivity / epsilon has no bounded range: charge `Event("laplace", epsilon=epsilon)`.
    """
    utilities = _real(scores, "scores")
    if utilities.ndim != 1 or not len(utilities):
        raise BadInput("a noisy maximum is of a flat list of one candidate at least", code="wrong-shape")
    if noise == "gumbel":
        return int(exponential_top_k(utilities, epsilon=epsilon, sensitivity=sensitivity, k=1, rng=rng)[0])
    if noise != "laplace":
        raise BadInput(f"noise '{noise}' is unknown for a noisy maximum: use gumbel or laplace", code="unknown-noise")
    _above_zero(epsilon=epsilon, sensitivity=sensitivity)
    return int(np.argmax(utilities + rng.laplace(0.0, 2 * sensitivity / epsilon, len(utilities))))


def gaussian(values: Array, *, sigma: float, sensitivity: float, rng: np.random.Generator) -> Array:
    """Values plus normal noise of deviation sigma * sensitivity, where one patient moves them by `sensitivity` in L2.

    Charge `Event("gaussian", sigma=sigma)`.
    """
    exact = _real(values, "values")
    _above_zero(sigma=sigma, sensitivity=sensitivity)
    return exact + rng.normal(0.0, sigma * sensitivity, exact.shape)


def laplace(values: Array, *, epsilon: float, sensitivity: float, rng: np.random.Generator) -> Array:
    """Values plus Laplace noise of scale sensitivity / epsilon, where one patient moves them by `sensitivity` in L1.

    Charge `Event("laplace", epsilon=epsilon)`.
    """
    exact = _real(values, "values")
    _above_zero(epsilon=epsilon, sensitivity=sensitivity)
    return exact + rng.laplace(0.0, sensitivity / epsilon, exact.shape)


def randomised_response(answers: Array, *, epsilon: float, categories: int, rng: np.random.Generator) -> Array:
    """Each answer (0 to categories - 1) kept with chance e^epsilon / (e^epsilon + categories - 1), else any other.

    Each patient's own report is epsilon-DP, whatever it is replaced by; how many reports there are is not hidden. Charge
    `Event("randomised_response", epsilon=epsilon)` once, where each patient is in one report.
    """
    given_answers = np.asarray(answers)
    if (
        given_answers.dtype.kind not in "iub"
        or categories < 2
        or (given_answers.size and not 0 <= given_answers.min() <= given_answers.max() < categories)
    ):
        raise BadInput(
            f"randomised response takes whole numbers from 0 to {categories - 1}, and two categories at least",
            code="bad-category",
        )
    _above_zero(epsilon=epsilon)
    truth = given_answers.astype(np.int64)
    changed = (truth + rng.integers(1, categories, given_answers.shape)) % categories
    return np.where(rng.random(given_answers.shape) < _kept(epsilon, categories), truth, changed)


def shares_behind(reports: Array, *, epsilon: float, categories: int) -> Array:
    """Unbiased shares (categories,) of the true answers behind randomised reports; one may fall below 0 or above 1."""
    counts = np.asarray(reports)
    if not counts.size:
        raise BadInput("no reports to estimate shares from", code="no-reports")
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
