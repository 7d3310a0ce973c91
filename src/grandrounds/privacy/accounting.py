"""The accountant: what releases told about one patient (or one site) all together, as epsilon at a delta.

Neighbouring data differ by adding or removing one patient (or site). Events are adaptive: each may depend on what was
released before. The bounds themselves are in `composition`.
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
"""Relative room that calibrated noise leaves, so that the same releases charged one by one never round over it."""


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """The least epsilon, of all valid bounds, that these releases keep at `delta`; infinite where one is raw.

    Training, validation and test rows are of different patients, each of whom is in one of them: the largest of their
    epsilons holds for all (parallel composition). A site holds all three kinds, so per site they add up. Bounds per
    patient and per site are different promises and are not added: ask for each alone.
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
    """The largest zCDP rho whose conversion stays within (epsilon, delta), to be split over releases.

    Only whole Renyi orders are used, so that it may be spent on Skellam noise as well as on Gaussian noise and draws.
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
    """The least noise multiplier of `steps` Gaussian releases, each of a Poisson sample of `rate`, within the budget."""
    _check(delta, epsilon)
    if steps < 1 or not 0 < rate <= 1:
        raise BadInput(
            "noise is sized for one step at least and a sampling rate above 0 and at most 1",
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

    # Sampling never tells more than no sampling: `most` is enough. Renyi divergences are quick and close, losses decide.
    high = _least_enough(by_renyi, goal, low=most / 2**20, high=most)
    return _least_enough(lambda noise: epsilon_of([step(noise)], delta), goal, low=high / 2, high=high)


def _least_enough(spent: Callable[[float], float], goal: float, *, low: float, high: float) -> float:
    """The least noise in [low, high] that spends at most `goal`, to a tenth of the slack; `high` where none does."""
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
    """zCDP of one secure sum with Skellam noise of deviation `sigma` in total, values rounded to a grid of `step`.

    `sensitivity` is the L2 distance that one patient makes in a site's real-valued vector of `dimension` entries. In
    steps of the ring that is D2 = sensitivity / step + sqrt(dimension): each of the two neighbouring vectors is rounded
    by at most 1/2 an entry. The difference is whole-numbered, so its L1 length is D1 <= min(sqrt(dimension) * D2, D2**2).
    With mu = (sigma / step)**2 the variance of the noise, Agarwal, Kairouz & Liu (2021) bound the Renyi divergence of a
    shifted Skellam for every whole order a > 1; added up over the entries, which are independent, that is

        a * D2**2 / (2 mu) + min(((2a - 1) * D2**2 + 6 * D1) / (4 mu**2), 3 * D1 / (2 mu)).

    As 2a - 1 < 2a and 1 < a, that is at most a * rho with rho = D2**2 / (2 mu) + min(D2**2 / (2 mu**2) + 3 * D1 /
    (2 mu**2), 3 * D1 / (2 mu)): zCDP at whole orders, and the accountant uses no others for it.

    Above a variance of 2**25 a share, `Skellam` rounds a normal draw instead. The sum of such shares has, but for terms
    of exp(-2 pi**2 * variance), the density of a normal draw plus independent uniform ones, read off at whole numbers:
    post-processing of the Gaussian mechanism with rounding in its sensitivity, whose rho is D2**2 / (2 mu), the first term
    here. So this rho holds there too.
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
    events: Sequence[Event], delta: float, *, rounds: int | None = None, simulated: bool = False, unit: str = ""
) -> str:
    """State the promise in one sentence with its unit: "epsilon = 3.2, delta = 1e-5, for each patient, add/remove, ...".

    Epsilon is rounded up. A release without noise is named: no promise covers it. `unit`: whom it is to, in words; left out,
    as the releases say.
    """
    covered = [e for e in events if e.kind != "raw"]
    raw = list(dict.fromkeys(e.what for e in events if e.kind == "raw"))
    if not covered:
        return _raw(raw) if raw else "nothing that touched patients was released"
    parts = [
        _epsilon(epsilon_of(covered, delta)),
        f"delta = {_plain(delta)}",
        f"for each {unit or covered[0].unit}",
        "add/remove",
    ]
    parts += [_NOISE[t] for t in dict.fromkeys(e.trust for e in covered)]
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
    """1e-5, not 1e-05."""
    mantissa, _, power = f"{delta:g}".partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa


def _positive(*values: float) -> bool:
    return all(math.isfinite(v) and v > 0 for v in values)


def _check(delta: float, epsilon: float | None = None) -> None:
    if not 0 <= delta < 1 or (epsilon is not None and delta == 0):
        raise BadInput(
            f"delta = {delta:g} is no chance to fail with: choose a small number above 0, such as 1e-5",
            code="bad-delta",
        )
    if epsilon is not None and not _positive(epsilon):
        raise BadInput(f"epsilon = {epsilon:g} is no budget: choose a finite number above 0", code="bad-epsilon")
