"""Tests of XFed's claims: against the same method without a choice, against heat that sees nothing, and of printed figures."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb

from grandrounds.metrics import describe, paired_t
from grandrounds_studies.claims import Test, all_hold, differs, down, inside, signed, up, verdict
from grandrounds_studies.fedxchain.claims import known
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FAILS, HOLDS, Verdict
from grandrounds_studies.xfed.courses import by_round, by_seed

PICTURES = 30
"""That the printed XAI accuracies are shares of."""

CHANCE = 0.05
"""A printed figure that chance gives this often or more often says nothing."""

Plain = Mapping[str, str]
"""Arm -> the arm that it is compared with."""


def gains(point: str, measure: str, plain: Plain, *, least: float) -> Test:
    """The figure is above the other arm's by at least the share `least` on average, and clearly above it at all."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(point, arm, measure, plain[arm])
        change = _change(found, point, arm, measure, plain[arm])
        why = f"{differs(found, point, arm, measure, pair, to=plain[arm])}; {change:+.1%} of it"
        return up(pair, why, by=least * _mean(found, point, measure, plain[arm]))

    return test


def above(point: str, measure: str, plain: Plain) -> Test:
    """The figure is clearly above the other arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(point, arm, measure, plain[arm])
        return up(pair, differs(found, point, arm, measure, pair, to=plain[arm]))

    return test


def below(point: str, measure: str, plain: Plain) -> Test:
    """The figure is clearly below the other arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(point, arm, measure, plain[arm])
        return down(pair, differs(found, point, arm, measure, pair, to=plain[arm]))

    return test


def tells_more(point: str, measure: str, *, than: str) -> Test:
    """Of the same runs, one figure is clearly above another: a signal that finds bad sites better than another does."""

    def test(found: Results, arm: str) -> Verdict:
        if found.seeds < 2:
            raise NotRun(f"one {found.study.repeats.word} has no interval; give --seeds 2 or more")
        mine, other = (known(found, point, arm, name) for name in (measure, than))
        pair = found.paired(measure, mine, other)
        words = [found.study.measure(name).words for name in (measure, than)]
        means = [describe(values).mean for values in (mine, other)]
        why = f"{words[0]} {means[0]:.2f}, {words[1]} {means[1]:.2f}, {signed(pair)}, at {point}"
        return up(pair, why)

    return test


def close(point: str, measure: str, plain: Plain, *, within: float) -> Test:
    """The mean is no further than this from the other arm's."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(point, arm, measure, plain[arm])
        why = differs(found, point, arm, measure, pair, to=plain[arm])
        return inside(pair, why, low=-within, high=within)

    return test


def fewer(point: str, measure: str, to: str, *, low: float, high: float) -> Test:
    """The figure is smaller than the other arm's by a share between these two."""

    def test(found: Results, arm: str) -> Verdict:
        change = _change(found, point, arm, measure, to)
        a, b = (found.summary(point, name, measure).mean for name in (to, arm))
        m = found.study.measure(measure)
        why = f"{m.words} {a:.{m.digits}f} -> {b:.{m.digits}f} against {to}, {change:+.2%}, at {point}"
        return verdict(low <= -change <= high, why)

    return test


def beats(point: str, measure: str, blind: str) -> Test:
    """A score of the trained net is clearly above that of heat which owes nothing to what it has learnt, in the same runs."""

    def test(found: Results, arm: str) -> Verdict:
        mine, theirs = (_known(found, point, arm, name) for name in (measure, blind))
        pair = found.paired(measure, mine, theirs)
        m = found.study.measure(measure)
        a, b = (f"{describe(values).mean:.{m.digits}f}" for values in (theirs, mine))
        why = f"{found.study.measure(blind).words} {a}, of the trained net {b}, {signed(pair)}, at {point}"
        return up(pair, why)

    return test


def together(point: str, name: str, plain: Plain, *, within: float) -> Test:
    """In no round a course is further apart from the other's than this, nor is an end of its 95% interval."""

    def test(found: Results, arm: str) -> Verdict:
        mine, theirs = (_course(found, point, a, name) for a in (arm, plain[arm]))
        apart = [b - a for a, b in zip(theirs, mine, strict=True)]
        at = max(range(len(apart)), key=lambda k: abs(apart[k]))
        why = (
            f"against {plain[arm]} furthest apart in round {at + 1}: {theirs[at]:.2f} -> {mine[at]:.2f}, "
            f"{apart[at]:+.2f} points; in the last {apart[-1]:+.2f}, at {point}"
        )
        pairs = [
            paired_t(b, a) for a, b in zip(*(_rounds(found, point, a, name) for a in (plain[arm], arm)), strict=True)
        ]
        return all_hold([inside(p, why, low=-within, high=within) for p in pairs])

    return test


def _rounds(found: Results, point: str, arm: str, name: str) -> list[list[float]]:
    """The values of a kept course over seeds, round by round."""
    return [list(values) for values in zip(*by_seed(found, point, arm, name), strict=True)]


def _course(found: Results, point: str, arm: str, name: str) -> list[float]:
    """A kept course by round, as the mean over seeds, known in every round."""
    if arm not in found.arms_at(point):
        raise NotRun(f"{arm} was not run at {point}")
    values = list(by_round(found, point, arm, name).values())
    if len(by_seed(found, point, arm, name)) < found.seeds or any(v != v for v in values):
        raise NotRun(f"{name} by round is not known of every run of {arm} at {point}")
    return values


def printed_apart(printed: Mapping[str, float], plain: Plain) -> Test:
    """The printed XAI accuracies of two arms differ by more than chance, in the best case for the paper.

    Both are of the same images, and which of them changed is not told. At best none changed the other way; then it is as
    many heads in a row (McNemar's exact test).
    """

    def test(found: Results, arm: str) -> Verdict:
        a, b = right_of(printed[plain[arm]]), right_of(printed[arm])
        apart = abs(b - a)
        p = min(1.0, 2 * 0.5**apart)
        points = (
            f"{100 * (b - a) / PICTURES:+.1f} points, where the standard error of one figure is {100 * _error(a):.1f}"
        )
        best = f"at best, if {apart} changed and none the other way, p = {p:.3f}"
        why = f"printed: {a} ({plain[arm]}) and {b} of {PICTURES} images, {points}; {best}"
        return Verdict(HOLDS if p < CHANCE else FAILS, why)

    return test


def printed_above_chance(printed: Mapping[str, float], *, others: Mapping[str, tuple[float, ...]]) -> Test:
    """A printed XAI accuracy is not what tossing a coin for every image gives (binomial test, two-sided); the other rounds'
    are reported too."""

    def test(found: Results, arm: str) -> Verdict:
        k = right_of(printed[arm])
        p = coin(k)
        rest = [coin(right_of(v)) for v in others[arm]]
        low = sum(q < CHANCE for q in rest)
        why = (
            f"printed: {k} of {PICTURES} images, p = {p:.3f}; of {len(rest)} printed rounds {low} have p < {CHANCE:g}"
        )
        return Verdict(HOLDS if p < CHANCE else FAILS, why)

    return test


def right_of(percent: float) -> int:
    """Return the number of images that a printed percentage means."""
    return round(percent * PICTURES / 100)


def coin(k: int, n: int = PICTURES) -> float:
    """The chance that a fair coin is at least as far from n / 2 as k."""
    far = abs(2 * k - n)
    return float(sum(comb(n, i) for i in range(n + 1) if abs(2 * i - n) >= far) / 2**n)


def _error(k: int) -> float:
    """The standard error of k of the images, as a share."""
    share = k / PICTURES
    return float((share * (1 - share) / PICTURES) ** 0.5)


def _mean(found: Results, point: str, measure: str, arm: str) -> float:
    return describe(_known(found, point, arm, measure)).mean


def _change(found: Results, point: str, arm: str, measure: str, to: str) -> float:
    """The relative change of the mean."""
    a, b = (describe(_known(found, point, name, measure)).mean for name in (to, arm))
    if not a:
        raise NotRun(f"{found.study.measure(measure).words} of {to} at {point} is 0")
    return b / a - 1


def _known(found: Results, point: str, arm: str, measure: str) -> list[float]:
    """A figure by seed, known in each of them."""
    values = found.values(point, arm, measure)
    if found.seeds < 2:
        raise NotRun("one seed has no interval; give --seeds 2 or more")
    if any(v != v for v in values):
        raise NotRun(f"{found.study.measure(measure).words} of {arm} at {point} is undefined in a run")
    return values
