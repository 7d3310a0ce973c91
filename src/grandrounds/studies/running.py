"""Running a study: every run it takes, several at a time; what is done is kept and not run again.

readings.json beside the runs holds what the study read off each of them, with a digest of its plan. It is all that must
come back from another machine; the run folders may stay there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.arrays import write_atomic
from grandrounds.errors import BadInput, RunFailed
from grandrounds.studies.results import Reading, Results
from grandrounds.studies.study import Cell, Study

if TYPE_CHECKING:
    from grandrounds.runs import Run

READINGS = "readings.json"
RUNS = "runs"
SCHEMA = 1

Said = Callable[[str, int, int], None]
"""Called with a sentence for whoever waits, how many runs have ended and how many are to be run."""


def nobody(text: str, ended: int, total: int) -> None:
    """Nobody waits."""


def conduct_study(study: Study, out: Path, *, seeds: int, jobs: int, quick: bool, progress: Said = nobody) -> Results:
    """Run what is not done yet, and give the numbers of all; `progress` hears of each run as it ends.

    A point whose data are not on this machine is left out, with the reason; without any point left that is an error.
    """
    kept = Kept.read(out)
    plans = {cell: study.plan(cell) for cell in study.cells(seeds)}
    wanted = [cell for cell, plan in plans.items() if kept.reading(study, cell, plan) is None]
    left_out = _without_data(study, wanted, out, progress)
    if left_out and len(left_out) == len(study.points):
        raise BadInput(f"{study.name}: {next(iter(left_out.values()))}")
    study = study.without(list(left_out))
    named = {cell.name: plans[cell] for cell in wanted if cell.point not in left_out}
    failed = run_plans(study, named, kept, jobs=jobs, progress=progress)
    readings = {cell: kept.reading(study, cell, plans[cell]) for cell in study.cells(seeds)}
    held = {cell: reading for cell, reading in readings.items() if reading is not None}
    if not held:
        raise RunFailed(f"{study.name}: no run ended: {next(iter(failed.values()))}")
    return Results(study, held, seeds, quick, left_out, failed)


def run_plans(
    study: Study, plans: Mapping[str, Mapping[str, Any]], kept: Kept, *, jobs: int, progress: Said
) -> dict[str, str]:
    """Run these plans and keep what the study reads off each; says which failed, and why. A run may fail: training
    that diverges is a result."""
    from grandrounds.batch import run_all

    failed: dict[str, str] = {}
    over: set[str] = set()

    def say(name: str, text: str) -> None:
        over.add(name)
        progress(text, len(over), len(plans))

    def ended(name: str, run: Run) -> None:
        kept.add(name, plans[name], read(study, run))
        say(name, f"{name}: accuracy {run.summary['final']['accuracy']:.3f}")

    def broken(name: str, error: RunFailed) -> None:
        failed[name] = str(error)
        say(name, str(error))

    run_all(plans, kept.folder / RUNS, jobs=jobs, progress=ended, failed=broken)
    return failed


def read(study: Study, run: Run) -> Reading:
    """What a study keeps of a finished run."""
    return Reading({m.name: m.read(run) for m in study.measures}, study.keeps(run))


class Kept:
    """readings.json of a folder: a run's name -> a digest of its plan, its figures, what else was kept."""

    def __init__(self, folder: Path, runs: dict[str, dict[str, Any]]) -> None:
        self.folder, self._runs = folder, runs

    @classmethod
    def read(cls, folder: Path) -> Kept:
        """What the folder holds; an empty one is made where there is none."""
        path = folder / READINGS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = json.loads(path.read_text()) if path.exists() else {"runs": {}}
            return cls(folder, {name: {**one} for name, one in held["runs"].items()})
        except OSError as e:
            raise BadInput(f"cannot use {folder}: {e.strerror or e}; choose another --out") from None
        except (ValueError, KeyError, AttributeError, TypeError):
            raise BadInput(f"{path} is damaged: remove it, finished runs are read again") from None

    def has(self, name: str, plan: Mapping[str, Any]) -> bool:
        """Whether something is kept of the run of this plan; of another plan under its name it must not be."""
        held = self._runs.get(name)
        if held is not None and held.get("plan") != digest(plan):
            raise BadInput(
                f"{self.folder / READINGS} has {name} of another experiment, or of another version's: "
                "choose another --out, or remove that folder"
            )
        return held is not None

    def reading(self, study: Study, cell: Cell, plan: Mapping[str, Any]) -> Reading | None:
        """What is kept of a run; None where it has not been read, or by a version that read less."""
        if not self.has(cell.name, plan):
            return None
        held = self._runs[cell.name]
        figures = held.get("figures", {})
        if not {m.name for m in study.measures} <= set(figures):
            return None
        return Reading({k: float("nan") if v is None else float(v) for k, v in figures.items()}, held.get("kept", {}))

    def add(self, name: str, plan: Mapping[str, Any], reading: Reading) -> None:
        """Keep a run's reading; the file is whole at any time."""
        from grandrounds.judge import plain

        self._runs[name] = plain({"plan": digest(plan), "figures": reading.figures, "kept": reading.kept})
        text = json.dumps({"schema": SCHEMA, "runs": self._runs}, indent=1)
        try:
            write_atomic(self.folder / READINGS, text.encode(), durable=False)
        except OSError as e:
            raise RunFailed(f"cannot write {self.folder / READINGS}: {e.strerror or e}") from None


def digest(plan: Mapping[str, Any]) -> str:
    """Which experiment a plan is of: all of it but what a run fills in about its data."""
    data = {k: v for k, v in plan["data"].items() if k not in ("kinds", "sha256")}
    return hashlib.sha256(json.dumps({**plan, "data": data}, sort_keys=True).encode()).hexdigest()


def _without_data(study: Study, wanted: Sequence[Cell], out: Path, progress: Said) -> dict[str, str]:
    """Point -> why, for points with runs to do whose data cannot be had here."""
    reasons: dict[str, str] = {}
    missing: dict[str, str | None] = {}
    for cell in wanted:
        name = study.data(cell)
        if (out / RUNS / cell.name / "summary.json").exists():
            continue
        if name not in missing:
            missing[name] = _missing(name, lambda text: progress(text, 0, len(wanted)))
        if missing[name] is not None:
            reasons[cell.point] = str(missing[name])
    return reasons


def _missing(name: str, say: Callable[[str], None]) -> str | None:
    """Why a set of the catalog cannot be had here, None where it can; what takes long to compute is computed now, once."""
    from grandrounds.data.catalog import entry
    from grandrounds.data.store import locate

    known = entry(name)
    try:
        if known.prepare is None:
            for file in known.files:
                locate(file, name=name)
            return None
        known.prepare(lambda done, total: say(f"{name}: {done:,} of {total:,} rows prepared"))
    except BadInput as e:
        return str(e)
    return None
