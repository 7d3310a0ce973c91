"""Waiting for a node: short pauses at first, longer ones later, and an end."""

from __future__ import annotations

import time

FIRST, LONGEST, GROWTH = 0.02, 2.0, 1.5
"""Seconds of the first pause and of the longest, and how much longer each is than the one before."""


class Waiting:
    """At most `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self._until, self._pause = time.monotonic() + patience, FIRST

    def goes_on(self) -> bool:
        """Pause; False at once where patience would end meanwhile."""
        if time.monotonic() + self._pause > self._until:
            return False
        time.sleep(self._pause)
        self._pause = min(GROWTH * self._pause, LONGEST)
        return True
