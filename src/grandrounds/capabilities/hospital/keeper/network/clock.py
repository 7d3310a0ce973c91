"""The difference between this machine's clock and the server's.

A SuperNode signs the current time with each request, and the SuperLink refuses a signature that is more than about five minutes
old or from the future. The difference is measured by the Date header of the consortium's own gateway, after its certificate was
checked against the consortium's authority (`probe`). The launcher adds it to the times that the SuperNode signs.

The correction gives nobody a right that they did not have: only the gateway of the consortium can cause it, TLS hides signed
times from everybody else, and a signed time does not open or sign a message. It is limited to 11 hours, because a message lives
for 12.
"""

from __future__ import annotations

import threading
from pathlib import Path

from grandrounds.capabilities.hospital.keeper.network.connect import CannotConnect
from grandrounds.capabilities.hospital.keeper.network.probe import probe
from grandrounds.capabilities.hospital.keeper.network.route import Route

WARN_SECONDS = 30.0
"""Difference from which on a warning is shown."""

CORRECT_SECONDS = 5.0
"""Difference from which on signed times are corrected."""

MOST_SECONDS = 11 * 3600.0
"""Largest difference that is corrected."""


class ClockCheck:
    """The last measured difference between the server's clock and this machine's."""

    def __init__(self, route: Route, authority: Path) -> None:
        self._route, self._authority = route, authority
        self._turn = threading.Lock()
        self.offset: float | None = None
        """Seconds that the server is ahead; None while unknown."""

    def measure(self) -> float | None:
        """Measure the difference at the first gateway that answers; None if none does."""
        if self._route.insecure:
            return None
        with self._turn:
            for hop in self._route.hops:
                try:
                    self.offset = probe(hop, self._authority).offset
                    return self.offset
                except CannotConnect:
                    continue
        return None

    @property
    def correction(self) -> float:
        """Seconds to add to signed times: 0 if the difference is small, unknown, or too large to be corrected."""
        offset = self.offset
        return offset if offset is not None and CORRECT_SECONDS <= abs(offset) <= MOST_SECONDS else 0.0

    @property
    def warning(self) -> str:
        """A sentence about a difference that needs attention; else empty."""
        if self.offset is None or abs(self.offset) < WARN_SECONDS:
            return ""
        return describe_offset(self.offset)


def describe_offset(offset: float) -> str:
    """Describe a difference between the clocks, with its consequence.

    Args:
        offset: Seconds that the server is ahead.
    """
    direction = "behind" if offset > 0 else "ahead of"
    text = f"this machine's clock is {_duration(abs(offset))} {direction} the server's"
    if abs(offset) < WARN_SECONDS:
        return text
    if abs(offset) <= MOST_SECONDS:
        return f"{text}: signed times are corrected, but times in logs differ; use a time server (NTP)"
    return f"{text}: the server refuses this site until one of the clocks is corrected; use a time server (NTP)"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
