"""The site's own log: one line of JSON for each letter, with what was asked and what became of it. It never leaves the site.

No value of a patient is in it, and no key: the run, the round, the task, sizes, seconds and codes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.keeper.runtime.health import Metrics, label
from grandrounds.protocol.codec import peek_answer, peek_ask, unbundle
from grandrounds.protocol.envelope import peek

LARGEST = 50 * 2**20


class SiteLog:
    """Writes log.jsonl and counts. Wraps what answers letters."""

    def __init__(self, path: Path, handler: Callable[[bytes], bytes]) -> None:
        self._path, self._handler = path, handler
        self._turn = threading.Lock()
        self.codes: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.seconds = 0.0
        self.bytes: Counter[str] = Counter()
        self.last = 0.0

    def handle(self, letter: bytes) -> bytes:
        """Answer a letter, and write down that it was: a line for each of its Asks."""
        began = time.monotonic()
        answer = self._handler(letter)
        took = time.monotonic() - began
        whole = {"seconds": round(took, 3), "down": len(letter), "up": len(answer)}
        codes = _codes(answer)
        with self._turn:
            self.bytes["down"] += len(letter)
            self.bytes["up"] += len(answer)
            self.seconds += took
            self.last = time.time()
            for asked, code in zip(_asked(letter), codes, strict=False):
                self.codes[code or "answered"] += 1
                self.tasks[asked.task] += 1
                self._write({**asdict(asked), "code": code, **whole})
        return answer

    def _write(self, said: Mapping[str, object]) -> None:
        line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **said}) + "\n"
        if self._path.exists() and self._path.stat().st_size > LARGEST:
            self._path.replace(self._path.with_suffix(".jsonl.1"))
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as f:
            f.write(line)

    def metrics(self) -> Metrics:
        """For Prometheus."""
        with self._turn:
            return {
                "grandrounds_letters_total": (
                    "counter",
                    "Letters of the server, by what became of them.",
                    {label(code=code): float(n) for code, n in self.codes.items()},
                ),
                "grandrounds_tasks_total": (
                    "counter",
                    "Letters of the server, by task.",
                    {label(task=task): float(n) for task, n in self.tasks.items()},
                ),
                "grandrounds_bytes_total": (
                    "counter",
                    "Bytes of letters.",
                    {label(direction=d): float(n) for d, n in self.bytes.items()},
                ),
                "grandrounds_work_seconds_total": ("counter", "Seconds spent on letters.", {"": self.seconds}),
                "grandrounds_last_letter_timestamp_seconds": ("gauge", "When the last letter came.", {"": self.last}),
            }


@dataclass(frozen=True)
class _Asked:
    run: str = ""
    round: int = 0
    step: int = 0
    task: str = "unreadable"


def _asked(letter: bytes) -> list[_Asked]:
    try:
        heads = [peek_ask(body) for body in unbundle(peek(letter).body)]
    except BadInput:
        return [_Asked()]
    return [_Asked(id.run[:100], id.round, id.step, task[:40]) for task, id in heads]


def _codes(answer: bytes) -> list[str]:
    return [peek_answer(body) for body in unbundle(peek(answer).body)]
