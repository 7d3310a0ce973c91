"""Training of sites in several processes on idle cores: for convolutional nets on a CPU.

Each process trains some of the sites and writes into shared memory; the numbers do not depend on the process. Only idle cores
are used: processes that compete for cores are slower than one. A process with threads of a numeric library is not forked,
because the copy would wait for threads it does not have.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

WORTHWHILE = 0.3
"""Seconds of a round in one process from which further processes are started."""

_STAT = Path("/proc/stat")
_PATIENCE = 30.0


@dataclass
class Cores:
    """Cores that this process can use: its own share of the machine, and those idle since the last call."""

    _last: tuple[float, float, float, float] = field(default_factory=lambda: _usage())

    def free(self) -> int:
        """Count whole cores, at least one; one if the system does not report usage."""
        before, self._last = self._last, _usage()
        wall, idle, total, ours = (b - a for a, b in zip(before, self._last, strict=True))
        if total <= 0 or wall <= 0:
            return 1
        mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        return max(1, min(mine, int(mine * idle / total + ours / wall + 0.3)))


def _usage() -> tuple[float, float, float, float]:
    """Return the current time, the machine's idle and total time, and the time of this process with its children."""
    try:
        times = [float(t) for t in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        times = [0.0] * 8
    return time.monotonic(), times[3] + times[4], sum(times), sum(os.times()[:4])


def shared(tensor: Tensor) -> Tensor:
    """Copy a tensor to memory that forked processes share."""
    place = torch.frombuffer(mmap.mmap(-1, max(1, tensor.nbytes)), dtype=tensor.dtype, count=tensor.numel())
    return place.view(tensor.shape).copy_(tensor)


def parallel_for(work: Callable[[int], None], count: int, results: Sequence[Tensor], *, workers: int) -> None:
    """Run work(0) ... work(count - 1), each of which changes its own row of the shared `results`, in several processes.

    Work is distributed round-robin, so that processes finish together if it is sorted by size. Work of a failed process is
    repeated here from the start.
    """
    workers = workers if _single_threaded() else 1
    begin = [r.clone() for r in results]
    began = time.monotonic()
    children = {_start(work, range(w, count, workers)): range(w, count, workers) for w in range(1, workers)}
    for j in range(0, count, workers):
        work(j)
    until = time.monotonic() + _PATIENCE + 10 * (time.monotonic() - began)
    for pid, mine in children.items():
        if not _finished(pid, until):
            for j in mine:
                for result, first in zip(results, begin, strict=True):
                    result[j] = first[j]
                work(j)


def _single_threaded() -> bool:
    """Check that this process has no threads but Python's own."""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) == threading.active_count()


def _finished(pid: int, until: float) -> bool:
    """Wait until a process ends, and check that it succeeded; stop it at the time limit."""
    while True:
        finished, status = os.waitpid(pid, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status) == 0
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.002)


def _start(work: Callable[[int], None], mine: range) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python warns of threads; the child runs nothing but `work`
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for j in mine:
            work(j)
        code = 0
    finally:
        os._exit(code)
