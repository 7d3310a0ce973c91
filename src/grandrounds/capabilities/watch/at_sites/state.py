"""State of a watch on disk: one file that is replaced in one rename, so that a crash loses nothing and counts nobody twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.watch.at_sites.record import STATE
from grandrounds.capabilities.watch.at_sites.sums import Blocks
from grandrounds.core.arrays import Array, decode, encode, read_file, write_atomic
from grandrounds.core.errors import BadInput

SHOWN_CODES = 5
"""Patients with the same unknown code from which on the code itself is kept."""
TIMELINE = 200
"""Points of the timeline that are kept."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """Patients whose outcome is not known yet: salted key (n,), number (n,) and risks (n, k); nothing else of them is kept."""

    key: Array
    number: Array
    risks: Array

    @classmethod
    def empty(cls, classes: int) -> Waiting:
        """Make a list of nobody."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty((0, classes)))

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Array) -> Waiting:
        """Select patients by their places."""
        return Waiting(self.key[rows], self.number[rows], self.risks[rows])

    def join(self, other: Waiting) -> Waiting:
        """Add patients at the end."""
        return Waiting(
            np.concatenate([self.key, other.key]),
            np.concatenate([self.number, other.number]),
            np.concatenate([self.risks, other.risks]),
        )


@dataclass(frozen=True, eq=False)
class Timeline:
    """Evidence of every check over time: patients (T,), time (T,) in seconds since 1970, evidence (T, checks)."""

    patients: Array
    time: Array
    evidence: Array

    @classmethod
    def empty(cls, checks: int) -> Timeline:
        """Make a timeline without points."""
        return cls(np.empty(0, np.int64), np.empty(0), np.empty((0, checks)))

    def add(self, patients: int, time: float, evidence: Array) -> Timeline:
        """Add a point; when there are too many, every second one of the older half is dropped."""
        joined = Timeline(
            np.append(self.patients, patients), np.append(self.time, time), np.concatenate([self.evidence, evidence[None]])
        )
        if len(joined.patients) <= TIMELINE:
            return joined
        half = TIMELINE // 2
        keep = np.array([*range(1, half, 2), *range(half, len(joined.patients))])
        return Timeline(joined.patients[keep], joined.time[keep], joined.evidence[keep])


@dataclass(frozen=True, eq=False)
class WatchState:
    """Everything that a watch has to remember.

    Attributes:
        model: SHA-256 of the model.
        baseline: SHA-256 of baseline.safetensors.
        patients: Patients read since the watch began with this model and baseline.
        labelled: (L,) number of each labelled patient, in the order in which labels came.
        seen: (m,) keys of all patients that were read, sorted.
        files: File of a folder -> SHA-256 of what was read of it.
        tables: Table -> rows that it had when it was read last.
        waiting: Patients whose outcome is not known yet.
        blocks: Sums by blocks of patients.
        codes: Column -> salted key of an unknown code -> its count, and the code itself from `SHOWN_CODES` patients on.
        timeline: Evidence over time.
        detector: State of the checks.
        alarms: Alarms in their order, since the watch began with this model and baseline.
        released: Alarms whose checks were let to alarm again, by patient and check.
        earlier: Alarms of earlier models and baselines, with their ids.
    """

    model: str
    baseline: str
    blocks: Blocks
    timeline: Timeline
    detector: Mapping[str, Array]
    waiting: Waiting
    patients: int = 0
    labelled: Array = field(default_factory=lambda: np.empty(0, np.int64))
    seen: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    files: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, Mapping[str, tuple[int, str]]] = field(default_factory=dict)
    alarms: Sequence[Mapping[str, Any]] = ()
    released: Sequence[str] = ()
    earlier: Sequence[Mapping[str, Any]] = ()

    def find_new(self, keys: Array) -> Array:
        """Return the places of keys that were not seen before; of equal keys the first."""
        _, first = np.unique(keys, return_index=True)
        fresh = np.zeros(len(keys), bool)
        fresh[first] = True
        return np.flatnonzero(fresh & ~np.isin(keys, self.seen))

    def add_codes(self, column: str, words: Mapping[str, int], keys: Mapping[str, str]) -> WatchState:
        """Count unknown codes of a column.

        Args:
            column: The column.
            words: Code -> patients.
            keys: Code -> salted key.
        """
        counts = dict(self.codes.get(column, {}))
        for word, count in words.items():
            total = counts.get(keys[word], (0, ""))[0] + count
            counts[keys[word]] = (total, word[:80] if total >= SHOWN_CODES else "")
        return replace(self, codes={**self.codes, column: counts})

    def shown_codes(self, column: str) -> dict[str, int]:
        """Return the unknown codes of a column that enough patients have, the most frequent first."""
        shown = [(count, word) for count, word in self.codes.get(column, {}).values() if word]
        return {word: count for count, word in sorted(shown, key=lambda entry: (-entry[0], entry[1]))[:3]}

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        arrays = {
            "labelled": self.labelled,
            "seen": self.seen,
            **{f"waiting.{name}": getattr(self.waiting, name) for name in ("key", "number", "risks")},
            **{f"timeline.{name}": getattr(self.timeline, name) for name in ("patients", "time", "evidence")},
            **self.blocks.to_arrays("blocks"),
            **{f"detector.{name}": array for name, array in self.detector.items()},
        }
        facts = {
            "schema": 1,
            "model": self.model,
            "baseline": self.baseline,
            "patients": self.patients,
            "files": dict(self.files),
            "tables": dict(self.tables),
            "codes": {column: {key: list(entry) for key, entry in counts.items()} for column, counts in self.codes.items()},
            "alarms": list(self.alarms),
            "released": list(self.released),
            "earlier": list(self.earlier),
        }
        return encode(arrays, facts)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> WatchState:
        """Read the content of the file.

        Raises:
            BadInput: It is damaged.
        """
        arrays, facts = decode(data, where=where)
        try:
            if facts["schema"] != 1:
                raise ValueError("schema")
            return cls(
                model=str(facts["model"]),
                baseline=str(facts["baseline"]),
                blocks=Blocks.from_arrays(arrays, "blocks"),
                timeline=Timeline(*(arrays[f"timeline.{name}"] for name in ("patients", "time", "evidence"))),
                detector={n.removeprefix("detector."): a for n, a in arrays.items() if n.startswith("detector.")},
                patients=int(facts["patients"]),
                labelled=arrays["labelled"],
                seen=arrays["seen"],
                files=dict(facts["files"]),
                tables={name: int(rows) for name, rows in facts["tables"].items()},
                waiting=Waiting(*(arrays[f"waiting.{name}"] for name in ("key", "number", "risks"))),
                codes={
                    column: {key: (int(count), str(word)) for key, (count, word) in counts.items()}
                    for column, counts in facts["codes"].items()
                },
                alarms=tuple(facts["alarms"]),
                released=tuple(facts["released"]),
                earlier=tuple(facts["earlier"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise BadInput(
                f"{where} is not the state of a watch, or it is damaged ({e}): move the folder away to start again",
                code="damaged-file",
            ) from None

    @classmethod
    def read(cls, folder: Path) -> WatchState | None:
        """Read the state in a folder; None before the first reading."""
        path = folder / STATE
        return cls.from_bytes(read_file(path), where=str(path)) if path.exists() else None

    def write(self, folder: Path) -> bytes:
        """Write the state in one rename, and return its bytes."""
        data = self.to_bytes()
        write_atomic(folder / STATE, data)
        return data
