"""An index of the run folders below one folder. Paths in requests are never opened.

A request names a run by its place below the root. That name is looked up among the folders that were found, so `..`, a
link that leads out, or an absolute path is an unknown name.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.runs.run import Run
from grandrounds.runs.withdrawal import MARK

DEEPEST = 4
"""Depth of the scan below the root: a reproduction keeps its runs in STUDY/runs/NAME."""
LARGEST = 256 * 2**20
"""Bytes of one file of a run that the console reads."""
LOOK_SECONDS = 2.0
"""Seconds for which a scan of the folders is valid."""
CACHED_RUNS, CACHED_LINES = 8, 5000
"""Cached runs, and cached lines of the list."""

FINISHED, RUNNING, STOPPED, UNREADABLE = "finished", "running", "stopped", "unreadable"
_READ = (
    *("summary.json", "round_logs.json", "explanations.json", "checkpoint/rounds.jsonl", "checkpoint/plan.json"),
    MARK,
)
T = TypeVar("T")
_Cache = OrderedDict[str, tuple[object, dict[str, Any]]]
"""Results by run: the stamp of its files, then each result by kind."""


class NotFound(GrandRoundsError):
    """The run, site, figure or entry does not exist."""


class Unreadable(GrandRoundsError):
    """A run's files are damaged, or larger than the console reads."""


@dataclass(frozen=True)
class RunEntry:
    """One run folder. `name`: its place below the root."""

    name: str
    folder: Path

    @property
    def state(self) -> str:
        if (self.folder / "summary.json").exists():
            return FINISHED
        return RUNNING if Checkpoint(self.folder / "checkpoint").is_locked() else STOPPED

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Stamp the files that are read: the value changes when one of them does."""
        return tuple(_facts(self.folder / name) for name in _READ)


class RunIndex:
    """The runs below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadInput(
                f"{root} is not a folder: give --runs the folder that holds run folders", code="not-a-folder"
            )
        self._found: dict[str, RunEntry] = {}
        self._looked = -LOOK_SECONDS
        self._cache: _Cache = OrderedDict()
        self._lines: _Cache = OrderedDict()
        self._turn = threading.Lock()

    def runs(self) -> list[RunEntry]:
        """List all runs, the newest first."""
        return sorted(self._all().values(), key=lambda f: (-_newest(f.folder), f.name))

    def get(self, name: str) -> RunEntry:
        """Return a run by its name.

        Raises:
            NotFound: There is no such run.
        """
        entry = self._all().get(name)
        if entry is None:
            raise NotFound(f"there is no run '{name[:200]}'", code="unknown-run")
        return entry

    def run(self, name: str) -> Run:
        """Open a run; its files are read once while they stay as they are."""
        return self.get_cached(name, "run", _open_run)

    def refuse_withdrawn(self, name: str, *, withdrawn: bool = False) -> None:
        """Refuse the model of a run from which a site withdrew.

        Args:
            name: The run.
            withdrawn: Show the model all the same.

        Raises:
            BadInput: A site withdrew.
        """
        mark = self.run(name).withdrawn
        if mark is not None and not withdrawn:
            raise BadInput(
                f"the model of run {name} is not valid: {mark.sentence}; open that run, or add withdrawn=true to the address",
                code="withdrawn-run",
            )

    def get_cached(self, name: str, what: str, make: Callable[[RunEntry], T]) -> T:
        """Return a result about a run, computed once while the run's files stay as they are.

        Args:
            name: The run.
            what: The kind of result.
            make: Computes it.

        Raises:
            NotFound: There is no such run.
            Unreadable: Its files are damaged.
        """
        return self._cached(self._cache, CACHED_RUNS, name, what, make)

    def line(self, name: str, make: Callable[[RunEntry], T]) -> T:
        """Return the line of a run in a list of all runs; cached like `get_cached`, for more runs."""
        return self._cached(self._lines, CACHED_LINES, name, "line", make)

    def _cached(self, cache: _Cache, most: int, name: str, kind: str, make: Callable[[RunEntry], T]) -> T:
        entry = self.get(name)
        stamp = entry.stamp()
        with self._turn:
            before, results = cache.get(name, (None, {}))
            if before == stamp and kind in results:
                cache.move_to_end(name)
                cached: T | Unreadable = results[kind]
                if isinstance(cached, Unreadable):
                    raise Unreadable(str(cached), code=cached.code)
                return cached
        new: T | Unreadable
        try:
            new = _read_checked(entry, make)
        except Unreadable as e:
            new = e.with_traceback(None)  # an unreadable run is not read again until its files change
        with self._turn:
            before, results = cache.get(name, (None, {}))
            cache[name] = (stamp, {**(results if before == stamp else {}), kind: new})
            cache.move_to_end(name)
            while len(cache) > most:
                cache.popitem(last=False)
        if isinstance(new, Unreadable):
            raise new
        return new

    def _all(self) -> dict[str, RunEntry]:
        with self._turn:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._found = {f.name: f for f in self._look(self.root, 0)}
                self._looked = time.monotonic()
            return self._found

    def _look(self, folder: Path, depth: int) -> Iterator[RunEntry]:
        """Find the run folders in and below a folder. Links are not followed."""
        if (folder / "checkpoint").is_dir() and not (folder / "checkpoint").is_symlink():
            yield RunEntry(folder.relative_to(self.root).as_posix(), folder)
            return
        if depth == DEEPEST:
            return
        try:
            with os.scandir(folder) as entries:
                below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[:1] != ".")
        except OSError:
            return
        for name in below:
            yield from self._look(folder / name, depth + 1)


def is_plain(path: Path, *, largest: int | None = None) -> bool:
    """Check that a file may be read: no link, pipe or device, and not too large.

    Args:
        path: The file.
        largest: Its largest size in bytes (`LARGEST`).

    Returns:
        True also where nothing is there.
    """
    try:
        facts = path.lstat()
    except OSError:
        return True
    return stat.S_ISREG(facts.st_mode) and facts.st_size <= (LARGEST if largest is None else largest)


def check_files(entry: RunEntry) -> None:
    """Refuse a run whose files are links, pipes or too large, before one of them is opened.

    Args:
        entry: The run.

    Raises:
        Unreadable: One of them is.
    """
    for name in _READ:
        if not is_plain(entry.folder / name):
            raise Unreadable(
                f"{name} of run {entry.name} is a link, no plain file, or larger than {LARGEST // 2**20} MB: it is not read",
                code="refused-file",
            )


def _open_run(entry: RunEntry) -> Run:
    """Open a run and read all of its files, so that damage is found here."""
    check_files(entry)
    run = Run(entry.folder, trust_code=None)
    rounds = run.rounds
    if not isinstance(run.plan, dict) or not all(isinstance(r, dict) and "decision" in r for r in rounds):
        raise Unreadable(f"run {entry.name} is damaged: its rounds have no decisions", code="damaged-run")
    if run.finished and not {"final", "per_site", "method", "data"} <= set(run.summary):
        raise Unreadable(f"run {entry.name} is damaged: its summary lacks figures", code="damaged-run")
    return run


def _read_checked(entry: RunEntry, make: Callable[[RunEntry], T]) -> T:
    try:
        return make(entry)
    except Unreadable:
        raise
    except GrandRoundsError as e:
        raise Unreadable(str(e).replace(f"{entry.folder}/", f"{entry.name}/"), code=e.code) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise Unreadable(f"run {entry.name} is damaged ({type(e).__name__})", code="damaged-run") from None


def _facts(path: Path) -> tuple[int, int]:
    try:
        s = path.lstat()
    except OSError:
        return (0, 0)
    return (s.st_mtime_ns, s.st_size)


def _newest(folder: Path) -> int:
    return max(_facts(folder / name)[0] for name in _READ)
