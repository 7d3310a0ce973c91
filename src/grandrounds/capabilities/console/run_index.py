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
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from grandrounds.analysis.audit.changes import ChangedRun, find_changes
from grandrounds.capabilities.console.single_flight import SingleFlight
from grandrounds.core.compact import Packer
from grandrounds.core.ending import Ending
from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.core.records import RoundRecord
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.journal import JournalReader
from grandrounds.report.overview import FINISHED as FINISHED
from grandrounds.report.overview import RUNNING as RUNNING
from grandrounds.runs.ending import read_state
from grandrounds.runs.explanations import without_arrays
from grandrounds.runs.run import Run
from grandrounds.runs.withdrawal import MARK

DEEPEST = 4
"""Depth of the scan below the root: a reproduction keeps its runs in STUDY/runs/NAME."""
LARGEST = 256 * 2**20
"""Bytes of one file of a run that the console reads at once. The journal of a running run is read line by line."""
LONGEST_JOURNAL = 4 * 2**30
"""Bytes of the journal of a running run that the console reads."""
LOOK_SECONDS = 2.0
"""Seconds for which a scan of the folders is valid."""
CACHED_RUNS, CACHED_LINES = 8, 20_000
"""Cached runs, and cached lines of the list."""
CACHED_BYTES = 256 * 2**20
"""Bytes of the files of cached runs; their records need a smaller part of it in memory."""

UNREADABLE = "unreadable"
_JOURNAL = "checkpoint/rounds.jsonl"
_READ = ("summary.json", "round_logs.json", "explanations.json", _JOURNAL, "checkpoint/plan.json", MARK)
_STAMPED = (*_READ, "checkpoint/state.safetensors", "model.safetensors", "schema.json", "percentiles.json", "ledger.db")
"""Files whose changes are noticed. The state commits a round, after the journal has it."""
T = TypeVar("T")
Stamp = tuple[tuple[int, int], ...]
"""Time of the last change and bytes of each file of a run."""
_Cache = OrderedDict[str, tuple[Stamp, dict[str, Any]]]
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
        """The state: finished, running, failed, stopped or interrupted."""
        return FINISHED if os.path.lexists(self._paths[0]) else read_state(self.folder)[0]

    @property
    def ending(self) -> Ending | None:
        """The end of a run that did not finish; None for a finished or running one."""
        return None if os.path.lexists(self._paths[0]) else read_state(self.folder)[1]

    def stamp(self) -> Stamp:
        """Stamp the files that are read: the value changes when one of them does."""
        return tuple(map(_facts, self._paths))

    def list_stamp(self) -> Stamp:
        """Stamp the files that a line of the list is made from: of a finished run, its summary and its withdrawal."""
        finished = (_facts(self._paths[0]), _facts(self._paths[_READ.index(MARK)]))
        return finished if finished[0][0] else self.stamp()

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return tuple(f"{self.folder}/{name}" for name in _STAMPED)


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
        self._readers: OrderedDict[str, JournalReader] = OrderedDict()
        self._turn = threading.Lock()
        self._looking = threading.Lock()
        self._flights = SingleFlight()

    def runs(self) -> list[RunEntry]:
        """List all runs, the newest first."""
        return [entry for entry, _ in self.stamped_runs()]

    def stamped_runs(self) -> list[tuple[RunEntry, Stamp]]:
        """List all runs with the stamps of the files that their lines are made from, the newest first."""
        found = [(entry, entry.list_stamp()) for entry in self._all().values()]
        return sorted(found, key=lambda f: (-max(written for written, _ in f[1]), f[0].name))

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
        return self.get_cached(name, "run", self._open)

    def warm(self) -> None:
        """Read the rounds that running runs have appended, so that a page does not wait for all of them."""
        for entry in list(self._all().values()):
            if entry.state == RUNNING:
                try:
                    self.run(entry.name)
                except GrandRoundsError:
                    continue

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

    def line(self, name: str, make: Callable[[RunEntry], T], *, stamp: Stamp | None = None) -> T:
        """Return the line of a run in a list of all runs; cached like `get_cached`, for more runs.

        Args:
            name: The run.
            make: Makes its line.
            stamp: Its `list_stamp`, where it is known.
        """
        return self._cached(self._lines, CACHED_LINES, name, "line", make, RunEntry.list_stamp, stamp=stamp)

    def _cached(
        self,
        cache: _Cache,
        most: int,
        name: str,
        kind: str,
        make: Callable[[RunEntry], T],
        make_stamp: Callable[[RunEntry], Stamp] = RunEntry.stamp,
        *,
        stamp: Stamp | None = None,
    ) -> T:
        entry = self.get(name)
        stamp = make_stamp(entry) if stamp is None else stamp
        new: T | Unreadable | None = self._look_up(cache, name, kind, stamp)
        if new is None:
            with self._flights.turn((name, kind)):
                stamp = make_stamp(entry)  # the files may have changed while another thread had its turn
                new = self._look_up(cache, name, kind, stamp)
                if new is None:
                    try:
                        new = _read_checked(entry, make)
                    except Unreadable as e:
                        new = e.with_traceback(None)  # an unreadable run is not read again until its files change
                    self._store(cache, most, name, kind, stamp, new)
        if isinstance(new, Unreadable):
            raise Unreadable(str(new), code=new.code)
        return new if new is not _NOTHING else None  # type: ignore[return-value]  # `make` returned None

    def _look_up(self, cache: _Cache, name: str, kind: str, stamp: Stamp) -> Any:
        """Return a cached result; None where there is none."""
        with self._turn:
            before, results = cache.get(name, (None, {}))
            if before != stamp or kind not in results:
                return None
            cache.move_to_end(name)
            return results[kind]

    def _store(self, cache: _Cache, most: int, name: str, kind: str, stamp: Stamp, new: object) -> None:
        with self._turn:
            before, results = cache.get(name, (None, {}))
            cache[name] = (stamp, {**(results if before == stamp else {}), kind: _NOTHING if new is None else new})
            cache.move_to_end(name)
            while len(cache) > most or (cache is self._cache and len(cache) > 1 and _bytes_of(cache) > CACHED_BYTES):
                cache.popitem(last=False)

    def _open(self, entry: RunEntry) -> Run:
        """Open a run and read all of its files, so that damage and changes are found here."""
        check_files(entry)
        refuse_changes(entry)
        run = IndexedRun(entry.folder, self._read_rounds)
        rounds = run.rounds
        if not isinstance(run.plan, dict) or not all(isinstance(r, dict) and "decision" in r for r in rounds):
            raise Unreadable(f"run {entry.name} is damaged: its rounds have no decisions", code="damaged-run")
        if run.finished and not {"final", "per_site", "method", "data"} <= set(run.summary):
            raise Unreadable(f"run {entry.name} is damaged: its summary lacks figures", code="damaged-run")
        return run

    def _read_rounds(self, folder: Path) -> list[RoundRecord]:
        """Read the rounds of an unfinished run: those that were appended since the last time."""
        with self._turn:
            name = str(folder)
            reader = self._readers.setdefault(
                name, JournalReader(Checkpoint(folder / "checkpoint"), reduce=without_arrays)
            )
            self._readers.move_to_end(name)
            while len(self._readers) > CACHED_RUNS:
                self._readers.popitem(last=False)
        return reader.read()

    def _all(self) -> dict[str, RunEntry]:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            with self._looking:
                if time.monotonic() - self._looked > LOOK_SECONDS:
                    self._found = {f.name: self._found.get(f.name, f) for f in self._look(self.root, 0)}
                    self._looked = time.monotonic()
        return self._found

    def _look(self, folder: Path, depth: int) -> Iterator[RunEntry]:
        """Find the run folders in and below a folder. Links are not followed."""
        if _is_folder(f"{folder}/checkpoint"):
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


def is_stored(path: Path) -> bool:
    """Check that a file is there and may be read."""
    return os.path.lexists(path) and is_plain(path)


def refuse_file(path: Path, name: str, *, largest: int | None = None) -> None:
    """Refuse a file that may not be read.

    Args:
        path: The file.
        name: The file as the sentence names it, such as "summary.json of run 'heart'".
        largest: Its largest size in bytes (`LARGEST`).

    Raises:
        Unreadable: It is a link, no plain file, or too large.
    """
    most = LARGEST if largest is None else largest
    if is_plain(path, largest=most):
        return
    mode = path.lstat().st_mode
    fault = "is a link" if stat.S_ISLNK(mode) else "is no plain file"
    fault = f"is larger than {most // 2**20:,} MB" if stat.S_ISREG(mode) else fault
    raise Unreadable(f"the file {name} {fault}: it is not read", code="refused-file")


def check_files(entry: RunEntry) -> None:
    """Refuse a run whose files are links, pipes or too large, before one of them is opened.

    Args:
        entry: The run.

    Raises:
        Unreadable: One of them is.
    """
    finished = os.path.lexists(entry.folder / "summary.json")
    for name in _READ:
        largest = LONGEST_JOURNAL if name == _JOURNAL and not finished else None
        refuse_file(entry.folder / name, f"{name} of run '{entry.name}'", largest=largest)


def refuse_changes(entry: RunEntry) -> None:
    """Refuse a finished run whose files are not those that its ledger names.

    Args:
        entry: The run.

    Raises:
        ChangedRun: One of them is not.
    """
    changes = find_changes(entry.folder)
    if changes:
        raise ChangedRun(f"run '{entry.name}' is not shown: {changes} The page Audit names every change.", code="changed-run")


class IndexedRun(Run):
    """A run whose rounds need little memory: those of an unfinished run are read as they are appended.

    Args:
        folder: The run folder.
        read_rounds: Reads the rounds of an unfinished run.
    """

    def __init__(self, folder: Path, read_rounds: Callable[[Path], list[RoundRecord]]) -> None:
        super().__init__(folder, trust_code=None)
        self._read_rounds = read_rounds

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        """The record of each round, as `Run.rounds` has it."""
        if not self.finished:
            return self._read_rounds(self.folder)
        packer = Packer()
        return [packer.pack(record) for record in super().rounds]


_NOTHING = object()
"""A cached result that is None."""


def _bytes_of(cache: _Cache) -> int:
    return sum(size for stamp, _ in cache.values() for _, size in stamp)


def _read_checked(entry: RunEntry, make: Callable[[RunEntry], T]) -> T:
    try:
        return make(entry)
    except Unreadable:
        raise
    except GrandRoundsError as e:
        raise Unreadable(str(e).replace(f"{entry.folder}/", f"{entry.name}/"), code=e.code) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise Unreadable(f"run {entry.name} is damaged ({type(e).__name__})", code="damaged-run") from None


def _facts(path: str) -> tuple[int, int]:
    try:
        s = os.lstat(path)
    except OSError:
        return (0, 0)
    return (s.st_mtime_ns, s.st_size)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
