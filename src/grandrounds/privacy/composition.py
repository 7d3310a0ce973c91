"""Bounds on the joint privacy loss of many releases. Each is valid alone; the accountant takes the smallest.

Neighbours differ by adding or removing one patient (or site). Repeated parts are cached by their numbers, because a budget
is consulted in every round. `dp_accounting` takes over a second to import, so it is imported when first needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.privacy.events import PURE, Event

ORDERS = np.array([*(1 + x / 20 for x in range(1, 60)), *range(4, 64), 72, 96, 128, 192, 256, 512, 1024])
"""Orders of Renyi divergences: finer below 4, which decide large epsilons."""
WHOLE = np.rint(ORDERS) == ORDERS

_STEP = 2e-3
"""Step of a discretised privacy loss: interpolation raises a bound by about 0.3 * releases * step**2."""
_CUT = 1e-7
"""Share of delta that one composition may move to an infinite loss, to keep distributions short. The result is still a
bound.
"""
_WIDEST = 50.0
"""Largest epsilon for loss distributions: above it they get long, and precision does not matter."""


class Release(NamedTuple):
    """Parameters of an event on which its bound depends."""

    kind: str
    sigma: float
    rate: float
    epsilon: float
    rho: float | None


Tally = tuple[tuple[Release, int, int], ...]
"""(release, count in one event, number of such events), sorted, so that the order of events does not matter."""


def tallied(events: Iterable[Event]) -> Tally:
    tally = Counter((Release(e.kind, e.sigma, e.rate, e.epsilon, e.rho), e.count) for e in events)
    return tuple(sorted(((r, n, times) for (r, n), times in tally.items()), key=repr))


def basic(tally: Tally) -> float:
    """Add up the epsilons of pure releases; infinite if a release is not pure."""
    if any(release.kind not in PURE for release, _, _ in tally):
        return math.inf
    return sum(n * times * release.epsilon for release, n, times in tally)


def gaussians(tally: Tally, delta: float) -> float:
    """Compose plain Gaussian releases exactly, as one Gaussian with summed 1/sigma**2 (Balle & Wang 2018, theorem 8)."""
    if any(not _is_gaussian(release) for release, _, _ in tally):
        return math.inf
    return _gaussian(_joint(tally), delta)


@lru_cache(maxsize=4096)
def renyi(tally: Tally, delta: float, whole_orders: bool = False) -> float:
    """Bound epsilon by Renyi divergences, which add up, with the conversion of Canonne, Kamath & Steinke (2020, proposition
    12).
    """
    from dp_accounting import rdp

    total = np.zeros(len(ORDERS))
    for release, n, times in tally:
        total = total + n * times * curve(release)
    used = np.isfinite(total) & (WHOLE if whole_orders else True)
    if not used.any():
        return math.inf
    return float(rdp.compute_epsilon(ORDERS[used], total[used], delta)[0])


@lru_cache(maxsize=512)
def curve(release: Release) -> Array:
    """Compute the Renyi divergences of one release at `ORDERS`; infinite where there is no bound.

    An eps-DP exponential mechanism, drawn with Gumbel noise, is eps**2/8-zCDP (Dong, Durfee & Rogers 2020; Cesar & Rogers
    2021), because it has bounded range: its loss L = ln(P/Q) lies in an interval of length eps for any two neighbours. By
    Hoeffding's lemma 1 = E_P[exp(-L)] <= exp(-E_P[L] + eps**2/8), so E_P[L] <= eps**2/8, and (a - 1) D_a = ln E_P[exp((a -
    1) L)] <= (a - 1) E_P[L] + (a - 1)**2 eps**2/8 <= (a - 1) a eps**2/8.

    Any other eps-DP mechanism is eps**2/2-zCDP (Bun & Steinke 2016, proposition 1.4), including permute-and-flip and noisy
    maxima with Laplace noise. No divergence of either exceeds eps.

    Bounds of Skellam noise and of the sampled Gaussian are used at integer orders only: the first is proven only there, the
    second is a finite sum there.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, ZCDpEvent
    from dp_accounting.rdp import RdpAccountant

    if release.kind == "sampled_gaussian" and release.rate < 1:
        divergences = np.full(len(ORDERS), np.inf)
        accountant = RdpAccountant([int(a) for a in ORDERS[WHOLE]])
        accountant.compose(PoissonSampledDpEvent(release.rate, GaussianDpEvent(release.sigma)))
        divergences[WHOLE] = accountant.rdp
        return divergences
    if release.rho is not None:
        rho = release.rho
    elif release.kind in PURE:
        rho = release.epsilon**2 / (8 if release.kind == "exponential" else 2)
    else:
        rho = 1 / (2 * release.sigma**2)
    accountant = RdpAccountant(ORDERS)
    accountant.compose(ZCDpEvent(rho))
    divergences = np.asarray(accountant.rdp)
    if release.kind in PURE:
        divergences = np.minimum(divergences, release.epsilon)
    return np.where(WHOLE, divergences, np.inf) if release.kind == "skellam" else divergences


@lru_cache(maxsize=1024)
def losses(tally: Tally, delta: float) -> float:
    """Bound epsilon by the privacy loss distribution, composed numerically and rounded up (Doroshenko et al. 2022).

    Infinite if a release has none (zCDP bounds, Skellam noise), or if it would be too long. A pure release is replaced by
    the worst mechanism of its epsilon. Events of equal count are composed as a binary tree whose parts are cached, so one
    more round costs one more composition, and a resumed run computes the same number.
    """
    if any(release.rho is not None or release.kind == "skellam" for release, _, _ in tally):
        return math.inf
    if renyi(tally, delta) > _WIDEST:
        return math.inf
    plain = tuple(part for part in tally if _is_gaussian(part[0]))
    parts = [part for part in tally if not _is_gaussian(part[0])]
    if plain:
        parts.append((Release("gaussian", _joint(plain), 1.0, 0.0, None), 1, 1))
    cut = _CUT * delta
    total = _repeated(*parts[0], cut)
    for part in parts[1:]:
        total = total.compose(_repeated(*part, cut), tail_mass_truncation=cut)
    return float(total.get_epsilon_for_delta(delta))


@lru_cache(maxsize=96)
def _repeated(release: Release, n: int, times: int, cut: float) -> Any:
    """Compose the loss distribution of `times` events of `n` releases each."""
    if times == 1:
        one = _loss(release)
        return one.self_compose(n, tail_mass_truncation=cut) if n > 1 else one
    low = times & -times
    first, rest = (times // 2, times // 2) if low == times else (times - low, low)
    return _repeated(release, n, first, cut).compose(_repeated(release, n, rest, cut), tail_mass_truncation=cut)


@lru_cache(maxsize=32)
def _loss(release: Release) -> Any:
    from dp_accounting.pld import common, privacy_loss_distribution

    if release.kind in PURE:
        return privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(release.epsilon, 0.0), value_discretization_interval=_STEP
        )
    return privacy_loss_distribution.from_gaussian_mechanism(
        release.sigma, sampling_prob=release.rate, value_discretization_interval=_STEP
    )


@lru_cache(maxsize=1024)
def _gaussian(sigma: float, delta: float) -> float:
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(sigma, delta, tol=1e-10))


def _is_gaussian(release: Release) -> bool:
    return release.rho is None and release.kind in ("gaussian", "sampled_gaussian") and release.rate == 1


def _joint(tally: Tally) -> float:
    return 1 / math.sqrt(sum(n * times / release.sigma**2 for release, n, times in tally))
