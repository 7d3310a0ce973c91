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

from grandrounds.console.run_index import FINISHED, RUNNING, UNREADABLE, RunIndex
from grandrounds.console.views.runs import run_lines

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
    """The states of all runs, and the version in which each of them changed.

    Args:
        run_index: The runs.
        clock: Measures seconds.
    """

    def __init__(self, run_index: RunIndex, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_index, self._clock = run_index, clock
        self._name = secrets.token_hex(4)  # versions of a console that was started again are not ours
        self._version, self._scanned = 0, -INTERVAL
        self._states: dict[str, RunState] = {}
        self._versions: dict[str, int] = {}
        self._written: dict[str, float] = {}
        self._turn = threading.Lock()
        self._warming = threading.Lock()
        self.scans = 0
        """Scans of the folders since this console was started."""

    def states(self) -> Mapping[str, RunState]:
        """Return the states of all readable runs, at most a second old."""
        with self._turn:
            self._refresh()
            return self._states

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
            if name == self._name and number.isdigit():
                shown = [run for run, version in self._versions.items() if version > int(number)]
            else:
                now = time.time()
                shown = [n for n, s in self._states.items() if s.state != FINISHED or now - self._written[n] < RECENT]
            return Changes(
                version=f"{self._name}-{self._version}",
                running=sum(s.state == RUNNING for s in self._states.values()),
                runs={run: self._states[run] for run in shown},
            )

    def _refresh(self) -> None:
        if self._clock() - self._scanned < INTERVAL:
            return
        lines = [line for line in run_lines(self._run_index) if line.state != UNREADABLE]
        now = {
            line.name: RunState(state=line.state, rounds=line.rounds, of=line.of, metrics=line.metrics)
            for line in lines
        }
        changed = [run for run, state in now.items() if self._states.get(run) != state]
        if changed:
            self._version += 1
        self._versions = {run: v for run, v in self._versions.items() if run in now}
        self._versions |= dict.fromkeys(changed, self._version)
        self._states, self._written = now, {line.name: line.changed for line in lines}
        self.scans += 1
        self._scanned = self._clock()
        if any(now[run].state == RUNNING for run in changed):
            threading.Thread(target=self._warm, name="console-warm", daemon=True).start()

    def _warm(self) -> None:
        """Read new rounds of running runs in the background, so that pages find them read."""
        if self._warming.acquire(blocking=False):
            try:
                self._run_index.warm()
            finally:
                self._warming.release()
