"""Metrics of a watch for Prometheus: patients read, evidence of each check, alarms by state, time of the last reading.

They are written to metrics.prom after each reading and each decision of a person, for the textfile collector. A site's health
page serves them too. Names of columns and checks are in them; no value of a patient is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from grandrounds.audit.watch_entry import READING, START
from grandrounds.capabilities.watch.at_sites.alarm_states import OPEN, RecordedAlarm, Silence
from grandrounds.capabilities.watch.at_sites.record import LEDGER, STATUS, WatchRecord
from grandrounds.core.arrays import read_json, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.prometheus import Metrics, label, merge_metrics, prometheus

FILE = "metrics.prom"
_PREFIX = "grandrounds_watch"


def watch_metrics(
    status: Mapping[str, Any], alarms: Sequence[RecordedAlarm], silences: Sequence[Silence], *, last: str | None
) -> Metrics:
    """Compute the metrics of one watch.

    Args:
        status: The content of watch.json.
        alarms: All alarms with their states.
        silences: Silences that hold now.
        last: Date of the last reading; None before the first.

    Returns:
        The metrics.
    """
    place = {"run": str(status["run"]), "site": str(status["site"])}
    whole = label(**place)
    counts = Counter((str(a.content["column"] or ""), str(a.content["type"]), a.state) for a in alarms)
    evidence = {
        label(**place, check=str(c["name"]), kind=str(c["kind"]), column=str(c.get("column") or "")): float(c["evidence"])
        for c in status["checks"]
        if c.get("evidence") is not None
    }
    rate = status.get("rate", {}).get("alarms_per_5000")
    found: dict[str, tuple[str, str, Mapping[str, float]]] = {
        "patients_total": ("counter", "Patients read since the watch started.", {whole: float(status["patients"])}),
        "labelled_total": ("counter", "Patients read with their outcome.", {whole: float(status["labelled"])}),
        "open_alarms": ("gauge", "Alarms that nobody acknowledged or silenced.", {whole: float(_count_open(alarms))}),
        "alarms": (
            "gauge",
            "Alarms by column, kind of check and state (open, acknowledged, silenced).",
            {label(**place, column=c, kind=k, state=s): float(n) for (c, k, s), n in sorted(counts.items())},
        ),
        "evidence": ("gauge", "Log of the evidence over its threshold: a check raises an alarm at 0.", evidence),
        "silenced": (
            "gauge",
            "1 for a check that a person silenced.",
            {label(**place, check=s.check): 1.0 for s in silences},
        ),
    }
    if rate is not None:
        found["stated_alarms_per_5000"] = ("gauge", "Stated false alarms in 5,000 patients, at most.", {whole: float(rate)})
    if last is not None:
        seconds = datetime.fromisoformat(last).timestamp()
        found["last_reading_timestamp_seconds"] = ("gauge", "Time of the last reading.", {whole: seconds})
    return {f"{_PREFIX}_{name}": value for name, value in found.items()}


def write_metrics(folder: Path, record: WatchRecord, status: Mapping[str, Any] | None = None) -> None:
    """Write metrics.prom of a watch in one step, so that a collector never reads half a file.

    Args:
        folder: The folder of the watch.
        record: Its record.
        status: The content of watch.json; None reads it.
    """
    write_atomic(folder / FILE, prometheus(_metrics(folder, record, status)).encode(), durable=False)


def read_metrics(folder: Path) -> Metrics:
    """Return the metrics of the watch in a folder and in its sub-folders; none where it has none or its files are damaged."""
    found = []
    for path in (folder, *sorted(p for p in folder.glob("*") if p.is_dir())):
        if not (path / LEDGER).is_file() or not (path / STATUS).is_file():
            continue
        stamps = [(path / name).stat() for name in (LEDGER, f"{LEDGER}-wal", STATUS) if (path / name).exists()]
        found.append(_read(path, tuple((s.st_mtime_ns, s.st_size) for s in stamps)))
    return merge_metrics(found)


@lru_cache(maxsize=32)
def _read(folder: Path, stamp: tuple[tuple[int, int], ...]) -> Metrics:
    """Read the metrics of a watch, once for each state of its files."""
    try:
        with WatchRecord.open(folder) as record:
            return _metrics(folder, record, None)
    except (BadInput, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # `rounds audit verify` names the damage


def _metrics(folder: Path, record: WatchRecord, status: Mapping[str, Any] | None) -> Metrics:
    content = read_json(folder / STATUS) if status is None else status
    patients = int(content["patients"])
    last = next((str(e["date"]) for e in reversed(record.entries) if e["kind"] in (READING, START)), None)
    return watch_metrics(content, record.alarms(patients=patients), record.silences(patients=patients), last=last)


def _count_open(alarms: Sequence[RecordedAlarm]) -> int:
    return sum(alarm.state == OPEN for alarm in alarms)
