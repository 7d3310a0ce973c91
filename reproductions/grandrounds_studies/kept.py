"""Store the readings of each run in readings.json of a study's folder, so that none is run again.

It is all that must come back from another machine; the run folders may stay there. Runs that studies of one system have in
common, as a table and its figures do, are run by whoever comes first: the others read the folders that are still there.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds_studies.digest import DIGESTS, digest, nameless
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import Cell, Study

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

READINGS = "readings.json"
RUNS = "runs"
SCHEMA = 2
DIGITS = 6
"""Significant digits of packed readings: tables show four, and three of spare decide no verdict."""

NOT_MEASURED = "not measured with this version"


@dataclass(frozen=True)
class Taken:
    """Counts of the runs of a file that was imported."""

    new: int = 0
    there: int = 0  # already here: the reading here stays
    other: int = 0  # of another experiment: their plan differs from the study's
    unknown: int = 0  # of no run of the study

    def __str__(self) -> str:
        left = {
            "were here already": self.there,
            "left out, of another experiment (their plans differ)": self.other,
            "left out, of no point, arm or seed of this study": self.unknown,
        }
        return "; ".join([f"{self.new} runs imported", *(f"{n} {words}" for words, n in left.items() if n)])


class Kept:
    """readings.json of a folder: a run's name -> a digest of its plan, its figures, what else was kept, its machine.

    A run that failed has a sentence in its place; it is tried again when the study is run again.
    """

    def __init__(self, folder: Path, runs: dict[str, dict[str, Any]], failed: dict[str, str]) -> None:
        self.folder, self._runs, self.failed = folder, runs, failed

    @classmethod
    def read(cls, folder: Path) -> Kept:
        """Read the folder's readings; a missing folder is created."""
        path = folder / READINGS
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise BadInput(f"cannot use {folder}: {e.strerror or e}; choose another --out") from None
        return cls.load(path, folder) if path.exists() else cls(folder, {}, {})

    @classmethod
    def load(cls, path: Path, folder: Path | None = None) -> Kept:
        """Read a file of readings; one that ends in .gz is unpacked."""
        held = _parse(path)
        return cls(folder or path.parent, dict(held["runs"]), dict(held.get("failed", {})))

    def __len__(self) -> int:
        return len(self._runs)

    def has(self, name: str, plan: Mapping[str, Any]) -> bool:
        """Return True if the run of this plan has a reading; a reading of another plan under its name is an error."""
        held = self._runs.get(name)
        if held is not None and held.get("plan") != digest(plan):
            raise BadInput(
                f"{self.folder / READINGS} has {name} of another experiment, or of another version's: "
                "choose another --out (--import takes over runs of the same experiment), or remove that folder"
            )
        return held is not None

    def reading(self, study: Study, cell: Cell, plan: Mapping[str, Any]) -> Reading | None:
        """Return the reading of a run; None if there is none, or the study reads more measures today."""
        return self._reading(study, cell) if self.has(cell.name, plan) else None

    def _reading(self, study: Study, cell: Cell) -> Reading | None:
        held = self._runs.get(cell.name)
        if held is None or not {m.name for m in study.measures} <= set(held.get("figures", {})):
            return None
        values = {k: float("nan") if v is None else float(v) for k, v in held["figures"].items()}
        return Reading(values, held.get("kept", {}), held.get("machine", {}))

    def seeds(self, study: Study) -> int:
        """Return how many seeds, from the first, every point and arm with a reading has."""
        return min((n for n in self._counts(study).values() if n), default=0)

    def _counts(self, study: Study) -> dict[tuple[str, str], int]:
        counts = {}
        for cell in study.cells(1):
            number = 0
            while self._ended(study, Cell(cell.point, cell.arm, number, cell.repeat)):
                number += 1
            counts[cell.point, cell.arm] = number
        return counts

    def _ended(self, study: Study, cell: Cell) -> bool:
        return cell.name in self.failed or self._reading(study, cell) is not None

    def results(self, study: Study) -> Results | None:
        """Return the study's results from the readings alone; None without any.

        A point or arm without readings is left out, and the results say so.

        Raises:
            BadInput: A reading is of another experiment than the study's.
        """
        counts, seeds = self._counts(study), self.seeds(study)
        if not seeds:
            return None
        missing = [place for place, n in counts.items() if not n]
        measured = {point for (point, _), n in counts.items() if n}
        points = [point for point in dict.fromkeys(p for p, _ in counts) if point not in measured]
        left_out = dict.fromkeys(points, NOT_MEASURED)
        left_out |= {f"{arm} at {point}": NOT_MEASURED for point, arm in missing if point not in points}
        run = study.only([place for place, n in counts.items() if n])
        for cell in run.cells(1):  # one of each arm is enough: `take` compares every digest
            self.has(cell.name, study.plan(cell))
        readings = {c: self._reading(study, c) for c in run.cells(seeds) if c.name not in self.failed}
        held = {cell: reading for cell, reading in readings.items() if reading is not None}
        failed = {c.name: self.failed[c.name] for c in run.cells(seeds) if c.name in self.failed}
        return Results(run, held, seeds, left_out=left_out, failed=failed)

    def add(self, name: str, plan: Mapping[str, Any], reading: Reading) -> None:
        """Keep a run's reading; the file is whole at any time."""
        from grandrounds.core.arrays import plain

        held = {"figures": reading.figures, "kept": reading.kept, "machine": reading.machine}
        self._runs[name] = plain({"plan": digest(plan), "same": nameless(plan), **held})
        self.failed.pop(name, None)
        self._write()

    def add_failed(self, name: str, why: str) -> None:
        """Keep that a run failed."""
        self.failed[name] = why
        self._write()

    def take(self, study: Study, path: Path) -> Taken:
        """Add the readings of a file, such as those of another machine; a run's name says which run of the study it is.

        Readings whose digest is that of another plan are left out. Digests of another version of `digest` are not compared. A
        reading without a date gets the file's.
        """
        held = _parse(path)
        made = {"version": held.get("measured"), "date": f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}"}
        cells = {c.name: c for c in study.cells(_most_repeats([*held["runs"], *held.get("failed", {})]))}
        count = dict.fromkeys(("new", "there", "other", "unknown"), 0)
        for name, one in held["runs"].items():
            if name not in cells:
                count["unknown"] += 1
                continue
            plan = study.plan(cells[name])
            if held.get("digests") == DIGESTS and one.get("plan") != digest(plan):
                count["other"] += 1
                continue
            there = name in self._runs and self._runs[name].get("plan") == digest(plan)
            count["there" if there else "new"] += 1
            if not there:
                machine = one.get("machine", {})
                machine = machine and {**machine, **{k: v for k, v in made.items() if k not in machine}}
                self._runs[name] = {**one, "machine": machine, "plan": digest(plan), "same": nameless(plan)}
                self.failed.pop(name, None)
        self.failed |= {k: v for k, v in held.get("failed", {}).items() if k in cells and k not in self._runs}
        self._write()
        return Taken(**count)

    def pack(self, study: Study) -> bytes:
        """Return the readings as they are kept beside the pages: in the study's order, rounded, gzipped, without a time."""
        order = [c.name for c in study.cells(_most_repeats([*self._runs, *self.failed]))]
        runs = {name: _packed(self._runs[name], study) for name in order if name in self._runs}
        failed = {name: self.failed[name] for name in order if name in self.failed}
        text = json.dumps({"schema": SCHEMA, "digests": DIGESTS, "runs": runs, "failed": failed}, separators=(",", ":"))
        return gzip.compress(text.encode(), mtime=0)

    def _write(self) -> None:
        held = {"schema": SCHEMA, "digests": DIGESTS, "runs": self._runs, "failed": self.failed}
        try:
            write_atomic(self.folder / READINGS, json.dumps(held, indent=1).encode(), durable=False)
        except OSError as e:
            raise RunFailed(f"cannot write {self.folder / READINGS}: {e.strerror or e}") from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        read = path.read_bytes()
        held = json.loads(gzip.decompress(read) if path.suffix == ".gz" else read)
        if not all(isinstance(one, dict) for one in held["runs"].values()):
            raise TypeError
        return dict(held)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (gzip.BadGzipFile, EOFError, ValueError, KeyError, AttributeError, TypeError):
        raise BadInput(f"{path} is damaged: remove it, finished runs are read again") from None
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}") from None


def _most_repeats(names: list[str]) -> int:
    """Return one more than the largest seed or fold in these names of runs."""
    return 1 + max((int(found[0]) for name in names if (found := re.findall(r"\d+$", name))), default=0)


def _packed(one: Mapping[str, Any], study: Study) -> dict[str, Any]:
    kept = {} if study.withheld else one.get("kept", {})
    return {
        "plan": one["plan"],
        "figures": _rounded(one["figures"]),
        "kept": _rounded(kept),
        "machine": one.get("machine", {}),
    }


def _rounded(value: Any) -> Any:
    """Return plain values with numbers of `DIGITS` significant digits; whole numbers stay."""
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, float) and isfinite(value) and not value.is_integer():
        return float(f"{value:.{DIGITS}g}")
    return value


def finished_beside(folder: Path) -> dict[str, Run]:
    """`nameless` digest -> finished run, of all studies whose folders lie beside this one."""
    from grandrounds.runs.run import Run

    found: dict[str, Run] = {}
    for file in sorted(folder.parent.glob(f"*/{READINGS}")):
        if file.parent == folder:
            continue
        try:
            held = {name: one["same"] for name, one in _parse(file)["runs"].items() if "same" in one}
        except BadInput:
            continue  # another study's damage is reported when that study is run
        for name, same in held.items():
            run = file.parent / RUNS / name
            if (run / "summary.json").exists():
                found[same] = Run(run)
    return found
