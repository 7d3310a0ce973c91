"""Status of a watch for readers: watch.json, which the console and metrics read, and the lines of the terminal."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.watch.at_sites.alarm_states import OPEN, SILENCED
from grandrounds.capabilities.watch.at_sites.alarms import GROUPS, Narrator, Window
from grandrounds.capabilities.watch.at_sites.baseline import Baseline
from grandrounds.capabilities.watch.at_sites.patients import WatchedColumn
from grandrounds.capabilities.watch.at_sites.record import LEDGER, STATUS, WatchRecord
from grandrounds.capabilities.watch.at_sites.state import WatchState
from grandrounds.capabilities.watch.statistics import ALARMS as AIM
from grandrounds.capabilities.watch.statistics import (
    EXPLANATION,
    MISSING,
    PATIENTS,
    RANGE,
    SHIFT,
    UNSEEN,
    Check,
    Reference,
)
from grandrounds.capabilities.watch.statistics.checks import UP
from grandrounds.core.arrays import Array, read_json
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

CURRENT = 100
"""Newest patients whose figures are current."""
TOP = 8
"""Checks whose evidence is in the timeline: those of the newest alarms, then those that came closest to one."""
QUIET, HELD = "quiet", "alarm"
"""States of a check: no alarm, or an alarm after which it waits for a person."""
STATED = 1.0
"""Stated bound of false alarms of all checks together, in 5,000 patients like the reference."""
_LEAST = -30.0  # evidence that is shown for none at all


def build_status(
    run: Run, baseline: Baseline, reference: Reference, narrator: Narrator, state: WatchState, levels: Array
) -> dict[str, Any]:
    """Build the content of watch.json without its alarms.

    Args:
        run: The run.
        baseline: The reference patients.
        reference: The checks.
        narrator: Computes figures.
        state: The state of the watch.
        levels: (checks,) log evidence of each check against its threshold.
    """
    width = narrator.layout.width
    sums, rows, _ = state.blocks.since(max(1, state.patients - CURRENT + 1))
    now = Window(sums[:width], rows, sums[width:])
    levels = np.maximum(levels, _LEAST)
    quiet = state.detector["quiet"]
    checks = [
        {
            "name": check.name,
            "kind": check.kind,
            "column": check.column,
            "direction": check.direction,
            "group": next(group for group, kinds in GROUPS.items() if check.kind in kinds),
            "text": describe_check(check, narrator.column(check.column)),
            "rate": check.share / reference.limit,
            "reference": narrator.value(check, narrator.before),
            "current": narrator.value(check, now) if state.patients else None,
            "evidence": round(float(levels[k]), 4),
            "status": HELD if quiet[k] else QUIET,
        }
        for k, check in enumerate(reference.checks)
    ]
    epsilon = run.plan["privacy"].get("epsilon")
    private = "" if epsilon is None else f"; the run has a privacy budget (epsilon {epsilon}), and nothing of the watch is sent"
    return {
        "schema": 1,
        "run": str(run.summary["name"]),
        "site": baseline.site,
        "model": baseline.model,
        "patients": state.patients,
        "labelled": len(state.labelled),
        "waiting": len(state.waiting),
        "reference": {"rows": len(baseline.patients), "patients": baseline.count, "source": baseline.source},
        "rate": {
            "alarms_per_5000": STATED,
            "aim": AIM * 5000 / PATIENTS,
            "bound_per_5000": 5000 * sum(check.share for check in reference.checks) / reference.limit,
            "threshold": reference.limit,
        },
        "watched": [*baseline.observer.watched, f"privacy: the watch stays in this folder{private}"],
        "checks": checks,
        "timeline": _timeline(reference, state, levels),
    }


def _timeline(reference: Reference, state: WatchState, levels: Array) -> list[dict[str, Any]]:
    history = state.timeline
    largest = np.max(np.concatenate([history.evidence, levels[None]]), axis=0)
    raised = {alarm["check"]: None for alarm in reversed(state.alarms)}
    places = {check.name: k for k, check in enumerate(reference.checks)}
    order = dict.fromkeys([*(places[name] for name in raised), *np.argsort(-largest, kind="stable").tolist()])
    top = np.sort(list(order)[:TOP])
    return [
        {
            "patients": int(history.patients[t]),
            "time": None if math.isnan(history.time[t]) else format_moment(float(history.time[t])),
            "evidence": {reference.checks[k].name: round(float(history.evidence[t, k]), 4) for k in top.tolist()},
        }
        for t in range(len(history.patients))
    ]


def describe_check(check: Check, column: WatchedColumn | None) -> str:
    """Describe a check in a few words."""
    up, name = check.direction == UP, check.column
    if check.kind == SHIFT and column is not None and column.is_category and check.level is not None:
        return f"{name}: '{column.levels[check.level]}' {'more' if up else 'less'} often"
    if check.kind == SHIFT:
        return f"{name}: {'higher' if up else 'lower'}"
    if check.kind == EXPLANATION:
        return f"{name}: model relies {'more' if up else 'less'} on it"
    level = "" if check.level is None or name else f" of class {check.level + 1}"
    return {
        MISSING: f"{name}: {'more' if up else 'fewer'} missing values",
        UNSEEN: f"{name}: unknown codes or values",
        RANGE: f"{name}: outside the range",
    }.get(check.kind, f"{check.kind}{level}: {'higher' if up else 'lower'}")


def format_moment(time: float) -> str:
    """Write seconds since 1970 as ISO time (UTC)."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(timespec="seconds")


@contextmanager
def refuse_damage(folder: Path) -> Iterator[None]:
    """Refuse a watch.json that cannot be read, or shown."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise BadInput(
            f"{folder / STATUS} is damaged: run `rounds watch` again, which writes it", code="damaged-file"
        ) from None


def read_status(folder: Path) -> dict[str, Any]:
    """Read watch.json, with the states of alarms and checks as the record has them now."""
    content: dict[str, Any] = read_json(folder / STATUS)
    return content if not (folder / LEDGER).exists() else _with_states(folder, content)


def _with_states(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Add the states that people decided since the last reading."""
    with WatchRecord.open(folder) as record:
        known = {a.id: a for a in record.alarms(patients=content["patients"])}
        silenced = {s.check for s in record.silences(patients=content["patients"])}
    alarms = [
        {**a, "state": known[a["id"]].state, "state_text": known[a["id"]].state_sentence} if a["id"] in known else a
        for a in content["alarms"]
    ]
    checks = [{**c, "status": SILENCED} if c["name"] in silenced else c for c in content["checks"]]
    return {**content, "alarms": alarms, "checks": checks}


def summarize_groups(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Summarize the checks by group: number, open alarms, and the check that is closest to an alarm."""
    out = []
    for group, kinds in GROUPS.items():
        checks = [c for c in status["checks"] if c["kind"] in kinds]
        if checks:
            raised = sum(a["kind"] in kinds and a["state"] == OPEN for a in status["alarms"])
            waiting = [c for c in checks if c["status"] == QUIET]
            closest = max(waiting, key=lambda c: c["evidence"], default=None)
            out.append({"group": group, "checks": len(checks), "alarms": raised, "closest": closest})
    return out
