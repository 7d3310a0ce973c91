"""Run many plans, several at a time in processes of their own, or one after another in this one. Finished runs are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import PlanValues
from grandrounds.runs.facts import is_same_experiment
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.runner import execute_plan


def run_all(
    plans: Mapping[str, PlanValues],
    folder: Path,
    *,
    jobs: int,
    progress: Callable[[str, Run], None],
    failed: Callable[[str, RunFailed], None] | None = None,
    here: bool = False,
) -> list[Run]:
    """Run each plan into folder/NAME; interrupted runs are resumed, finished ones are not run again.

    Args:
        plans: Plans by name.
        folder: The folder of all runs.
        jobs: The number of runs at a time.
        progress: Called with the name and the run after each run.
        failed: Called with the name and the error of a run that failed; the others continue. None stops at the first failure.
        here: Run one after another in this process, for runs that take less time than the start of a process.

    Returns:
        The runs in the order of the plans, without those that failed.

    Raises:
        BadInput: The folder cannot be made, a plan is wrong, or a folder has a run of another experiment.
        RunFailed: A run failed, and `failed` is None.
    """
    broken: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise BadInput(
            f"cannot make {folder}: {e.strerror or e}; choose another --out", code="cannot-make-folder"
        ) from None
    start = _run_here if here else _run_one
    with ThreadPoolExecutor(1 if here else max(1, jobs)) as pool:
        waiting = {pool.submit(start, name, plan, folder / name): name for name, plan in plans.items()}
        try:
            for future in as_completed(waiting):
                error = future.exception()
                if failed is not None and isinstance(error, RunFailed):
                    broken.add(waiting[future])
                    failed(waiting[future], error)
                    continue
                progress(waiting[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [Run(folder / name) for name in plans if name not in broken]


def _run_one(name: str, plan: PlanValues, out: Path) -> Run:
    if (out / "summary.json").exists():
        existing = Run(out)
        _same_plan(existing, plan)
        return existing
    file = out.with_name(f".{name}.plan.json")
    write_atomic(file, json.dumps(plan).encode(), durable=False)
    command = [sys.executable, "-m", "grandrounds.job", str(file), "--out", str(out), "--quiet"]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    file.unlink(missing_ok=True)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["no message"]
        sentence = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
        raise (BadInput if process.returncode == 2 else RunFailed)(f"{name}: {sentence.removeprefix('error: ')}")
    return Run(out)


def _run_here(name: str, plan: PlanValues, out: Path) -> Run:
    """Run a plan in this process; an interrupted run is resumed in its own."""
    folder = RunFolder(out)
    if folder.summary.exists() or (folder.checkpoint / "plan.json").exists():
        return _run_one(name, plan, out)
    folder.create()
    try:
        execute_plan(plan, folder)
    except (BadInput, RunFailed) as e:
        raise (BadInput if isinstance(e, BadInput) else RunFailed)(f"{name}: {e}") from e
    return Run(out)


def _same_plan(existing: Run, plan: PlanValues) -> None:
    """Raise where a finished run is not a run of this plan."""
    if not is_same_experiment(plan, existing.plan):
        raise BadInput(
            f"{existing.folder} holds a run of another experiment: choose another --out", code="another-experiment"
        )
