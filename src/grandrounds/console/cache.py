"""A cache of results that take long, by a stamp of the files they were made from; and work with a time limit.

`RunIndex.kept` knows the files of a run. A ledger, an anchor, an attack or a comparison of several runs rests on others.
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

from grandrounds.console.run_index import NotFound, RunIndex, Unreadable
from grandrounds.core.errors import GrandRoundsError

WORKERS, WAITING, LINES = 2, 32, 5000
"""Pieces of long work at a time, and that wait for their turn; small things that are kept."""
T = TypeVar("T")


class Working(Exception):
    """It is being worked out still: ask again."""


class ResultCache:
    """Results that are kept for one run index."""

    def __init__(self) -> None:
        self._made: dict[str, OrderedDict[Hashable, tuple[object, Any]]] = {}  # by kind
        self._jobs: OrderedDict[Hashable, tuple[object, Future[Any]]] = OrderedDict()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="console")
        self._turn = threading.Lock()

    def get_or_make(self, kind: str, key: Hashable, stamp: object, make: Callable[[], T], *, most: int = LINES) -> T:
        """Return a cached result, or make it where there is none or its stamp is another.

        Args:
            kind: The kind of result.
            key: The result among those of its kind.
            stamp: Changes when the files do that the result is made from.
            make: Makes the result.
            most: Results of this kind that are kept; the one used longest ago goes first.

        Returns:
            The result.
        """
        with self._turn:
            results = self._made.setdefault(kind, OrderedDict())
            if key in results and results[key][0] == stamp:
                results.move_to_end(key)
                known: T = results[key][1]
                return known
        new = make()
        with self._turn:
            results[key] = (stamp, new)
            results.move_to_end(key)
            while len(results) > most:
                results.popitem(last=False)
        return new

    def compute(self, key: Hashable, stamp: object, make: Callable[[], T], *, wait: float) -> T:
        """Compute a result in a thread of its own, once while the stamp stays the same.

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
                    raise Working
                job = self._pool.submit(make)
                self._jobs[key] = (stamp, job)
            self._jobs.move_to_end(key)
            self._forget()
        try:
            found: T = job.result(wait)
        except TooLong:
            if job.done():  # the work itself ran into a time limit
                raise
            raise Working from None
        return found

    def completed(self, key: Hashable, stamp: Callable[[], object]) -> Any:
        """Return a result that was computed before from files that are still the same; None where there is none, or it failed."""
        with self._turn:
            before, job = self._jobs.get(key, (None, None))
        if job is None or not job.done() or job.exception() is not None or before != stamp():
            return None
        return job.result()

    def _forget(self) -> None:
        """Old results go, work that goes on stays."""
        for key in [k for k, (_, job) in self._jobs.items() if job.done()][: max(0, len(self._jobs) - LINES)]:
            del self._jobs[key]


_OF: WeakKeyDictionary[RunIndex, ResultCache] = WeakKeyDictionary()
_ONE = threading.Lock()


def cache_of(run_index: RunIndex) -> ResultCache:
    """Return the cache of a run index, which lives as long as the index is in use."""
    with _ONE:
        return _OF.setdefault(run_index, ResultCache())


Stamp = tuple[tuple[int, ...], ...]


def stamp_of(folder: Path, names: Iterable[str]) -> Stamp:
    """Changes when one of these files does, also where its time of writing was set back: the time of that is in it too."""
    return tuple(_facts(folder / name) for name in names)


def _facts(path: Path) -> tuple[int, ...]:
    try:
        s = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino)


def read_checked(run_index: RunIndex, what: str, make: Callable[[], T]) -> T:
    """Read files, and turn what is wrong with them into a sentence without this machine's folders.

    Args:
        run_index: The runs, whose root is left out of the sentence.
        what: The subject of the sentence.
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
        raise Unreadable(hide_root(run_index, str(e))) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as e:
        raise Unreadable(f"{what} is damaged ({type(e).__name__})") from None


def hide_root(run_index: RunIndex, text: str) -> str:
    """Return a sentence with places below the root in place of full paths."""
    return text.replace(f"{run_index.root}/", "")
