"""Tests of FedXChain's claims: margins in points, spreads over seeds, courses over rounds, sites told apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from grandrounds.metrics import describe
from grandrounds_studies.claims import Test, above, below, differs, left_out, those, up, verdict
from grandrounds_studies.fedxchain.measures import PAYLOAD, SECONDS, pearson
from grandrounds_studies.measures import ACCURACY, MACRO_F1, MEGABYTES
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Cell, Verdict


def known(found: Results, point: str, arm: str, measure: str) -> list[float]:
    """A figure by seed, known in every one of them."""
    values = found.values(point, arm, measure)
    if any(v != v for v in values):
        raise NotRun(f"{found.study.measure(measure).words} of {arm} at {point} is undefined in a run")
    return values


def with_arm(found: Results, points: Sequence[str], arm: str) -> list[str]:
    """Those of the points at which this arm was run."""
    held = [p for p in those(found, points) if arm in found.arms_at(p)]
    if not held:
        raise NotRun(f"{arm} was not run at {' or '.join(points)}")
    return held


def ahead(point: str, other: str, *, by: float) -> Test:
    """Accuracy is above the other's by at least `by` on average, and clearly above it at all."""

    def test(found: Results, arm: str) -> Verdict:
        pair = found.difference(point, arm, ACCURACY.name, other)
        why = differs(found, point, arm, ACCURACY.name, pair, to=other)
        return up(pair, why, by=by)

    return test


def little_spread(points: Sequence[str], *, percent: float) -> Test:
    """At every point the coefficient of variation of accuracy over seeds is below this."""

    def test(found: Results, arm: str) -> Verdict:
        held = {p: describe(known(found, p, arm, ACCURACY.name)) for p in with_arm(found, points, arm)}
        words = [f"{p} {s.mean:.2%} ± {s.std:.2%} (std), CV {s.cv:.2f}%" for p, s in held.items()]
        return verdict(all(s.cv < percent for s in held.values()), "; ".join(words) + left_out(found, points))

    return test


def narrow(points: Sequence[str], *, width: float) -> Test:
    """At every point the 95% interval of accuracy is narrower than this."""

    def test(found: Results, arm: str) -> Verdict:
        held = {p: describe(known(found, p, arm, ACCURACY.name)) for p in with_arm(found, points, arm)}
        words = [f"{p} {s.high - s.low:.2%} ({s.low:.2%} to {s.high:.2%})" for p, s in held.items()]
        holds = all(s.high - s.low < width for s in held.values())
        return verdict(holds, "; ".join(words) + left_out(found, points))

    return test


def f1_is_accuracy(points: Sequence[str]) -> Test:
    """At every point the mean of macro F1 is that of accuracy to four digits."""

    def test(found: Results, arm: str) -> Verdict:
        apart = {
            p: found.summary(p, arm, MACRO_F1.name).mean - found.summary(p, arm, ACCURACY.name).mean
            for p in with_arm(found, points, arm)
        }
        words = [f"{p} {100 * d:+.2f}" for p, d in apart.items()]
        why = f"macro F1 less accuracy in points: {'; '.join(words)}{left_out(found, points)}"
        return verdict(all(abs(d) < 5e-5 for d in apart.values()), why)

    return test


def by_then(measure: str, points: Sequence[str], *, most: int) -> Test:
    """At every point and in every seed it has come to rest by this round."""

    def test(found: Results, arm: str) -> Verdict:
        held = {p: known(found, p, arm, measure) for p in with_arm(found, points, arm)}
        words = [f"{p}: {', '.join(f'{v:.0f}' for v in values)}" for p, values in held.items()]
        holds = all(v <= most for values in held.values() for v in values)
        name = found.study.measure(measure).words
        return verdict(holds, f"{name} by seed, {'; '.join(words)}{left_out(found, points)}")

    return test


def in_seeds(measure: str, points: Sequence[str], *, share: float = 1.0) -> Test:
    """At every point a yes-or-no figure is 1 in at least this share of the seeds."""

    def test(found: Results, arm: str) -> Verdict:
        held = {p: known(found, p, arm, measure) for p in with_arm(found, points, arm)}
        counts = {p: sum(v == 1 for v in values) for p, values in held.items()}
        words = [f"in {n} of {found.seeds} seeds at {p}" for p, n in counts.items()]
        holds = all(n >= ceil(share * found.seeds - 1e-9) for n in counts.values())
        return verdict(holds, f"{found.study.measure(measure).words} {'; '.join(words)}{left_out(found, points)}")

    return test


def ordered(measure: str, points: Sequence[str]) -> Test:
    """The means rise from the first of the points to the last."""

    def test(found: Results, arm: str) -> Verdict:
        held = [p for p in those(found, points) if arm in found.arms_at(p)]
        if len(held) < 2:
            raise NotRun("it takes two models")
        means = [found.summary(p, arm, measure).mean for p in held]
        m = found.study.measure(measure)
        words = ", ".join(f"{p} {v:.{m.digits}f}" for p, v in zip(held, means, strict=True))
        return verdict(all(a < b for a, b in pairwise(means)), f"{m.words}: {words}{left_out(found, points)}")

    return test


def over(measure: str, point: str, least: float) -> Test:
    """The mean over seeds is above this, and so is all of its interval."""

    def test(found: Results, arm: str) -> Verdict:
        known(found, point, arm, measure)
        s = found.summary(point, arm, measure)
        return above(s, _spread(found, point, arm, measure), least)

    return test


def under(measure: str, point: str, most: float) -> Test:
    """The mean over seeds is below this, and so is all of its interval."""

    def test(found: Results, arm: str) -> Verdict:
        known(found, point, arm, measure)
        s = found.summary(point, arm, measure)
        return below(s, _spread(found, point, arm, measure), most)

    return test


def _spread(found: Results, point: str, arm: str, measure: str) -> str:
    """Mean, 95% interval, and the least and largest of the seeds."""
    s, values = found.summary(point, arm, measure), found.values(point, arm, measure)
    name, interval = found.study.measure(measure).words, f" (95% CI {s.low:.3f} to {s.high:.3f})"
    return f"{name} {s.mean:.4f}{interval if found.seeds > 1 else ''}, {min(values):.3f} to {max(values):.3f} by seed"


def correlated(point: str, *, least: float) -> Test:
    """Pearson's r of trust and reward over all sites of all seeds is at least this; r of trust and contribution is reported."""

    def test(found: Results, arm: str) -> Verdict:
        if arm not in found.arms_at(point):
            raise NotRun(f"{arm} was not run at {point}")
        readings = [found.readings.get(Cell(point, arm, i)) for i in range(found.seeds)]
        held = [reading.kept for reading in readings if reading is not None]
        pairs = {name: [(k["trust"][s], k[name][s]) for k in held for s in k.get(name, ())] for name in _PAID}
        if not pairs["reward"]:
            raise NotRun(f"no site of {arm} at {point} has a reward")
        r, plain = (pearson([t for t, _ in pairs[n]], [v for _, v in pairs[n]]) for n in _PAID)
        why = f"r = {r:.3f} over {len(pairs['reward'])} sites of {found.seeds} seeds at {point}; with the contribution, in "
        return verdict(r >= least, f"{why}which trust has no part, r = {plain:.3f}")

    return test


_PAID = ("reward", "contribution")


def light(point: str, other: str, *, share: float) -> Test:
    """The payload is at most this share above the other's; all bytes without evaluation, and seconds, are reported too."""

    def test(found: Results, arm: str) -> Verdict:
        said, ratios = [], []
        for m in (PAYLOAD, MEGABYTES, SECONDS):
            theirs, mine = (found.summary(point, name, m.name).mean for name in (other, arm))
            ratios.append(mine / theirs - 1)
            said.append(f"{m.words} {theirs:.{m.digits}f} -> {mine:.{m.digits}f} ({ratios[-1]:+.0%})")
        return verdict(ratios[0] <= share, f"against {other} at {point}: {', '.join(said)}")

    return test
