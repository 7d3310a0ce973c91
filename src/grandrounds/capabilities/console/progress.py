"""Progress of runs: their folders are scanned once for all pages and streams that follow them.

A page asks for the changes since its last request. It holds no connection open: a browser has six to a host, proxies end or
buffer long responses, and eight open tabs would block the ninth.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import FINISHED, RUNNING, UNREADABLE, RunIndex, Stamp
from grandrounds.capabilities.console.views.runs import RunLine, run_line, run_lines

INTERVAL = 1.0
"""Seconds for which a scan of the folders is valid."""
RECENT = 60.0
"""Seconds: a page that has just been loaded is sent finished runs that changed since then."""


class RunState(BaseModel):
    """The state of a run that changes while it is running."""

    state: str
    rounds: int
    of: int
    metrics: dict[str, float | None]


class Changes(BaseModel):
    """Changes of runs. `version`: for the next request; `running`: the number of running runs."""

    version: str
    running: int
    runs: dict[str, RunState]


class Progress:
    """The states of runs that changed, and the version in which each of them did.

    Finished runs that do not change are not read: of 5,000 runs a scan costs two looks at each.

    Args:
        run_index: The runs.
        clock: Measures seconds.
    """

    def __init__(self, run_index: RunIndex, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_index, self._clock = run_index, clock
        self._name = secrets.token_hex(4)  # versions of a console that was started again are not ours
        self._version, self._scanned = 0, -INTERVAL
        self._stamps: dict[str, Stamp] = {}
        self._states: dict[str, RunState] = {}  # of unfinished runs, and of those that changed
        self._versions: dict[str, int] = {}
        self._listed: tuple[float, dict[str, RunState]] = (-INTERVAL, {})
        self._turn = threading.Lock()
        self._warming = threading.Lock()
        self.scans = 0
        """Scans of the folders since this console was started."""

    def states(self) -> Mapping[str, RunState]:
        """Return the states of all readable runs, at most a second old."""
        with self._turn:
            listed_at, states = self._listed
            if self._clock() - listed_at >= INTERVAL:
                lines = run_lines(self._run_index)
                states = {line.name: _state(line) for line in lines if line.state != UNREADABLE}
                self._listed = (self._clock(), states)
            return states

    def changes(self, since: str = "") -> Changes:
        """Return the runs that changed.

        Args:
            since: The version of the last request; another text returns unfinished runs and those that ended just now.

        Returns:
            The changes, at most a second old.
        """
        with self._turn:
            self._refresh()
            name, _, number = since.partition("-")
            known = int(number) if name == self._name and number.isdecimal() and len(number) < 10 else -1
            shown = [run for run, version in self._versions.items() if version > known]
            if known < 0:
                oldest = (time.time() - RECENT) * 1e9
                shown = [run for run in shown if self._states[run].state != FINISHED or self._stamps[run][0][0] > oldest]
            return Changes(
                version=f"{self._name}-{self._version}",
                running=sum(s.state == RUNNING for s in self._states.values()),
                runs={run: self._states[run] for run in shown},
            )

    def _refresh(self) -> None:
        if self._clock() - self._scanned < INTERVAL:
            return
        first, oldest = not self.scans, (time.time() - RECENT) * 1e9
        runs = self._run_index.stamped_runs()
        changed = []
        for entry, stamp in runs:
            is_finished = stamp[0] != (0, 0)
            if is_finished and (self._stamps.get(entry.name) == stamp or (first and stamp[0][0] < oldest)):
                continue
            line = run_line(self._run_index, entry, stamp)
            state = _state(line)
            if line.state != UNREADABLE and self._states.get(entry.name) != state:
                self._states[entry.name] = state
                changed.append(entry.name)
        self._stamps = {entry.name: stamp for entry, stamp in runs}
        for gone in self._states.keys() - self._stamps.keys():
            del self._states[gone], self._versions[gone]
        self._version += bool(changed)
        self._versions |= dict.fromkeys(changed, self._version)
        self.scans += 1
        self._scanned = self._clock()
        if any(self._states[run].state == RUNNING for run in changed):
            threading.Thread(target=self._warm, name="console-warm", daemon=True).start()

    def _warm(self) -> None:
        """Read new rounds of running runs in the background, so that pages find them read."""
        if self._warming.acquire(blocking=False):
            try:
                self._run_index.warm()
            finally:
                self._warming.release()


def _state(line: RunLine) -> RunState:
    return RunState(state=line.state, rounds=line.rounds, of=line.of, metrics=line.metrics)
