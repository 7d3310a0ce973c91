"""What a run takes of the machine it runs on: CPU seconds and memory, of this process and of those it started.

Figures of a machine, like the seconds of a clock: no two runs have the same. They are in the summary and in the
checkpoint, and never in the ledger. The peak is the system's own high-water mark of the process, so what
reading the data took is in it. Where an earlier run in the same process held more, that mark says nothing of this
one, and the most that was held at the end of a round stands in for it.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

MACHINE = (
    "seconds",
    "round_seconds",
    "cpu_seconds",
    "cpu_share",
    "peak_memory",
    "children_peak_memory",
    "memory_share",
)
"""The keys of a summary's cost that say something of the machine, and differ where everything else is equal to the bit."""

_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of one unit of ru_maxrss."""


@dataclass(frozen=True)
class Reading:
    """The counters of a process, or of all its children that have ended."""

    cpu: float  # seconds
    peak: int  # bytes, the most so far; of children, of the one that held most

    @classmethod
    def of(cls, who: int) -> Reading:
        used = resource.getrusage(who)
        return cls(used.ru_utime + used.ru_stime, used.ru_maxrss * _UNIT)


def reading() -> tuple[Reading, Reading]:
    """The counters of this process and of its children, now."""
    return Reading.of(resource.RUSAGE_SELF), Reading.of(resource.RUSAGE_CHILDREN)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Gauge:
    """What one run has used, added up over its rounds and over the processes that ran them."""

    cpu_seconds: float = 0.0
    peak_memory: int = 0
    children_peak_memory: int = 0
    _first: Reading = field(default_factory=lambda: reading()[0])
    _began: tuple[Reading, Reading] = field(default_factory=reading)

    def go_on(self, facts: Mapping[str, float]) -> None:
        """Add to what an interrupted run had used; one of an earlier version did not say."""
        self.cpu_seconds += float(facts.get("cpu_seconds", 0.0))
        self.peak_memory = max(self.peak_memory, int(facts.get("peak_memory", 0)))
        self.children_peak_memory = max(self.children_peak_memory, int(facts.get("children_peak_memory", 0)))

    def begin(self) -> None:
        """A round begins."""
        self._began = reading()

    def end(self) -> None:
        """A round ends."""
        (own, children), (own_before, children_before) = reading(), self._began
        self.cpu_seconds += own.cpu - own_before.cpu + children.cpu - children_before.cpu
        self.peak_memory = max(self.peak_memory, _held(), own.peak if own.peak > self._first.peak else 0)
        if children.cpu > children_before.cpu:
            self.children_peak_memory = max(self.children_peak_memory, children.peak)

    def facts(self) -> dict[str, float]:
        """For a checkpoint."""
        return {
            "cpu_seconds": self.cpu_seconds,
            "peak_memory": self.peak_memory,
            "children_peak_memory": self.children_peak_memory,
        }

    def told(self, *, seconds: float, rounds: int) -> dict[str, float]:
        """For a summary's cost; `seconds` is what the rounds took by the clock."""
        whole = _memory()
        return {
            "seconds": seconds,
            "round_seconds": seconds / max(1, rounds),
            **self.facts(),
            "cpu_share": self.cpu_seconds / (seconds * cores()) if seconds else 0.0,
            "memory_share": self.peak_memory / whole if whole else 0.0,
        }


def _held() -> int:
    """Bytes that this process has in memory now; where psutil is not installed, the most it ever had."""
    try:
        import psutil
    except ImportError:
        return reading()[0].peak
    return int(psutil.Process().memory_info().rss)


def _memory() -> int:
    """Bytes of the machine."""
    try:
        import psutil
    except ImportError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(psutil.virtual_memory().total)
