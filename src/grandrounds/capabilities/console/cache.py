"""A cache of slow results, keyed by a stamp of their input files; and computations with a time limit.

`RunIndex.get_cached` knows the files of a run. Ledgers, anchors, attacks and comparisons depend on other files.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLong
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from grandrounds.capabilities.console.run_index import NotFound, RunIndex, Unreadable
from grandrounds.capabilities.console.single_flight import SingleFlight
from grandrounds.core.errors import GrandRoundsError

WORKERS, WAITING, LINES = 2, 32, 5000
"""Limits: parallel computations, queued computations, cached results."""
T = TypeVar("T")


class StillComputing(Exception):
    """The result is still being computed: try again."""


class ResultCache:
    """A cache of results of one run index."""

    def __init__(self) -> None:
        self._made: dict[str, OrderedDict[Hashable, tuple[object, tuple[Any]]]] = {}  # by kind
        self._jobs: OrderedDict[Hashable, tuple[object, Future[Any]]] = OrderedDict()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="console")
        self._turn = threading.Lock()
        self._flights = SingleFlight()

    def get_or_make(self, kind: str, key: Hashable, stamp: object, make: Callable[[], T], *, most: int = LINES) -> T:
        """Return a cached result; compute it if there is none or its stamp has changed, once for all threads that wait.

        Args:
            kind: The kind of result.
            key: The result among those of its kind.
            stamp: Changes when the files do that the result is made from.
            make: Makes the result.
            most: Results of this kind that are kept; the one used longest ago goes first.

        Returns:
            The result.
        """
        cached = self._look_up(kind, key, stamp)
        if cached is None:
            with self._flights.turn((kind, key)):
                cached = self._look_up(kind, key, stamp)
                if cached is None:
                    cached = (make(),)
                    self._store(kind, key, stamp, cached, most)
        return cached[0]

    def _look_up(self, kind: str, key: Hashable, stamp: object) -> tuple[Any] | None:
        with self._turn:
            results = self._made.setdefault(kind, OrderedDict())
            if key not in results or results[key][0] != stamp:
                return None
            results.move_to_end(key)
            return results[key][1]

    def _store(self, kind: str, key: Hashable, stamp: object, new: tuple[Any], most: int) -> None:
        with self._turn:
            results = self._made[kind]
            results[key] = (stamp, new)
            results.move_to_end(key)
            while len(results) > most:
                results.popitem(last=False)

    def compute(self, key: Hashable, stamp: object, make: Callable[[], T], *, wait: float) -> T:
        """Compute a result in a thread, once per stamp.

        Args:
            key: The result.
            stamp: Changes when the files do that the result is made from.
            make: Computes the result.
            wait: Seconds to wait for it.

        Returns:
            The result.

        Raises:
            Working: It takes longer, and a later call finds it; or too much other work waits.
        """
        with self._turn:
            before, job = self._jobs.get(key, (None, None))
            if job is None or before != stamp:
                if sum(not j.done() for _, j in self._jobs.values()) >= WAITING:
                    raise StillComputing
                job = self._pool.submit(make)
                self._jobs[key] = (stamp, job)
            self._jobs.move_to_end(key)
            self._forget()
        try:
            result: T = job.result(wait)
        except TooLong:
            if job.done():  # the computation itself raised a timeout
                raise
            raise StillComputing from None
        return result

    def completed(self, key: Hashable, stamp: Callable[[], object]) -> Any:
        """Return a result that was computed before from files that are still the same; None where there is none, or it failed."""
        with self._turn:
            before, job = self._jobs.get(key, (None, None))
        if job is None or not job.done() or job.exception() is not None or before != stamp():
            return None
        return job.result()

    def _forget(self) -> None:
        """Remove old results; running computations stay."""
        for key in [k for k, (_, job) in self._jobs.items() if job.done()][: max(0, len(self._jobs) - LINES)]:
            del self._jobs[key]


_CACHES: WeakKeyDictionary[RunIndex, ResultCache] = WeakKeyDictionary()
_LOCK = threading.Lock()


def get_cache(run_index: RunIndex) -> ResultCache:
    """Return the cache of a run index, which lives as long as the index is in use."""
    with _LOCK:
        return _CACHES.setdefault(run_index, ResultCache())


Stamp = tuple[tuple[int, ...], ...]


def stamp_files(folder: Path, names: Iterable[str]) -> Stamp:
    """Stamp files: the value changes when one of them does, also where its time of writing was set back."""
    return tuple(_facts(folder / name) for name in names)


def _facts(path: Path) -> tuple[int, ...]:
    try:
        s = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino)


def read_checked(run_index: RunIndex, subject: str, make: Callable[[], T]) -> T:
    """Read files; describe faults in a sentence without paths of this machine.

    Args:
        run_index: The runs, whose root is left out of the sentence.
        subject: The subject of the sentence.
        make: Reads the files.

    Returns:
        The result of `make`.

    Raises:
        NotFound: As `make` raised it.
        Unreadable: The files are damaged.
    """
    try:
        return make()
    except NotFound:
        raise
    except GrandRoundsError as e:
        raise Unreadable(hide_root(run_index, str(e)), code=e.code) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as e:
        raise Unreadable(f"{subject} is damaged ({type(e).__name__})", code="damaged-run") from None


def hide_root(run_index: RunIndex, text: str) -> str:
    """Shorten full paths in a sentence to paths below the root."""
    return text.replace(f"{run_index.root}/", "")
