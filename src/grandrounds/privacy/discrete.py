"""Exact samplers of integer noise for counts. No floats are compared, so rounding cannot invalidate a proof.

Canonne, Kamath & Steinke, "The discrete Gaussian for differential privacy" (2020), algorithms 1 to 3, vectorised.
Probabilities are fractions; exp(-x) is never computed. A float parameter means exactly the fraction that it represents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_WORD = 1 << 62
_LARGEST = 1 << 40
_BLOCK = 1 << 14


def discrete_laplace(scale: float | Fraction, size: int, *, rng: np.random.Generator) -> Array:
    """Draw integers (size,) with probabilities proportional to exp(-|x| / scale).

    Added to a count that one patient changes by 1, the noise is (1/scale)-DP: charge `Event("laplace", epsilon=1 / scale)`.

    Args:
        scale: Scale of the noise, above 0 and at most 2**40.
        size: Number of draws.
        rng: Random generator.

    Returns:
        The draws.

    Raises:
        BadInput: The scale is out of range.
    """
    return _filled(size, lambda n: _laplace(_fraction(scale), n, rng))


def laplace_scale(epsilon: float, *, sensitivity: int = 1) -> Fraction:
    """Return the exact scale of discrete Laplace noise for counts.

    Args:
        epsilon: Privacy parameter of the release.
        sensitivity: Largest L1 change of the counts by one patient.

    Returns:
        The scale.

    Raises:
        BadInput: Epsilon is not a finite number above 0.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise BadInput(f"epsilon = {epsilon:g} is not valid for noise: choose a finite number above 0", code="bad-epsilon")
    return sensitivity / Fraction(epsilon)


def discrete_gaussian(sigma: float | Fraction, size: int, *, rng: np.random.Generator) -> Array:
    """Draw integers (size,) with probabilities proportional to exp(-x**2 / (2 * sigma**2)).

    Added to integers that one patient changes by s in L2, the noise is s**2 / (2 * sigma**2)-zCDP, like normal noise
    (theorem 4), and its standard deviation is at most sigma: charge `Event("gaussian", rho=s**2 / (2 * sigma**2),
    sigma=sigma / s)`.

    Args:
        sigma: Standard deviation, above 0.
        size: Number of draws.
        rng: Random generator.

    Returns:
        The draws.

    Raises:
        BadInput: Sigma is out of range.
    """
    variance = _fraction(sigma) ** 2
    return _filled(size, lambda n: _gaussian(variance, n, rng))


def _filled(size: int, draw: Callable[[int], Array]) -> Array:
    """Call `draw`, which proposes numbers and returns the accepted ones, until there are enough."""
    if size < 0:
        raise BadInput(f"cannot draw {size} numbers: give a size of 0 or more", code="bad-count")
    accepted: list[Array] = []
    missing = size
    while missing > 0:
        drawn = draw(min(2 * missing + 16, _BLOCK))[:missing]
        accepted.append(drawn)
        missing -= len(drawn)
    return np.concatenate(accepted) if accepted else np.zeros(0, np.int64)


def _laplace(scale: Fraction, n: int, rng: np.random.Generator) -> Array:
    """Draw by algorithm 2 with scale t/s; rejected draws are left out."""
    t, s = scale.numerator, scale.denominator
    low = _below(t, n, rng)
    low = low[_exp_within(low, t, rng)]
    high = _successes(len(low), rng)
    size = np.array([(u + t * int(v)) // s for u, v in zip(low.tolist(), high, strict=True)], np.int64)
    negative = rng.integers(0, 2, len(size)) == 1
    signed = np.where(negative, -size, size)
    accepted: Array = signed[~(negative & (size == 0))]
    return accepted


def _gaussian(variance: Fraction, n: int, rng: np.random.Generator) -> Array:
    """Draw by algorithm 3: keep a discrete Laplace draw y with probability exp(-(|y| - variance / t)**2 / (2 * variance))."""
    t = math.isqrt(variance.numerator // variance.denominator) + 1
    y = _laplace(Fraction(t), n, rng)
    p, q = variance.numerator, variance.denominator
    exponents = [(abs(v) * q * t - p) ** 2 for v in y.tolist()]
    accepted: Array = y[_exp(exponents, 2 * p * q * t * t, rng)]
    return accepted


def _exp(numerators: list[int], denominator: int, rng: np.random.Generator) -> Array:
    """Draw Bernoulli(exp(-x)) for x = numerator / denominator >= 0: one exp(-1) for each whole of x, then the remainder."""
    wholes = np.array([min(x // denominator, _WORD) for x in numerators], np.int64)
    rest = np.array([x % denominator for x in numerators], object)
    alive = np.ones(len(wholes), bool)
    while (trials := np.flatnonzero(alive & (wholes > 0))).size:
        alive[trials] = _exp_within(np.ones(len(trials), np.int64), 1, rng)
        wholes[trials] -= 1
    trials = np.flatnonzero(alive)
    alive[trials] = _exp_within(rest[trials], denominator, rng)
    return alive


def _exp_within(numerators: Array, denominator: int, rng: np.random.Generator) -> Array:
    """Draw Bernoulli(exp(-x)) for x in [0, 1] by algorithm 1: the first k at which Bernoulli(x / k) fails is odd."""
    k, odd = 1, np.zeros(len(numerators), bool)
    trials = np.arange(len(numerators))
    while len(trials):
        goes_on = _bernoulli(numerators[trials], denominator * k, rng)
        odd[trials[~goes_on]] = k % 2 == 1
        trials, k = trials[goes_on], k + 1
    return odd


def _successes(n: int, rng: np.random.Generator) -> Array:
    """Count the successes of Bernoulli(exp(-1)) before the first failure."""
    successes, trials = np.zeros(n, np.int64), np.arange(n)
    while len(trials):
        trials = trials[_exp_within(np.ones(len(trials), np.int64), 1, rng)]
        successes[trials] += 1
    return successes


def _bernoulli(numerators: Array, denominator: int, rng: np.random.Generator) -> Array:
    """Draw True with probability numerator / denominator <= 1."""
    return np.asarray(_below(denominator, len(numerators), rng) < numerators, bool)


def _below(limit: int, n: int, rng: np.random.Generator) -> Array:
    """Draw uniform integers below `limit`: with Python's integers beyond 64 bits, and again if one is too large."""
    if limit <= _WORD:
        return rng.integers(0, limit, n)
    bits = limit.bit_length()
    size = (bits + 7) // 8
    out = np.empty(n, object)
    for i in range(n):
        while (drawn := int.from_bytes(rng.bytes(size), "little") >> (8 * size - bits)) >= limit:
            pass
        out[i] = drawn
    return out


def _fraction(value: float | Fraction) -> Fraction:
    if not (math.isfinite(value) and 0 < value <= _LARGEST):
        raise BadInput(
            f"integer noise of scale {float(value):g} is not supported: use a scale above 0 and at most 2**40",
            code="bad-noise-scale",
        )
    return Fraction(value)
