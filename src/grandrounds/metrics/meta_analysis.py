"""Random-effects meta-analysis of one quantity over hospitals, from sums (DerSimonian and Laird 1986).

Sums over hospitals of weights w = 1 / SE^2 and of w d, w d^2 and w^2 (d an estimate) give the fixed-effect estimate, Cochran's Q
and the variance tau2 between hospitals; sums of r = 1 / (SE^2 + tau2) and r d the random-effects estimate and its prediction
interval (Higgins, Thompson and Spiegelhalter 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.metrics.tails import chi_squared_tail, normal_p, t_quantile

FEWEST_SITES = 3
"""Hospitals that must have an estimate of a coefficient: a sum over fewer tells each of them the others'."""

SQUARES = 2.0**16
"""Unit of the sum of squared weights, so that it stays within the bound of secure sums."""
_WIDE = 1.959963984540054  # 97.5% quantile of the normal distribution


class Sums(Protocol):
    """Sums over hospitals by name, each an array over quantities."""

    def __getitem__(self, name: str, /) -> Array: ...


@dataclass(frozen=True)
class MetaCoefficient:
    """One coefficient over hospitals. Numbers are None where fewer than three hospitals could fit it.

    Attributes:
        name: Name of the input.
        sites: Hospitals that could fit it.
        fixed: Fixed-effect estimate: inverse-variance weighted mean.
        fixed_error: Its standard error.
        fixed_low: Lower end of its 95% confidence interval.
        fixed_high: Upper end.
        estimate: Random-effects estimate (DerSimonian-Laird).
        error: Its standard error.
        low: Lower end of its 95% confidence interval.
        high: Upper end.
        p: Two-sided p-value of the random-effects estimate.
        q: Cochran's Q.
        q_p: p-value of Q: small if the coefficient differs between hospitals.
        i2: I-squared: share of the variation between estimates that is not chance, 0 to 1.
        tau2: Variance of the coefficient between hospitals.
        prediction_low: Lower end of the 95% prediction interval: the coefficient of a new hospital.
        prediction_high: Upper end.
    """

    name: str
    sites: int
    fixed: float | None = None
    fixed_error: float | None = None
    fixed_low: float | None = None
    fixed_high: float | None = None
    estimate: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    q: float | None = None
    q_p: float | None = None
    i2: float | None = None
    tau2: float | None = None
    prediction_low: float | None = None
    prediction_high: float | None = None


def combine_estimates(name: str, estimates: Sequence[float], variances: Sequence[float]) -> MetaCoefficient:
    """Combine estimates of one quantity that are known for each hospital, such as the logit of its AUROC.

    Args:
        name: Name of the quantity.
        estimates: (k,) the hospitals' estimates.
        variances: (k,) their variances, above zero.

    Returns:
        Random-effects estimate (DerSimonian-Laird), Cochran's Q, I-squared and prediction interval; None in place of each number
        with fewer than three hospitals.
    """
    d, v = np.asarray(estimates, float)[:, None], np.asarray(variances, float)[:, None]
    if len(d) < FEWEST_SITES:
        return MetaCoefficient(name, len(d))

    def add_up(tau2: Array) -> dict[str, Array]:
        w, r = 1 / v, 1 / (v + tau2)
        blocks = {
            "fitted": np.ones_like(v),
            "w": w,
            "wd": w * d,
            "wdd": w * d * d,
            "ww": w * w / SQUARES,
            "r": r,
            "rd": r * d,
        }
        return {block: values.sum(axis=0) for block, values in blocks.items()}

    tau2 = estimate_tau2(add_up(np.zeros(1)))
    total = add_up(tau2)
    sums = {block: float(total[block][0]) for block in ("w", "wd", "r", "rd")}
    return combine_sums(name, len(d), 0.0, sums, float(heterogeneity(total)[0][0]), float(tau2[0]))


def estimate_tau2(total: Sums) -> Array:
    """Estimate the variance between hospitals by DerSimonian and Laird's moments; 0 with fewer than three hospitals."""
    q, degrees = heterogeneity(total)
    w = np.where(total["w"] > 0, total["w"], 1.0)
    spread = total["w"] - total["ww"] * SQUARES / w
    enough = (np.rint(total["fitted"]) >= FEWEST_SITES) & (spread > 0)
    return np.asarray(np.where(enough, np.maximum(q - degrees, 0) / np.where(spread > 0, spread, 1.0), 0.0))


def heterogeneity(total: Sums) -> tuple[Array, Array]:
    """Return Cochran's Q and its degrees of freedom."""
    w = np.where(total["w"] > 0, total["w"], 1.0)
    return np.maximum(total["wdd"] - total["wd"] ** 2 / w, 0.0), np.maximum(np.rint(total["fitted"]) - 1, 0)


def combine_sums(name: str, k: int, about: float, sums: Mapping[str, float], q: float, tau2: float) -> MetaCoefficient:
    """Compute one coefficient from its sums."""
    fixed, fixed_error = about + sums["wd"] / sums["w"], sums["w"] ** -0.5
    estimate, error = about + sums["rd"] / sums["r"], sums["r"] ** -0.5
    wide = t_quantile(k - 2) * (tau2 + error**2) ** 0.5
    return MetaCoefficient(
        name,
        k,
        fixed,
        fixed_error,
        fixed - _WIDE * fixed_error,
        fixed + _WIDE * fixed_error,
        estimate,
        error,
        estimate - _WIDE * error,
        estimate + _WIDE * error,
        normal_p(estimate / error),
        q,
        chi_squared_tail(q, k - 1),
        max(0.0, 1 - (k - 1) / q) if q > 0 else 0.0,
        tau2,
        estimate - wide,
        estimate + wide,
    )
