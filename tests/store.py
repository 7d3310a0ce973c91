"""Finished runs that tests share, in a folder that outlives one run of pytest (CONTRIBUTING.md, "Finished runs").

A folder is made once for this source of the package and these versions, under a lock that all pytest workers respect. It
is read-only afterwards. Root may write into it all the same, so changes are looked for and fail the tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import grandrounds as gr
from grandrounds.api.sources import build_experiment
from grandrounds.core import plugins
from grandrounds.core.errors import GrandRoundsWarning
from grandrounds.core.sources import DATA_FRAME
from grandrounds.data.table import Table
from grandrounds.runs.run import as_rows

ROOT = Path(__file__).parents[1]
STORE = ROOT / ".pytest_cache" / "finished-runs"
PACKAGE = (ROOT / "src" / "grandrounds", ROOT / "reproductions" / "grandrounds_studies")
TESTS = (ROOT / "tests",)
LIBRARIES = ("numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "shap", "torch")
KEPT = 4
"""Generations that are kept; a generation holds what was made from one state of the source."""
RECENT = 3600.0
"""Seconds for which a generation counts as in use by another process."""
_given: set[Path] = set()


def finished(source: Any = None, *, table: Any = None, **options: Any) -> Path:
    """Return the folder of a finished run that no test writes into.

    Args:
        source: A recipe, a data set of the package, a data frame or an Experiment, as for `gr.run`.
        table: Rows in memory that replace those that an Experiment names.
        options: Further arguments of `gr.run`; not `out`.

    Returns:
        The run folder. Its name is "run", and its plan names a file of rows in the store's folder.
    """
    experiment, frame = build_experiment(source, **options)
    rows = as_rows(table if frame is None else frame)
    if rows is not None and experiment.data.name is None and experiment.data.table is None:  # as the run names them
        experiment = experiment.model_copy(update={"data": experiment.data.model_copy(update={"table": DATA_FRAME})})
    values = experiment.plan()
    for name in ("table", "pictures", "masks"):
        if (path := values["data"][name]) and rows is None:
            raise ValueError(
                f"data.{name} is {path}, which the store does not hold: give the rows as table=, or use shared()"
            )
    if plugins.names_in(values):
        raise ValueError("the plan names code outside the package, which the store does not see change: use shared()")
    key = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    key.update(repr(None if rows is None else _content(rows)).encode())

    def make(folder: Path) -> None:
        with contextlib.chdir(folder):  # a plan has the absolute path of its table
            gr.run(experiment, table=rows, out=folder / "run", progress=False)

    return _once(_generation(PACKAGE), key.hexdigest()[:16], make) / "run"


def shared(make: Callable[[Path], object]) -> Path:
    """Return a folder that a function of the tests fills, and that no test writes into.

    For tables in files, several runs together, and runs of the command line. The folder is made again after a change to
    any file of the tests.
    """
    return _once(_generation(PACKAGE + TESTS), f"{make.__module__}.{make.__qualname__}", make)


def shared_folder(make: Callable[[Path], object]) -> Any:
    """Turn a function that fills a folder into a fixture of the same name that gives the shared folder."""

    @pytest.fixture(scope="module", name=make.__name__)
    def folder() -> Path:
        return shared(make)

    return folder


def copied(folder: Path, to: Path) -> Path:
    """Return a copy of a shared folder, for a test that writes into it."""
    shutil.copytree(folder, to, symlinks=True, dirs_exist_ok=True)
    _set_mode(to, write=True)
    return to


def check_unchanged() -> None:
    """Fail if a folder that this process was given is no longer as it was made; it will then be made again."""
    for place in sorted(_given):
        _check(place)


def secret() -> bytes:
    """Return the secret that runs of all tests are stamped with, so that a stored run counts as made here."""
    return hashlib.sha256(b"tests of Grand Rounds").digest()


def _once(generation: Path, name: str, make: Callable[[Path], object]) -> Path:
    place = generation / name
    with _locked(generation / f"{name}.lock"):
        if not _record(place).exists():
            _remove(place)
            _make(place, make)
        _check(place)
    _given.add(place)
    for sentence in json.loads(_record(place).read_text())["warnings"]:
        warnings.warn(sentence, GrandRoundsWarning, stacklevel=3)
    return place


def _make(place: Path, make: Callable[[Path], object]) -> None:
    """Fill a folder; one that fails leaves nothing, so that each test that asks for it sees the failure."""
    place.mkdir(parents=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            make(place)
    except BaseException:
        _remove(place)
        raise
    made = {"warnings": [f"{w.category.__name__}: {w.message}" for w in caught], "files": _files(place)}
    _set_mode(place, write=False)
    _record(place).write_text(json.dumps(made))


def _record(place: Path) -> Path:
    """Return the file that says that a folder is complete: its files as they were made, and the warnings of its making."""
    return place.with_name(f"{place.name}.json")


def _check(place: Path) -> None:
    made, found = json.loads(_record(place).read_text())["files"], _files(place)
    if made != found:
        changed = sorted(name for name in made.keys() | found.keys() if made.get(name) != found.get(name))
        _record(place).unlink()
        _remove(place)
        _given.discard(place)
        raise AssertionError(f"a test wrote into {place}, which tests share ({', '.join(changed)}): use copied()")


def _files(place: Path) -> dict[str, list[int]]:
    """Return the size and time of each file and folder; a folder's time tells of a file that was written and removed."""
    found = {str(p.relative_to(place)): p.lstat() for p in (place, *place.rglob("*"))}
    return {name: [facts.st_size, facts.st_mtime_ns] for name, facts in found.items()}


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@cache
def _generation(trees: tuple[Path, ...]) -> Path:
    """Return the folder of what is made from these source files with these versions, and remove the oldest ones."""
    digest = hashlib.sha256(f"{platform.python_version()} {platform.machine()}".encode())
    digest.update(repr([(name, metadata.version(name)) for name in LIBRARIES]).encode())
    digest.update(Path(__file__).read_bytes())
    for tree in trees:
        for path in sorted(p for p in tree.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    generation = STORE / digest.hexdigest()[:16]
    generation.mkdir(parents=True, exist_ok=True)
    os.utime(generation)
    with _locked(STORE / "lock"):
        newest = sorted((p for p in STORE.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
        for old in newest[KEPT:]:
            if time.time() - old.stat().st_mtime > RECENT:
                _remove(old)
    return generation


def _content(rows: Any) -> object:
    """Return the values of rows in memory as plain Python values."""
    if not isinstance(rows, Table):
        raise TypeError(f"rows are a {type(rows).__name__}: use shared()")
    return rows.source, [(name, values.dtype.str, values.tolist()) for name, values in rows.columns.items()]


def _set_mode(folder: Path, *, write: bool) -> None:
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o200 if write else mode & ~0o222)


def _remove(folder: Path) -> None:
    if folder.exists():
        _set_mode(folder, write=True)
        shutil.rmtree(folder)
