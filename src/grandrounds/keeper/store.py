"""What a keeper keeps of a run on the site's own disk: how it began, what its sites remember, and its last answers.

An answer is on disk before it leaves. A server that asks again gets the same bytes: nothing is trained twice, and nothing
private is released twice. Answers of rounds that are done are removed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import Array, load, save, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import AskId

_KEPT = 2
"""Rounds whose answers are kept, besides round 0: a resumed server is at most one behind."""


def run_folder(state: Path, run: str) -> Path:
    """A run's folder, whatever characters its name has."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in run)[:80].lstrip(".")
    return state / f"{safe}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


class Store:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def _opening(self) -> Path:
        return self.folder / "open.json"

    @property
    def _state(self) -> Path:
        return self.folder / "state.safetensors"

    @property
    def _answers(self) -> Path:
        return self.folder / "answers"

    @property
    def _setup(self) -> Path:
        return self.folder / "setup"

    def opening(self) -> dict[str, Any] | None:
        """How the run was opened here; None where it was not, or is closed."""
        if not self._opening.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self._opening.read_text())
        except (OSError, ValueError):
            raise BadInput(
                f"{self._opening} is damaged: remove the folder to forget the run", code="damaged-file"
            ) from None
        return found

    def open(self, told: Mapping[str, Any]) -> None:
        """The run begins, or goes on as it is told now; what was set up before is set up anew."""
        for folder in (self.folder, self._answers, self._setup):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._setup)
        self._setup.mkdir(mode=0o700)
        write_atomic(self._opening, json.dumps(told, indent=1).encode())

    def close(self) -> None:
        """The run is over. What the site signed is remembered, in case the run is gone on with."""
        for folder in (self._answers, self._setup):
            shutil.rmtree(folder, ignore_errors=True)
        self._opening.unlink(missing_ok=True)

    def set_up(self, name: str, ask: bytes) -> None:
        """Keep an Ask that the run was set up with, for a keeper that starts again; a later one of its name replaces it."""
        here = sorted(p.name for p in self._setup.iterdir())
        mine = [p for p in here if p.split(" ", 1)[1] == name]
        number = int(mine[0].split(" ", 1)[0]) if mine else len(here)
        write_atomic(self._setup / f"{number:04d} {name}", ask)

    def setup(self) -> list[bytes]:
        """The Asks that the run was set up with, in order."""
        return [p.read_bytes() for p in sorted(self._setup.iterdir())] if self._setup.exists() else []

    def save(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """What the site remembers."""
        save(self._state, arrays, facts)

    def load(self) -> tuple[Mapping[str, Array], Mapping[str, Any]] | None:
        return load(self._state) if self._state.exists() else None

    def answer(self, digest: str) -> bytes | None:
        """What was answered to an Ask of this digest."""
        found = list(self._answers.glob(f"*-{digest}")) if self._answers.exists() else []
        return found[0].read_bytes() if found else None

    def keep(self, id: AskId, digest: str, answer: bytes) -> None:
        """Keep an answer; those of rounds that are long done are removed."""
        write_atomic(self._answers / f"{id.round:06d}-{digest}", answer)
        for path in self._answers.iterdir():
            round = int(path.name.split("-")[0])
            if 0 < round <= id.round - _KEPT:
                path.unlink(missing_ok=True)
