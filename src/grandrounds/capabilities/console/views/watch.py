"""Watches of a run's model: for each site the patients read, the evidence of its checks, and its alarms with their states.

A hospital's watch is at the hospital. It is shown where its folder is at hand, in RUN/at_sites/SITE/watch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grandrounds.audit.verdict import AuditResult
from grandrounds.audit.watch_entry import READING
from grandrounds.capabilities.console.cache import get_cache, hide_root, read_checked, stamp_files
from grandrounds.capabilities.console.run_index import NotFound, RunEntry, RunIndex, Unreadable, refuse_file
from grandrounds.capabilities.watch.at_sites.alarm_states import RecordedAlarm
from grandrounds.capabilities.watch.at_sites.record import (
    ALARMS,
    BASELINE,
    HEAD,
    KEY,
    LEDGER,
    STATE,
    STATUS,
    WatchRecord,
)
from grandrounds.capabilities.watch.audit import audit_watch
from grandrounds.core.arrays import read_json
from grandrounds.report.figure import Figure
from grandrounds.report.figures.watch import evidence_over_patients

_FILES = (STATUS, LEDGER, f"{LEDGER}-wal", HEAD, ALARMS, STATE, BASELINE, KEY)
_MOMENT = 60.0
"""Seconds for which states of alarms are cached: a silence ends with time."""


class CheckLine(BaseModel):
    """A check of a watch. `evidence`: log over its threshold, so that 0 raises an alarm; `rate`: stated, per patient."""

    name: str
    kind: str
    text: str = ""
    column: str | None = None
    direction: str | None = None
    rate: float | None = None
    reference: float | None = None
    current: float | None = None
    evidence: float | None = None
    silence: str = ""


class AlarmLine(BaseModel):
    """An alarm with its state, as the record has it."""

    id: str
    date: str
    check: str
    kind: str
    column: str | None
    patient: int
    since: int
    patients: int
    sentence: str
    details: list[str]
    advice: list[str]
    state: str
    state_text: str
    actions: list[str]
    undelivered: list[str]


class RecordState(BaseModel):
    """Audit of a watch's record: its verdict, findings and notes."""

    verifies: bool
    simulated: bool
    text: str
    findings: list[str]
    notes: list[str]


class WatchView(BaseModel):
    """The watch of one site. `wrong`: the cause why it cannot be shown; empty if it can."""

    site: str
    wrong: str = ""
    started: str = ""
    last: str = ""
    patients: int = 0
    labelled: int = 0
    reference_rows: int = 0
    alarms_per_5000: float | None = None
    open: int = 0
    alarms: list[AlarmLine] = []
    checks: list[CheckLine] = []
    actions: list[str] = []
    record: RecordState | None = None
    has_figure: bool = False


def has_watches(run_index: RunIndex, name: str) -> bool:
    """Tell whether the folder of a run has a watch."""
    return bool(_folders(run_index.get(name)))


def watches(run_index: RunIndex, name: str) -> list[WatchView]:
    """Return the watches of a run, those with open alarms first."""
    entry = run_index.get(name)
    found = [_view(run_index, entry, site, folder) for site, folder in _folders(entry).items()]
    return sorted(found, key=lambda w: (not w.wrong, -w.open, w.site))


def figure(run_index: RunIndex, name: str, site: str) -> Figure:
    """Draw the evidence of the watch of a site.

    Raises:
        NotFound: The run has no watch of this site.
    """
    folders = _folders(run_index.get(name))
    if site not in folders:
        raise NotFound(f"run '{name}' has no watch of site '{site[:80]}'", code="unknown-figure")
    folder = folders[site]

    def draw() -> Figure:
        status = _status(folder, site)
        with WatchRecord.open(folder) as record:
            alarms = [{"id": a.id, "check": a.content["check"], "patient": a.content["patient"]} for a in record.alarms()]
        return evidence_over_patients(status.timeline, alarms, site=site, checks=len(status.checks))

    return read_checked(run_index, f"the watch of {site}", draw)


class _Status(BaseModel):
    """The parts of watch.json that the page shows."""

    patients: int
    labelled: int
    reference: dict[str, Any] = {}
    rate: dict[str, Any] = {}
    checks: list[CheckLine]
    timeline: list[dict[str, Any]]


def _folders(entry: RunEntry) -> dict[str, Path]:
    """List folders of watches by site; links are not followed."""
    found = {}
    for folder in sorted((entry.folder / "at_sites").glob("*/watch")):
        links = (folder.parent.parent, folder.parent, folder)
        if any(p.is_symlink() for p in links) or not (folder / LEDGER).exists():
            continue
        found[folder.parent.name] = folder
    return found


def _view(run_index: RunIndex, entry: RunEntry, site: str, folder: Path) -> WatchView:
    """Return a watch; where its files are damaged, the cause."""
    stamp = stamp_files(folder, _FILES)
    cache = get_cache(run_index)

    def make() -> WatchView:
        return read_checked(run_index, f"the watch of {site}", lambda: _read(run_index, entry, site, folder, stamp))

    try:
        return cache.get_or_make("watch", (entry.name, site), (stamp, int(time.time() / _MOMENT)), make)
    except Unreadable as e:
        return WatchView(site=site, wrong=str(e))


def _read(run_index: RunIndex, entry: RunEntry, site: str, folder: Path, stamp: object) -> WatchView:
    for name in _FILES:
        refuse_file(folder / name, f"{name} of the watch of {site}")
    audited = get_cache(run_index).get_or_make("watch audit", (entry.name, site), stamp, lambda: audit_watch(folder))
    state = _record_state(run_index, audited)
    if not (folder / STATUS).exists():
        with WatchRecord.open(folder) as record:
            return WatchView(site=site, started=_started(record), actions=_actions(record), record=state)
    status = _status(folder, site)
    with WatchRecord.open(folder) as record:
        last = next((str(e["date"]) for e in reversed(record.entries) if e["kind"] == READING), "")
        silences = {s.check: s.sentence for s in record.silences(patients=status.patients)}
        alarms = [_alarm(a) for a in reversed(record.alarms(patients=status.patients))]
        started, actions = _started(record), _actions(record)
    checks = [c.model_copy(update={"silence": silences.get(c.name, "")}) for c in status.checks]
    return WatchView(
        site=site,
        started=started,
        last=last,
        patients=status.patients,
        labelled=status.labelled,
        reference_rows=int(status.reference.get("rows", 0)),
        alarms_per_5000=status.rate.get("alarms_per_5000"),
        open=sum(a.state == "open" for a in alarms),
        alarms=alarms,
        checks=sorted(checks, key=lambda c: (-(c.evidence if c.evidence is not None else -1e9), c.name)),
        actions=actions,
        record=state,
        has_figure=bool(status.timeline),
    )


def _status(folder: Path, site: str) -> _Status:
    refuse_file(folder / STATUS, f"{STATUS} of the watch of {site}")
    try:
        return _Status.model_validate(read_json(folder / STATUS))
    except ValidationError as e:
        place = ".".join(str(part) for part in e.errors()[0]["loc"])
        sentence = f"the file {STATUS} of the watch of {site} is damaged: {place[:80]}"
        raise Unreadable(sentence, code="damaged-file") from None


def _alarm(alarm: RecordedAlarm) -> AlarmLine:
    content: Mapping[str, Any] = alarm.content
    return AlarmLine(
        id=alarm.id,
        date=content["date"],
        check=content["check"],
        kind=content["type"],
        column=content["column"],
        patient=content["patient"],
        since=content["since"],
        patients=content["patients"],
        sentence=content["sentence"],
        details=list(content["details"]),
        advice=list(content["advice"]),
        state=alarm.state,
        state_text=alarm.state_sentence,
        actions=[f"{a.action} by {a.by} on {a.date[:10]}" for a in alarm.actions],
        undelivered=[f"{hook}: {result}" for hook, result in alarm.notices.items() if not alarm.is_delivered(hook)],
    )


def _actions(record: WatchRecord) -> list[str]:
    """List actions that no alarm caused."""
    free = [e for e in record.entries if e["kind"] == "action" and e["alarm"] is None]
    return [f"{e['action']} by {e['by']} on {e['date'][:10]}" for e in free]


def _started(record: WatchRecord) -> str:
    started = record.started
    return "" if started is None else str(started["date"])


def _record_state(run_index: RunIndex, audited: AuditResult) -> RecordState:
    return RecordState(
        verifies=not audited.fails,
        simulated=audited.simulated,
        text=audited.line,
        findings=[hide_root(run_index, str(f)) for f in audited.findings],
        notes=[hide_root(run_index, note) for note in audited.notes],
    )
