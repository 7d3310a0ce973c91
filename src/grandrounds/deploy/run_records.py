"""What became of runs that were submitted: one small file a run, beside its folder. This, not Flower's status, is the record."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput

QUEUED, RUNNING, DONE, FAILED, STOPPED = "queued", "running", "done", "failed", "stopped"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def checked_run_name(name: str) -> str:
    """A run's name is its folder's and its log's: letters, digits, - _ . only."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of a run: letters, digits, - _ and . are allowed, 100 characters at most")
    return name


@dataclass(frozen=True)
class Records:
    """The records of a server's runs. Who submits and who conducts write at the same time, so each takes its turn."""

    folder: Path

    def note(self, name: str, **news: Any) -> dict[str, Any]:
        """Add to what is known of a run; every state has its time."""
        with self._turn():
            return self._note(name, news)

    def queued(self, name: str, flower: int) -> None:
        """A run was submitted, as this run of Flower's; one that is conducted by now stays what it is."""
        with self._turn():
            if flower not in (self.get(name) or {}).get("flower", ()):
                self._note(name, {"state": QUEUED, "flower": flower})

    def _note(self, name: str, news: dict[str, Any]) -> dict[str, Any]:
        record = self.get(name) or {"run": name, "flower": [], "history": []}
        if (flower := news.pop("flower", None)) is not None and flower not in record["flower"]:
            record["flower"].append(flower)
        if (state := news.get("state")) is not None:
            record["history"].append([state, datetime.now(UTC).isoformat(timespec="seconds")])
        record.update(news)
        write_atomic(self._path(name), json.dumps(record, indent=1).encode())
        return record

    def get(self, name: str) -> dict[str, Any] | None:
        """What is known of a run, if it was ever submitted."""
        try:
            record: dict[str, Any] = json.loads(self._path(name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise BadInput(f"{self._path(name)} cannot be read: the record of run {name} is damaged") from None
        return record

    def all(self) -> list[dict[str, Any]]:
        """Every run, the newest last."""
        records = [self.get(path.stem) for path in self.folder.glob("*.json")]
        return sorted((r for r in records if r), key=lambda r: (r["history"][0][1] if r["history"] else "", r["run"]))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _path(self, name: str) -> Path:
        return self.folder / f"{checked_run_name(name)}.json"
