"""States of alarms, as the entries of a ledger give them: open, acknowledged by a person, or silenced with its check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from grandrounds.audit.watch_entry import ACTION, DELIVERED, NOTICE, Content

OPEN, ACKNOWLEDGED, SILENCED = "open", "acknowledged", "silenced"
"""States of an alarm."""


@dataclass(frozen=True)
class Decision:
    """A decision of a person about an alarm or a check."""

    date: str
    by: str
    note: str
    action: str = ""


@dataclass(frozen=True)
class Silence:
    """A check that a person silenced: until a time (UTC), or until the watch has read a number of patients."""

    check: str
    until: str | None
    patients: int | None
    decision: Decision

    def is_active(self, *, now: datetime, patients: int) -> bool:
        """Tell whether the silence holds at a time, after a number of patients."""
        ended = self.until is not None and datetime.fromisoformat(self.until) <= now
        return not ended and not (self.patients is not None and patients >= self.patients)

    @property
    def sentence(self) -> str:
        """The silence in one sentence."""
        ends = [] if self.until is None else [f"until {self.until[:16].replace('T', ' ')} UTC"]
        ends += [f"until {self.patients} patients are read"] * (self.patients is not None)
        return f"silenced by {self.decision.by} {' or '.join(ends)}"


@dataclass(frozen=True)
class RecordedAlarm:
    """An alarm as the ledger has it, and its state now.

    Attributes:
        id: Its name in the ledger, such as A1.
        content: The entry: date, check, type, column, direction, patient, since, patients, sentence, figures.
        state: OPEN, ACKNOWLEDGED or SILENCED.
        acknowledged: The first acknowledgement, or the first action that names the alarm; None while there is none.
        silence: The silence of its check that holds now; None where none does.
        actions: Actions that name the alarm.
        notices: Result of the newest notice of each hook.
    """

    id: str
    content: Content
    state: str
    acknowledged: Decision | None = None
    silence: Silence | None = None
    actions: tuple[Decision, ...] = ()
    notices: Mapping[str, str] = field(default_factory=dict)

    def is_delivered(self, hook: str) -> bool:
        """Tell whether a hook has taken this alarm."""
        return self.notices.get(hook) == DELIVERED

    @property
    def state_sentence(self) -> str:
        """The state as text, with the person who decided."""
        if self.acknowledged is not None:
            a = self.acknowledged
            words = "; ".join(text for text in (a.action, a.note) if text)
            return f"acknowledged by {a.by} on {a.date[:10]}" + (f": {words}" if words else "")
        return self.silence.sentence if self.silence is not None else OPEN


def read_silence(entry: Mapping[str, Any]) -> Silence:
    """Read a silence from its entry."""
    decision = Decision(entry["date"], entry["by"], entry["note"])
    return Silence(entry["check"], entry["until"], entry["patients"], decision)


def follow(alarm: RecordedAlarm, entry: Content) -> RecordedAlarm:
    """Return an alarm after a later entry that names it."""
    if entry["kind"] == NOTICE:
        return replace(alarm, notices={**alarm.notices, entry["hook"]: entry["result"]})
    decision = Decision(entry["date"], entry["by"], entry["note"], entry.get("action", ""))
    if entry["kind"] == ACTION:  # who acts on an alarm has taken notice of it
        alarm = replace(alarm, actions=(*alarm.actions, decision))
    return alarm if alarm.acknowledged else replace(alarm, acknowledged=decision, state=ACKNOWLEDGED)


def with_silence(alarm: RecordedAlarm, silence: Silence | None) -> RecordedAlarm:
    """Return an alarm with the silence of its check that holds now."""
    if silence is None or alarm.state == ACKNOWLEDGED:
        return alarm
    return replace(alarm, state=SILENCED, silence=silence)
