"""Run many plans, several at a time, each in its own process. Finished runs are not run again."""

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
from grandrounds.runs.run import Run


def run_all(
    plans: Mapping[str, PlanValues],
    folder: Path,
    *,
    jobs: int,
    progress: Callable[[str, Run], None],
    failed: Callable[[str, RunFailed], None] | None = None,
) -> list[Run]:
    """Run each plan into folder/NAME; interrupted runs are resumed, finished ones are not run again.

    Args:
        plans: Plans by name.
        folder: The folder of all runs.
        jobs: The number of runs at a time.
        progress: Called with the name and the run after each run.
        failed: Called with the name and the error of a run that failed; the others continue. None stops at the first failure.

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
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        waiting = {pool.submit(_run_one, name, plan, folder / name): name for name, plan in plans.items()}
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


def _same_plan(existing: Run, plan: PlanValues) -> None:
    """Raise where a finished run is not a run of this plan."""
    mine, theirs = json.loads(json.dumps(plan)), existing.plan
    for p in (mine, theirs):
        p.pop("code", None)
        for key in ("kinds", "sha256"):
            p["data"].pop(key, None)
    if mine != theirs:
        raise BadInput(
            f"{existing.folder} holds a run of another experiment: choose another --out", code="another-experiment"
        )
