"""State of a run on a site's disk: its opening terms, the site's state, and the last answers.

An answer is on disk before it leaves. A server that repeats an Ask gets the same bytes: nothing is trained twice, and
nothing private is released twice. Answers of finished rounds are removed.

An empty file holds the place of an answer from before its charge until the answer replaces it. If the process is killed in
between, the place shows that no answer ever left: the work is repeated under the charge that was made.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import Array, load, remove_leftovers, save, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import AskId

_KEPT_ROUNDS = 2
"""Rounds whose answers are kept, besides round 0: a resumed server is at most one behind."""


Facts = Mapping[str, Any]
"""State of a run besides arrays, as JSON."""


@dataclass(frozen=True)
class Opening:
    """Terms on which a server opened a run at this site.

    Attributes:
        plan: The plan, as the server sent it.
        role: Role of the site: training, or testing only.
        task: The site's own task; empty if there is none.
        largest_weight: Largest share of a secure sum.
        withheld_splits: Splits about which the host reports nothing.
    """

    plan: dict[str, Any]
    role: str
    task: str
    largest_weight: float
    withheld_splits: tuple[str, ...]

    def to_json(self) -> bytes:
        values = {
            "plan": self.plan,
            "role": self.role,
            "task": self.task,
            "largest_weight": self.largest_weight,
            "untold": list(self.withheld_splits),
        }
        return json.dumps(values, indent=1).encode()

    @classmethod
    def from_json(cls, text: str) -> Opening:
        values = json.loads(text)
        return cls(
            values["plan"],
            str(values["role"]),
            str(values["task"]),
            float(values["largest_weight"]),
            tuple(values["untold"]),
        )


def run_folder(state: Path, run: str) -> Path:
    """Return the folder of a run; its name may contain any characters."""
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

    def opening(self) -> Opening | None:
        """Read the opening terms; None if the run was not opened here, or is closed."""
        if not self._opening.exists():
            return None
        try:
            return Opening.from_json(self._opening.read_text())
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(
                f"{self._opening} is damaged: remove the folder to discard the run", code="damaged-file"
            ) from None

    def open(self, opening: Opening) -> None:
        """Open or resume the run on these terms; its setup starts again."""
        for folder in (self.folder, self._answers, self._setup):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._setup)
        self._setup.mkdir(mode=0o700)
        self.remove_leftovers()
        write_atomic(self._opening, opening.to_json())

    def close(self) -> None:
        """Close the run. The heads that the site signed are kept, in case the run is resumed."""
        for folder in (self._answers, self._setup):
            shutil.rmtree(folder, ignore_errors=True)
        self._opening.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove unfinished files of a killed worker; call it before the first write of a process."""
        for folder in (self.folder, self._answers, self._setup):
            remove_leftovers(folder)

    def set_up(self, name: str, ask: bytes) -> None:
        """Store a setup Ask for a restarted keeper; a later one of the same name replaces it."""
        stored = sorted(p.name for p in self._setup.iterdir())
        same = [p for p in stored if p.split(" ", 1)[1] == name]
        number = int(same[0].split(" ", 1)[0]) if same else len(stored)
        write_atomic(self._setup / f"{number:04d} {name}", ask)

    def setup(self) -> list[bytes]:
        """Read the setup Asks, in order."""
        return [p.read_bytes() for p in sorted(self._setup.iterdir())] if self._setup.exists() else []

    def save(self, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write the site's state."""
        save(self._state, arrays, facts)

    def load(self) -> tuple[Mapping[str, Array], Facts] | None:
        return load(self._state) if self._state.exists() else None

    def answer(self, digest: str) -> bytes | None:
        """Read the answer to an Ask with this digest; None if there is none."""
        path = self._find(digest)
        return (path.read_bytes() or None) if path is not None else None

    def begin(self, id: AskId, digest: str) -> bool:
        """Reserve the place of an answer before its charge.

        Returns:
            False if the place was reserved before: work on the same Ask was interrupted, and no answer to it ever left.
        """
        if self._find(digest) is not None:
            return False
        write_atomic(self._answers / f"{id.round:06d}-{digest}", b"", durable=False)
        return True

    def abandon(self, digest: str) -> None:
        """Give up the place of an answer that was neither charged nor given."""
        path = self._find(digest)
        if path is not None and not path.stat().st_size:
            path.unlink(missing_ok=True)

    def keep(self, id: AskId, digest: str, answer: bytes) -> None:
        """Store an answer, and remove those of rounds that ended long ago."""
        write_atomic(self._answers / f"{id.round:06d}-{digest}", answer)
        for path in self._answers.glob("[0-9]*-*"):
            round = int(path.name.split("-")[0])
            if 0 < round <= id.round - _KEPT_ROUNDS:
                path.unlink(missing_ok=True)

    def _find(self, digest: str) -> Path | None:
        return next(self._answers.glob(f"[0-9]*-{digest}"), None)
