"""Exact samplers of integer noise for counts: no float is ever compared, so no proof is lost to rounding.

Canonne, Kamath & Steinke, "The discrete Gaussian for differential privacy" (2020), algorithms 1 to 3, over whole arrays:
chances are fractions, exp(-x) is never computed. A float parameter stands for the fraction that it exactly is.
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

    Added to a count that one patient moves by 1 it is (1/scale)-DP: charge `Event("laplace", epsilon=1 / scale)`.
    """
    return _filled(size, lambda n: _laplace(_fraction(scale), n, rng))


def laplace_scale(epsilon: float, *, sensitivity: int = 1) -> Fraction:
    """Return the exact scale of discrete Laplace noise for counts that one patient moves by `sensitivity` in L1.

    Raises:
        BadInput: Epsilon is no finite number above 0.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise BadInput(f"epsilon = {epsilon:g} gives no noise: choose a finite number above 0", code="bad-epsilon")
    return sensitivity / Fraction(epsilon)


def discrete_gaussian(sigma: float | Fraction, size: int, *, rng: np.random.Generator) -> Array:
    """Draw integers (size,) with probabilities proportional to exp(-x**2 / (2 * sigma**2)).

    Added to whole numbers that one patient moves by s in L2 it is s**2 / (2 * sigma**2)-zCDP, as normal noise is (theorem
    4 there), and its deviation is at most sigma: charge `Event("gaussian", rho=s**2 / (2 * sigma**2), sigma=sigma / s)`.
    """
    variance = _fraction(sigma) ** 2
    return _filled(size, lambda n: _gaussian(variance, n, rng))


def _filled(size: int, draw: Callable[[int], Array]) -> Array:
    """Call `draw`, which proposes some numbers and returns those it accepts, until there are enough."""
    if size < 0:
        raise BadInput(f"cannot draw {size} numbers", code="bad-count")
    accepted: list[Array] = []
    missing = size
    while missing > 0:
        drawn = draw(min(2 * missing + 16, _BLOCK))[:missing]
        accepted.append(drawn)
        missing -= len(drawn)
    return np.concatenate(accepted) if accepted else np.zeros(0, np.int64)


def _laplace(scale: Fraction, n: int, rng: np.random.Generator) -> Array:
    """Algorithm 2 with scale t/s; what it rejects is left out."""
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
    """Algorithm 3: a discrete Laplace draw y is kept with chance exp(-(|y| - variance / t)**2 / (2 * variance))."""
    t = math.isqrt(variance.numerator // variance.denominator) + 1
    y = _laplace(Fraction(t), n, rng)
    p, q = variance.numerator, variance.denominator
    exponents = [(abs(v) * q * t - p) ** 2 for v in y.tolist()]
    accepted: Array = y[_exp(exponents, 2 * p * q * t * t, rng)]
    return accepted


def _exp(numerators: list[int], denominator: int, rng: np.random.Generator) -> Array:
    """Bernoulli(exp(-x)) of x = numerator / denominator >= 0: as many exp(-1) as x has wholes, then the rest."""
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
    """Algorithm 1, Bernoulli(exp(-x)) for x in [0, 1]: the first k at which Bernoulli(x / k) fails is odd."""
    k, odd = 1, np.zeros(len(numerators), bool)
    trials = np.arange(len(numerators))
    while len(trials):
        goes_on = _bernoulli(numerators[trials], denominator * k, rng)
        odd[trials[~goes_on]] = k % 2 == 1
        trials, k = trials[goes_on], k + 1
    return odd


def _successes(n: int, rng: np.random.Generator) -> Array:
    """How often Bernoulli(exp(-1)) succeeds before it first fails."""
    successes, trials = np.zeros(n, np.int64), np.arange(n)
    while len(trials):
        trials = trials[_exp_within(np.ones(len(trials), np.int64), 1, rng)]
        successes[trials] += 1
    return successes


def _bernoulli(numerators: Array, denominator: int, rng: np.random.Generator) -> Array:
    """True with chance numerator / denominator <= 1."""
    return np.asarray(_below(denominator, len(numerators), rng) < numerators, bool)


def _below(limit: int, n: int, rng: np.random.Generator) -> Array:
    """Uniform whole numbers under `limit`: Python's own where 64 bits do not hold them, and again where one is too large."""
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
