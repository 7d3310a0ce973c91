"""Cases of the corpus: commands and functions in a folder of their own, each in a fresh process, and what they leave behind."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden.digest import Digest
from tests.golden.record import masked_string, masked_text, read_folder

PLACE = Path("/tmp/grandrounds-golden")
"""Folders of cases. Always the same, because a run's plan names the file of its rows, and its ledger the hash of the plan."""

Step = tuple[str, ...] | Callable[[Path], Any]
"""Arguments of `rounds`, or a function of the case's folder; what it returns is kept as JSON."""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: Its name, which is a folder's.
        steps: What is done, in order.
        given: Writes the files that the case starts from; they are not kept.
        part: "test" (in `make test`), "commit" (in three minutes) or "all".
        codes: Keep only exit codes and the codes of errors of commands.
    """

    name: str
    steps: Sequence[Step]
    given: Callable[[Path], object] | None = None
    part: str = "all"
    codes: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def run_case(case: Case) -> dict[str, Any]:
    """Run a case in this process, which should be its own, and read what it leaves.

    Returns:
        Values by name, all JSON.
    """
    folder = PLACE / case.name.replace(" ", "_").replace("/", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _clean_environment(folder, case.env)
    os.chdir(folder)
    if case.given is not None:
        case.given(folder)
    given = frozenset(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    steps = [_run_step(step, folder, codes=case.codes) for step in case.steps]
    out = {f"step {k}: {_name(step)}": value for k, (step, value) in enumerate(zip(case.steps, steps, strict=True))}
    if not case.codes:
        out |= read_folder(folder, without=given)
    shutil.rmtree(folder, ignore_errors=True)
    return out


@dataclass(frozen=True)
class Left:
    """Values that a case left: digests of its values by name and, if they are asked for, the values as compressed JSON."""

    digests: dict[str, Digest]
    values: bytes = b""


def run_cases(cases: Iterable[Case], *, jobs: int, keep: bool = False) -> Iterator[tuple[Case, Left]]:
    """Run cases, each in a process that has imported the package and nothing else, as they end.

    Args:
        cases: The cases.
        jobs: Cases at a time.
        keep: Also return all values.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.golden.running", "grandrounds.cli", "grandrounds.runs.runner", "pandas"])
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(_run_named, case.name, keep): case for case in cases}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _run_named(name: str, keep: bool) -> Left:
    from tests.golden.cases import find_case

    values = run_case(find_case(name))
    stored = gzip.compress(json.dumps(values).encode(), 1) if keep else b""
    return Left({name: Digest.of(value) for name, value in values.items()}, stored)


def _run_step(step: Step, folder: Path, *, codes: bool) -> Any:
    if callable(step):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            value = _called(step, folder)
        own = [w for w in warned if "grandrounds" in w.filename]
        return {"value": value, "warnings": [f"{w.category.__name__}: {w.message}" for w in own]}
    from tests.command import rounds

    done = rounds(*step)
    if codes:
        found = [line for line in done.stderr.splitlines() if line.startswith("error")]
        return {"exit": done.returncode, "codes": [_code(line) for line in found]}
    printed = masked_string(done.stdout)
    shown = [line.rstrip() for line in printed.splitlines()] if isinstance(printed, str) else printed
    return {"exit": done.returncode, "stdout": shown, "stderr": masked_text(done.stderr).splitlines()}


def _called(step: Callable[[Path], Any], folder: Path) -> Any:
    from grandrounds.core.errors import GrandRoundsError

    try:
        return step(folder)
    except GrandRoundsError as e:
        return {"error": type(e).__name__, "code": e.code}
    except Exception:
        return {"traceback": traceback.format_exc().splitlines()[-1]}


def _code(line: str) -> str:
    start, end = line.rfind("["), line.rfind("]")
    return line[start + 1 : end] if 0 <= start < end else ""


def _name(step: Step) -> str:
    return step.__name__ if callable(step) else " ".join(step)


def _clean_environment(folder: Path, more: Mapping[str, str]) -> None:
    """The user's own data, cache, secrets, screen and clock have no say."""
    for name in [n for n in os.environ if n.startswith(("GRANDROUNDS_", "XDG_", "MLFLOW_"))]:
        del os.environ[name]
    home = PLACE / "home"
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"):
        os.environ[name] = str(home / f"{folder.name}-{name.lower()}")
    os.environ |= {"COLUMNS": "110", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8", **more}
    sys.argv = ["rounds"]
