"""Recompute the privacy spending of a run from its records, and compare it with the stated values.

It reads values only: the Decisions of all rounds and `privacy` of the summary. A difference is a finding.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord
from grandrounds.methods.dp import CLIENT, DP_SGD
from grandrounds.privacy.events import Event

if TYPE_CHECKING:
    from grandrounds.audit.entry import Content

_SAME = 1e-4
"""Relative difference up to which two epsilons are equal: the accountant's rounding."""


@dataclass(frozen=True)
class RoundSpent:
    """Releases of a round, and epsilon so far: recomputed, and as stated in its Decision."""

    round: int
    events: tuple[Event, ...]
    epsilon: float
    said: float

    @property
    def releases(self) -> int:
        return sum(e.count for e in self.events)


@dataclass(frozen=True)
class RecomputedBudget:
    """All releases, their total, and the findings. Without rounds there is no guarantee."""

    rounds: tuple[RoundSpent, ...]
    events: tuple[Event, ...]
    epsilon: float
    findings: tuple[str, ...]


def recompute_spending(
    privacy: Mapping[str, Any],
    rounds: Sequence[RoundRecord],
    closings: Sequence[Content] | None = None,
) -> RecomputedBudget:
    """Recompute the account of a run from `privacy` of its summary, its round records and its ledger's closing entries.

    Without a ledger (`closings` is None) releases after the rounds are taken from the summary.
    """
    if privacy["mechanism"] == "none":
        return RecomputedBudget((), (), 0.0, tuple(_unsaid(rounds)))
    from grandrounds.privacy.accounting import epsilon_of

    delta, delta_events = float(privacy["delta"]), [Event.from_dict(e) for e in privacy["events"]]
    course, charged = [], dict[str, tuple[Event, ...]]()
    for record, key in zip(rounds, _keys(privacy["mechanism"], rounds), strict=True):
        released_events = released(record)
        if released_events:
            charged[key] = released_events
        earlier = [
            e for last_round, events in _by_round(closings or ()) if last_round < record["round"] for e in events
        ]
        so_far = epsilon_of([*(e for events in charged.values() for e in events), *earlier], delta)
        course.append(
            RoundSpent(record["round"], released_events, so_far, _epsilon(_said(record).get("epsilon_spent")))
        )
    in_rounds = [e for events in charged.values() for e in events]
    later = _counted([e for e in delta_events if e.of != "training"]) - _counted(
        in_rounds
    )  # calibration, after all Decisions
    if closings is not None:
        later = _counted(released_after_rounds(closings))
    events = (*in_rounds, *(replace(e, count=n) for e, n in later.items()))
    epsilon = epsilon_of(events, delta)
    findings = [
        *_findings_of_rounds(course, rounds, delta),
        *_findings_of_summary(privacy, epsilon, same=_counted(delta_events) == _counted(events)),
    ]
    return RecomputedBudget(tuple(course), events, epsilon, tuple(findings))


def released(record: RoundRecord) -> tuple[Event, ...]:
    """Return the releases of a round, from its Decision."""
    try:
        return tuple(Event.from_dict(e) for e in _said(record).get("events", ()))
    except (BadInput, TypeError) as e:
        raise BadInput(f"round {record['round']} is damaged: {e}", code="damaged-record") from None


def released_after_rounds(closings: Sequence[Content]) -> list[Event]:
    """Return the releases outside the rounds, from the ledger's closing entries; the last entry lists all of them."""
    return [e for _, events in _by_round(closings) for e in events]


def _by_round(closings: Sequence[Content]) -> list[tuple[int, list[Event]]]:
    """Return the releases outside the rounds in the last closing entry, each with its round."""
    listed = [list(closing["released"]) for closing in closings if "released" in closing]
    return [(int(one["round"]), [Event.from_dict(e) for e in one["events"]]) for one in (listed or [[]])[-1]]


def refuse_altered_budget(
    folder: Path,
    plan: Plan,
    stored: Mapping[str, Any] | None,
    records: Sequence[RoundRecord],
    charges: Mapping[str, Any],
) -> None:
    """Refuse to resume a run whose checkpoint has another budget than its rounds and its ledger.

    Args:
        folder: The run folder.
        plan: The plan of the remaining rounds.
        stored: `privacy` of the checkpoint (`Spending.facts`); None where it has none.
        records: The records of the finished rounds.
        charges: Releases outside the rounds (`Checkpoint.charges`).

    Raises:
        BadInput: They differ.
    """
    from grandrounds.privacy.budget import Budget
    from grandrounds.runs.privacy_budget import CALIBRATION, charged_calibrations

    if stored is None:
        _refuse_no_budget(folder, records)
        return
    try:
        budget, joined = Budget.from_dict(stored["budget"]), Counter({s: int(n) for s, n in stored["joined"].items()})
        keys = {key: [Event.from_dict(e) for e in events] for key, events in stored["budget"]["keys"].items()}
        mechanism = next((_said(r)["mechanism"] for r in records), plan.privacy.mechanism)
        expected = {k: e for k, e in zip(_keys(mechanism, records), map(released, records), strict=True) if e}
        rounds_asked = Counter(s for r in records for s in r["decision"]["asked"])
        entered, closings = ledger_entries(folder) or ({}, ())
        later = against_ledger([r for r in records if r["round"] in entered], entered)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            f"{folder} is damaged: its checkpoint lacks what was spent; restore it from a copy", code="damaged-budget"
        ) from None
    in_rounds = [e for key, events in keys.items() if not key.startswith(f"{CALIBRATION} ") for e in events]
    calibration_events = [e for key, events in keys.items() if key.startswith(f"{CALIBRATION} ") for e in events]
    calibration_releases = [e for one in charged_calibrations(charges) for e in one.events]
    round_events = [e for events in expected.values() for e in events]
    ahead = max(entered, default=0)
    why = ""
    if later:
        why = f"{later[0]} (its journal was altered)"
    elif ahead > len(records):
        why = f"its ledger has {ahead} rounds and its checkpoint {len(records)}, which is older"
    elif budget.epsilon != plan.privacy.epsilon or budget.delta != plan.privacy.delta:
        why = f"its plan says epsilon = {plan.privacy.epsilon}, and its checkpoint {budget.epsilon}"
    elif _counted(in_rounds) != _counted(round_events) or _counted(budget.events) != _counted(
        [*in_rounds, *calibration_events]
    ):
        charged, made = _total(budget.events), _total(round_events)
        why = f"its checkpoint says that {charged} releases were charged, and its rounds made {made}"
    elif joined != rounds_asked:
        why = "its checkpoint counts other rounds of its sites than its Decisions do"
    elif _counted(calibration_events) - _counted(calibration_releases) or _counted(
        released_after_rounds(closings)
    ) - _counted(calibration_releases):
        why = "its ledger tells of calibrations that checkpoint/charges.json does not list"
    if why:
        raise BadInput(
            f"the budget of {folder} is not what was spent: {why}; restore the run folder from a copy",
            code="altered-budget",
        )


def _refuse_no_budget(folder: Path, records: Sequence[RoundRecord]) -> None:
    """Refuse to start a new budget where rounds were charged to an earlier one."""
    entered, _ = ledger_entries(folder) or ({}, ())
    decisions = [*(r.get("decision", {}) for r in records), *entered.values()]
    if any((d.get("privacy") or {}).get("events") for d in decisions):
        raise BadInput(
            f"the budget of {folder} is not what was spent: its rounds were charged, and its checkpoint has no budget; "
            "restore the run folder from a copy",
            code="altered-budget",
        )


def ledger_entries(folder: Path) -> tuple[dict[int, Content], tuple[Content, ...]] | None:
    """Return the Decisions in a run's ledger by round, and its closing entries; None where it has no ledger.

    Signatures are checked by `rounds audit verify`.
    """
    from grandrounds.core.packages import NEEDED_PACKAGES, is_installed

    if not (folder / "ledger.db").exists() or not all(map(is_installed, NEEDED_PACKAGES)):
        return None
    from grandrounds.audit.entry import CLOSE, ROUND
    from grandrounds.audit.ledger import ledger_at

    with ledger_at(folder) as ledger:
        contents = [e.content for e in ledger.book().entries]
    return {s["round"]: s["decision"] for s in contents if s["kind"] == ROUND}, tuple(
        s for s in contents if s["kind"] == CLOSE
    )


def _total(events: Sequence[Event]) -> int:
    return sum(e.count for e in events)


def against_ledger(rounds: Sequence[RoundRecord], entered: Mapping[int, Content]) -> list[str]:
    """Return findings on rounds whose record differs from the Decision `entered` in the ledger."""
    findings = []
    for record in rounds:
        number = record["round"]
        if number not in entered:
            findings.append(f"round {number}: the ledger has no Decision of it")
        elif entered[number].get("privacy") != record["decision"].get("privacy"):
            findings.append(f"round {number}: what it spent is not what the ledger has")
    return findings


def _said(record: RoundRecord) -> Mapping[str, Any]:
    spent: Mapping[str, Any] = record["decision"].get("privacy") or {}
    return spent


def _epsilon(value: float | None) -> float:
    """Read an epsilon; null is infinity, which JSON does not have."""
    return math.inf if value is None else float(value)


def _keys(mechanism: str, rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Return the charge of each round, as in `Spending.charge`: rounds with the same key are one charge."""
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
    course: Sequence[RoundSpent], rounds: Sequence[RoundRecord], delta: float
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


def _unsaid(rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Return findings on Decisions with releases where the summary has none."""
    for record in rounds:
        if released(record):
            yield f"round {record['round']}: its Decision has releases with a privacy guarantee, and the summary has none"
