"""Tests of claims on our numbers, seed by seed. The 95% interval decides, not the mean alone:

* better, worse: reproduced if all of the interval lies on the claimed side of zero (and the mean beyond a claimed margin);
  refuted if all of it lies below the smallest difference that matters (`margins`) or below zero;
* stays within a margin, no worse than: reproduced if all of the interval lies inside the margin (an equivalence test);
  refuted if none of it does;
* rises or falls along a sweep: the last differs clearly from the first, and no step is clearly reversed;
* inconclusive: neither. The verdict carries the number of seeds that would decide it at the present mean and deviation;
* cannot be tested: no run could have failed the claim (`cannot_fail`), or a run is missing (`NotRun`).

Each function makes a test for `Claim.test`; the numbers that decide are in the verdict's words, and so is what was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf

import numpy as np
import numpy.typing as npt

from grandrounds.metrics import PairedTest, Summary
from grandrounds_studies.margins import Change, Difference
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FAILS, HOLDS, INCONCLUSIVE, MOST_SEEDS, UNTESTED, Verdict

Test = Callable[[Results, str], Verdict]
Rule = Callable[[float, float, float], str]
"""The verdict's word for a mean and the two ends of its interval."""


def verdict(holds: bool, why: str) -> Verdict:
    """Return the verdict on a claim that is judged without an interval.

    Args:
        holds: The numbers go the claimed way.
        why: The numbers.
    """
    return Verdict(HOLDS if holds else FAILS, why)


def decide(pair: PairedTest | Summary, why: str, rule: Rule) -> Verdict:
    """Return the verdict of a rule on an interval; inconclusive, it has the number of seeds that would decide it."""
    if not pair.low <= pair.high:
        raise NotRun("it has no interval: there is one seed, or the figure is undefined in a run")
    word = rule(_mean(pair), pair.low, pair.high)
    return Verdict(word, why, seeds_to_decide(pair, rule) if word == INCONCLUSIVE else None)


def seeds_to_decide(pair: PairedTest | Summary, rule: Rule) -> int:
    """Return the smallest number of seeds at which Student's interval decides, with this mean and this standard deviation.

    `MOST_SEEDS` + 1 if no number up to `MOST_SEEDS` does.
    """
    widths = _widths()
    mean, std = _mean(pair), (pair.high - pair.low) / 2 / widths[pair.n]
    halves = ((n, std * widths[n]) for n in range(pair.n + 1, MOST_SEEDS + 1))
    return next((n for n, half in halves if rule(mean, mean - half, mean + half) != INCONCLUSIVE), MOST_SEEDS + 1)


@cache
def _widths() -> npt.NDArray[np.float64]:
    """Half of Student's 95% interval of a mean of n values with standard deviation 1, by n."""
    from scipy.special import stdtrit

    n = np.arange(2, MOST_SEEDS + 1)
    return np.array([inf, inf, *(stdtrit(n - 1, 0.975) / np.sqrt(n))])


def up(pair: PairedTest | Summary, why: str, *, by: float = 0.0) -> Verdict:
    """Verdict on "it is above zero, on average by at least `by`"."""
    enough = by or _margin(pair)

    def rule(mean: float, low: float, high: float) -> str:
        if low > 0 and mean >= by:
            return HOLDS
        return FAILS if high < enough or high <= 0 else INCONCLUSIVE

    return decide(pair, why + _small(pair, by, 0 < pair.high < enough and pair.low <= 0), rule)


def down(pair: PairedTest | Summary, why: str, *, by: float = 0.0) -> Verdict:
    """Verdict on "it is below zero, on average by at least `by`"."""
    enough = by or _margin(pair)

    def rule(mean: float, low: float, high: float) -> str:
        if high < 0 and mean <= -by:
            return HOLDS
        return FAILS if low > -enough or low >= 0 else INCONCLUSIVE

    return decide(pair, why + _small(pair, by, -enough < pair.low < 0 and pair.high >= 0), rule)


def above(found: Summary, why: str, bar: float) -> Verdict:
    """Verdict on "it is above this bar"."""
    return decide(found, why, lambda mean, low, high: HOLDS if low > bar else FAILS if high <= bar else INCONCLUSIVE)


def below(found: Summary, why: str, bar: float) -> Verdict:
    """Verdict on "it is below this bar"."""
    return decide(found, why, lambda mean, low, high: HOLDS if high < bar else FAILS if low >= bar else INCONCLUSIVE)


def inside(pair: PairedTest | Summary, why: str, *, low: float, high: float = inf) -> Verdict:
    """Verdict on "it lies between these two": all of the interval does; refuted where none of it does."""

    def rule(mean: float, least: float, most: float) -> str:
        if low <= least and most <= high:
            return HOLDS
        return FAILS if most < low or least > high else INCONCLUSIVE

    return decide(pair, why, rule)


def all_within(pairs: Iterable[PairedTest | Summary], why: str, *, low: float, high: float) -> Verdict:
    """Verdict on "each of them lies between these two", in the same words for all."""
    return in_settings([inside(p, why, low=low, high=high) for p in pairs])


def all_hold(verdicts: Sequence[Verdict]) -> Verdict:
    """Verdict on all parts of a claim at once: the first refuted part, else the first inconclusive one, else the first.

    An inconclusive whole takes as many seeds as its most demanding part.
    """
    refuted = [v for v in verdicts if v.word == FAILS]
    unclear = [v for v in verdicts if v.word == INCONCLUSIVE]
    if refuted or not unclear:
        return (refuted or list(verdicts))[0]
    needs = [v.seeds for v in unclear if v.seeds is not None]
    return replace(unclear[0], seeds=max(needs, default=None))


def in_settings(verdicts: Sequence[Verdict]) -> Verdict:
    """Verdict on a claim about several settings; where they differ, its words say in how many it is reproduced."""
    whole, good = all_hold(verdicts), sum(v.word == HOLDS for v in verdicts)
    if len({v.word for v in verdicts}) == 1:
        return whole
    return replace(whole, why=f"{whole.why}; in {good} of {len(verdicts)} settings reproduced")


def steps(pairs: Sequence[PairedTest], end: PairedTest, why: str, *, falling: bool) -> Verdict:
    """Verdict on "it falls (or rises) from step to step", of the differences of each step and of the last to the first.

    A step the other way that its interval does not show, or that is too small to matter, is no refutation.
    """
    against = [p for p in pairs if (p.low > 0 and p.high >= _margin(p) if falling else p.high < 0 and p.low <= -_margin(p))]
    back = sum((p.difference > 0) if falling else (p.difference < 0) for p in pairs)
    if back > len(against):
        why += f"; {back - len(against)} of {len(pairs)} steps the other way, within their intervals"
    if against:
        return verdict(False, f"{why}; {len(against)} of {len(pairs)} steps clearly the other way")
    return down(end, why) if falling else up(end, why)


def cannot_fail(test: Test, because: str) -> Test:
    """Show a claim that no run could have failed, with its numbers: it cannot be tested."""

    def shown(found: Results, arm: str) -> Verdict:
        return Verdict(UNTESTED, f"no run could fail it ({because}); {test(found, arm).why}")

    return shown


def _margin(pair: PairedTest | Summary) -> float:
    return pair.margin if isinstance(pair, Difference | Change) else 0.0


def _small(pair: PairedTest | Summary, by: float, is_small: bool) -> str:
    """Say of a difference that refutes a claim although its interval takes in zero how small it is."""
    if by or not is_small:
        return ""
    size = f"{_margin(pair):.1%}" if isinstance(pair, Change) else f"{_margin(pair):.3g}"
    return f"; all of it short of {size}, the smallest difference that matters"


def _mean(pair: PairedTest | Summary) -> float:
    return pair.difference if isinstance(pair, PairedTest) else pair.mean


def falls(measure: str, *points: str, by: float = 0.0) -> Test:
    """At every point the figure is below the first arm's by at least the share `by` on average, and clearly below at all."""

    def test(found: Results, arm: str) -> Verdict:
        changes = {p: found.change(p, arm, measure) for p in those(found, points)}
        worst = max(changes, key=lambda p: changes[p].high)
        why = changed(found, worst, arm, measure, changes[worst]) + left_out(found, points)
        return in_settings([down(c, why, by=by) for c in changes.values()])

    return test


def falls_less(measure: str, at: str, *, than: str) -> Test:
    """The figure falls clearly at one point, and by a smaller share than it falls at another."""

    def test(found: Results, arm: str) -> Verdict:
        here, there = found.change(at, arm, measure), found.change(than, arm, measure)
        why = f"{changed(found, at, arm, measure, here)}; {there.mean:+.1%} at {than}"
        return all_hold([down(here, why), up(found.change_apart(at, than, arm, measure), why)])

    return test


def alike(measure: str, at: str, *, within: float) -> Test:
    """At a point the figure is within this share of the first arm's, and all of its interval is."""

    def test(found: Results, arm: str) -> Verdict:
        c = found.change(at, arm, measure)
        return inside(c, changed(found, at, arm, measure, c), low=-within, high=within)

    return test


def no_worse(measure: str, points: Sequence[str], *, by: float) -> Test:
    """At none of these points the figure is worse than the first arm's by more than `by`, nor is an end of its interval."""

    def test(found: Results, arm: str) -> Verdict:
        sign = -1 if found.study.measure(measure).lower else 1
        pairs = {p: found.difference(p, arm, measure) for p in those(found, points)}
        worst = min(pairs, key=lambda p: sign * pairs[p].difference)
        why = differs(found, worst, arm, measure, pairs[worst], worst=len(pairs) > 1) + left_out(found, points)
        ends = (-inf, by) if sign < 0 else (-by, inf)
        return all_within(pairs.values(), why, low=ends[0], high=ends[1])

    return test


def better(measure: str, at: str) -> Test:
    """At a point the figure is clearly better than the first arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(at, arm, measure)
        return _way(found, measure)(pair, differs(found, at, arm, measure, pair))

    return test


def worse(measure: str, at: str) -> Test:
    """At a point the figure is clearly worse than the first arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(at, arm, measure)
        return _way(found, measure, worse=True)(pair, differs(found, at, arm, measure, pair))

    return test


def best(measures: Sequence[str], points: Sequence[str], among: Sequence[str]) -> Test:
    """At every point the arm is clearly better than each of these others in every measure."""

    def test(found: Results, arm: str) -> Verdict:
        held = [
            _way(found, m)(pair, differs(found, point, arm, m, pair, to=other))
            for point in those(found, points)
            for other in among
            if other in found.arms_at(point)
            for m in measures
            for pair in [found.difference(point, arm, m, other)]
        ]
        if not held:
            raise NotRun("none of the arms to beat was run")
        whole = all_hold(held)
        missed = [v for v in held if v.word != HOLDS]
        if not missed:
            why = f"clearly better in each of {len(held)} comparisons, the first: {whole.why}"
            return replace(whole, why=why + left_out(found, points))
        more = f"; in {len(held) - len(missed)} of {len(held)} comparisons clearly better" if len(held) > 1 else ""
        return replace(whole, why=f"not clearly better: {whole.why}{more}{left_out(found, points)}")

    return test


def all_of(*tests: Test) -> Test:
    """All of these at once; the first that is refuted speaks, then the first that is inconclusive, else all do."""

    def test(found: Results, arm: str) -> Verdict:
        verdicts = [one(found, arm) for one in tests]
        whole = all_hold(verdicts)
        return replace(whole, why="; ".join(v.why for v in verdicts)) if whole.word == HOLDS else whole

    return test


def sweep(measure: str, steady: str, at: str, arms: Sequence[str], *, within: float) -> Test:
    """Along these arms the figure falls (`steps`), while another stays within `within` of where it began, ends included."""

    def test(found: Results, arm: str) -> Verdict:
        there = [a for a in arms if a in found.arms_at(at)]
        if len(there) < 2:
            raise NotRun("it takes two steps of the sweep")
        means = [found.summary(at, a, measure).mean for a in there]
        end = found.difference(at, there[-1], measure, there[0])
        moved = [found.difference(at, a, steady, there[0]) for a in there[1:]]
        each = [found.difference(at, b, measure, a) for a, b in pairwise(there)]
        words = found.study.measure(measure).words, found.study.measure(steady).words
        why = (
            f"{words[0]} {' -> '.join(f'{m:.3f}' for m in means)} ({signed(end)}), "
            f"{words[1]} moves by {max((p.difference for p in moved), key=abs):+.3f} at most"
        )
        falling = steps(each, end, why, falling=True)
        return all_hold([falling, *(inside(p, why, low=-within, high=within) for p in moved)])

    return test


def changed(found: Results, point: str, arm: str, measure: str, c: Summary) -> str:
    """A relative change as text: "training drift +3.1% (95% CI -2.0% to +8.2%) at alpha 0.05, 0.350 -> 0.361"."""
    a, b = (found.summary(point, name, measure).mean for name in (found.first, arm))
    m = found.study.measure(measure)
    interval = f"95% CI {c.low:+.1%} to {c.high:+.1%}"
    return f"{m.words} {c.mean:+.1%} ({interval}) at {point}, {a:.{m.digits}f} -> {b:.{m.digits}f}"


def differs(
    found: Results, point: str, arm: str, measure: str, pair: PairedTest, *, to: str | None = None, worst: bool = False
) -> str:
    """A paired difference as text."""
    a, b = (found.summary(point, name, measure).mean for name in (to or found.first, arm))
    m = found.study.measure(measure)
    at = f"worst at {point}" if worst else f"at {point}"
    return f"{m.words} {a:.{m.digits}f} -> {b:.{m.digits}f} against {to or found.first}, {signed(pair)}, {at}"


def signed(pair: PairedTest) -> str:
    return f"{pair.difference:+.3f}, 95% CI {pair.low:+.3f} to {pair.high:+.3f}"


def _way(found: Results, measure: str, *, worse: bool = False) -> Callable[[PairedTest, str], Verdict]:
    """The test of a difference for the better (or the worse) in this measure."""
    return down if bool(found.study.measure(measure).lower) != worse else up


def left_out(found: Results, points: Sequence[str]) -> str:
    """Name the points that were not run although the claim speaks of it; nothing where all was run."""
    missing = [p for p in points if p not in found.points]
    return f" (not run at {'; '.join(missing)})" if missing else ""


def those(found: Results, points: Sequence[str]) -> list[str]:
    """Those of the points that were run."""
    held = [p for p in points if p in found.points]
    if not held:
        raise NotRun(f"it was not run at {' or '.join(points)}")
    return held
