"""Tests of FLamby's published figures, and of our goals for regressions from sums."""

from __future__ import annotations

from math import hypot

from grandrounds_studies.claims import Test, verdict
from grandrounds_studies.flamby.published import published, spread
from grandrounds_studies.flamby.setting import POINT
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Verdict

GOAL = "our goal"
NEAR = 2.0
"""Standard errors of the difference within which two figures agree."""


def replicates(measure: str) -> Test:
    """Our mean over seeds lies within two standard errors of the difference from the published mean over its seeds."""

    def test(found: Results, arm: str) -> Verdict:
        if found.seeds < 2:
            raise NotRun("one seed has no standard error; give --seeds 2 or more")
        values = found.values(POINT, arm, measure)
        if any(v != v for v in values):
            raise NotRun(f"{measure} of {arm} is undefined in a run")
        ours, theirs = spread(values), published(arm, measure)
        apart = (ours.mean - theirs.mean) / hypot(ours.error, theirs.error)
        why = (
            f"published {theirs.mean:.3f} (sd {theirs.sd:.3f}, {theirs.count} seeds), ours {ours.mean:.3f} (sd {ours.sd:.3f}, "
            f"{ours.count} seeds): {apart:+.1f} standard errors of the difference"
        )
        return verdict(abs(apart) <= NEAR, why)

    return test


def near(measure: str, theirs: float, *, bar: float, point: str) -> Test:
    """Our mean over seeds lies within `bar` of the published mean."""

    def test(found: Results, arm: str) -> Verdict:
        ours = spread(found.values(point, arm, measure))
        if ours.mean != ours.mean:
            raise NotRun(f"{measure} of {arm} is undefined in a run")
        why = f"published {theirs:.4f}, ours {ours.mean:.4f}: {ours.mean - theirs:+.4f}"
        return verdict(abs(ours.mean - theirs) <= bar, why)

    return test


def no_more_than(measure: str, other: str, *, point: str) -> Test:
    """The figure is at most that of another arm in every run."""

    def test(found: Results, arm: str) -> Verdict:
        mine, theirs = (found.values(point, label, measure) for label in (arm, other))
        why = f"{max(mine):.4f}, {other} {min(theirs):.4f}"
        return verdict(max(mine) <= min(theirs), why)

    return test


def at_least(measure: str, bar: float, *, point: str = POINT) -> Test:
    """The figure is at least this in every run."""

    def test(found: Results, arm: str) -> Verdict:
        values = found.values(point, arm, measure)
        if any(v != v for v in values):
            raise NotRun(f"{measure} of {arm} is undefined in a run")
        ends = f"{min(values):.4f}" if max(values) == min(values) else f"{min(values):.4f} to {max(values):.4f}"
        return verdict(min(values) >= bar, f"{ends} in {len(values)} runs")

    return test


def at_most(measure: str, bar: float, *, point: str = POINT) -> Test:
    """The figure is at most this in every run."""

    def test(found: Results, arm: str) -> Verdict:
        values = found.values(point, arm, measure)
        if any(v != v for v in values):
            raise NotRun(f"{measure} of {arm} is undefined in a run")
        return verdict(max(values) <= bar, f"{max(values):.0f}")

    return test
