"""Measure the CPU seconds and memory of a run, of this process and of those that it started.

These figures differ between runs. They are in the summary and in the checkpoint, and never in the ledger. The peak is the
system's high-water mark of the process, including reading the data. If an earlier run in the same process used more, the largest
memory at the end of a round is reported instead.
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
"""Keys of a summary's cost that depend on the machine, and may differ between identical runs."""

_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of one unit of ru_maxrss."""


@dataclass(frozen=True)
class Reading:
    """The counters of a process, or of all its children that have ended."""

    cpu: float  # seconds
    peak: int  # bytes, the most so far; of children, of the largest one

    @classmethod
    def take(cls, who: int) -> Reading:
        used = resource.getrusage(who)
        return cls(used.ru_utime + used.ru_stime, used.ru_maxrss * _UNIT)


def read_counters() -> tuple[Reading, Reading]:
    """Read the counters of this process and of its children."""
    return Reading.take(resource.RUSAGE_SELF), Reading.take(resource.RUSAGE_CHILDREN)


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Gauge:
    """Resources of one run, added up over its rounds and over the processes that ran them."""

    cpu_seconds: float = 0.0
    peak_memory: int = 0
    children_peak_memory: int = 0
    _first: Reading = field(default_factory=lambda: read_counters()[0])
    _round_start: tuple[Reading, Reading] = field(default_factory=read_counters)

    def resume(self, facts: Mapping[str, float]) -> None:
        """Add the resources of an interrupted run."""
        self.cpu_seconds += float(facts.get("cpu_seconds", 0.0))
        self.peak_memory = max(self.peak_memory, int(facts.get("peak_memory", 0)))
        self.children_peak_memory = max(self.children_peak_memory, int(facts.get("children_peak_memory", 0)))

    def begin(self) -> None:
        """Begin a round."""
        self._round_start = read_counters()

    def end(self) -> None:
        """End a round."""
        (process, children), (process_before, children_before) = read_counters(), self._round_start
        self.cpu_seconds += process.cpu - process_before.cpu + children.cpu - children_before.cpu
        self.peak_memory = max(
            self.peak_memory, _process_memory(), process.peak if process.peak > self._first.peak else 0
        )
        if children.cpu > children_before.cpu:
            self.children_peak_memory = max(self.children_peak_memory, children.peak)

    def facts(self) -> dict[str, float]:
        """Return the figures for a checkpoint."""
        return {
            "cpu_seconds": self.cpu_seconds,
            "peak_memory": self.peak_memory,
            "children_peak_memory": self.children_peak_memory,
        }

    def summarise(self, *, seconds: float, rounds: int) -> dict[str, float]:
        """Return the figures for a summary's cost; `seconds` is the wall-clock time of the rounds."""
        installed = _installed_memory()
        return {
            "seconds": seconds,
            "round_seconds": seconds / max(1, rounds),
            **self.facts(),
            "cpu_share": self.cpu_seconds / (seconds * cores()) if seconds else 0.0,
            "memory_share": self.peak_memory / installed if installed else 0.0,
        }


def _process_memory() -> int:
    """Bytes that this process has in memory now; where psutil is not installed, the most it ever had."""
    try:
        import psutil
    except ImportError:
        return read_counters()[0].peak
    return int(psutil.Process().memory_info().rss)


def _installed_memory() -> int:
    """Bytes of the machine's memory."""
    try:
        import psutil
    except ImportError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(psutil.virtual_memory().total)
