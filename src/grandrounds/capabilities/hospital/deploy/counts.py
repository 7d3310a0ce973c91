"""Counts of a server's messages and rounds, for Prometheus.

A run's process counts the events that it logs and writes the counts to `state/counts.json`; the server's page reads them. The
next run continues them, so they only grow. They serve monitoring only: a damaged file starts from zero.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.event_log import fields_of
from grandrounds.core.prometheus import Metrics, label
from grandrounds.engine.exchange_log import HELLO, RECEIVED, REFUSED, SENT, UNANSWERED

FILE = "counts.json"
STARTED, ROUND, FINISHED, FAILED = "run started", "round finished", "run finished", "run failed"
"""Events of a run's process."""

_PAIRS = ("messages", "bytes", "refusals")
_EVERY = 2.0
"""Seconds between two writes."""


@dataclass
class Counts:
    """Counts over all runs of a server, and the progress of the current run.

    Attributes:
        messages: (site, event) -> messages.
        bytes: (site, direction) -> bytes.
        refusals: (site, code) -> refused Asks and requests without an answer.
        seconds: site -> seconds between requests and their answers.
        last: site -> time of its last answer.
        rounds: Committed rounds.
        failures: code -> failed runs.
        run: Of the current or last run: name, round, planned rounds, seconds of the last round, its time, missing sites.
    """

    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    run: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Counts:
        """Load counts; zero where the file is missing or damaged."""
        try:
            values = json.loads(path.read_text())
            pairs = {name: Counter({(s, k): n for s, k, n in values[name]}) for name in _PAIRS}
            return cls(
                **pairs,
                seconds=Counter(values["seconds"]),
                last=dict(values["last"]),
                rounds=int(values["rounds"]),
                failures=Counter(values["failures"]),
                run=dict(values["run"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Save the counts in one step."""
        values: dict[str, Any] = {name: [[s, k, n] for (s, k), n in getattr(self, name).items()] for name in _PAIRS}
        values |= {"seconds": self.seconds, "last": self.last, "rounds": self.rounds, "failures": self.failures, "run": self.run}
        write_atomic(path, json.dumps(values).encode(), durable=False)

    def add(self, fields: dict[str, Any], at: float) -> None:
        """Add one event that was logged at this time."""
        site, event = str(fields.get("site", "")), fields.get("event")
        greeting = fields.get("task") == HELLO  # sent before the site at an address is known
        if event in (SENT, RECEIVED, UNANSWERED) and not greeting:
            self.messages[site, str(event).split()[-1]] += 1
        if event in (REFUSED, UNANSWERED):
            self.refusals[site, str(fields["code"])] += 1
        if event in (SENT, RECEIVED) and not greeting:
            self.bytes[site, "down" if event == SENT else "up"] += int(fields["bytes"])
        if event == RECEIVED:
            self.seconds[site] += fields["seconds"]
            self.last[site] = at
        if event == STARTED:
            self.run = {"run": fields["run"], "round": fields["round"], "rounds": fields["rounds"], "time": at}
        if event == ROUND:
            self.rounds += 1
            self.run |= {"round": fields["round"], "seconds": fields["seconds"], "time": at, "missing": fields["missing"]}
        if event == FAILED:
            self.failures[str(fields["code"])] += 1

    def metrics(self) -> Metrics:
        """Return the counts for Prometheus."""
        run = label(run=str(self.run.get("run", "")))
        progress = {
            "grandrounds_run_round": ("Last committed round of the current or last run.", "round"),
            "grandrounds_run_rounds_planned": ("Rounds that the run may have.", "rounds"),
            "grandrounds_round_duration_seconds": ("Seconds of the last round.", "seconds"),
            "grandrounds_last_round_timestamp_seconds": ("Time of the last round, or of the start of the run.", "time"),
            "grandrounds_round_missing_sites": ("Sites that were missing from the last round.", "missing"),
        }
        return {
            "grandrounds_messages_total": (
                "counter",
                "Messages between server and sites, by site and event.",
                {label(site=s, event=e): float(n) for (s, e), n in self.messages.items()},
            ),
            "grandrounds_message_bytes_total": (
                "counter",
                "Bytes of messages, by site and direction (down: to the site).",
                {label(site=s, direction=d): float(n) for (s, d), n in self.bytes.items()},
            ),
            "grandrounds_refusals_total": (
                "counter",
                "Asks that a site refused, and requests without an answer, by site and code.",
                {label(site=s, code=c): float(n) for (s, c), n in self.refusals.items()},
            ),
            "grandrounds_answer_seconds_total": (
                "counter",
                "Seconds between requests and their answers, by site.",
                {label(site=s): float(n) for s, n in self.seconds.items()},
            ),
            "grandrounds_last_message_timestamp_seconds": (
                "gauge",
                "Time of the last answer of a site.",
                {label(site=s): at for s, at in self.last.items()},
            ),
            "grandrounds_rounds_total": ("counter", "Committed rounds of all runs.", {"": float(self.rounds)}),
            "grandrounds_run_failures_total": (
                "counter",
                "Runs that failed, by code.",
                {label(code=c): float(n) for c, n in self.failures.items()},
            ),
            **{
                name: ("gauge", about, {run: float(self.run[key])} if key in self.run else {})
                for name, (about, key) in progress.items()
            },
        }


class CountEvents(logging.Handler):
    """Counts logged events and saves the counts at intervals. A full disk does not end a run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._next = path, 0.0
        self.counts = Counts.load(path)

    def emit(self, record: logging.LogRecord) -> None:
        fields = fields_of(record)
        if not fields:
            return
        self.counts.add(fields, record.created)
        if record.created >= self._next or fields["event"] in (STARTED, ROUND, FINISHED, FAILED):
            self._next = record.created + _EVERY
            self.write()

    def write(self) -> None:
        """Save the counts now."""
        try:
            self.counts.save(self._path)
        except OSError:
            return
