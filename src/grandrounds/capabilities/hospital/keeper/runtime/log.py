"""The site's own log: one line of JSON for each Ask. It never leaves the site.

It contains run, round, task, sizes, seconds and codes, but no patient values and no keys. `request` names the message: the
server's log has the same digits. A refusal has its code and a sentence, which are also told on the site's screen.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.capabilities.hospital.keeper.codes import NO_SESSION, OF_SITE_FILES, POLICY, STORAGE
from grandrounds.capabilities.hospital.keeper.runtime.answers import AnsweredAsk, AnsweredMessage
from grandrounds.core.errors import visible
from grandrounds.core.event_log import append_line
from grandrounds.core.prometheus import Metrics, label
from grandrounds.protocol.envelope import digest, request_id

_log = logging.getLogger("grandrounds.keeper")

_FAULTS = OF_SITE_FILES | {POLICY, STORAGE}
"""Codes of faults of the site itself: until its staff mend them, nothing is released."""

_MOST_TOLD = 1000
"""Refusals that are remembered, so that the screen shows a repeated one once."""


class SiteLog:
    """Writes log.jsonl and counts Asks, around a message handler. `say` shows a refusal to the site's staff."""

    def __init__(self, path: Path, handler: Callable[[bytes], AnsweredMessage]) -> None:
        self._path, self._handler = path, handler
        self._turn = threading.Lock()
        self.codes: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.seconds = 0.0
        self.bytes: Counter[str] = Counter()
        self.last = 0.0
        self.say: Callable[[str], None] = lambda sentence: None
        self.fault = ""
        self._told: set[tuple[str, str, str]] = set()

    def handle(self, message: bytes) -> bytes:
        """Answer a message, and log a line for each of its Asks."""
        began = time.monotonic()
        answered = self._handler(message)
        took = time.monotonic() - began
        request, up = request_id(digest(message)), len(answered.message)
        totals = {"seconds": round(took, 3), "down": len(message), "up": up}
        with self._turn:
            self.bytes["down"] += len(message)
            self.bytes["up"] += up
            self.seconds += took
            self.last = time.time()
            for ask in answered.asks:
                self.codes[ask.code or "answered"] += 1
                self.tasks[ask.task] += 1
                facts = {key: value for key, value in asdict(ask).items() if key != "sentence" or value}
                self._write({"request": request, **facts, **totals})
                self._tell(ask)
        return answered.message

    def _tell(self, ask: AnsweredAsk) -> None:
        """Show a refusal once for each run, code and sentence, and set `fault` while the site refuses everything."""
        self.fault = f"{ask.sentence} [{ask.code}]" if ask.code in _FAULTS else ""
        told = (ask.run, ask.code, ask.sentence)
        if not ask.code or ask.code == NO_SESSION or told in self._told:
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(told)
        self.say(visible(f"run {ask.run or '?'}: {ask.task} is refused: {ask.sentence} [{ask.code}]"))

    def _write(self, record: Mapping[str, object]) -> None:
        head = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": "warning" if record["code"] else "info",
            "event": "request refused" if record["code"] else "request answered",
        }
        try:
            append_line(self._path, json.dumps({**head, **record}))
        except OSError as e:  # a full disk: the answer, which is on disk or is a refusal, still leaves
            _log.error("%s cannot be written (%s): free disk space; a line is missing", self._path, e.strerror or e)

    def metrics(self) -> Metrics:
        """Return the counters for Prometheus."""
        with self._turn:
            return {
                "grandrounds_messages_total": (
                    "counter",
                    "Asks of the server, by result: answered, or the code of the refusal.",
                    {label(code=code): float(n) for code, n in self.codes.items()},
                ),
                "grandrounds_tasks_total": (
                    "counter",
                    "Asks of the server, by task.",
                    {label(task=task): float(n) for task, n in self.tasks.items()},
                ),
                "grandrounds_message_bytes_total": (
                    "counter",
                    "Bytes of messages, by direction (down: to the site).",
                    {label(direction=d): float(n) for d, n in self.bytes.items()},
                ),
                "grandrounds_work_seconds_total": ("counter", "Seconds spent on messages.", {"": self.seconds}),
                "grandrounds_last_message_timestamp_seconds": ("gauge", "Time of the last message.", {"": self.last}),
            }
