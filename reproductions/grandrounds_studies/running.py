"""Running a study: every run it takes, several at a time; what is done is kept (`kept`) and not run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput, RunFailed
from grandrounds_studies.digest import nameless
from grandrounds_studies.kept import RUNS, Kept, finished_beside
from grandrounds_studies.machine import machine
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import Cell, Study

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

Said = Callable[[str, int, int], None]
"""Called with a sentence for whoever waits, how many runs have ended and how many are to be run."""


class NotHere(BadInput):
    """A study that this machine has not what it takes for: its data, or a GPU."""


def nobody(text: str, ended: int, total: int) -> None:
    """Nobody waits."""


def conduct_study(
    study: Study, out: Path, *, seeds: int | None, jobs: int, quick: bool, progress: Said = nobody
) -> Results:
    """Run what is not done yet, and give the numbers of all; `progress` hears of each run as it ends.

    Without a number of seeds it is the study's own, or as many as all of its runs have readings of, if that is more.

    A point whose data are not on this machine, or that asks for a GPU which is not, is left out, with the reason; without
    any point left that is an error.
    """
    kept = Kept.read(out)
    if seeds is None:
        seeds = max(study.seeds, kept.seeds(study))
    plans = {cell: study.plan(cell) for cell in study.cells(seeds)}
    read_beside(study, {cell.name: plan for cell, plan in plans.items()}, kept)
    wanted = [cell for cell, plan in plans.items() if kept.reading(study, cell, plan) is None]
    left_out = _without_gpu({cell: plans[cell] for cell in wanted}, out) | _without_data(study, wanted, out, progress)
    if left_out and len(left_out) == len(study.points):
        raise NotHere(f"{study.name}: {next(iter(left_out.values()))}")
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
    from grandrounds.runs.batch import run_all

    failed: dict[str, str] = {}
    over: set[str] = set()

    def say(name: str, text: str) -> None:
        over.add(name)
        progress(text, len(over), len(plans))

    def ended(name: str, run: Run) -> None:
        reading = read(study, run)
        kept.add(name, plans[name], reading)
        final, first = run.summary.get("final") or {}, study.measures[0]  # survival has no accuracy
        words = f"accuracy {final['accuracy']:.3f}" if "accuracy" in final else f"{first.words} {reading.figures[first.name]:.3f}"
        say(name, f"{name}: {words}")

    def broken(name: str, error: RunFailed) -> None:
        failed[name] = str(error)
        kept.add_failed(name, str(error))
        say(name, str(error))

    if plans:
        progress(f"{jobs} at a time", 0, len(plans))
    run_all(plans, kept.folder / RUNS, jobs=jobs, progress=ended, failed=broken, here=study.brief)
    return failed


def read_beside(study: Study, plans: Mapping[str, Mapping[str, Any]], kept: Kept) -> None:
    """Keep what the study reads off runs that a study beside it has finished; one that is damaged there is run here."""
    wanted = {name: plan for name, plan in plans.items() if not kept.has(name, plan) and not study.timed}
    found = finished_beside(kept.folder) if wanted else {}
    for name, plan in wanted.items():
        run = found.get(nameless(plan))
        if run is not None:
            with suppress(BadInput):
                kept.add(name, plan, read(study, run))


def read(study: Study, run: Run) -> Reading:
    """Return the reading of a finished run."""
    return Reading({m.name: m.read(run) for m in study.measures}, study.keeps(run), machine(run))


def _without_gpu(wanted: Mapping[Cell, Mapping[str, Any]], out: Path) -> dict[str, str]:
    """Point -> why, for points with runs to do that are to be run on a GPU, where there is none."""
    asking = [
        cell.point
        for cell, plan in wanted.items()
        if plan["engine"]["device"] == "cuda" and not (out / RUNS / cell.name / "summary.json").exists()
    ]
    if not asking:
        return {}
    try:
        from grandrounds.models.torch_build import pick_device

        pick_device("cuda")
    except (BadInput, ImportError):
        why = "it asks for a GPU, and this machine has none that torch can use; run its plans (--plans) where there is one"
        return dict.fromkeys(asking, why)
    return {}


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
    from grandrounds.data.sets.catalog import find_entry
    from grandrounds.data.store import locate_file

    known = find_entry(name)
    try:
        if known.prepare is None:
            for file in known.files:
                locate_file(file, name=name)
            return None
        known.prepare(lambda done, total: say(f"{name}: {done:,} of {total:,} rows prepared"))
    except BadInput as e:
        return str(e)
    return None
