"""Slows guessing down: after a few wrong sign-ins a name waits at its address, twice as long after each further one.

Others at the same address (behind one proxy, say) do not wait with it. A name also waits everywhere after more wrong tries,
so that guessing from many addresses is slowed down too.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

FREE, FREE_EVERYWHERE = 5, 25
"""Wrong sign-ins without a wait: of a name at one address, and of a name at all addresses."""
FIRST, LONGEST = 2.0, 900.0
"""Seconds to wait after the last wrong sign-in that is free, and at most."""
_MOST = 10_000


class Limiter:
    """Counts wrong sign-ins by key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, free: int = FREE) -> None:
        self._clock, self._free = clock, free
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, and when the last one was
        self._turn = threading.Lock()

    def wait(self, *keys: str) -> float:
        """Seconds until the next try is looked at; 0 where it may be now."""
        now = self._clock()
        with self._turn:
            return max((self._left(key, now) for key in keys), default=0.0)

    def wrong(self, *keys: str) -> None:
        now = self._clock()
        with self._turn:
            for key in keys:
                count, last = self._wrong.pop(key, (0, now))
                if now - last > LONGEST:
                    count = 0
                self._wrong[key] = (count + 1, now)
            while len(self._wrong) > _MOST:
                self._wrong.popitem(last=False)

    def right(self, key: str) -> None:
        with self._turn:
            self._wrong.pop(key, None)

    def forgive(self, key: str) -> None:
        """Take one back: a try is counted before it is looked at, so that many at once do not slip through."""
        with self._turn:
            count, last = self._wrong.get(key, (0, 0.0))
            if count > 1:
                self._wrong[key] = (count - 1, last)
            else:
                self._wrong.pop(key, None)

    def _left(self, key: str, now: float) -> float:
        count, last = self._wrong.get(key, (0, now))
        if count < self._free:
            return 0.0
        return max(0.0, last + min(LONGEST, FIRST * 2.0 ** min(count - self._free, 30)) - now)
