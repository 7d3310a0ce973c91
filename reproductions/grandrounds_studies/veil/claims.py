"""Tests of VEIL's claims: across points, since what keeps no epsilon is run once; by traffic, sparsity and the guarantee kept.

`Place` is a point and an arm; folds are the same everywhere, so any two of them pair up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grandrounds_studies.claims import Test, down, inside, signed, up, verdict
from grandrounds_studies.margins import Difference
from grandrounds_studies.measures import AUROC, ECE, MEGABYTES
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Cell, Verdict
from grandrounds_studies.veil.measures import FROM_UNIFORM, INPUTS, NONZERO, PAYLOAD, most_from_uniform
from grandrounds_studies.veil.setting import PRINTED

Place = tuple[str, str]


def apart(found: Results, one: Place, other: Place, measure: str = AUROC.name) -> Difference:
    """The paired difference of one place to another."""
    if found.seeds < 2:
        raise NotRun(f"one {found.study.repeats.word} has no interval; give --seeds 2 or more")
    pair = found.paired(measure, found.values(*one, measure), found.values(*other, measure))
    if pair.difference != pair.difference:
        raise NotRun(f"{measure} of {one[1]} or {other[1]} is undefined in a run")
    return pair


def said(found: Results, one: Place, other: Place, pair: Difference, measure: str = AUROC.name) -> str:
    """Both means and their difference as text."""
    a, b = (found.summary(*place, measure).mean for place in (other, one))
    m = found.study.measure(measure)
    return f"{m.words} {b:.{m.digits}f} against {a:.{m.digits}f} of {other[1]} ({other[0]}), {signed(pair)}"


def run_among(found: Results, places: Sequence[Place]) -> list[Place]:
    """Those of the places that were run."""
    return [(point, arm) for point, arm in places if point in found.points and arm in found.arms_at(point)]


def within(point: str, other: Place, *, by: float) -> Test:
    """AUROC is at most `by` below the other's, the lower end of its interval included."""

    def test(found: Results, arm: str) -> Verdict:
        pair = apart(found, (point, arm), other)
        return inside(pair, said(found, (point, arm), other, pair), low=-by)

    return test


def above(point: str, other: Place, *, told: Sequence[Any] = ()) -> Test:
    """AUROC is clearly above the other's; further measures of both are reported beside it."""

    def test(found: Results, arm: str) -> Verdict:
        pair = apart(found, (point, arm), other)
        more = [
            f"; {m.words} {found.summary(point, arm, m.name).mean:.{m.digits}f} against "
            f"{found.summary(*other, m.name).mean:.{m.digits}f}"
            for m in told
        ]
        why = said(found, (point, arm), other, pair) + "".join(more)
        return up(pair, why)

    return test


def below(point: str, other: Place, *, by: float) -> Test:
    """AUROC is below the other's by at least `by` on average, and clearly below it."""

    def test(found: Results, arm: str) -> Verdict:
        pair = apart(found, (point, arm), other)
        return down(pair, said(found, (point, arm), other, pair), by=by)

    return test


def lighter(point: str, other: Place, *, by: float) -> Test:
    """The payload of training, both ways, is smaller by this share; so much of all that is serialised is reported too."""

    def test(found: Results, arm: str) -> Verdict:
        (mine, theirs), (all_mine, all_theirs) = (
            [found.summary(*place, m.name).mean for place in ((point, arm), other)] for m in (PAYLOAD, MEGABYTES)
        )
        why = (
            f"payload both ways {theirs:.1f} kB -> {mine:.1f} kB ({mine / theirs - 1:+.1%}) against {other[1]}; with "
            f"preparation, calibration and framing {all_theirs:.2f} MB -> {all_mine:.2f} MB ({all_mine / all_theirs - 1:+.1%})"
        )
        return verdict(mine <= (1 - by) * theirs, why)

    return test


def under(point: str, kilobytes: float) -> Test:
    """The payload of training, both ways and of all sites, is below so many kB in every run."""

    def test(found: Results, arm: str) -> Verdict:
        most = max(found.values(point, arm, PAYLOAD.name))
        return verdict(most < kilobytes, f"payload both ways, all sites and rounds: {most:.2f} kB at most")

    return test


def best_calibrated(point: str, among: Sequence[Place]) -> Test:
    """The ECE is clearly below the least of the others'. It says nothing without AUROC, so that is reported beside it."""

    def test(found: Results, arm: str) -> Verdict:
        held = [p for p in run_among(found, among) if p != (point, arm)]
        if not held:
            raise NotRun("none of those to beat was run")
        own = found.summary(point, arm, ECE.name).mean
        lowest = min(held, key=lambda p: found.summary(p[0], p[1], ECE.name).mean)
        least = found.summary(*lowest, ECE.name).mean
        beside: list[Place] = [(point, arm), lowest]
        aucs = [found.summary(*place, AUROC.name).mean for place in beside]
        pair = apart(found, (point, arm), lowest, ECE.name)
        interval = f"{pair.difference:+.4f}, 95% CI {pair.low:+.4f} to {pair.high:+.4f}"
        why = f"ECE {own:.4f} (AUROC {aucs[0]:.3f}), the least of the others {least:.4f} (AUROC {aucs[1]:.3f}): {lowest[1]}"
        return down(pair, f"{why}; {interval}")

    return test


def formal(point: str, epsilon: float) -> Test:
    """By the accountant every run keeps this epsilon."""

    def test(found: Results, arm: str) -> Verdict:
        if arm not in found.arms_at(point):
            raise NotRun(f"{arm} was not run at {point}")
        held = [found.readings.get(Cell(point, arm, i)) for i in range(found.seeds)]
        kept = [r.kept for r in held if r is not None]
        if not kept:
            raise NotRun(f"no run of {arm} at {point} ended")
        raw = sorted({what for k in kept for what in k["raw"]})
        if raw:
            return verdict(False, f"epsilon = infinity: {'; '.join(raw)}")
        known = [k["epsilon"] for k in kept if k["epsilon"] is not None]
        spent = max(known, default=None)
        if spent is None or len(known) < len(kept):
            return verdict(False, "nothing is guaranteed")
        return verdict(spent <= epsilon + 1e-9, f"epsilon = {spent:.3f} at most. {kept[0]['statement']}")

    return test


def follows_epsilon(points: Sequence[str], epsilons: Sequence[float], *, draws: int) -> Test:
    """Between the smallest and the largest budget AUROC differs clearly; how far the printed draw is from uniform is reported."""

    def test(found: Results, arm: str) -> Verdict:
        held = [(p, e) for p, e in zip(points, epsilons, strict=True) if p in found.points]
        if len(held) < 2:
            raise NotRun("it takes two budgets")
        (low, _), (high, most) = held[0], held[-1]
        pair = apart(found, (high, arm), (low, arm))
        means = " / ".join(f"{found.summary(p, arm, AUROC.name).mean:.4f}" for p, _ in held)
        why = f"AUROC {means} at {', '.join(p for p, _ in held)}; last against first {signed(pair)}"
        if arm == PRINTED.label:
            furthest = max(max(found.values(p, arm, FROM_UNIFORM.name)) for p, _ in held)
            why += (
                f"; its draw of a feature is at most {furthest:.5f} (total variation) from a uniform one, at any hospital and "
                f"budget, and for any data at most {most_from_uniform(most / draws):.5f}"
            )
        return up(pair, why)

    return test


def few(point: str, most: int) -> Test:
    """At most so many weights are not zero, in every run."""

    def test(found: Results, arm: str) -> Verdict:
        held = max(found.values(point, arm, NONZERO.name))
        return verdict(held <= most, f"{held:.0f} weights are not zero, at most")

    return test


def sparse(*points: str, share: float) -> Test:
    """At most this share of the inputs has a weight that is not zero, in every run at the first of the points with the arm."""

    def test(found: Results, arm: str) -> Verdict:
        held = [p for p in points if p in found.points and arm in found.arms_at(p)]
        if not held:
            raise NotRun(f"{arm} was not run at {' or '.join(points)}")
        point = held[0]
        most, inputs = max(found.values(point, arm, NONZERO.name)), max(found.values(point, arm, INPUTS.name))
        return verdict(most <= share * inputs, f"{most:.0f} of {inputs:.0f} weights are not zero, at most")

    return test
