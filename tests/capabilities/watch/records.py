"""A small record of a watch for tests: real keys and files, no patients."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from grandrounds.audit.entry import SIMULATED
from grandrounds.audit.ledger import Ledger
from grandrounds.capabilities.watch.at_sites.record import WatchRecord, WatchStart
from grandrounds.capabilities.watch.at_sites.signer import Signer, find_signer
from grandrounds.protocol.identity import Identity

SITE = Identity.simulated(7, "va")
SIGNER = Signer(SITE, SIMULATED)
BASELINE, STATE = b"reference rows", b"evidence so far"
CHECKS = ("age up", "age missing", "score up")
FACTS = WatchStart(
    run="heart-7",
    site="va",
    folder="heart",
    entries=5,
    root="ab" * 32,
    model="cd" * 32,
    baseline=hashlib.sha256(BASELINE).hexdigest(),
    rates=dict.fromkeys(CHECKS, 2e-5),
    alarms_per_5000=1.0,
)


def status(patients: int = 120, *, alarms: tuple[dict, ...] = ()) -> dict:
    """The content of watch.json."""
    checks = [
        {
            "name": name, "kind": kind, "column": column, "direction": direction, "rate": 2e-5, "reference": 54.25,
            "current": 61.5, "evidence": -3.5 + n, "status": "quiet",
        }
        for n, (name, kind, column, direction) in enumerate(
            zip(CHECKS, ("shift", "missing", "score"), ("age", "age", ""), ("up", "", "up"), strict=True)
        )
    ]  # fmt: skip
    timeline = [
        {"patients": n, "time": f"2026-11-18T0{n // 60}:00:00+00:00", "evidence": {c["name"]: c["evidence"] for c in checks}}
        for n in range(60, patients + 1, 60)
    ]
    return {
        "schema": 1, "run": FACTS.run, "site": FACTS.site, "model": FACTS.model, "patients": patients, "labelled": 0,
        "reference": {"rows": 80, "patients": 80}, "rate": {"alarms_per_5000": 1.0, "threshold": 5000.0},
        "checks": checks, "timeline": timeline, "alarms": list(alarms),
    }  # fmt: skip


def alarm(check: str = "age up", patient: int = 118, **changes) -> dict:
    """An alarm, as watch.json has it."""
    return {
        "id": "A1", "check": check, "kind": "shift", "column": "age", "direction": "up", "time": "2026-11-18T02:00:00+00:00",
        "patient": patient, "since": 71, "patients": 48, "sentence": "Age has been higher since patient 71.",
        "since_sentence": "Since patient 71, for 48 patients.", "harm_sentence": "No outcome is known yet.",
        "advice": ["Check the unit of the column."], "state": "open", "figures": {"reference": 54.25, "current": 61.5},
        **changes,
    }  # fmt: skip


def started(folder: Path) -> WatchRecord:
    """A record that has started."""
    folder.mkdir(parents=True, exist_ok=True)
    record = WatchRecord.open(folder, signer=SIGNER)
    record.start(FACTS)
    return record


def alarmed(folder: Path) -> Path:
    """A folder of a watch: 60 patients without an alarm, then an alarm at patient 118, with its files."""
    with started(folder) as record:
        record.add_reading(status(60), new=60)
        record.add_reading(status(120), [alarm()], new=60, state=STATE)
    write_files(folder)
    return folder


def write_files(folder: Path, **changes) -> None:
    """Write the files of a watch with the alarm."""
    (folder / "watch.json").write_text(json.dumps({**status(120, alarms=(alarm(**changes),))}))
    (folder / "baseline.safetensors").write_bytes(BASELINE)
    (folder / "state.safetensors").write_bytes(STATE)
    (folder / "alarms.json").write_text(json.dumps({"schema": 1, "alarms": [alarm(**changes)]}))


def alarmed_run(run: Path, site: str, *, column: str = "age") -> Path:
    """The watch of a site of a finished run: an alarm that is acknowledged, one whose check is silenced, and an open one."""
    folder = run / "at_sites" / site / "watch"
    folder.mkdir(parents=True)
    (folder / "baseline.safetensors").write_bytes(BASELINE)
    (folder / "state.safetensors").write_bytes(STATE)
    with Ledger.open(run / "ledger.db") as ledger:
        size, root, name = len(ledger), ledger.tree().root().hex(), next(ledger.entries())["run"]
    raised = enumerate(zip(CHECKS, (118, 119, 120), strict=True), 1)
    alarms = tuple(alarm(check, patient, id=f"A{n}", column=column) for n, (check, patient) in raised)
    found = {**status(120, alarms=alarms), "run": name, "site": site}
    with WatchRecord.open(folder, signer=find_signer(folder, site=site)) as record:
        record.start(replace(FACTS, run=name, site=site, folder=run.name, entries=size, root=root))
        record.add_reading(found, alarms, new=120, state=STATE)
        record.acknowledge("A1", by="M. Curie", note="the new monitor")
        record.act("unit corrected", by="IT", alarm="A1")
        record.silence(CHECKS[1], by="M. Curie", patients=500)
        record.add_notice("A3", hook="mail 12ab34cd", result="exit code 1")
    (folder / "watch.json").write_text(json.dumps(found))
    (folder / "alarms.json").write_text(json.dumps({"schema": 1, "alarms": list(alarms)}))
    return folder
