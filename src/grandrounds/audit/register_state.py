"""State of a register of models, from its entries: who may sign, and the state and history of each model.

`replay` applies the entries in order. An entry that breaks a rule is reported and changes nothing, so that a state is never
better than the valid signatures under it.

Rules:

- Set-up ends when each role had a signatory. Until then signatories are added without signatures.
- Afterwards a new signatory and a change of roles need a signature of each role. Any one signatory may end another.
- A candidate is approved when a signatory of each role approved it.
- Any one signatory of a required role puts an approved model in use, or withdraws a model.
- A hospital uses one model for a purpose. Putting another in use there replaces the former, which stays approved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from grandrounds.audit.register_entry import (
    APPROVE,
    CANDIDATE,
    DECISIONS,
    END_SIGNATORY,
    ROLES,
    SIGNATORY,
    START,
    USE,
    WITHDRAW_MODEL,
    Content,
    has_valid_proof,
    is_signed_by_person,
)
from grandrounds.protocol.identity import is_weak


class State(StrEnum):
    """State of a model in the register."""

    CANDIDATE = "candidate"
    APPROVED = "approved"
    IN_USE = "in use"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Signatory:
    """A person who may sign. `ended`: the time from which they may not; "" while they may."""

    name: str
    role: str
    key: bytes
    since: str
    ended: str = ""


@dataclass(frozen=True)
class Event:
    """An entry in the history of a model: its number, time, action, person, role and note."""

    number: int
    date: str
    action: str
    by: str
    role: str
    note: str


@dataclass(frozen=True)
class ModelRecord:
    """A model in the register.

    Attributes:
        number: Number of the entry that made it a candidate.
        date: Time of that entry, UTC.
        model: The run's name and folder, the hashes of its files and the head of its ledger, as `register_entry.MODEL`.
        purpose: The intended use.
        hospitals: Hospitals at which it may be used.
        proposed_by: The person who proposed it.
        state: Its state by the register alone; `analysis.register.check_record` compares the run as well.
        approvals: Events of approval, one for each role that approved it.
        missing: Roles that must still approve it.
        in_use: Hospitals at which it is in use.
        history: All events, oldest first.
        version: Number of the newest entry about it that is not an approval.
    """

    number: int
    date: str
    model: Mapping[str, Any]
    purpose: str
    hospitals: tuple[str, ...]
    proposed_by: str
    state: State = State.CANDIDATE
    approvals: tuple[Event, ...] = ()
    missing: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    history: tuple[Event, ...] = ()
    version: int = 0

    @property
    def folder(self) -> str:
        """The run's folder, below the folder of runs."""
        return str(self.model["folder"])

    @property
    def reason(self) -> str:
        """The reason of the withdrawal; "" where there is none."""
        return self.history[-1].note if self.state is State.WITHDRAWN else ""


@dataclass
class RegisterState:
    """State of a register after its entries.

    Attributes:
        roles: Roles that must approve a model.
        signatories: All people who could ever sign, by name; of a name that was given again, the newest.
        records: Models by the number of their first entry.
        faults: Entries that break a rule, by number, with a sentence.
        is_set_up: Each role has had a signatory.
    """

    roles: tuple[str, ...] = ()
    signatories: dict[str, Signatory] = field(default_factory=dict)
    records: dict[int, ModelRecord] = field(default_factory=dict)
    faults: list[tuple[int, str]] = field(default_factory=list)
    is_set_up: bool = False
    _served: set[str] = field(default_factory=set)  # roles that ever had a signatory

    @property
    def open_roles(self) -> tuple[str, ...]:
        """Roles that have no signatory now."""
        active = {s.role for s in self.signatories.values() if not s.ended}
        return tuple(role for role in self.roles if role not in active)

    def find_active(self, name: str) -> Signatory | None:
        """Return the signatory of this name who may sign now."""
        signatory = self.signatories.get(name)
        return None if signatory is None or signatory.ended else signatory

    def find_record(self, folder: str) -> ModelRecord | None:
        """Return the newest record of a run."""
        return next((r for r in reversed(self.records.values()) if r.folder == folder), None)

    def check(self, content: Content) -> str:
        """Name the rule that an entry would break after these; "" if it breaks none."""
        return _CHECKS[content["kind"]](self, content)

    def apply(self, content: Content) -> None:
        """Apply an entry that breaks no rule."""
        _APPLY[content["kind"]](self, content)

    def missing_signatures(self, content: Content) -> tuple[str, ...]:
        """Return the roles whose signature a change of roles or signatories still lacks."""
        if not self.is_set_up:
            return ()
        roles = {self.signatories[name].role for name in content["signatures"]}
        return tuple(role for role in self.roles if role in self._served and role not in roles)

    def _check_signatures(self, content: Content) -> str:
        """Check the signatures of people in an entry."""
        if content["after"] != content.get("previous"):
            return "its signature was made after another entry than the one before it"
        for name in content["signatures"]:
            signatory = self.find_active(name)
            if signatory is None:
                return f"{name!r} may not sign: no signatory of this name is in the register"
            if not is_signed_by_person(content, name, signatory.key):
                return f"the signature is not that of {name}"
        return ""

    def _check_start(self, content: Content) -> str:
        return "the register starts twice" if self.roles else ""

    def _check_change(self, content: Content) -> str:
        """Check a change of roles or signatories, which each role must sign."""
        if fault := self._check_signatures(content):
            return fault
        if missing := self.missing_signatures(content):
            return f"it lacks the signature of: {', '.join(missing)}"
        if content["kind"] == ROLES:
            return "" if self.is_set_up else "roles change after each role has a signatory, not before"
        if content["role"] not in self.roles:
            return f"no model needs the role {content['role']!r}; roles are: {', '.join(self.roles)}"
        if self.find_active(content["name"]) is not None:
            return f"there is a signatory {content['name']!r} already"
        if any(s.key.hex() == content["key"] for s in self.signatories.values()):
            return "another signatory has this key"
        if is_weak(bytes.fromhex(content["key"])) or not has_valid_proof(content):
            return f"it does not prove that {content['name']} has the key"
        return ""

    def _check_end(self, content: Content) -> str:
        if fault := self._check_signatures(content):
            return fault
        if not content["signatures"]:
            return "nobody signed it"
        return "" if self.find_active(content["name"]) else f"there is no signatory {content['name']!r}"

    def _check_candidate(self, content: Content) -> str:
        if not content["purpose"].strip() or not content["hospitals"]:
            return "it has no purpose, or names no hospital"
        record = self.find_record(content["model"]["folder"])
        if record is not None and record.state is not State.WITHDRAWN:
            return f"{record.folder} is in the register already, as {record.state}"
        return ""

    def _check_decision(self, content: Content) -> str:
        if fault := self._check_signatures(content):
            return fault
        record, signatory = self.records.get(content["candidate"]), self.signatories[content["by"]]
        if record is None:
            return f"entry {content['candidate']} is no candidate"
        if signatory.role != content["role"] or signatory.role not in self.roles:
            return f"{signatory.name} signs as {content['role']!r}, which is not their role or not required"
        if record.state is State.WITHDRAWN:
            return f"{record.folder} is withdrawn"
        kind = content["kind"]
        if kind == WITHDRAW_MODEL:
            return "" if content["note"].strip() else "a withdrawal needs a reason"
        if kind == APPROVE:
            if record.state is not State.CANDIDATE:
                return f"{record.folder} is {record.state}, no candidate"
            return (
                f"the role {content['role']!r} has approved it already" if content["role"] not in record.missing else ""
            )
        if record.state is State.CANDIDATE:
            return f"{record.folder} is not approved yet; missing: {', '.join(record.missing)}"
        outside = [h for h in content["hospitals"] if h not in record.hospitals]
        approved = ", ".join(record.hospitals[:20])
        return f"it was approved for {approved}, not for {', '.join(outside[:5])}" if outside else ""

    def _start(self, content: Content) -> None:
        self.roles = tuple(content["roles"])

    def _change_roles(self, content: Content) -> None:
        self.roles = tuple(content["roles"])
        for record in self.records.values():
            if record.state is State.CANDIDATE:
                self._settle(record)

    def _add_signatory(self, content: Content) -> None:
        key = bytes.fromhex(content["key"])
        self.signatories[content["name"]] = Signatory(content["name"], content["role"], key, content["date"])
        self._served.add(content["role"])
        self.is_set_up = self.is_set_up or self._served >= set(self.roles)

    def _end_signatory(self, content: Content) -> None:
        self.signatories[content["name"]] = replace(self.signatories[content["name"]], ended=content["date"])

    def _add_candidate(self, content: Content) -> None:
        event = _event(content, "proposed as candidate")
        record = ModelRecord(
            event.number, content["date"], content["model"], content["purpose"], tuple(content["hospitals"]), content["by"],
            missing=self.roles, history=(event,), version=event.number,
        )  # fmt: skip
        self.records[record.number] = record

    def _approve(self, content: Content) -> None:
        record, event = self.records[content["candidate"]], _event(content, "approved")
        self._settle(replace(record, approvals=(*record.approvals, event), history=(*record.history, event)))

    def _settle(self, record: ModelRecord) -> None:
        """Store a candidate, approved where no role is missing."""
        signed = {event.role for event in record.approvals}
        missing = tuple(role for role in self.roles if role not in signed)
        state = State.CANDIDATE if missing else State.APPROVED
        self.records[record.number] = replace(record, missing=missing, state=state)

    def _use(self, content: Content) -> None:
        record, hospitals = self.records[content["candidate"]], tuple(content["hospitals"])
        for other in list(self.records.values()):
            left = tuple(h for h in other.in_use if h not in hospitals)
            if other.number == record.number or left == other.in_use or purpose_key(other) != purpose_key(record):
                continue
            event = _event(
                content, f"replaced at {', '.join(h for h in other.in_use if h in hospitals)} by {record.folder}"
            )
            self._put(other, left, event)
        action = f"put in use at {', '.join(hospitals)}" if hospitals else "taken out of use"
        self._put(record, hospitals, _event(content, action))

    def _put(self, record: ModelRecord, hospitals: tuple[str, ...], event: Event) -> None:
        state = State.IN_USE if hospitals else State.APPROVED
        history = (*record.history, event)
        self.records[record.number] = replace(
            record, state=state, in_use=hospitals, history=history, version=event.number
        )

    def _withdraw(self, content: Content) -> None:
        record, event = self.records[content["candidate"]], _event(content, "withdrawn")
        self.records[record.number] = replace(
            record, state=State.WITHDRAWN, in_use=(), missing=(), history=(*record.history, event), version=event.number
        )


_CHECKS = {
    START: RegisterState._check_start, ROLES: RegisterState._check_change, SIGNATORY: RegisterState._check_change,
    END_SIGNATORY: RegisterState._check_end, CANDIDATE: RegisterState._check_candidate,
    **dict.fromkeys(DECISIONS, RegisterState._check_decision),
}  # fmt: skip
_APPLY = {
    START: RegisterState._start, ROLES: RegisterState._change_roles, SIGNATORY: RegisterState._add_signatory,
    END_SIGNATORY: RegisterState._end_signatory, CANDIDATE: RegisterState._add_candidate, APPROVE: RegisterState._approve,
    USE: RegisterState._use, WITHDRAW_MODEL: RegisterState._withdraw,
}  # fmt: skip


def replay(contents: Sequence[Content]) -> RegisterState:
    """Apply the entries of a register in order.

    Args:
        contents: The entries, each of a valid form.

    Returns:
        The state, with the entries that break a rule in `faults`.
    """
    state = RegisterState()
    for content in contents:
        if fault := state.check(content):
            state.faults.append((content["number"], fault))
        else:
            state.apply(content)
    return state


def purpose_key(record: ModelRecord) -> str:
    """Return a purpose without differences of case and spaces, by which models replace each other."""
    return " ".join(record.purpose.casefold().split())


def _event(content: Content, action: str) -> Event:
    by, role = str(content["by"]), str(content.get("role", ""))
    return Event(content["number"], content["date"], action, by, role, content["note"])
