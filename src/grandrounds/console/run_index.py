"""An index of the run folders below one folder, found by looking and never by a path that somebody sent.

A request names a run by its place below the root. That name is looked up among the folders that were found, so `..`, a
link that leads out, or an absolute path is a name that nobody has.
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

DEEPEST = 4
"""Folders below the root that are looked into: a study keeps its runs in STUDY/runs/NAME."""
LARGEST = 256 * 2**20
"""Bytes of one file of a run that the console reads."""
FRESH = 2.0
"""Seconds for which a look at the folders holds."""
KEPT, LINES = 8, 5000
"""Runs whose files stay read, and whose line in the list does."""

FINISHED, RUNNING, STOPPED, UNREADABLE = "finished", "running", "stopped", "unreadable"
_READ = ("summary.json", "round_logs.json", "explanations.json", "checkpoint/rounds.jsonl", "checkpoint/plan.json")
T = TypeVar("T")


class NotFound(GrandRoundsError):
    """There is no such run."""


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
        """Changes when a file that is read changes."""
        return tuple(_facts(self.folder / name) for name in _READ)


class RunIndex:
    """Runs below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadInput(f"{root} is not a folder: give --runs the folder that holds run folders")
        self._found: dict[str, RunEntry] = {}
        self._looked = -FRESH
        self._cache: OrderedDict[str, tuple[object, dict[str, Any]]] = OrderedDict()  # run -> stamp, what was made of it
        self._lines: OrderedDict[str, tuple[object, dict[str, Any]]] = OrderedDict()
        self._turn = threading.Lock()

    def runs(self) -> list[RunEntry]:
        """All runs, the newest first."""
        return sorted(self._all().values(), key=lambda f: (-_newest(f.folder), f.name))

    def get(self, name: str) -> RunEntry:
        found = self._all().get(name)
        if found is None:
            raise NotFound(f"there is no run '{name[:200]}'")
        return found

    def run(self, name: str) -> Run:
        """A run's files, read once while they stay as they are."""
        return self.kept(name, "run", _open_run)

    def kept(self, name: str, what: str, make: Callable[[RunEntry], T]) -> T:
        """What `make` gives for a run, made once while the run's files stay as they are; damage is `Unreadable`."""
        return self._cached(self._cache, KEPT, name, what, make)

    def line(self, name: str, make: Callable[[RunEntry], T]) -> T:
        """As `kept`, for the little that a list of all runs shows of each."""
        return self._cached(self._lines, LINES, name, "line", make)

    def _cached(self, cache: OrderedDict[str, Any], most: int, name: str, what: str, make: Callable[[RunEntry], T]) -> T:
        found = self.get(name)
        stamp = found.stamp()
        with self._turn:
            before, made = cache.get(name, (None, {}))
            if before == stamp and what in made:
                cache.move_to_end(name)
                known: T | Unreadable = made[what]
                if isinstance(known, Unreadable):
                    raise Unreadable(str(known))
                return known
        new: T | Unreadable
        try:
            new = _read_checked(found, make)
        except Unreadable as e:
            new = e.with_traceback(None)  # what cannot be read is not read again while it stays as it is
        with self._turn:
            before, made = cache.get(name, (None, {}))
            cache[name] = (stamp, {**(made if before == stamp else {}), what: new})
            cache.move_to_end(name)
            while len(cache) > most:
                cache.popitem(last=False)
        if isinstance(new, Unreadable):
            raise new
        return new

    def _all(self) -> dict[str, RunEntry]:
        with self._turn:
            if time.monotonic() - self._looked > FRESH:
                self._found = {f.name: f for f in self._look(self.root, 0)}
                self._looked = time.monotonic()
            return self._found

    def _look(self, folder: Path, depth: int) -> Iterator[RunEntry]:
        """Run folders in and below a folder. Links are not followed."""
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


def check_files(found: RunEntry) -> None:
    """Refuse a run whose files are links, pipes or too large, before one of them is opened.

    Args:
        found: The run.

    Raises:
        Unreadable: One of them is.
    """
    for name in _READ:
        if not is_plain(found.folder / name):
            raise Unreadable(
                f"{name} of run {found.name} is a link, no plain file, or larger than {LARGEST // 2**20} MB: it is not read"
            )


def _open_run(found: RunEntry) -> Run:
    """A run whose files have all been looked at: what is wrong with them shows here and not in a page."""
    check_files(found)
    run = Run(found.folder, trust_code=None)
    rounds = run.rounds
    if not isinstance(run.plan, dict) or not all(isinstance(r, dict) and "decision" in r for r in rounds):
        raise Unreadable(f"run {found.name} is damaged: its rounds have no decisions")
    if run.finished and not {"final", "per_site", "method", "data"} <= set(run.summary):
        raise Unreadable(f"run {found.name} is damaged: its summary lacks figures")
    return run


def _read_checked(found: RunEntry, make: Callable[[RunEntry], T]) -> T:
    try:
        return make(found)
    except Unreadable:
        raise
    except GrandRoundsError as e:
        raise Unreadable(str(e).replace(f"{found.folder}/", f"{found.name}/")) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise Unreadable(f"run {found.name} is damaged ({type(e).__name__})") from None


def _facts(path: Path) -> tuple[int, int]:
    try:
        s = path.lstat()
    except OSError:
        return (0, 0)
    return (s.st_mtime_ns, s.st_size)


def _newest(folder: Path) -> int:
    return max(_facts(folder / name)[0] for name in _READ)
