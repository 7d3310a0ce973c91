"""Tests of the FL-XAI study's claims: sweeps over arms, gaps in points, two figures of the same runs, printed figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from grandrounds.metrics import PairedTest, describe
from grandrounds_studies.claims import Test, above, differs, down, inside, signed, steps, up, verdict
from grandrounds_studies.fedxchain.claims import known
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FAILS, HOLDS, INCONCLUSIVE, UNTESTED, Verdict


def apart(measure: str, at: str, *, to: str, by: float) -> Test:
    """The figure is below the other arm's by at least `by` on average (above it, where `by` is negative), and clearly so."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(at, arm, measure, to)
        why = differs(found, at, arm, measure, pair, to=to)
        return down(pair, why, by=by) if by > 0 else up(pair, why, by=-by)

    return test


def at_each(points: Sequence[str], make: Callable[[str], Test]) -> Test:
    """Make a test at each of these points, which differ in a setting that the paper does not state.

    The claim is reproduced if it is at one of them, refuted if it is at all, else inconclusive; the verdict names the points.
    """

    def test(found: Results, arm: str) -> Verdict:
        verdicts: dict[str, Verdict] = {}
        missing: dict[str, str] = {}
        for point in points:
            try:
                verdicts[point] = make(point)(found, arm)
            except NotRun as e:
                missing[point] = str(e)
        if not verdicts:
            raise NotRun(next(iter(missing.values())))
        lost = f" (not run: {', '.join(missing)})" if missing else ""
        return _merge_verdicts(verdicts, lost)

    return test


def _merge_verdicts(verdicts: Mapping[str, Verdict], lost: str) -> Verdict:
    """One verdict on a claim from those at several points."""
    by_word = {word: [p for p, v in verdicts.items() if v.word == word] for word in (HOLDS, INCONCLUSIVE, FAILS, UNTESTED)}
    summary = ", ".join(f"{word} with {' and '.join(held)}" for word, held in by_word.items() if held)
    word = next(word for word, held in by_word.items() if held)
    told = "; ".join(f"{point}: {v.why}" for point, v in verdicts.items())
    needs = [v.seeds for v in verdicts.values() if v.seeds is not None]
    return Verdict(word, f"{summary}; {told}{lost}", max(needs, default=None) if word == INCONCLUSIVE else None)


def along(measure: str, at: str, arms: Sequence[str], *, falling: bool) -> Test:
    """From the first of these arms to the last the figure falls (or rises) clearly, and at no step clearly the other way."""

    def test(found: Results, arm: str) -> Verdict:
        there = [a for a in arms if a in found.arms_at(at)]
        if len(there) < 2:
            raise NotRun("it takes two steps of the sweep")
        means = [float(np.mean(known(found, at, a, measure))) for a in there]
        end = found.difference(at, there[-1], measure, there[0])
        each = [found.difference(at, b, measure, a) for a, b in pairwise(there)]
        m = found.study.measure(measure)
        told = ", ".join(f"{a} {v:.{m.digits}f}" for a, v in zip(there, means, strict=True))
        lost = ", ".join(a for a in arms if a not in there)
        why = f"{m.words}: {told}; from first to last {signed(end)}" + (f" (not run: {lost})" if lost else "")
        return steps(each, end, why, falling=falling)

    return test


def beyond(measure: str, at: str, least: float) -> Test:
    """The mean over seeds is above this, and so is all of its interval."""

    def test(found: Results, arm: str) -> Verdict:
        s = describe(_of_seeds(found, at, arm, measure))
        m = found.study.measure(measure)
        return above(s, f"{m.words} {_interval(s.mean, s.low, s.high, m.digits)}", least)

    return test


def at_most(measure: str, at: str, most: float) -> Test:
    """The mean over seeds is this or less."""

    def test(found: Results, arm: str) -> Verdict:
        values = known(found, at, arm, measure)
        m, mean = found.study.measure(measure), float(np.mean(values))
        spread = f", {min(values):,.{m.digits}f} to {max(values):,.{m.digits}f} by seed" if len(values) > 1 else ""
        return verdict(mean <= most, f"{m.words} {mean:,.{m.digits}f}{spread}; {most:,g} is the bar")

    return test


def tops(measure: str, at: str, *, than: str) -> Test:
    """Of the same runs, one figure is clearly above another."""

    def test(found: Results, arm: str) -> Verdict:
        pair, why = _two(found, at, arm, (measure, than))
        return up(pair, why)

    return test


def agree(measure: str, at: str, *, with_: str, within: float) -> Test:
    """Two figures of the same runs are no further apart than this, the ends of the interval included."""

    def test(found: Results, arm: str) -> Verdict:
        pair, why = _two(found, at, arm, (measure, with_))
        return inside(pair, why, low=-within, high=within)

    return test


def _two(found: Results, at: str, arm: str, names: tuple[str, str]) -> tuple[PairedTest, str]:
    """The first figure less the second, seed by seed, and both as text."""
    a, b = (_of_seeds(found, at, arm, name) for name in names)
    pair = found.paired(names[0], a, b)
    told = [
        f"{m.words} {np.mean(v):.{m.digits}f}" for m, v in zip(map(found.study.measure, names), (a, b), strict=True)
    ]
    return pair, f"{', '.join(told)}, {signed(pair)}, at {at}"


def one_for_another(score: str, attack: str, at: str, *, to: str) -> Test:
    """Test that, if the score says more private than the other arm, an attack finds clearly less of who was trained on."""

    def test(found: Results, arm: str) -> Verdict:
        said, met = (found.difference(at, arm, name, to) for name in (score, attack))
        why = f"{differs(found, at, arm, score, said, to=to)}; {differs(found, at, arm, attack, met, to=to)}"
        if said.difference <= 0:
            raise NotRun(f"the score does not rise: {why}")
        return down(met, why)

    return test


def exactly(measure: str, at: str, value: float, *, why: str) -> Test:
    """In every run the figure is this one."""

    def test(found: Results, arm: str) -> Verdict:
        values = known(found, at, arm, measure)
        m = found.study.measure(measure)
        shown = " and ".join(f"{v:,.{m.digits}f}" for v in sorted(set(values)))
        return verdict(all(abs(v - value) < 0.5 * 10.0**-m.digits for v in values), f"{m.words} {shown}; {why}")

    return test


def printed_wider(clients: Mapping[str, Sequence[float]], *, to: str, times: float) -> Test:
    """In the printed table of clients the deviation over clients is at least so many times the other's."""

    def test(found: Results, arm: str) -> Verdict:
        mine, other = (float(np.std(clients[name])) for name in (arm, to))
        ends = [f"{name} {min(v):.4f} to {max(v):.4f}" for name, v in ((arm, clients[arm]), (to, clients[to]))]
        why = f"printed: deviation over clients {mine:.4f} against {other:.4f}, {mine / other:.2f} times; {'; '.join(ends)}"
        return Verdict(HOLDS if mine >= times * other else FAILS, why)

    return test


def _of_seeds(found: Results, at: str, arm: str, measure: str) -> list[float]:
    """A figure by seed, known in each, of two seeds or more."""
    if found.seeds < 2:
        raise NotRun(f"one {found.study.repeats.word} has no interval; give --seeds 2 or more")
    return known(found, at, arm, measure)


def _interval(mean: float, low: float, high: float, digits: int) -> str:
    return f"{mean:.{digits}f} (95% CI {low:.{digits}f} to {high:.{digits}f})"
