"""Tests of claims on our numbers, seed by seed. The 95% interval decides, not the mean alone:

* better, worse: all of the interval lies on the claimed side of zero (and the mean beyond a claimed margin);
* stays within a margin, no worse than: all of the interval lies inside the margin (an equivalence test);
* rises or falls along a sweep: the last differs clearly from the first, and no step is clearly reversed;
* not clear: the interval takes in zero, or the end of the margin. It neither shows nor refutes the claim;
* not counted: no run could have failed the claim (`cannot_fail`).

Each function makes a test for `Claim.test`; the numbers that decide are in the verdict's words, and so is what was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf

from grandrounds.metrics import PairedTest, Summary
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FAILS, HOLDS, NOT_CLEAR, UNCOUNTED, Verdict

Test = Callable[[Results, str], Verdict]


def verdict(holds: bool, why: str, *, clear: bool = True, refuted: bool = True) -> Verdict:
    """Return the verdict on a claim; the words tell apart what is refuted and what is not clear.

    Args:
        holds: The means go the claimed way.
        why: The numbers.
        clear: The interval says so too; else the claim is not clear.
        refuted: Of means that go another way: the interval says so too; else the claim is not clear.
    """
    if holds and clear:
        return Verdict(HOLDS, why)
    return Verdict(FAILS, f"{NOT_CLEAR}{why}" if holds or not refuted else why)


def up(pair: PairedTest | Summary, why: str, *, by: float = 0.0) -> Verdict:
    """Verdict on "it is above zero, on average by at least `by`"."""
    mean = _mean(pair)
    enough = mean >= by if by else mean > 0
    return verdict(enough, why, clear=pair.low > 0, refuted=pair.high < by or pair.high <= 0)


def down(pair: PairedTest | Summary, why: str, *, by: float = 0.0) -> Verdict:
    """Verdict on "it is below zero, on average by at least `by`"."""
    mean = _mean(pair)
    enough = mean <= -by if by else mean < 0
    return verdict(enough, why, clear=pair.high < 0, refuted=pair.low > -by or pair.low >= 0)


def inside(pair: PairedTest | Summary, why: str, *, low: float, high: float = inf) -> Verdict:
    """Verdict on "it lies between these two": all of the interval does; refuted where none of it does."""
    return verdict(
        low <= _mean(pair) <= high,
        why,
        clear=low <= pair.low and pair.high <= high,
        refuted=pair.high < low or pair.low > high,
    )


def all_within(pairs: Iterable[PairedTest | Summary], why: str, *, low: float, high: float) -> Verdict:
    """Verdict on "each of them lies between these two", in the same words for all."""
    return _all([inside(p, why, low=low, high=high) for p in pairs])


def steps(pairs: Sequence[PairedTest], end: PairedTest, why: str, *, falling: bool) -> Verdict:
    """Verdict on "it falls (or rises) from step to step", of the differences of each step and of the last to the first.

    A step the other way that its interval does not show is noise, and no refutation.
    """
    against = [p for p in pairs if (p.low > 0 if falling else p.high < 0)]
    back = sum((p.difference > 0) if falling else (p.difference < 0) for p in pairs)
    if back > len(against):
        why += f"; {back - len(against)} of {len(pairs)} steps the other way, within their intervals"
    if against:
        return verdict(False, f"{why}; {len(against)} of {len(pairs)} steps clearly the other way")
    return down(end, why) if falling else up(end, why)


def cannot_fail(test: Test, because: str) -> Test:
    """Show a claim that no run could have failed, with its numbers, and do not count it."""

    def shown(found: Results, arm: str) -> Verdict:
        return Verdict(UNCOUNTED, f"{because}; {test(found, arm).why}")

    return shown


def _mean(pair: PairedTest | Summary) -> float:
    return pair.difference if isinstance(pair, PairedTest) else pair.mean


def falls(measure: str, *points: str, by: float = 0.0) -> Test:
    """At every point the figure is below the first arm's by at least the share `by` on average, and clearly below at all."""

    def test(found: Results, arm: str) -> Verdict:
        changes = {p: found.change(p, arm, measure) for p in those(found, points)}
        worst = max(changes, key=lambda p: changes[p].high)
        why = changed(found, worst, arm, measure, changes[worst]) + left_out(found, points)
        return _all([down(c, why, by=by) for c in changes.values()])

    return test


def falls_less(measure: str, at: str, *, than: str) -> Test:
    """The figure falls clearly at one point, and by a smaller share than it falls at another."""

    def test(found: Results, arm: str) -> Verdict:
        here, there = found.change(at, arm, measure), found.change(than, arm, measure)
        why = f"{changed(found, at, arm, measure, here)}; {there.mean:+.1%} at {than}"
        return verdict(there.mean < here.mean < 0, why, clear=here.high < 0, refuted=here.low > 0 or here.mean < 0)

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
        missed = [v for v in held if v.word != HOLDS]
        if not missed:
            why = f"clearly better in each of {len(held)} comparisons, the first: {held[0].why}"
            return verdict(True, why + left_out(found, points))
        worse = [v for v in missed if not v.unclear]
        first = (worse or missed)[0].why.removeprefix(NOT_CLEAR)
        more = f" (and in {len(missed) - 1} more of {len(held)} comparisons)" if len(missed) > 1 else ""
        why = f"not clearly better: {first}{more}{left_out(found, points)}"
        return verdict(False, why, refuted=bool(worse))

    return test


def all_of(*tests: Test) -> Test:
    """All of these at once; the first that is refuted speaks, then the first that is not clear, else all do."""

    def test(found: Results, arm: str) -> Verdict:
        verdicts = [one(found, arm) for one in tests]
        worst = _all(verdicts)
        return verdict(True, "; ".join(v.why for v in verdicts)) if worst.word == HOLDS else worst

    return test


def _all(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that decides: the first refuted, else the first that does not hold, else the first."""
    failed = [v for v in verdicts if v.word != HOLDS]
    refuted = [v for v in failed if not v.unclear]
    return (refuted or failed or list(verdicts))[0]


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
        return _all([falling, *(inside(p, why, low=-within, high=within) for p in moved)])

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
