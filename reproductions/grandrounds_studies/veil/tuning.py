"""Tuned settings of VEIL's Table 1: trials for each method, budget and fold, on hospitals that train in that fold.

    python -m grandrounds_studies.veil.tuning --out FOLDER --jobs 16

A trial of fold k leaves out the hospitals that fold k tests on (`split.without`), holds out a quarter of the others, and is
scored by AUROC on these. So no setting is chosen on a test hospital. Optuna's TPE sampler proposes 50 settings, as in the paper;
the first are those of `veil/table-1`. Each search is a file of FOLDER, written after every trial: the command resumes where it
was. It ends with tuned.json, which `veil/table-1-tuned` reads.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from math import isfinite
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import GrandRoundsError
from grandrounds.core.names import slug
from grandrounds_studies.study import Cell, Settings, merged
from grandrounds_studies.veil.tuned import FILE, TunedStudy, nested

TRIALS, INNER_FOLDS = 50, 4
"""Trials of a search, and parts of the training hospitals of which one is held out."""


def held_out_hospitals(study: TunedStudy, fold: int) -> list[str]:
    """Return the hospitals that a fold tests on."""
    from grandrounds.core.plan_types import Plan
    from grandrounds.runs.federation import assemble

    first = study.points[-1].label
    plan = study.plan_with(Cell(first, study.arms_at(first)[0].label, fold, study.repeats.word), {})
    stack = assemble(Plan(plan), None).stack
    return [name for name, rows in zip(stack.names, stack.rows, strict=True) if len(rows.test)]


def trial_settings(settings: Settings, without: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a trial: the fold's test hospitals take no part, and a quarter of the others is tested on."""
    return merged(settings, {"split": {"without": list(without), "folds": INNER_FOLDS}})


def search_space(study: TunedStudy, cell: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the dimensions that are searched, by setting, and the arm's own values in them."""
    from grandrounds.capabilities.tuning.defaults import default_space
    from grandrounds.capabilities.tuning.space import current_values, read_space
    from grandrounds.experiment.experiment import Experiment
    from grandrounds_studies.veil.setting import CLIENT_SCAFFOLD

    arm = next(a for a in study.arms if a.label == cell.arm)
    point = study.point(cell.point)
    values = merged(merged(study.base, arm.settings), merged(point.settings, point.of.get(cell.arm, {})))
    experiment = Experiment.parse(merged(values, arm.over), where=f"study {study.name}, {cell.name}")
    table: dict[str, Any] = default_space(experiment)
    if arm is CLIENT_SCAFFOLD:
        table |= {f"method.options.{name}": {"low": 0.05, "high": 4.0, "log": True} for name in ("clip", "variate_clip")}
    fixed = [f"{section}.{key}" for section, keys in arm.over.items() for key in keys]
    space = read_space({name: entry for name, entry in table.items() if name not in fixed}, experiment)
    return dict(space), dict(current_values(space, experiment))


def search(study: TunedStudy, cell: Cell, without: Sequence[str], file: Path, *, trials: int) -> dict[str, Any]:
    """Run the trials of one method, budget and fold that its file does not have; return the best."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, own = search_space(study, cell)
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    sampler = optuna.samplers.TPESampler(seed=1000 * cell.seed + len(cell.name))
    found = optuna.create_study(direction="maximize", sampler=sampler)
    found.enqueue_trial({name: space[name].stored(v) for name, v in own.items() if space[name].stored(v) is not None})
    done: list[dict[str, Any]] = []
    for number in range(trials):
        trial = found.ask()
        settings = {name: dimension.suggest(trial, name) for name, dimension in space.items()}
        if number < len(kept) and kept[number]["settings"] == settings:
            value = kept[number]["auroc"]
        else:
            value = score(study, cell, settings, without)
        done.append({"settings": settings, "auroc": value})
        found.tell(trial, 0.0 if value is None else value)
        if number >= len(kept):
            write_atomic(file, json.dumps(done, indent=1).encode())
    best = max(done, key=lambda one: -1.0 if one["auroc"] is None else one["auroc"])
    return {**best, "own": done[0]["auroc"], "trials": len(done)}


def score(study: TunedStudy, cell: Cell, settings: Mapping[str, Any], without: Sequence[str]) -> float | None:
    """Return the AUROC of one trial on the inner test hospitals; None where the run failed or its model diverged."""
    from grandrounds.runs.batch import run_all

    held: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            plan = study.plan_with(replace(cell, seed=0), trial_settings(nested(settings), without))
            run_all(
                {"trial": plan}, Path(folder), jobs=1, here=True,
                progress=lambda name, run: held.append(float(run.summary["final"]["auroc"])), failed=lambda name, error: None,
            )  # fmt: skip
        except GrandRoundsError:
            return None
    return held[0] if held and isfinite(held[0]) else None


def searches(study: TunedStudy, folds: Sequence[int], arms: Sequence[str]) -> Iterator[Cell]:
    """Yield a cell for each method, budget and fold."""
    for cell in study.cells(study.seeds):
        if cell.seed in folds and (not arms or cell.arm in arms):
            yield cell


def _one(quick: bool, cell: Cell, without: Sequence[str], file: str, trials: int) -> dict[str, Any]:
    """A search in a process of its own."""
    return search(study_of(quick=quick), cell, without, Path(file), trials=trials)


def study_of(*, quick: bool) -> TunedStudy:
    """Return `veil/table-1-tuned`, or its small version."""
    from grandrounds_studies import load_study

    study = load_study("veil/table-1-tuned", quick=quick)
    assert isinstance(study, TunedStudy)
    return study


def main(arguments: Sequence[str] | None = None) -> None:
    """Search what is missing, and write tuned.json."""
    parser = argparse.ArgumentParser(prog="python -m grandrounds_studies.veil.tuning", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the searches; those that it has are resumed")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--folds", type=int, nargs="*", help="folds to tune (default: all)")
    parser.add_argument("--arms", nargs="*", default=[], help="labels of arms to tune (default: all)")
    parser.add_argument("--quick", action="store_true", help="the small version of the study")
    parser.add_argument("--write", type=Path, default=FILE, help="the file to write (default: the study's)")
    given = parser.parse_args(arguments)
    study = study_of(quick=given.quick)
    folds = list(range(study.seeds)) if given.folds is None else given.folds
    given.out.mkdir(parents=True, exist_ok=True)
    without = {fold: held_out_hospitals(study, fold) for fold in folds}
    chosen: dict[str, Any] = {}
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(
                _one, given.quick, cell, without[cell.seed], str(given.out / f"{slug(cell.name)}.json"), given.trials
            ): cell
            for cell in searches(study, folds, given.arms)
        }
        for count, ended in enumerate(as_completed(waiting), start=1):
            cell, best = waiting[ended], ended.result()
            own, reached = (np.nan if v is None else v for v in (best["own"], best["auroc"]))
            words = f"{cell.name}: AUROC {own:.4f} with its own settings, {reached:.4f} tuned"
            print(f"{count} of {len(waiting)}: {words}", flush=True)
            chosen.setdefault(cell.point, {}).setdefault(cell.arm, {})[str(cell.seed)] = best
    command = shlex.join(["python", "-m", "grandrounds_studies.veil.tuning", *(sys.argv[1:] if arguments is None else arguments)])
    values = {"schema": 1, "command": command, "trials": given.trials, "inner_folds": INNER_FOLDS, "settings": chosen}
    write_atomic(given.write, json.dumps(values, indent=1, sort_keys=True).encode() + b"\n")


if __name__ == "__main__":
    main()
