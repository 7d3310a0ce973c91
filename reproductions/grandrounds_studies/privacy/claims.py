"""Tests of claims about a guarantee: what is charged, and what it costs beside the same without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from grandrounds_studies.claims import Test, all_within, differs, left_out, those, verdict
from grandrounds_studies.privacy.measures import EPSILON
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Arm, Cell, Claim, Verdict

GOAL = "our goal"
EXACT = 1e-9
"""Epsilons this near are the same."""


def charged_as(other: str, points: Sequence[str]) -> Test:
    """In every run the same is released as in the other arm's, and the same epsilon is spent."""

    def test(found: Results, arm: str) -> Verdict:
        cells = [(Cell(p, arm, i), Cell(p, other, i)) for p in those(found, points) for i in range(found.seeds)]
        held = [(found.readings.get(a), found.readings.get(b)) for a, b in cells]
        pairs = [(a, b) for a, b in held if a is not None and b is not None]
        if len(pairs) < len(cells):
            raise NotRun(f"a run of {arm} or {other} is missing")
        spent = [(a.figures[EPSILON.name], b.figures[EPSILON.name]) for a, b in pairs]
        apart = max(abs(a - b) for a, b in spent)
        released = [
            sorted({what for reading in side for what in reading.kept["charged"]}) for side in zip(*pairs, strict=True)
        ]
        why = (
            f"epsilon {max(a for a, _ in spent):.4f} against {max(b for _, b in spent):.4f}, in no run more than {apart:.1e} "
            f"apart; charged: {', '.join(released[0])}, against {', '.join(released[1])}{left_out(found, points)}"
        )
        return verdict(apart <= EXACT and released[0] == released[1], why)

    return test


def nothing_more(pairs: Iterable[tuple[Arm, Arm]], points: Sequence[str]) -> Iterator[Claim]:
    """Of each private arm and ours beside it: ours is charged for nothing else."""
    for theirs, ours in pairs:
        yield Claim(
            "nothing more is charged than for DP training: the same releases and, to 1e-9, the same epsilon as FedAvg's "
            "with DP-SGD",
            GOAL,
            (ours.label,),
            charged_as(theirs.label, points),
        )


def costs(measure: str, points: Sequence[str], *, to: str, by: float) -> Test:
    """At every point the figure is worse than the other arm's by at most `by`, its interval included; words tell the worst."""

    def test(found: Results, arm: str) -> Verdict:
        sign = -1 if found.study.measure(measure).lower else 1
        pairs = {p: found.difference(p, arm, measure, to) for p in those(found, points)}
        worst = min(pairs, key=lambda p: sign * pairs[p].difference)
        why = differs(found, worst, arm, measure, pairs[worst], to=to, worst=len(pairs) > 1)
        ends = (-inf, by) if sign < 0 else (-by, inf)
        return all_within(pairs.values(), why + left_out(found, points), low=ends[0], high=ends[1])

    return test
