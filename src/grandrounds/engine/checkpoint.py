"""Checkpoint a run after each round, atomically, so that the process may be killed at any time.

The journal gets one line per round and is synced first; then one atomic rename commits the round. A crash in between leaves a
surplus journal line, which the next start removes.

Totals of a fit's exchanges never change once they are known. They are moved to files of their own, a megabyte at a time, so that
a round of a long fit writes little more than its own total.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from grandrounds.core.arrays import (
    NUMBER,
    Array,
    load,
    load_meta,
    misfit,
    open_file,
    parse_json,
    read_file,
    read_json,
    remove_leftovers,
    save,
    write_atomic,
)
from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord

SCHEMA = 1
LATE = "late"
"""Key of a round's record for scores of earlier rounds that came with this round's answers."""


_PLAN = {
    "name": str, "seed": int, "data": {"name": (str, None), "table": (str, None)}, "split": dict, "reference": {"*": dict},
    "tasks": {"*": dict}, "model": {"name": str}, "method": {"name": str, "rounds": int}, "train": dict, "explain": dict,
    "privacy": dict, "engine": {"wire": bool}, "evaluation": dict, "attacks": [dict], "code?": {"*": str},
}  # fmt: skip
_FACTS = {
    "journal": int, "round": int, "best_round": int, "best_loss": NUMBER, "seconds": float, "cost": {"*": float},
    "stopped": str, "clock": float, "encoding": dict, "warnings": [str], "machine?": {"*": float}, "totals?": {"*": [str]},
    "engine": {"clock?": float, "accepted?": {"*": int}, "sent?": int, "flights?": list},
}  # fmt: skip
_RECORD = {
    "round": int,
    "decision": {"asked": [str], "missing": {"*": str}, "weights": {"*": NUMBER}, "why": str, "stages?": [dict]},
    "explanation?": {"*": {"consensus": [float]}}, "val?": {"*": NUMBER}, "test?": {"*": NUMBER}, f"{LATE}?": [{"round": int}],
}  # fmt: skip


FIXED = "method/total."
"""First letters of arrays that never change: totals of exchanges."""

_MOVED = 1 << 20
"""Bytes of totals in the state, from which on they are moved to a file of their own."""

_TOTALS_FILE = re.compile(r"totals-\d{4}\.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """The arrays and facts of the last finished round."""

    arrays: Mapping[str, Array]
    facts: Mapping[str, Any]

    @property
    def journal(self) -> int:
        """Bytes of the journal up to this round."""
        return int(self.facts["journal"])

    def part(self, prefix: str) -> dict[str, Array]:
        """Return the arrays whose names start with `prefix/`, without it."""
        return {n.removeprefix(f"{prefix}/"): a for n, a in self.arrays.items() if n.startswith(f"{prefix}/")}


class Checkpoint:
    """The folder `checkpoint/` of a run: plan.json, rounds.jsonl, state.safetensors, totals of a long fit, and a lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None
        self._totals: dict[str, list[str]] = {}  # names of the arrays in each file of totals

    @property
    def plan_file(self) -> Path:
        return self.folder / "plan.json"

    @property
    def journal(self) -> Path:
        return self.folder / "rounds.jsonl"

    @property
    def state_file(self) -> Path:
        return self.folder / "state.safetensors"

    @property
    def charges_file(self) -> Path:
        return self.folder / "charges.json"

    def lock(self) -> None:
        """Lock the run against a second process.

        Raises:
            BadInput: Another process has it.
        """
        handle = open_file(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise BadInput(
                f"{self.folder.parent} is being run by another process; wait for it or stop it first", code="run-in-use"
            ) from None
        self._lock = handle
        remove_leftovers(self.folder)

    def is_locked(self) -> bool:
        """Check whether some process is running this run now."""
        try:
            handle = open_file(self.folder / "lock")
        except (OSError, BadInput):
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def start(self, plan: Mapping[str, object]) -> None:
        """Start a new run: write its plan and an empty journal."""
        self.rewrite(plan)
        write_atomic(self.journal, b"", durable=False)
        self._totals = {}
        self.charges_file.unlink(missing_ok=True)

    def rewrite(self, plan: Mapping[str, object]) -> None:
        """Replace the plan, for the rounds to come."""
        write_atomic(self.plan_file, json.dumps(plan, indent=1).encode())

    def plan(self) -> dict[str, Any]:
        if not self.plan_file.is_symlink() and not self.plan_file.exists():
            raise BadInput(
                f"{self.folder.parent} is not a run folder: it has no checkpoint/plan.json", code="not-a-run-folder"
            )
        plan: dict[str, Any] = read_json(self.plan_file)
        fault = misfit(plan, _PLAN)
        if fault:
            raise BadInput(f"{self.plan_file} is damaged: {fault} is missing or of the wrong kind", code="damaged-file")
        return plan

    def write(self, record: Mapping[str, object], arrays: Mapping[str, Array], facts: Mapping[str, object]) -> None:
        """Commit a round: append its record to the journal, then replace the state in one step."""
        with self._journal() as f:
            f.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            f.flush()
            os.fsync(f.fileno())
            size = f.tell()
        rest = self._move_totals(arrays)
        moved = {"totals": self._totals} if self._totals else {}
        self.write_state(rest, {"schema": SCHEMA, "journal": size, **moved, **facts})
        for path in self.folder.glob("totals-*.safetensors"):
            if path.name not in self._totals:
                path.unlink(missing_ok=True)

    def write_state(self, arrays: Mapping[str, Array], facts: Mapping[str, object]) -> None:
        """Replace the state in one step; `facts` name the length of the journal."""
        save(self.state_file, arrays, dict(facts))

    def file_before(self, round: int) -> Path:
        """Return the file with the state before a round in which a site counted first."""
        return self.folder / f"before-{round:04d}.safetensors"

    def keep_state(self, round: int, *, limit: int) -> None:
        """Keep the state before a round, while all such files together have at most `limit` bytes.

        The state is replaced by a rename, so a second name keeps its bytes and costs no time.
        """
        file = self.file_before(round)
        if file.exists() or not self.state_file.exists():
            return
        kept = sum(path.stat().st_size for path in self.folder.glob("before-*.safetensors"))
        if kept + self.state_file.stat().st_size > limit:
            return
        try:
            os.link(self.state_file, file)
        except OSError:  # this file system has no hard links
            write_atomic(file, read_file(self.state_file), durable=False)

    def read_before(self, round: int) -> Snapshot:
        """Read the state before a round in which a site counted first.

        Raises:
            BadInput: The file is missing or damaged.
        """
        return self._snapshot(self.file_before(round), *load(self.file_before(round)))

    def _move_totals(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Move totals to a file of their own where they are large; return the arrays that stay in the state."""
        if not any(name.startswith(FIXED) for name in arrays):
            self._totals = {}
            return arrays
        moved = {name for names in self._totals.values() for name in names}
        waiting = {n: a for n, a in arrays.items() if n.startswith(FIXED) and n not in moved}
        if sum(a.nbytes for a in waiting.values()) > _MOVED:
            file = f"totals-{len(self._totals) + 1:04d}.safetensors"
            save(self.folder / file, waiting)
            self._totals = {**self._totals, file: sorted(waiting)}
            moved |= set(waiting)
        return {n: a for n, a in arrays.items() if n not in moved}

    def _journal(self) -> IO[bytes]:
        handle = open_file(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        file = os.fdopen(handle, "ab")
        file.seek(0, os.SEEK_END)
        return file

    def read(self) -> Snapshot | None:
        """Read the last finished round; None before the first."""
        if not self.state_file.is_symlink() and not self.state_file.exists():
            return None
        snapshot = self._snapshot(self.state_file, *self._load_state())
        self._totals = dict(snapshot.facts.get("totals", {}))
        return snapshot

    @staticmethod
    def _snapshot(file: Path, arrays: Mapping[str, Array], facts: Any) -> Snapshot:
        """Check the content of a file with a state."""
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
            raise BadInput(
                f"{file} was written by another version of Grand Rounds and cannot be resumed", code="other-version"
            )
        fault = misfit(facts, _FACTS) or ("journal" if facts["journal"] < 0 or facts["round"] < 0 else "")
        if fault or "served/model" not in arrays:
            raise BadInput(
                f"{file} is damaged: {fault or 'its model'} is missing or of the wrong kind", code="damaged-file"
            )
        return Snapshot(arrays, facts)

    def _load_state(self) -> tuple[dict[str, Array], Any]:
        """Read the state with its totals. A fit that ends meanwhile removes them, so the state is then read again."""
        for attempt in (1, 2):
            arrays, facts = load(self.state_file)
            totals = facts.get("totals", {}) if isinstance(facts, dict) else {}
            files = list(totals) if isinstance(totals, dict) else []
            if not all(isinstance(name, str) and _TOTALS_FILE.fullmatch(name) for name in files):
                raise BadInput(f"{self.state_file} is damaged: it names another file as its totals", code="damaged-file")
            try:
                for name in files:
                    arrays |= load(self.folder / name)[0]
            except BadInput:
                if attempt == 2:
                    raise
            else:
                break
        return arrays, facts

    def write_charges(self, charges: Mapping[str, object]) -> None:
        """Write the cost of releases outside the rounds, before they are requested."""
        write_atomic(self.charges_file, json.dumps(charges, indent=1).encode())

    def charges(self) -> dict[str, Any]:
        """Read releases outside the rounds, as `write_charges` wrote them; empty where there were none."""
        charges = read_json(self.charges_file) if os.path.lexists(self.charges_file) else {}
        if not isinstance(charges, dict):
            raise BadInput(
                f"{self.charges_file} is damaged: it lists the privacy costs of the run; restore it from a copy",
                code="damaged-file",
            )
        return charges

    def trim(self, snapshot: Snapshot | None) -> None:
        """Cut off the journal after the last finished round."""
        size = 0 if snapshot is None else snapshot.journal
        with self._journal() as f:
            if f.tell() > size:
                f.truncate(size)

    def read_facts(self) -> dict[str, Any] | None:
        """Read the facts of the last finished round without its arrays; None before the first."""
        if not self.state_file.is_symlink() and not self.state_file.exists():
            return None
        facts = load_meta(self.state_file)
        return dict(self._snapshot(self.state_file, {"served/model": np.empty(0)}, facts).facts)

    def records(self) -> list[RoundRecord]:
        """Read the records of all finished rounds."""
        snapshot = self.read()
        if snapshot is None:
            return []
        self.require_journal()
        text = read_file(self.journal)[: snapshot.journal]
        records = [self.parse_line(line, n) for n, line in enumerate(text.splitlines(), start=1)]
        return [RoundRecord.from_dict(record, where=str(self.journal)) for record in _merge_late(records)]

    def require_journal(self) -> None:
        """Raise BadInput where the journal is missing."""
        if not self.journal.is_symlink() and not self.journal.exists():
            raise BadInput(
                f"{self.journal} is missing: the run cannot be read without its rounds", code="file-not-found"
            )

    def parse_line(self, line: bytes, number: int, *, finite: bool = True) -> dict[str, Any]:
        """Parse a line of the journal and check it.

        Args:
            line: The line.
            number: Its number, from 1, for the error.
            finite: As `parse_json` has it.

        Returns:
            The record of a round, with late scores of earlier rounds under `LATE`.

        Raises:
            BadInput: It is damaged.
        """
        record: dict[str, Any] = parse_json(line, where=str(self.journal), finite=finite)
        fault = misfit(record, _RECORD)
        if fault:
            raise BadInput(
                f"{self.journal} is damaged: in line {number} {fault} is missing or of the wrong kind",
                code="damaged-file",
            )
        return record


def _merge_late(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move late scores to the records of their rounds."""
    by_round = {record["round"]: record for record in records}
    for record in records:
        for late in record.pop(LATE, ()):
            if late["round"] in by_round:
                by_round[late["round"]] |= late
    return records
