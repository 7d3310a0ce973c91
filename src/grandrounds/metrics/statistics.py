"""Statistics over repeated runs: mean, spread, Student-t intervals and the paired comparison.

A NaN among the values makes the answer NaN: a seed whose figure is undefined is not dropped in silence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grandrounds.metrics.classification import Floats

_NAN = float("nan")
MIN_RUNS = 3
"""Runs that an interval over runs needs."""

Range = tuple[float, float]
"""The least and the largest value that a figure can have."""


@dataclass(frozen=True)
class Summary:
    """n values: mean, sample standard deviation, 95% interval of the mean, coefficient of variation in %."""

    n: int
    mean: float
    std: float
    low: float
    high: float
    cv: float


@dataclass(frozen=True)
class PairedTest:
    """Mean of a - b over n pairs with its 95% interval, Student's t and the two-sided p-value."""

    difference: float
    low: float
    high: float
    t: float
    p: float
    n: int


def describe(values: npt.ArrayLike) -> Summary:
    """Summarise values (n,), one per seed; a single value has no spread, so all but its mean is NaN."""
    x = _flat(values)
    n = len(x)
    mean = float(x.mean()) if n else _NAN
    std = float(x.std(ddof=1)) if n > 1 else _NAN
    half = _half_width(std, n)
    return Summary(n, mean, std, mean - half, mean + half, 100.0 * std / abs(mean) if mean else _NAN)


def describe_bounded(values: npt.ArrayLike, within: Range | None) -> Summary:
    """Summarise values (n,) with an interval that can be shown to people.

    Fewer than `MIN_RUNS` values have no interval: Student's t of two is wider than any figure means. `within` is the range
    that the figure can have; an interval that reaches beyond it is cut there.
    """
    summary = describe(values)
    if summary.n < MIN_RUNS:
        return replace(summary, low=_NAN, high=_NAN)
    if within is None or not within[0] <= summary.mean <= within[1]:
        return summary
    return replace(summary, low=max(summary.low, within[0]), high=min(summary.high, within[1]))


def clip_pair(pair: PairedTest, within: Range | None) -> PairedTest:
    """Clip the interval of a difference to the range that two figures `within` it allow; none of few pairs."""
    if pair.n < MIN_RUNS:
        return replace(pair, low=_NAN, high=_NAN)
    if within is None:
        return pair
    most = within[1] - within[0]
    return replace(pair, low=max(pair.low, -most), high=min(pair.high, most))


def paired_t(a: npt.ArrayLike, b: npt.ArrayLike) -> PairedTest:
    """Run Student's paired t-test of a against b, each (n,), pair by pair the same seed.

    Differences that do not vary (beyond rounding) leave t and p NaN: there is no error to test against.
    """
    x, y = _flat(a), _flat(b)
    if len(x) != len(y):
        raise ValueError(f"pairs need as many of each: {len(x)} against {len(y)}")
    summary = describe(x - y)
    n, mean, std = summary.n, summary.mean, summary.std
    rounding = 1e-13 * float(np.abs([*x, *y]).max()) if n else 0.0
    if not std > rounding:
        return PairedTest(mean, summary.low, summary.high, _NAN, _NAN, n)
    from scipy.special import stdtr

    t = mean / (std / math.sqrt(n))
    return PairedTest(mean, summary.low, summary.high, t, float(2.0 * stdtr(n - 1, -abs(t))), n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's method; an undefined one stays so, and counts as 1 for the others."""
    order = sorted(range(len(p_values)), key=lambda k: (math.isnan(p_values[k]), p_values[k]))
    out, running = [_NAN] * len(p_values), 0.0
    for rank, k in enumerate(order):
        if not math.isnan(p_values[k]):
            running = max(running, min(1.0, (len(p_values) - rank) * p_values[k]))
            out[k] = running
    return out


def share_interval(share: float, rows: float, z: float = 1.959964) -> tuple[float, float]:
    """Compute Wilson's 95% interval of a share among so many rows, within [0, 1]."""
    spread = z**2 / rows
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(max(0.0, share * (1 - share) / rows + spread / (4 * rows)))
    return max(0.0, middle - half), min(1.0, middle + half)


def _half_width(std: float, n: int) -> float:
    """Compute the half the 95% Student-t interval of a mean of n values."""
    if n < 2:
        return _NAN
    from scipy.special import stdtrit

    quantile = float(stdtrit(n - 1, 0.975))
    return quantile * std / math.sqrt(n)


def _flat(values: npt.ArrayLike) -> Floats:
    x = np.asarray(values, np.float64)
    if x.ndim != 1:
        raise ValueError(f"one value per seed makes shape (n,), not {x.shape}")
    return x
