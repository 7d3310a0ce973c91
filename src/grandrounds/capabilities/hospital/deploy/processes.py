"""Supervise programs of a server: start them with a log file, restart them when they die, stop them with their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grandrounds.core.errors import BadInput

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
STEADY = 60.0
"""Seconds after which a program counts as stable: a later death does not delay its restart."""

LARGEST_LOG = 20 * 2**20


@dataclass(frozen=True)
class Program:
    """A command and its log file. `mark` is a word of its command line that identifies a leftover process."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    mark: str


@dataclass
class SupervisedProgram:
    """A program that is kept running. Every start is a new session, so that it is stopped with its children."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    _wait: float = FIRST_WAIT
    _began: float = field(default=0.0)
    _next: float = field(default=0.0)

    @property
    def pid_file(self) -> Path:
        return self.program.log.with_suffix(".pid")

    def start(self) -> None:
        """Start the program. A leftover process of a killed server is ended first, because it occupies the port."""
        end_leftover(self.pid_file, self.program.mark)
        self.process = _spawn(self.program)
        self.pid_file.write_text(f"{self.process.pid}\n")
        self.starts += 1
        self._began = time.monotonic()

    def tend(self) -> bool:
        """Restart the program if it died, with a minimum interval.

        Returns:
            True if it was started now.
        """
        if self.process is not None and self.process.poll() is None:
            return False
        now = time.monotonic()
        if self.process is not None:  # it died since the last check
            steady = now - self._began > STEADY
            self._wait = FIRST_WAIT if steady else min(2 * self._wait, LONGEST_WAIT)
            self._next, self.process = now + self._wait, None
        if now < self._next:
            return False
        self.start()
        return True

    @property
    def alive(self) -> bool:
        """True while the program is running."""
        return self.process is not None and self.process.poll() is None

    def stop(self, *, grace: float = 10.0) -> None:
        """Stop the program and all its children: with SIGTERM, then with SIGKILL."""
        if self.process is not None:
            end(self.process, grace=grace)
        self.process = None
        self.pid_file.unlink(missing_ok=True)


def end(process: subprocess.Popen[bytes], *, grace: float = 10.0) -> None:
    """Stop a process that leads a session, with its children."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def end_leftover(pid_file: Path, mark: str) -> None:
    """Stop the process of a pid file, if its command line still contains the program's mark."""
    import psutil

    try:
        process = psutil.Process(int(pid_file.read_text()))
        if any(mark in word for word in process.cmdline()):
            _signal(process.pid, signal.SIGTERM)
            try:
                process.wait(10.0)
            except psutil.TimeoutExpired:
                _signal(process.pid, signal.SIGKILL)
    except (OSError, ValueError, psutil.Error):
        pass  # no such file, or no such process: nothing to stop
    pid_file.unlink(missing_ok=True)


def _spawn(program: Program) -> subprocess.Popen[bytes]:
    try:
        if program.log.exists() and program.log.stat().st_size > LARGEST_LOG:
            program.log.replace(program.log.with_suffix(".log.1"))
        with program.log.open("ab") as log:
            return subprocess.Popen(
                list(program.command),
                env=dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except FileNotFoundError:
        raise BadInput(
            f"cannot start {program.name}: there is no program {program.command[0]}", code="missing-program"
        ) from None
    except OSError as e:
        raise BadInput(
            f"cannot start {program.name}: {e.strerror or e} ({e.filename or program.log})", code="cannot-start-program"
        ) from None


def _signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to the whole session, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
