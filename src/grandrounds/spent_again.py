"""What a run spent, worked out again from its record: each round's releases, and whether what was said agrees with them.

Reads values only: the Decisions of all rounds and the summary's `privacy`. A number that does not agree is a finding.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grandrounds.errors import BadInput
from grandrounds.methods.private import CLIENT, DP_SGD
from grandrounds.privacy.events import Event

_SAME = 1e-4
"""Relative distance up to which two epsilons are one: the accountant leaves as much for rounding."""


@dataclass(frozen=True)
class RoundSpent:
    """A round's releases, and epsilon so far: worked out from them, and as its Decision says."""

    round: int
    events: tuple[Event, ...]
    epsilon: float
    said: float

    @property
    def releases(self) -> int:
        return sum(e.count for e in self.events)


@dataclass(frozen=True)
class SpentAgain:
    """All releases that count, what they add up to, and what was said otherwise. Without rounds nothing was promised."""

    rounds: tuple[RoundSpent, ...]
    events: tuple[Event, ...]
    epsilon: float
    findings: tuple[str, ...]


def spent_again(privacy: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> SpentAgain:
    """The account of a run from its summary's `privacy` and its round records."""
    if privacy["mechanism"] == "none":
        return SpentAgain((), (), 0.0, tuple(_unsaid(rounds)))
    from grandrounds.privacy.accounting import epsilon_of

    delta, told = float(privacy["delta"]), [Event.from_dict(e) for e in privacy["events"]]
    course, charged = [], dict[str, tuple[Event, ...]]()
    for record, key in zip(rounds, _keys(privacy["mechanism"], rounds), strict=True):
        own = released(record)
        if own:
            charged[key] = own
        so_far = epsilon_of([e for events in charged.values() for e in events], delta)
        course.append(RoundSpent(record["round"], own, so_far, _epsilon(_said(record).get("epsilon_spent"))))
    in_rounds = [e for events in charged.values() for e in events]
    later = _counted([e for e in told if e.of != "training"]) - _counted(in_rounds)  # calibration, after all Decisions
    events = (*in_rounds, *(replace(e, count=n) for e, n in later.items()))
    epsilon = epsilon_of(events, delta)
    findings = [
        *_findings_of_rounds(course, rounds, delta),
        *_findings_of_summary(privacy, epsilon, same=_counted(told) == _counted(events)),
    ]
    return SpentAgain(tuple(course), events, epsilon, tuple(findings))


def released(record: Mapping[str, Any]) -> tuple[Event, ...]:
    """What a round released, by its Decision."""
    try:
        return tuple(Event.from_dict(e) for e in _said(record).get("events", ()))
    except (BadInput, TypeError) as e:
        raise BadInput(f"round {record['round']} is damaged: {e}") from None


def against_ledger(rounds: Sequence[Mapping[str, Any]], entered: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Rounds whose record says otherwise than the Decision `entered` in the ledger for it."""
    found = []
    for record in rounds:
        number = record["round"]
        if number not in entered:
            found.append(f"round {number}: the ledger has no Decision of it")
        elif entered[number].get("privacy") != record["decision"].get("privacy"):
            found.append(f"round {number}: what it spent is not what the ledger has")
    return found


def _said(record: Mapping[str, Any]) -> Mapping[str, Any]:
    said: Mapping[str, Any] = record["decision"].get("privacy") or {}
    return said


def _epsilon(value: float | None) -> float:
    """JSON has no infinity: it is written as null."""
    return math.inf if value is None else float(value)


def _keys(mechanism: str, rounds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Rounds of one key are one charge, as in `Spending.charge`: of the run's own mechanisms it is the site that took
    part most often that counts; a method's own are charged round by round."""
    joined: Counter[str] = Counter()
    for record in rounds:
        times = max(joined.values(), default=0) + 1 if mechanism in (DP_SGD, CLIENT) else record["round"]
        yield f"{times}: {json.dumps(_said(record).get('events', []), sort_keys=True)}"
        joined.update(record["decision"]["asked"])


def _counted(events: Sequence[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for e in events:
        counts[replace(e, count=1)] += e.count
    return counts


def _same(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=_SAME)


def _findings_of_rounds(
    course: Sequence[RoundSpent], rounds: Sequence[Mapping[str, Any]], delta: float
) -> Iterator[str]:
    for spent, record in zip(course, rounds, strict=True):
        if not _same(spent.said, spent.epsilon):
            yield (
                f"round {spent.round}: its Decision says epsilon = {spent.said:.5g} so far, and the releases up to it "
                f"add up to {spent.epsilon:.5g}"
            )
        if _said(record).get("delta") != delta:
            yield f"round {spent.round}: its Decision has delta = {_said(record).get('delta')}, the summary {delta:g}"


def _findings_of_summary(privacy: Mapping[str, Any], epsilon: float, *, same: bool) -> Iterator[str]:
    said, budget = _epsilon(privacy["epsilon"]), privacy.get("budget")
    if not _same(said, epsilon):
        yield f"the summary says epsilon = {said:.5g}, and the releases of all rounds add up to {epsilon:.5g}"
    if not same:
        yield "the summary lists other releases than the Decisions of the rounds"
    if budget is not None and epsilon > budget * (1 + _SAME):
        yield f"epsilon = {epsilon:.5g} is more than the budget of {budget:g}"


def _unsaid(rounds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Decisions that tell of releases where the summary tells of none."""
    for record in rounds:
        if released(record):
            yield f"round {record['round']}: its Decision tells of releases under a promise, and the summary of none"
