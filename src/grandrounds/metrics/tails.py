"""Tails of Student's t and of the chi-squared distribution for whole degrees of freedom, without scipy.

The report of a run states the spread of hospitals' AUROCs. Importing scipy for three numbers would take longer than to write the
report. For whole degrees of freedom both distributions are finite sums (Abramowitz and Stegun 1964, 26.4 and 26.7).
"""

from __future__ import annotations

import math

_HALVINGS = 200


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t.

    Args:
        freedom: Degrees of freedom, at least 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _t_coverage(middle, freedom) < 0.95:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _t_coverage(angle: float, freedom: int) -> float:
    """Return the probability of |t| below sqrt(freedom) tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def chi_squared_tail(value: float, freedom: int) -> float:
    """Return the probability that a chi-squared variable exceeds a value.

    Args:
        value: The value, at least 0.
        freedom: Degrees of freedom, at least 1.
    """
    if value <= 0:
        return 1.0
    half, odd = value / 2, freedom % 2
    powers = (k + odd / 2 for k in range(freedom // 2))
    total = sum(math.exp(a * math.log(half) - half - math.lgamma(a + 1)) for a in powers)
    return min(1.0, total + (math.erfc(math.sqrt(half)) if odd else 0.0))


def normal_p(z: float) -> float:
    """Return the two-sided p-value of a standard normal variable."""
    return math.erfc(abs(z) / math.sqrt(2))
