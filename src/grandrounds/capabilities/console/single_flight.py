"""Compute a result once when several requests want it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SingleFlight:
    """Gives one thread at a time its turn at a result; the others wait, and then find the result in the cache."""

    def __init__(self) -> None:
        self._turns: dict[object, tuple[threading.RLock, int]] = {}  # with the number of threads that want it
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, key: object) -> Iterator[None]:
        """Wait for the turn at a result.

        Args:
            key: The result.
        """
        with self._lock:
            lock, wanted = self._turns.get(key, (threading.RLock(), 0))
            self._turns[key] = (lock, wanted + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, wanted = self._turns.pop(key)
                if wanted > 1:
                    self._turns[key] = (lock, wanted - 1)
