"""The record of a watch: a ledger signed by the site, with its start, readings, alarms, and what people did about them.

The ledger is the source of truth for the state of an alarm. An alarm is open until somebody acknowledges it. A person can
silence a check until a day or a number of patients: it still counts and its alarms are recorded, but nobody is notified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.audit.entry import Content
from grandrounds.audit.files import hash_values
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.watch_entry import ACKNOWLEDGE, ACTION, ALARM, NOTICE, READING, SILENCE, START, start_entry
from grandrounds.capabilities.watch.at_sites.alarm_states import (
    OPEN,
    RecordedAlarm,
    Silence,
    follow,
    read_silence,
    with_silence,
)
from grandrounds.capabilities.watch.at_sites.signer import LEDGER as LEDGER
from grandrounds.capabilities.watch.at_sites.signer import Signer
from grandrounds.core.arrays import plain, write_atomic
from grandrounds.core.errors import BadInput, nearest
from grandrounds.protocol.identity import public_pem

if TYPE_CHECKING:
    from grandrounds.audit.verify import Finding
    from grandrounds.runs.run import Run

HEAD, KEY = "ledger.head.json", "site.pub"
"""Files of a watch's record beside its ledger: the newest head, and the public key that signs it."""

BASELINE, STATE, STATUS, ALARMS = "baseline.safetensors", "state.safetensors", "watch.json", "alarms.json"
"""Files of a watch that its record vouches for."""

_DETAILS = ("since_sentence", "harm_sentence")
"""Sentences of an alarm besides the one that says what changed: since when, and whether the model's figures suffer."""

_LONGEST = 2000
"""Characters of a name or a note that are recorded."""


@dataclass(frozen=True)
class WatchStart:
    """Facts at the start of a watch.

    Attributes:
        run: Name of the run.
        site: The site.
        folder: Name of the run's folder.
        entries: Entries in the run's ledger; 0 without one.
        root: Root of the run's ledger; "" without one.
        model: SHA-256 of the model that the site uses.
        baseline: SHA-256 of the file baseline.safetensors.
        rates: Stated false-alarm rate of each check, per patient.
        alarms_per_5000: Stated bound over all checks, in alarms per 5,000 patients.
    """

    run: str
    site: str
    folder: str
    entries: int
    root: str
    model: str
    baseline: str
    rates: Mapping[str, float]
    alarms_per_5000: float

    @classmethod
    def of_run(
        cls, run: Run, site: str, *, model: str, baseline: str, rates: Mapping[str, float], alarms_per_5000: float
    ) -> WatchStart:
        """Collect the facts of a run: its name, its folder and the head of its ledger, beside those of the watch."""
        entries, root = 0, ""
        if (run.folder / LEDGER).exists():
            with run.ledger as ledger:
                signed = ledger.head()
            entries, root = (0, "") if signed is None else (signed.head.size, signed.head.root.hex())
        name, folder = str(run.summary["name"]), run.folder.resolve().name
        return cls(name, site, folder, entries, root, model, baseline, rates, alarms_per_5000)


class WatchRecord:
    """The ledger of a watch. Without a signer it can be read; with one it can be extended."""

    def __init__(self, folder: Path, ledger: Ledger, signer: Signer | None) -> None:
        self.folder, self._ledger, self._signer = folder, ledger, signer
        self._entries: list[Content] = []

    @classmethod
    def open(cls, folder: str | Path, *, signer: Signer | None = None) -> WatchRecord:
        """Open the record in the folder of a watch; with a signer it is verified first, and created if missing.

        Args:
            folder: The folder of the watch.
            signer: The site's key, for appending.

        Returns:
            The record.

        Raises:
            BadInput: There is no record to read, it does not verify, or another key signs it.
        """
        folder = Path(folder)
        path = folder / LEDGER
        if signer is None and not path.exists():
            raise BadInput(
                f"{folder} has no record of a watch ({LEDGER}): `rounds watch RUN --table FILE` starts one",
                code="no-watch-record",
            )
        if signer is not None and not path.exists() and (folder / HEAD).exists():
            raise BadInput(
                f"{path} was removed, because {HEAD} is the head of a ledger: restore it, or start a watch in another folder",
                code="no-watch-record",
            )
        ledger = Ledger.open(path, identity=None if signer is None else signer.identity)
        record = cls(folder, ledger, signer)
        try:
            if signer is not None and len(ledger):
                record._check(signer)
        except BaseException:
            ledger.close()
            raise
        return record

    def close(self) -> None:
        self._ledger.close()

    def __enter__(self) -> WatchRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def entries(self) -> Sequence[Content]:
        """All entries in order, with those that another process added since."""
        if len(self._ledger) != len(self._entries):
            self._entries += [entry.content for entry in self._ledger.book().entries[len(self._entries) :]]
        return self._entries

    @property
    def started(self) -> Content | None:
        """The newest start of the watch; None before the first."""
        return next((e for e in reversed(self.entries) if e["kind"] == START), None)

    @property
    def patients(self) -> int:
        """Patients read since the watch started, by its readings and alarms."""
        return max((_count(e) for e in self._since_start()), default=0)

    def start(self, facts: WatchStart) -> bool:
        """Record the start of the watch, unless the newest start has the same facts.

        Args:
            facts: The facts.

        Returns:
            True if an entry was written: the watch is new, or starts again with another model or baseline.
        """
        signer = self._need_signer()
        content = start_entry(
            facts.run,
            site=facts.site,
            date=_now(),
            study={"folder": facts.folder, "entries": facts.entries, "root": facts.root},
            model=facts.model,
            baseline=facts.baseline,
            rates=facts.rates,
            alarms_per_5000=facts.alarms_per_5000,
            key=signer.identity.public,
            made=signer.made,
        )
        before = self.started
        if before is not None and all(before.get(name) == value for name, value in content.items() if name != "date"):
            return False
        if before is not None and before["site"] != facts.site:
            raise BadInput(
                f"{self.folder} is the watch of {before['site']}, not of {facts.site}: choose another folder", code="wrong-site"
            )
        if before is not None and before["run"] != facts.run:
            raise BadInput(
                f"{self.folder} is the watch of run {before['run']}, not of {facts.run}: choose another folder", code="wrong-run"
            )
        write_atomic(self.folder / KEY, public_pem(signer.identity.public), durable=False)
        self._append(content)
        return True

    def add_reading(
        self, status: Mapping[str, Any], alarms: Sequence[Mapping[str, Any]] = (), *, new: int, state: bytes | None = None
    ) -> tuple[str, ...]:
        """Record one reading of patients and the alarms that it raised, in one durable transaction.

        Call it before the files of the watch are written: a reading that was recorded before a crash, and is repeated after
        it, is not recorded twice.

        Args:
            status: The content of watch.json: patients, labelled, checks and so on. Its hashes are recorded.
            alarms: Alarms since the start, those of earlier readings too, with check, kind, column, direction, time, patient,
                since, patients, sentence, advice and figures.
            new: Patients that this reading added.
            state: The future content of state.safetensors, whose hash is recorded.

        Returns:
            The id of each alarm, in order: A1, A2 and so on.
        """
        common, date = self._common(), _now()
        recorded = {_key(e): str(e["alarm"]) for e in self._since_start() if e["kind"] == ALARM}
        count = sum(e["kind"] == ALARM for e in self.entries)
        contents: list[Content] = []
        ids = []
        for alarm in alarms:
            if _key(alarm) not in recorded:
                count += 1
                recorded[_key(alarm)] = f"A{count}"
                contents.append({**common, "date": str(alarm.get("time") or date), **_alarm(f"A{count}", alarm)})
            ids.append(recorded[_key(alarm)])
        reading = {
            **common,
            "kind": READING,
            "date": date,
            "new": int(new),
            "patients": int(status["patients"]),
            "labelled": int(status.get("labelled", 0)),
            "alarms": len(contents),
            "status": hash_status(status),
            **({} if state is None else {"state": hashlib.sha256(state).hexdigest()}),
        }
        last = next((e for e in reversed(self._since_start()) if e["kind"] == READING), {})
        if contents or any(last.get(name) != reading[name] for name in ("patients", "labelled", "status")):
            self._append(*contents, reading)
        return tuple(ids)

    def acknowledge(self, alarm: str, *, by: str, note: str = "") -> RecordedAlarm:
        """Record that a person has taken notice of an alarm.

        Args:
            alarm: The alarm's id.
            by: The person's name.
            note: A remark.

        Returns:
            The alarm with its new state.

        Raises:
            BadInput: There is no such alarm, or no name is given.
        """
        known = self.alarm(alarm)
        self._append({**self._common(), "kind": ACKNOWLEDGE, "date": _now(), "alarm": known.id, **_person(by, note)})
        return self.alarm(known.id)

    def silence(
        self, check: str, *, by: str, note: str = "", until: datetime | None = None, patients: int | None = None
    ) -> Silence:
        """Record that a person silences a check. A later silence of the same check replaces an earlier one.

        Args:
            check: The check's name.
            by: The person's name.
            note: The cause.
            until: Time at which the silence ends.
            patients: Number of further patients after which the silence ends.

        Returns:
            The silence.

        Raises:
            BadInput: There is no such check, no end, or no name.
        """
        known = self._known_checks()
        if check not in known:
            raise BadInput(f"the watch in {self.folder} has no check '{check}'; {nearest(check, known)}", code="unknown-check")
        if until is None and patients is None:
            raise BadInput(
                f"the silence of '{check}' has no end: give a day (--until) or a number of patients (--patients)",
                code="missing-option",
            )
        end = None if until is None else until.astimezone(UTC).isoformat(timespec="seconds")
        count = None if patients is None else self.patients + patients
        content = {"kind": SILENCE, "date": _now(), "check": check, "until": end, "patients": count, **_person(by, note)}
        self._append({**self._common(), **content})
        return read_silence(content)

    def act(
        self,
        action: str,
        *,
        by: str,
        alarm: str | None = None,
        note: str = "",
        figures: Mapping[str, float] | None = None,
        models: Mapping[str, str] | None = None,
    ) -> None:
        """Record an action: a recalibration, a retraining, a repaired column.

        Args:
            action: The action in a few words.
            by: The person's name, or the command.
            alarm: The alarm that caused it; None for an action without one.
            note: A remark.
            figures: Numbers of the action, such as slope and intercept.
            models: SHA-256 of the model files "before" and "after", of an action that changes the model.

        Raises:
            BadInput: There is no such alarm, no name, or no action.
        """
        known = None if alarm is None else self.alarm(alarm).id
        if not action.strip():
            raise BadInput("the action is empty: say in a few words what was done (--action)", code="missing-option")
        content = {"kind": ACTION, "date": _now(), "alarm": known, "action": action[:_LONGEST], **_person(by, note)}
        changed = {} if models is None else {"models": dict(models)}
        self._append({**self._common(), **content, "figures": _numbers(figures or {}), **changed})

    def add_notice(self, alarm: str, *, hook: str, result: str) -> None:
        """Record the result of a hook, unless the newest notice says the same.

        Args:
            alarm: The alarm's id.
            hook: The hook's name; never its arguments, which may hold a secret.
            result: DELIVERED, or the cause of its failure.
        """
        if self.alarm(alarm).notices.get(hook) == result:
            return
        content = {"kind": NOTICE, "date": _now(), "alarm": alarm, "hook": hook, "result": result[:_LONGEST]}
        self._append({**self._common(), **content})

    def alarm(self, name: str, *, now: datetime | None = None) -> RecordedAlarm:
        """Return one alarm by its id.

        Raises:
            BadInput: There is no such alarm.
        """
        alarms = {alarm.id: alarm for alarm in self.alarms(now=now)}
        found = alarms.get(name) or alarms.get(name.upper())
        if found is None:
            listed = "; ".join(f"{a.id}: {a.content['sentence']}" for a in [*alarms.values()][-10:])
            known = f"the newest are {listed}" if listed else "it has raised none"
            raise BadInput(f"the watch in {self.folder} has no alarm '{name}': {known}", code="unknown-alarm")
        return found

    def alarms(self, *, now: datetime | None = None, patients: int | None = None) -> tuple[RecordedAlarm, ...]:
        """List all alarms with their states, the oldest first.

        Args:
            now: The time at which silences count; None is the present.
            patients: Patients that the watch has read; None takes the record's own count.

        Returns:
            The alarms.
        """
        silences = {s.check: s for s in self.silences(now=now, patients=patients)}
        found: dict[str, RecordedAlarm] = {}
        for entry in self.entries:
            kind, name = entry["kind"], entry.get("alarm")
            if kind == ALARM:
                found[str(name)] = RecordedAlarm(str(name), entry, OPEN)
            elif name in found:
                found[name] = follow(found[name], entry)
        return tuple(with_silence(alarm, silences.get(alarm.content["check"])) for alarm in found.values())

    def silences(self, *, now: datetime | None = None, patients: int | None = None) -> tuple[Silence, ...]:
        """List the silences that hold at a time; of a check only the newest counts.

        Patients are counted from the start of a watch, so a silence for a number of patients ends when it starts again.
        """
        at, count = now or datetime.now(UTC), self.patients if patients is None else patients
        first = len(self.entries) - len(self._since_start())
        newest = {e["check"]: (n, read_silence(e)) for n, e in enumerate(self.entries) if e["kind"] == SILENCE}
        counted = [s for n, s in newest.values() if s.patients is None or n > first]
        return tuple(s for s in counted if s.is_active(now=at, patients=count))

    def verify(self, key: bytes | None = None) -> list[Finding]:
        """Verify the ledger with the site's public key and the head beside it.

        Args:
            key: The key; None takes the one that the ledger names.

        Returns:
            The findings; empty if it verifies.
        """
        heads = [SignedHead.read(self.folder / HEAD)] if (self.folder / HEAD).exists() else []
        return self._ledger.verify(key, heads=heads)

    def _check(self, signer: Signer) -> None:
        started = self.started
        if started is not None and started["keys"].get("site") != signer.identity.public.hex():
            raise BadInput(
                f"the record in {self.folder} is signed by key {str(started['keys'].get('site'))[:16]}..., and the given key is "
                f"{signer.identity.public.hex()[:16]}...: give the site's key with --key; where the site changed its key, move "
                "the folder away and start a new watch",
                code="wrong-key",
            )
        findings = self.verify(signer.identity.public)
        if findings:
            raise BadInput(
                f"the record in {self.folder} does not verify: {findings[0]}; `rounds audit verify {self.folder}` lists all",
                code="ledger-does-not-verify",
            )

    def _since_start(self) -> Sequence[Content]:
        entries = self.entries
        first = max((n for n, e in enumerate(entries) if e["kind"] == START), default=0)
        return entries[first:]

    def _known_checks(self) -> list[str]:
        started = self.started
        return [] if started is None else sorted(started["rates"])

    def _common(self) -> Content:
        started = self.started
        if started is None:
            raise BadInput(
                f"the watch in {self.folder} has not started: `rounds watch RUN --table FILE` starts it", code="no-watch-record"
            )
        return {"run": started["run"], "site": started["site"]}

    def _need_signer(self) -> Signer:
        if self._signer is None:
            raise BadInput(
                f"the record in {self.folder} was opened for reading: appending requires the site's key", code="read-only-ledger"
            )
        return self._signer

    def _append(self, *contents: Content) -> None:
        self._need_signer()
        head = self._ledger.append(str(contents[0]["run"]), *contents)
        write_atomic(self.folder / HEAD, head.to_bytes(), durable=False)


def hash_status(status: Mapping[str, Any]) -> dict[str, str]:
    """Hash each value of watch.json that a reading fixes: everything but alarms and states, which people change."""
    kept = {name: value for name, value in plain(status).items() if name != "alarms"}
    if isinstance(kept.get("checks"), list):
        kept["checks"] = [{k: v for k, v in check.items() if k != "status"} for check in kept["checks"]]
    return hash_values(kept)


def hash_alarm(alarm: Mapping[str, Any]) -> dict[str, str]:
    """Hash each value of an alarm in alarms.json: everything but its id, which the record gives, and its state."""
    return hash_values({name: value for name, value in plain(alarm).items() if name not in ("id", "state")})


def alarm_parts(alarm: Mapping[str, Any]) -> Content:
    """Return the parts of an alarm that are recorded, from alarms.json or watch.json; no value of a patient is among them."""
    return {
        "check": str(alarm["check"]),
        "type": str(alarm["kind"]),
        "column": None if alarm.get("column") in (None, "") else str(alarm["column"]),
        "direction": str(alarm.get("direction") or ""),
        "patient": int(alarm["patient"]),
        "since": int(alarm["since"]),
        "patients": int(alarm["patients"]),
        "sentence": str(alarm["sentence"])[:_LONGEST],
        "details": [str(alarm[name])[:_LONGEST] for name in _DETAILS if alarm.get(name)],
        "advice": [str(sentence)[:_LONGEST] for sentence in alarm.get("advice") or ()],
        "figures": _numbers(alarm.get("figures") or {}),
    }


def _alarm(name: str, alarm: Mapping[str, Any]) -> Content:
    return {"kind": ALARM, "alarm": name, **alarm_parts(alarm), "hashes": hash_alarm(alarm)}


def _key(alarm: Mapping[str, Any]) -> tuple[str, int]:
    """Identify an alarm since the start of a watch: a check alarms once at a patient."""
    return str(alarm["check"]), int(alarm["patient"])


def _count(entry: Content) -> int:
    return int(entry["patients"]) if entry["kind"] == READING else int(entry["patient"]) if entry["kind"] == ALARM else 0


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): value for name, value in plain(values).items() if type(value) in (int, float)}


def _person(by: str, note: str) -> Content:
    if not by.strip():
        raise BadInput("no name is given: say who decides (--by NAME)", code="missing-option")
    return {"by": by.strip()[:_LONGEST], "note": note.strip()[:_LONGEST]}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
