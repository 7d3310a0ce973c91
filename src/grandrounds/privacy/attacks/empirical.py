"""A lower bound on a mechanism's epsilon, from watching it: run it often on two neighbouring inputs and count an event.

(epsilon, delta)-differential privacy says P[E | a] <= e^epsilon P[E | b] + delta for every event E and both ways round.
One event that breaks it refutes the claim, whatever the proof says. The event is chosen on one half of the runs and
counted on the other, so its counts are plain binomials: Clopper-Pearson intervals hold without any correction.
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
"""How sure a bound is, all of it together: a test with a true claim fails once in a thousand seeds at most."""

_THRESHOLDS = 400
"""Cuts of the score that are looked at: finer ones are too close together for any number of runs to tell apart."""

Mechanism = Callable[..., Any]
"""(data, rng) -> outcome; or, `at_once`, (data, rng, runs) -> outcomes along a leading axis."""


@dataclass(frozen=True)
class Bound:
    """Epsilon is at least `epsilon`, but for a chance of 1 - confidence. `ceiling`: what so many runs could show at most."""

    epsilon: float
    event: str
    of: str  # under which input the event is the likelier: "a" or "b"
    likely: int  # how often it was seen there, in `counted` runs
    unlikely: int  # and under the other input
    counted: int
    delta: float
    confidence: float
    ceiling: float

    def refutes(self, claimed: float) -> bool:
        """Whether a claim of (claimed, delta)-privacy is shown to be wrong."""
        return self.epsilon > claimed


@dataclass(frozen=True)
class _Event:
    """A score at or above a cut, or at or below it; and under which input it is the likelier."""

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
    """Run a mechanism on neighbours `a` and `b`, `runs` times each, and bound its epsilon from below.

    `score` makes a number of an outcome (with `at_once`: numbers (runs,) of outcomes); events are its tails. Without
    one, numbers are their own score, vectors are scored along the direction in which their means differ, and anything
    else (words, tuples of features) by how much oftener it came from `a`; both are learnt on the first half only.
    """
    if runs < 4:
        raise BadInput(f"{runs} runs show nothing: give some thousands", code="too-few-runs")
    if not 0 <= delta < 1:
        raise BadInput(f"delta is a chance between 0 and 1, not {delta}", code="bad-delta")
    if not 0 < confidence < 1:
        raise BadInput(f"confidence is a chance between 0 and 1, not {confidence}", code="bad-confidence")
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
    """The epsilon that counts of one event show, elementwise: log((p - delta) / q), and nothing below zero.

    p is the lower Clopper-Pearson limit of `likely` out of `runs`, q the upper one of `unlikely`; each may be wrong with
    half of 1 - confidence.
    """
    from scipy.special import betaincinv

    k, j = np.asarray(likely, float), np.asarray(unlikely, float)
    miss = (1 - confidence) / 2
    p = np.where(k > 0, betaincinv(np.maximum(k, 1), runs - k + 1, miss), 0.0)
    q = np.where(j < runs, betaincinv(j + 1, np.maximum(runs - j, 1), 1 - miss), 1.0)
    shown: Array = np.log(np.maximum(p - delta, 0.0) / q, where=p > delta, out=np.zeros(np.broadcast(p, q).shape))
    return np.maximum(shown, 0.0)


def _choose(a: Array, b: Array, *, delta: float, confidence: float) -> _Event:
    """The tail of the score, and the direction, that shows the most on these runs."""
    both = np.unique(np.concatenate([a, b]))
    if len(both) > _THRESHOLDS:
        tail = np.geomspace(1 / len(both), 0.02, _THRESHOLDS // 4)  # small deltas are decided far out
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
        raise BadInput(f"the mechanism was asked for {runs} outcomes at once and gave {len(outcomes)}", code="wrong-shape")
    return outcomes


def _scorer(a: Any, b: Any, score: Callable[[Any], Any] | None, *, at_once: bool) -> Callable[[Any], Array]:
    """From outcomes to finite numbers (n,): as the caller has it, or learnt from these outcomes of either input."""
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
        raise BadInput("a score is one finite number for each outcome", code="not-finite")
    return out
