"""The worker process, which works with a site's data, and the supervisor that restarts it.

`python -m` with this module and `FOLDER --data TABLE` is the worker: it answers messages from standard input, one at a time. The
supervisor stops it when it hangs and starts another when it dies. Stock Flower waits for a hung app
forever, and loses its node. Here a message that exceeds the site's time limit is answered with a code, the process is
ended, and the next one restores the site's state from disk.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.runtime.answers import AnsweredMessage
from grandrounds.capabilities.hospital.keeper.runtime.keeper import refuse_message
from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.protocol.identity import Identity

_log = logging.getLogger("grandrounds.keeper")

START = 300.0
"""Seconds that a new process may take to read the data."""

READY = b"ready"
"""The first frame of a worker that has read its data."""

ATTEMPTS = 2
"""Workers that are given one message: it is refused if each of them died."""

ORPHANED = 4
"""Exit code of a process whose parent has ended."""

LENGTH = 8
LARGEST = 16 * 2**30
"""Size of a frame's length field in bytes, and the largest frame."""


class Supervisor:
    """Passes messages to the worker, one at a time, each within `seconds`. `restarts` counts replacements."""

    def __init__(self, command: Sequence[str], identity: Identity, site: str, *, seconds: float, log: Path) -> None:
        self._command, self._identity, self._site, self._seconds, self._log = command, identity, site, seconds, log
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self.restarts = -1

    @classmethod
    def for_folder(
        cls, folder: Path, identity: Identity, site: str, *, data: str, query: str | None, device: str, seconds: float
    ) -> Supervisor:
        """Create the supervisor of a site's folder."""
        command = [
            sys.executable,
            "-m",
            "grandrounds.capabilities.hospital.keeper.runtime.worker",
            str(folder),
            "--data",
            data,
            "--device",
            device,
        ]
        if query is not None:
            command += ["--query", query]
        return cls(command, identity, site, seconds=seconds, log=folder / "state" / "work.log")

    def start(self) -> None:
        """Start the worker, which reads the data. Errors in the data are raised here, and never sent to a server."""
        with self._turn:
            self._start()

    def handle(self, message: bytes) -> AnsweredMessage:
        """Answer a message; with a code if there is no answer in time.

        A message whose worker died is handed to the next worker once: it repeats work that was not finished, and answers
        from disk what was.
        """
        with self._turn:
            code = codes.CRASHED
            for _ in range(ATTEMPTS):
                try:
                    if self._process is None or self._process.poll() is not None:
                        self._start()
                    if (answer := self._ask_worker(message)) is not None:
                        return AnsweredMessage.from_bytes(answer)
                except TimeoutError:
                    code = codes.LATE
                except (RunFailed, OSError, BadInput):
                    pass
                self._end()
                _log.error("the worker process was %s; another takes its place", code)
                if code == codes.LATE:
                    break
            return refuse_message(self._identity, self._site, message, code)

    def _ask_worker(self, message: bytes) -> bytes | None:
        assert self._process is not None and self._process.stdin is not None
        write_frame(self._process.stdin, message)
        return self._next(self._seconds)

    def _next(self, seconds: float) -> bytes | None:
        """Return the worker's next frame; None if it has ended."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None

    def _start(self) -> None:
        self._end()
        self.restarts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._answers = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            ready = self._next(START) == READY
        except TimeoutError:
            ready = False
        if not ready:
            self._end()
            raise RunFailed(
                f"the worker process did not start: see {self._log}", code="worker-did-not-start"
            )

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the worker; no state is lost."""
        with self._turn:
            self._end()


def _listen(pipe: IO[bytes], answers: queue.Queue[bytes | None]) -> None:
    while True:
        frame = read_frame(pipe)
        answers.put(frame)
        if frame is None:
            return


def main(arguments: list[str] | None = None) -> int:
    """Run a worker.

    Returns:
        Exit code: 0 the supervisor has ended, 1 failure, 2 bad input.
    """
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder

    parser = argparse.ArgumentParser(prog="python -m grandrounds.capabilities.hospital.keeper.runtime.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--query")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(arguments)
    end_with_parent()  # nobody would stop it if it hung
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not mix with the answers
    try:
        keeper = SiteFolder(args.folder).keeper(args.data, query=args.query, device=args.device)
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return e.exit_code
    write_frame(answers, READY)
    while (message := read_frame(sys.stdin.buffer)) is not None:
        write_frame(answers, keeper.answer_message(message).to_bytes())
    return 0


def end_with_parent() -> None:
    """End this process within a second after its parent ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(ORPHANED)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read the next frame; None if the other side has ended."""
    head = _read_exactly(pipe, LENGTH)
    if head is None:
        return None
    size = int.from_bytes(head, "big")
    return None if size > LARGEST else _read_exactly(pipe, size)


def _read_exactly(pipe: IO[bytes], size: int) -> bytes | None:
    parts, remaining = [], size
    while remaining:
        part = pipe.read(remaining)
        if not part:
            return None
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main())
