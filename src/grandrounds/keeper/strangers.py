"""Whom a site did not add up with, and in which run: names that the server is not told, for the site's own people.

Lines of JSON in the site's own folder. They hold a run's name, a code and names of sites; nothing of patients.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.core.arrays import write_atomic

FILE = "strangers.jsonl"
_KEPT = 100
_WORDS = 500


@dataclass(frozen=True)
class Stranger:
    """One refusal."""

    at: str
    run: str
    code: str
    what: str


class Strangers:
    """The file that refusals are noted in; the last hundred of them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, run: str, code: str, what: str) -> None:
        """Write one down, unless it is the last one again."""
        said = Stranger(datetime.now(UTC).isoformat(timespec="seconds"), run[:100], code, what[:_WORDS])
        before = self.all()
        if before and (before[-1].run, before[-1].what) == (said.run, said.what):
            return
        text = "".join(json.dumps(asdict(one)) + "\n" for one in [*before, said][-_KEPT:])
        write_atomic(self._path, text.encode())

    def all(self) -> list[Stranger]:
        """All that are noted, the oldest first; none where the file cannot be read."""
        try:
            return [Stranger(**json.loads(line)) for line in self._path.read_text().splitlines()]
        except (OSError, ValueError, TypeError):
            return []
