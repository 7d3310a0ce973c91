"""The site's own log: one line of JSON for each Ask. It never leaves the site.

It contains run, round, task, sizes, seconds and codes, but no patient values and no keys. `request` names the message: the
server's log has the same digits.
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

from grandrounds.core.event_log import append_line
from grandrounds.core.prometheus import Metrics, label
from grandrounds.keeper.runtime.answers import AnsweredMessage
from grandrounds.protocol.envelope import digest, request_id

_log = logging.getLogger("grandrounds.keeper")


class SiteLog:
    """Writes log.jsonl and counts Asks, around a message handler."""

    def __init__(self, path: Path, handler: Callable[[bytes], AnsweredMessage]) -> None:
        self._path, self._handler = path, handler
        self._turn = threading.Lock()
        self.codes: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.seconds = 0.0
        self.bytes: Counter[str] = Counter()
        self.last = 0.0

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
                self._write({"request": request, **asdict(ask), **totals})
        return answered.message

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
