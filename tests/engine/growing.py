"""A run folder that grows round by round, as one that is being run does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import load, save
from grandrounds.engine.checkpoint import Checkpoint


class GrowingRun:
    """A copy of a finished run without its results; `append` commits its rounds again, over and over.

    Args:
        source: A finished run.
        folder: The new folder.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder, self.checkpoint = folder, Checkpoint(folder / "checkpoint")
        self.checkpoint.folder.mkdir(parents=True)
        shutil.copy(source / "checkpoint" / "plan.json", self.checkpoint.folder)
        (self.checkpoint.folder / "lock").touch()
        self._lines = [json.loads(line) for line in (source / "checkpoint" / "rounds.jsonl").read_bytes().splitlines()]
        self._arrays, self._facts = load(source / "checkpoint" / "state.safetensors")
        self._rounds = 0

    def record(self, **changes: Any) -> dict[str, Any]:
        """Make the record of the next round."""
        self._rounds += 1
        line = {**self._lines[(self._rounds - 1) % len(self._lines)], "round": self._rounds, **changes}
        return {**line, "decision": {**line["decision"], "round": self._rounds}}

    def append(self, rounds: int = 1, **changes: Any) -> None:
        """Write and commit rounds."""
        for _ in range(rounds):
            with self.checkpoint.journal.open("ab") as f:
                f.write(json.dumps(self.record(**changes)).encode() + b"\n")
            self.commit()

    def commit(self) -> None:
        """Commit all that the journal has."""
        facts = {**self._facts, "journal": self.checkpoint.journal.stat().st_size, "round": self._rounds}
        save(self.checkpoint.state_file, self._arrays, facts)
