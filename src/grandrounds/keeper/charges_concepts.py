"""What VEIL's Asks cost (methods/veil/site.py): draws and sums over training rows, by the clipping and noise that an Ask names.

A patient's reach is worked out from the clipping that the site will really do; a prior or a norm that would stretch it counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from grandrounds.keeper.charges_told import Reading, Rows, Told, raw, within
from grandrounds.methods.veil.site import CENSUS, MOMENTS, PROPOSE, SCORES
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import PERCENTILES

_CELLS = "counts of patients in agreed cells, for percentiles"
_COUNTS, _SCORES, _MOMENTS = "rows and events", "sums of clipped scores", "sums of second moments"
_MOST_DRAWS = 10**6


def census(ask: Ask, rows: Rows) -> Reading:
    """Rows and events: one patient moves both by 1. With a `norm` also a vector no longer than 1: sqrt(3) in all."""
    told = ask.shared
    if "epsilon" in told:  # Laplace noise of scale 2 / epsilon on two counts
        epsilon = _number(told, "epsilon")
        if "norm" in told or not within(epsilon, 1e-6, 1e3):
            return Reading(raw(_COUNTS, rows.there("train")))
        return Reading((Event("laplace", _COUNTS, epsilon=epsilon),) if rows.train else ())
    sound = "norm" not in told or (_between(told, "norm") and _between(told, "value"))
    return _summed(ask, rows, _COUNTS, math.sqrt(3 if "norm" in told else 2) if sound else math.inf)


def scores(ask: Ask, rows: Rows) -> Reading:
    """Vectors of patients, each no longer than `norm`."""
    sound = _between(ask.shared, "norm") and _between(ask.shared, "value")
    return _summed(ask, rows, _SCORES, _number(ask.shared, "norm") if sound else math.inf)


def moments(ask: Ask, rows: Rows) -> Reading:
    """z z' and a z (y - prior) of z no longer than R: sqrt(R^4 + a^2 R^2 (y - prior)^2), whatever prior is named."""
    told = ask.shared
    r, a, prior = (_number(told, name) for name in ("norm", "outcome", "prior"))
    sound = _between(told, "norm") and _between(told, "value") and within(abs(a), 0.0, 1e3) and within(prior, -1e3, 1e3)
    off = max(1.0, abs(prior), abs(1 - prior))
    return _summed(ask, rows, _MOMENTS, r * math.sqrt(r**2 + (a * off) ** 2) if sound else math.inf)


def propose(ask: Ask, rows: Rows) -> Reading:
    """k draws by scores that one patient moves by at most 1. Other ways to propose promise nothing that a site can check.

    As printed, signs are sent as they are. By a site's own fit a patient's reach rests on how many others there are, and on
    a minimum being reached: no bound for one patient more or less.
    """
    told = ask.shared
    what = "proposals of features with a sign"
    epsilon, k = _number(told, "epsilon"), _number(told, "k")
    sound = within(epsilon, 1e-6, 1e3) and within(k, 1, _MOST_DRAWS) and _between(told, "value")
    if str(told.get("selection")) != "score" or not sound:
        return Reading(raw(what, rows.there("train")))
    return Reading((Event("exponential", what, count=int(k), epsilon=epsilon),) if rows.train else ())


def percentiles(ask: Ask, rows: Rows) -> Reading:
    """A patient is in one cell of each column that is named, whatever the cells are."""
    return _summed(ask, rows, _CELLS, math.sqrt(len(json.loads(str(ask.shared["columns"])))))


def _summed(ask: Ask, rows: Rows, what: str, reach: float) -> Reading:
    """A sum with the site's own noise, or one that is held for a secure sum to add noise to."""
    noise = _number(ask.shared, "noise")
    if noise and math.isfinite(reach):
        sigma = noise / reach
        if not within(sigma, 1e-6, 1e9):
            return Reading(raw(what, rows.there("train")))
        return Reading((Event("gaussian", what, sigma=sigma),) if rows.train else ())
    told = Told(what, rows.there("train"), reach, largest=reach * max(1, rows.train))
    return Reading((), dict.fromkeys(ask.report, told))


def _number(told: Mapping[str, Value], name: str) -> float:
    return float(told.get(name, 0.0))


def _between(told: Mapping[str, Value], name: str) -> bool:
    """Whether this length is one that clipping is exact for."""
    return within(_number(told, name), 1e-3, 1e3)


CONCEPTS: dict[str, Callable[[Ask, Rows], Reading]] = {
    CENSUS: census,
    PROPOSE: propose,
    SCORES: scores,
    MOMENTS: moments,
    PERCENTILES: percentiles,
}
