"""Privacy accountant: the epsilon of many releases at a given delta, for one patient or one site.

Neighbouring data sets differ by adding or removing one patient (or site). Events are adaptive: each may depend on earlier
releases. The bounds are in `composition`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from grandrounds.core.errors import BadInput
from grandrounds.privacy import composition
from grandrounds.privacy.composition import Release, Tally
from grandrounds.privacy.events import PURE, Event

__all__ = ["Event", "epsilon_of", "noise_for", "skellam_rho", "statement", "total_rho"]

_SLACK = 1e-4
"""Relative slack of calibrated noise, so that the same releases charged one by one never exceed the budget by rounding."""


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """Compute the smallest epsilon, over all valid bounds, of these releases.

    Training, validation and test rows belong to different patients, so the largest of their epsilons is valid for all
    (parallel composition). A site holds all three splits, so per site they add up.

    Args:
        events: The releases, all per patient or all per site.
        delta: Probability of failure.

    Returns:
        Epsilon; infinite if a release is raw.

    Raises:
        BadInput: Delta is not in [0, 1), or releases per patient and per site are mixed.
    """
    _check(delta)
    if any(e.kind == "raw" for e in events):
        return math.inf
    units = {e.unit for e in events}
    if len(units) > 1:
        raise BadInput(
            "releases per patient and per site do not add up to one epsilon: account for each unit alone",
            code="mixed-privacy-units",
        )
    groups: dict[str, list[Event]] = {}
    for e in events:
        groups.setdefault(e.of if e.unit == "patient" else "all", []).append(e)
    return max((_least(composition.tallied(group), delta) for group in groups.values()), default=0.0)


@lru_cache(maxsize=4096)
def _least(tally: Tally, delta: float) -> float:
    if delta == 0:
        return composition.basic(tally)
    pure = tuple(part for part in tally if part[0].kind in PURE)
    rest = tuple(part for part in tally if part[0].kind not in PURE)
    if not pure and math.isfinite(exact := composition.gaussians(rest, delta)):
        return exact
    least = min(composition.renyi(tally, delta), composition.losses(tally, delta))
    alone = composition.basic(pure)
    if alone >= least or not pure:
        return least
    return min(least, alone + (_least(rest, delta) if rest else 0.0))


@lru_cache(maxsize=256)
def total_rho(epsilon: float, delta: float) -> float:
    """Compute the largest zCDP rho that stays within (epsilon, delta), to be split over releases.

    Only integer Renyi orders are used, so it may be spent on Skellam noise as well as on Gaussian noise and draws.

    Args:
        epsilon: The budget.
        delta: Probability of failure, above 0.

    Returns:
        Rho.

    Raises:
        BadInput: Epsilon or delta is out of range.
    """
    _check(delta, epsilon)

    def spent(rho: float) -> float:
        return composition.renyi(((Release("gaussian", 1.0, 1.0, 0.0, rho), 1, 1),), delta, whole_orders=True)

    low, high = 0.0, epsilon
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= epsilon else (low, middle)
    return low


@lru_cache(maxsize=256)
def noise_for(epsilon: float, delta: float, *, steps: int, rate: float = 1.0) -> float:
    """Compute the smallest noise multiplier with which Gaussian releases fit a budget.

    Args:
        epsilon: The budget.
        delta: Probability of failure, above 0.
        steps: Number of releases.
        rate: Probability that a patient is in a release (Poisson sampling).

    Returns:
        Standard deviation of the noise over the sensitivity.

    Raises:
        BadInput: An argument is out of range.
    """
    _check(delta, epsilon)
    if steps < 1 or not 0 < rate <= 1:
        raise BadInput(
            f"steps = {steps} and rate = {rate:g}: noise needs at least one step and a sampling rate above 0 and at most 1",
            code="bad-privacy-parameter",
        )
    from dp_accounting import get_sigma_gaussian

    goal = epsilon * (1 - _SLACK)
    most = float(get_sigma_gaussian(goal, delta)) * math.sqrt(steps)
    if rate == 1:
        return most

    def step(noise: float) -> Event:
        return Event("sampled_gaussian", "a step", count=steps, sigma=noise, rate=rate)

    def by_renyi(noise: float) -> float:
        return composition.renyi(composition.tallied([step(noise)]), delta)

    # Sampling never reveals more, so `most` is enough. Renyi divergences are fast and close; the loss distribution decides.
    high = _least_enough(by_renyi, goal, low=most / 2**20, high=most)
    return _least_enough(lambda noise: epsilon_of([step(noise)], delta), goal, low=high / 2, high=high)


def _least_enough(spent: Callable[[float], float], goal: float, *, low: float, high: float) -> float:
    """Find the smallest noise in [low, high] that spends at most `goal`, to a tenth of the slack; `high` if none does."""
    from scipy.optimize import brentq

    def excess(log_noise: float) -> float:
        return math.log(min(max(spent(math.exp(log_noise)), 1e-12), 1e12) / goal)

    if excess(math.log(high)) >= 0:
        return high
    if excess(math.log(low)) <= 0:
        return low
    noise = math.exp(brentq(excess, math.log(low), math.log(high), xtol=_SLACK / 10))
    while spent(noise) > goal:
        noise *= 1 + _SLACK / 10
    return min(noise, high)


def skellam_rho(sigma: float, *, sensitivity: float, step: float, dimension: int) -> float:
    """Compute the zCDP of one secure sum with Skellam noise, with values rounded to a grid.

    In steps of the ring the sensitivity is D2 = sensitivity / step + sqrt(dimension): each of two neighbouring vectors is
    rounded by at most 1/2 in each entry. The difference is an integer vector, so its L1 norm is D1 <= min(sqrt(dimension) *
    D2, D2**2). With mu = (sigma / step)**2, the variance of the noise, Agarwal, Kairouz & Liu (2021) bound the Renyi
    divergence of a shifted Skellam for every integer order a > 1. Summed over the independent entries, this is

        a * D2**2 / (2 mu) + min(((2a - 1) * D2**2 + 6 * D1) / (4 mu**2), 3 * D1 / (2 mu)).

    As 2a - 1 < 2a and 1 < a, this is at most a * rho with rho = D2**2 / (2 mu) + min(D2**2 / (2 mu**2) + 3 * D1 / (2
    mu**2), 3 * D1 / (2 mu)): zCDP at integer orders, and the accountant uses no others for it.

    If a share has a variance above 2**25, `Skellam` rounds a normal draw instead. Up to terms of exp(-2 pi**2 * variance),
    the sum of such shares is a normal draw plus independent uniform ones, read at integers. This is post-processing of the
    Gaussian mechanism with rounding in its sensitivity, whose rho is the first term, D2**2 / (2 mu). So this rho is valid
    there too.

    Args:
        sigma: Standard deviation of the noise in the sum.
        sensitivity: Largest L2 change of a site's real-valued vector by one patient.
        step: Width of the grid.
        dimension: Length of the vector.

    Returns:
        Rho.

    Raises:
        BadInput: An argument is not above zero.
    """
    if not (_positive(sigma, sensitivity, step) and dimension >= 1):
        raise BadInput(
            "noise, sensitivity, step and dimension of a secure sum must be above zero", code="bad-privacy-parameter"
        )
    d2 = sensitivity / step + math.sqrt(dimension)
    d1 = min(math.sqrt(dimension) * d2, d2**2)
    mu = (sigma / step) ** 2
    return d2**2 / (2 * mu) + min((d2**2 + 3 * d1) / (2 * mu**2), 3 * d1 / (2 * mu))


def statement(
    events: Sequence[Event],
    delta: float,
    *,
    rounds: int | None = None,
    simulated: bool = False,
    secure: bool = False,
    unit: str = "",
) -> str:
    """State the guarantee in one sentence: "epsilon = 3.2, delta = 1e-5, for each patient, add/remove, ...".

    Epsilon is rounded up. Releases without noise are listed, because no guarantee covers them.

    Args:
        events: The releases.
        delta: Probability of failure.
        rounds: Number of rounds, to be named.
        simulated: The noise follows from the experiment's seed.
        secure: Secure aggregation hid single answers.
        unit: Protected unit as text; by default that of the releases.

    Returns:
        The sentence.
    """
    covered = [e for e in events if e.kind != "raw"]
    raw = list(dict.fromkeys(e.what for e in events if e.kind == "raw"))
    if not covered:
        return _raw(raw) if raw else "no data of patients were released"
    parts = [
        _epsilon(epsilon_of(covered, delta)),
        f"delta = {_plain(delta)}",
        f"for each {unit or covered[0].unit}",
        "add/remove",
    ]
    trusted = dict.fromkeys(e.trust for e in covered)
    parts += [_NOISE[t] for t in trusted]
    parts += ["single answers hidden by secure aggregation"] if secure and "secure aggregation" not in trusted else []
    if rounds is not None:
        parts.append(f"{rounds} round" + "s" * (rounds != 1))
    names = len({(e.kind, e.what, e.of) for e in covered})
    parts.append(f"{names} mechanism" + "s" * (names != 1))
    if simulated:
        parts.append("simulated: the noise follows from the seed")
    sentence = ", ".join(parts)
    return f"{sentence}; {_raw(raw)}" if raw else sentence


_NOISE = {
    "local": "noise at the sites",
    "secure aggregation": "noise in shares under secure aggregation",
    "trusted server": "noise at a trusted server",
}


def _raw(names: Sequence[str]) -> str:
    return f"not covered (epsilon = infinity), because released without noise: {', '.join(names)}"


def _epsilon(value: float) -> str:
    if math.isinf(value):
        return "epsilon = infinity"
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    digits = max(1, digits)
    return f"epsilon = {math.ceil(value * 10**digits - 1e-9) / 10**digits:g}"


def _plain(delta: float) -> str:
    """Format a delta as 1e-5, not 1e-05."""
    mantissa, _, power = f"{delta:g}".partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa


def _positive(*values: float) -> bool:
    return all(math.isfinite(v) and v > 0 for v in values)


def _check(delta: float, epsilon: float | None = None) -> None:
    if not 0 <= delta < 1 or (epsilon is not None and delta == 0):
        raise BadInput(
            f"delta = {delta:g} is not a valid probability: choose a small number above 0, such as 1e-5",
            code="bad-delta",
        )
    if epsilon is not None and not _positive(epsilon):
        raise BadInput(f"epsilon = {epsilon:g} is not a valid budget: choose a finite number above 0", code="bad-epsilon")
