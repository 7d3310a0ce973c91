"""Tests of claims on our numbers, seed by seed. That something gets better or worse the 95% interval must say, not the
mean alone; that something stays as it is the mean says.

Each function makes a test for `Claim.test`; the numbers that decide are in the verdict's words, and so is what was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from grandrounds.metrics import Paired, Summary
from grandrounds.studies.results import NotRun, Results
from grandrounds.studies.study import FAILS, HOLDS, Verdict

Test = Callable[[Results, str], Verdict]


def verdict(holds: bool, why: str, *, clear: bool = True) -> Verdict:
    """The verdict; what the means say but their interval does not is not shown, and the words tell the two apart."""
    return Verdict(HOLDS if holds and clear else FAILS, f"not clear: {why}" if holds and not clear else why)


def falls(measure: str, *points: str, by: float = 0.0) -> Test:
    """At every point the figure is below the first arm's by at least the share `by` on average, and clearly below at all."""

    def test(found: Results, arm: str) -> Verdict:
        changes = {p: found.change(p, arm, measure) for p in those(found, points)}
        worst = max(changes, key=lambda p: changes[p].high)
        enough = all(c.mean <= -by for c in changes.values())
        clear = all(c.high < 0 for c in changes.values())
        why = changed(found, worst, arm, measure, changes[worst]) + left_out(found, points)
        return verdict(enough, why, clear=clear)

    return test


def falls_less(measure: str, at: str, *, than: str) -> Test:
    """The figure falls clearly at one point, and by a smaller share than it falls at another."""

    def test(found: Results, arm: str) -> Verdict:
        here, there = found.change(at, arm, measure), found.change(than, arm, measure)
        why = f"{changed(found, at, arm, measure, here)}; {there.mean:+.1%} at {than}"
        return verdict(there.mean < here.mean < 0, why, clear=here.high < 0)

    return test


def alike(measure: str, at: str, *, within: float) -> Test:
    """At a point the mean is within this share of the first arm's."""

    def test(found: Results, arm: str) -> Verdict:
        c = found.change(at, arm, measure)
        return verdict(abs(c.mean) <= within, changed(found, at, arm, measure, c))

    return test


def no_worse(measure: str, points: Sequence[str], *, by: float) -> Test:
    """At none of these points the mean is worse than the first arm's by more than `by`."""

    def test(found: Results, arm: str) -> Verdict:
        sign = -1 if found.study.measure(measure).lower else 1
        pairs = {p: found.difference(p, arm, measure) for p in those(found, points)}
        worst = min(pairs, key=lambda p: sign * pairs[p].difference)
        least = sign * pairs[worst].difference
        why = differs(found, worst, arm, measure, pairs[worst], worst=len(pairs) > 1)
        return verdict(least >= -by, why + left_out(found, points))

    return test


def better(measure: str, at: str) -> Test:
    """At a point the figure is clearly better than the first arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(at, arm, measure)
        right = (pair.difference < 0) == bool(found.study.measure(measure).lower)
        return verdict(right, differs(found, at, arm, measure, pair), clear=_clear(found, measure, pair))

    return test


def worse(measure: str, at: str) -> Test:
    """At a point the figure is clearly worse than the first arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(at, arm, measure)
        right = (pair.difference > 0) == bool(found.study.measure(measure).lower)
        clear = pair.low > 0 or pair.high < 0
        return verdict(right, differs(found, at, arm, measure, pair), clear=clear)

    return test


def best(measures: Sequence[str], points: Sequence[str], among: Sequence[str]) -> Test:
    """At every point the arm is clearly better than each of these others in every measure."""

    def test(found: Results, arm: str) -> Verdict:
        held = [
            (_clear(found, m, pair), differs(found, point, arm, m, pair, to=other))
            for point in those(found, points)
            for other in among
            if other in found.arms_at(point)
            for m in measures
            for pair in [found.difference(point, arm, m, other)]
        ]
        if not held:
            raise NotRun("none of the arms to beat was run")
        missed = [why for clear, why in held if not clear]
        if not missed:
            why = f"clearly better in each of {len(held)} comparisons, the first: {held[0][1]}"
            return verdict(True, why + left_out(found, points))
        more = f" (and in {len(missed) - 1} more of {len(held)} comparisons)" if len(missed) > 1 else ""
        return verdict(False, f"not clearly better: {missed[0]}{more}{left_out(found, points)}")

    return test


def all_of(*tests: Test) -> Test:
    """All of these at once; the first that does not hold speaks, else all do."""

    def test(found: Results, arm: str) -> Verdict:
        verdicts = [one(found, arm) for one in tests]
        failed = [v for v in verdicts if v.word != HOLDS]
        return failed[0] if failed else verdict(True, "; ".join(v.why for v in verdicts))

    return test


def sweep(measure: str, steady: str, at: str, arms: Sequence[str], *, within: float) -> Test:
    """Along these arms the figure falls, at the end clearly so, while another stays within `within` of where it began."""

    def test(found: Results, arm: str) -> Verdict:
        steps = [a for a in arms if a in found.arms_at(at)]
        if len(steps) < 2:
            raise NotRun("it takes two steps of the sweep")
        means = [found.summary(at, a, measure).mean for a in steps]
        end = found.difference(at, steps[-1], measure, steps[0])
        moved = [found.difference(at, a, steady, steps[0]).difference for a in steps[1:]]
        falling = all(b <= a for a, b in pairwise(means)) and end.high < 0
        words = found.study.measure(measure).words, found.study.measure(steady).words
        why = (
            f"{words[0]} {' -> '.join(f'{m:.3f}' for m in means)} ({signed(end)}), "
            f"{words[1]} moves by {max(moved, key=abs):+.3f} at most"
        )
        return verdict(falling and max(map(abs, moved)) <= within, why)

    return test


def changed(found: Results, point: str, arm: str, measure: str, c: Summary) -> str:
    """A relative change in words: "training drift +3.1% (95% CI -2.0% to +8.2%) at alpha 0.05, 0.350 -> 0.361"."""
    a, b = (found.summary(point, name, measure).mean for name in (found.first, arm))
    m = found.study.measure(measure)
    interval = f"95% CI {c.low:+.1%} to {c.high:+.1%}"
    return f"{m.words} {c.mean:+.1%} ({interval}) at {point}, {a:.{m.digits}f} -> {b:.{m.digits}f}"


def differs(
    found: Results, point: str, arm: str, measure: str, pair: Paired, *, to: str | None = None, worst: bool = False
) -> str:
    """A paired difference in words."""
    a, b = (found.summary(point, name, measure).mean for name in (to or found.first, arm))
    m = found.study.measure(measure)
    at = f"worst at {point}" if worst else f"at {point}"
    return f"{m.words} {a:.{m.digits}f} -> {b:.{m.digits}f} against {to or found.first}, {signed(pair)}, {at}"


def signed(pair: Paired) -> str:
    return f"{pair.difference:+.3f}, 95% CI {pair.low:+.3f} to {pair.high:+.3f}"


def _clear(found: Results, measure: str, pair: Paired) -> bool:
    """Whether a difference is for the better and its interval leaves out zero."""
    return pair.high < 0 if found.study.measure(measure).lower else pair.low > 0


def left_out(found: Results, points: Sequence[str]) -> str:
    """What a verdict does not rest on although the claim speaks of it; nothing where all was run."""
    missing = [p for p in points if p not in found.points]
    return f" (not run at {'; '.join(missing)})" if missing else ""


def those(found: Results, points: Sequence[str]) -> list[str]:
    """Those of the points that were run."""
    held = [p for p in points if p in found.points]
    if not held:
        raise NotRun(f"it was not run at {' or '.join(points)}")
    return held
