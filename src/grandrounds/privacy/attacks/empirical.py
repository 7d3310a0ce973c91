"""Empirical lower bound on a mechanism's epsilon: run it on two neighbouring inputs and count an event.

(epsilon, delta)-differential privacy requires P[E | a] <= e^epsilon P[E | b] + delta for every event E, in both directions.
One event that violates it refutes the claim. The event is chosen on one half of the runs and counted on the other, so the
counts are binomial and Clopper-Pearson intervals need no correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator

CONFIDENCE = 0.999
"""Confidence of a bound as a whole: a test of a true claim fails for at most one seed in a thousand."""

_THRESHOLDS = 400
"""Number of score thresholds; finer ones cannot be distinguished by any number of runs."""

Mechanism = Callable[..., Any]
"""(data, rng) -> outcome; or with `at_once` (data, rng, runs) -> outcomes along a leading axis."""


@dataclass(frozen=True)
class Bound:
    """Lower bound on epsilon with the given confidence. `ceiling` is the largest bound that so many runs could show."""

    epsilon: float
    event: str
    of: str  # the input with which the event is more likely: "a" or "b"
    likely: int  # count with that input, in `counted` runs
    unlikely: int  # count with the other input
    counted: int
    delta: float
    confidence: float
    ceiling: float

    def refutes(self, claimed: float) -> bool:
        """Tell whether the bound refutes a claim of (claimed, delta)-privacy."""
        return self.epsilon > claimed


@dataclass(frozen=True)
class _Event:
    """A score at or above a threshold, or at or below it, and the input with which it is more likely."""

    cut: float
    above: bool
    swapped: bool

    def hits(self, scores: Array) -> int:
        return int(np.count_nonzero(scores >= self.cut if self.above else scores <= self.cut))


def lower_bound(
    mechanism: Mechanism,
    a: Any,
    b: Any,
    *,
    runs: int,
    seed: int,
    delta: float = 0.0,
    score: Callable[[Any], Any] | None = None,
    at_once: bool = False,
    confidence: float = CONFIDENCE,
) -> Bound:
    """Run a mechanism on neighbouring inputs and bound its epsilon from below.

    Args:
        mechanism: (data, rng) -> outcome, or with `at_once` (data, rng, runs) -> outcomes.
        a: One input.
        b: Its neighbour.
        runs: Number of runs for each input.
        seed: Seed of the runs.
        delta: Delta of the claim.
        score: Maps an outcome to a number (with `at_once`: outcomes to numbers); events are its tails. By default numbers
            are their own score, vectors are projected on the difference of their means, and other outcomes are scored by
            how much more often they come from `a`. Both are learnt on the first half of the runs.
        at_once: The mechanism returns all outcomes in one call.
        confidence: Confidence of the bound.

    Returns:
        The bound.

    Raises:
        BadInput: An argument is out of range, or a score is not finite.
    """
    if runs < 4:
        raise BadInput(f"runs = {runs} is too small: use several thousand", code="too-few-runs")
    if not 0 <= delta < 1:
        raise BadInput(f"delta = {delta} is not a probability: choose a number from 0 to 1", code="bad-delta")
    if not 0 < confidence < 1:
        raise BadInput(f"confidence = {confidence} is not a probability: choose a number between 0 and 1", code="bad-confidence")
    first, second = runs // 2, runs - runs // 2
    outcomes = {}
    for name, data in (("a", a), ("b", b)):
        rng = generator(seed, purpose="empirical epsilon", site=name)
        outcomes[name] = [_outcomes(mechanism, data, rng, n, at_once=at_once) for n in (first, second)]
    scored = _scorer(outcomes["a"][0], outcomes["b"][0], score, at_once=at_once)
    (a_first, a_second), (b_first, b_second) = ([scored(part) for part in outcomes[name]] for name in ("a", "b"))
    event = _choose(a_first, b_first, delta=delta, confidence=confidence)
    likely, unlikely = event.hits(a_second), event.hits(b_second)
    if event.swapped:
        likely, unlikely = unlikely, likely
    return Bound(
        epsilon=float(epsilon_shown(likely, unlikely, runs=second, delta=delta, confidence=confidence)),
        event=f"score {'>=' if event.above else '<='} {event.cut:.6g}",
        of="b" if event.swapped else "a",
        likely=likely,
        unlikely=unlikely,
        counted=second,
        delta=delta,
        confidence=confidence,
        ceiling=float(epsilon_shown(second, 0, runs=second, delta=delta, confidence=confidence)),
    )


def epsilon_shown(likely: Any, unlikely: Any, *, runs: int, delta: float, confidence: float = CONFIDENCE) -> Array:
    """Compute the epsilon that counts of one event show, elementwise: log((p - delta) / q), at least zero.

    p is the lower Clopper-Pearson limit of `likely` out of `runs`, q the upper limit of `unlikely`. Each fails with
    probability (1 - confidence) / 2.
    """
    from scipy.special import betaincinv

    k, j = np.asarray(likely, float), np.asarray(unlikely, float)
    miss = (1 - confidence) / 2
    p = np.where(k > 0, betaincinv(np.maximum(k, 1), runs - k + 1, miss), 0.0)
    q = np.where(j < runs, betaincinv(j + 1, np.maximum(runs - j, 1), 1 - miss), 1.0)
    shown: Array = np.log(np.maximum(p - delta, 0.0) / q, where=p > delta, out=np.zeros(np.broadcast(p, q).shape))
    return np.maximum(shown, 0.0)


def _choose(a: Array, b: Array, *, delta: float, confidence: float) -> _Event:
    """Choose the tail of the score, and the direction, that shows the largest epsilon on these runs."""
    both = np.unique(np.concatenate([a, b]))
    if len(both) > _THRESHOLDS:
        tail = np.geomspace(1 / len(both), 0.02, _THRESHOLDS // 4)  # the tails decide small deltas
        places = np.concatenate([np.linspace(0, 1, _THRESHOLDS // 2), tail, 1 - tail])
        both = np.unique(np.quantile(both, places, method="nearest"))
    a, b = np.sort(a), np.sort(b)
    best, chosen = -1.0, _Event(float(both[0]), True, False)
    for above in (True, False):
        if above:
            counts = [len(s) - np.searchsorted(s, both, side="left") for s in (a, b)]
        else:
            counts = [np.searchsorted(s, both, side="right") for s in (a, b)]
        for swapped in (False, True):
            likely, unlikely = reversed(counts) if swapped else counts
            shown = epsilon_shown(likely, unlikely, runs=len(a), delta=delta, confidence=confidence)
            best_cut = int(shown.argmax())
            if shown[best_cut] > best:
                best, chosen = float(shown[best_cut]), _Event(float(both[best_cut]), above, swapped)
    return chosen


def _outcomes(mechanism: Mechanism, data: Any, rng: np.random.Generator, runs: int, *, at_once: bool) -> Any:
    if not at_once:
        return [mechanism(data, rng) for _ in range(runs)]
    outcomes = mechanism(data, rng, runs)
    if len(outcomes) != runs:
        raise BadInput(f"the mechanism returned {len(outcomes)} outcomes, but {runs} were requested", code="wrong-shape")
    return outcomes


def _scorer(a: Any, b: Any, score: Callable[[Any], Any] | None, *, at_once: bool) -> Callable[[Any], Array]:
    """Build the function from outcomes to finite numbers (n,): the caller's score, or one learnt from these outcomes."""
    if score is not None:
        score_one = score
        return lambda outcomes: _numbers(score_one(outcomes) if at_once else [score_one(s) for s in outcomes])
    if isinstance(a, np.ndarray) or isinstance(a[0], (int, float, np.number, np.ndarray)):
        flat = np.reshape(np.asarray(a, float), (len(a), -1)), np.reshape(np.asarray(b, float), (len(b), -1))
        if flat[0].shape[1] == 1:
            return lambda outcomes: _numbers(np.reshape(np.asarray(outcomes, float), -1))
        spread = np.maximum(flat[0].var(axis=0) + flat[1].var(axis=0), 1e-12)
        along = (flat[0].mean(axis=0) - flat[1].mean(axis=0)) / spread
        return lambda outcomes: _numbers(np.reshape(np.asarray(outcomes, float), (len(outcomes), -1)) @ along)
    counts: dict[Hashable, list[float]] = {}
    for column, outcomes in enumerate((a, b)):
        for outcome in outcomes:
            counts.setdefault(outcome, [0.5, 0.5])[column] += 1
    ratio = {outcome: math.log(of_a / of_b) for outcome, (of_a, of_b) in counts.items()}
    return lambda outcomes: _numbers([ratio.get(outcome, 0.0) for outcome in outcomes])


def _numbers(scores: Any) -> Array:
    out = np.asarray(scores, float)
    if out.ndim != 1 or not np.isfinite(out).all():
        raise BadInput("a score must be one finite number for each outcome", code="not-finite")
    return out
