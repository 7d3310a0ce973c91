"""A worker apart from the network: messages pass as files through a folder that both machines see.

On a cluster the keeper (`rounds site start`) runs where there is a network, and the worker (`rounds site work`) as a job on a
compute node that has none. The keeper writes each message to the exchange folder and waits for the file with its answer. The
files contain what passes the gateway, too: encrypted messages, which only the worker can decrypt.

    request-000017      a message, written under another name and renamed
    answer-000017       its answer, written the same way
    worker.json         when the worker was last alive, and where
    worker.lock         held by the one worker of the folder

Only the user of keeper and worker may write into the folder. A file that is a link, a folder, a pipe or too large is not read.

A worker that has answered removes the request; the keeper removes the answer. What a worker left behind when its job ended is
answered by the next one, from disk where it was finished.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.runtime.answers import AnsweredMessage
from grandrounds.capabilities.hospital.keeper.runtime.keeper import refuse_message
from grandrounds.core.arrays import read_file, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity

_log = logging.getLogger("grandrounds.keeper")

REQUEST, ANSWER, ALIVE, LOCK = "request-", "answer-", "worker.json", "worker.lock"
BEAT = 5.0
"""Seconds between two signs of life of a worker."""

AWAY = 30.0
"""Seconds without a sign of life after which a worker counts as ended; network file systems show changes late."""

LARGEST_REQUEST, LARGEST_ANSWER = 2**31, 2**33
"""Bytes of a message that are read: Flower carries no larger one to a site, and the server takes no larger answer."""

_DIGITS = 12
"""Most digits of a message's number."""

_SHORTEST, _LONGEST = 0.02, 1.0
"""Seconds between two looks into the folder: few while messages pass, more when none does."""


@dataclass(frozen=True)
class WorkerJob:
    """How the keeper starts a worker: a command of the site's own, such as `sbatch worker.sbatch`, and how often at most."""

    command: str
    interval: float = 300.0


@dataclass(frozen=True)
class Exchange:
    """The exchange folder of a site, and its job; None if a person starts the worker."""

    folder: Path
    job: WorkerJob | None


def read_exchange(settings: Mapping[str, Any], site: Path) -> Exchange:
    """Read [worker] of site.toml: `folder`, and optionally `submit` (a command) and `interval` (seconds).

    Args:
        settings: The content of site.toml.
        site: The site's folder; the exchange folder may be relative to it.

    Raises:
        BadInput: There is no such section, or a value is of another type.
    """
    section = settings.get("worker", {})
    folder, submit, interval = section.get("folder"), section.get("submit", ""), section.get("interval", 300)
    if folder is None:
        raise BadInput(
            f'{site / "site.toml"} names no exchange folder: give --data, or add [worker] with folder = "exchange" for a worker '
            "on another machine",
            code="missing-key",
        )
    fits = isinstance(folder, str) and isinstance(submit, str) and isinstance(interval, int | float)
    odd = next((key for key in section if key not in ("folder", "submit", "interval")), None)
    if not fits or odd is not None:
        wrong = f"an unknown key '{odd}'" if odd else "a value of another type"
        raise BadInput(
            f"[worker] of {site / 'site.toml'} has {wrong}: folder and submit are texts, interval is a number of seconds",
            code="unknown-key",
        )
    return Exchange(site / folder, WorkerJob(submit, float(interval)) if submit else None)


class FolderWorker:
    """The keeper's end of the exchange folder. `restarts` counts jobs that were submitted after the first."""

    def __init__(
        self, folder: Path, identity: Identity, site: str, *, seconds: float, job: WorkerJob | None = None
    ) -> None:
        self._folder, self._identity, self._site, self._seconds, self._job = folder, identity, site, seconds, job
        self._turn = threading.Lock()
        self._next = 0
        self._submitted = -float("inf")
        self.restarts = -1

    def start(self) -> None:
        """Prepare the folder. Answers to an earlier keeper are removed, and its requests, which the server repeats.

        Raises:
            BadInput: The folder cannot be written, or others can write into it.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_shared(self._folder)
            for path in (*self._folder.glob(f"{REQUEST}*"), *self._folder.glob(f"{ANSWER}*")):
                self._next = max(self._next, _number(path) + 1)
                with suppress(IsADirectoryError):  # not read, and its number is not used
                    path.unlink(missing_ok=True)
        except OSError as e:
            raise BadInput(
                f"the exchange folder {self._folder} cannot be written: {e.strerror or e}; see [worker] in site.toml",
                code="cannot-write",
            ) from None

    def handle(self, message: bytes) -> AnsweredMessage:
        """Answer a message; with a code if there is no worker or no answer in time."""
        with self._turn:
            number, self._next = self._next, self._next + 1
            request, answer = self._folder / f"{REQUEST}{number:06d}", self._folder / f"{ANSWER}{number:06d}"
            try:
                write_atomic(request, message)
                data = self._wait(answer)
                if data is not None:
                    return AnsweredMessage.from_bytes(data)
                code = codes.LATE if is_alive(self._folder) else codes.NO_WORKER
            except (OSError, BadInput) as e:
                _log.error("the exchange folder %s fails: %s", self._folder, e)
                code = codes.CRASHED
            finally:
                for path in (request, answer):
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
            _log.error("a message is refused: %s", code)
            return refuse_message(self._identity, self._site, message, code)

    def close(self) -> None:
        """Do nothing: the worker belongs to its job."""

    def _wait(self, answer: Path) -> bytes | None:
        """Wait for the answer, for `seconds` after a worker is there; a job is submitted if there is none."""
        wait, end = _SHORTEST, time.monotonic() + self._seconds
        while time.monotonic() < end:
            if os.path.lexists(answer):
                return read_file(answer, largest=LARGEST_ANSWER)
            if not is_alive(self._folder):
                self._submit()
            time.sleep(wait)
            wait = min(1.5 * wait, _LONGEST)
        return None

    def _submit(self) -> None:
        """Submit a job, unless one was submitted a short time ago."""
        job = self._job
        if job is None or time.monotonic() - self._submitted < job.interval:
            return
        self._submitted = time.monotonic()
        self.restarts += 1
        try:
            done = subprocess.run(shlex.split(job.command), capture_output=True, text=True, timeout=60, check=False)
        except (OSError, ValueError, subprocess.TimeoutExpired) as e:
            _log.error("the job of the worker cannot be submitted: %s", e)
            return
        if done.returncode:
            _log.error("%r ended with %d: %s", job.command, done.returncode, done.stderr.strip()[-500:])


def is_alive(folder: Path) -> bool:
    """Tell whether a worker gave a sign of life lately, by the time of the file system, which both machines share."""
    try:
        written = (folder / ALIVE).stat().st_mtime
        probe = folder / f".clock-{os.getpid()}-{threading.get_ident()}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:
        return False
    return now - written < AWAY


def serve_folder(
    folder: Path, handler: Callable[[bytes], AnsweredMessage], stop: threading.Event, *, idle: float | None = None
) -> int:
    """Answer the messages of an exchange folder until stopped.

    Args:
        folder: The exchange folder.
        handler: Answers one message.
        stop: Ends the loop, after the message in hand.
        idle: Seconds without a message after which the worker ends, so that a cluster gets its node back; None: never.

    Returns:
        The number of answered messages.

    Raises:
        BadInput: Another worker serves the folder, the folder does not exist, or others can write into it.
    """
    answered, last, wait, ignored = 0, time.monotonic(), _SHORTEST, set[str]()
    with _lock(folder), _signs_of_life(folder):
        while not stop.is_set() and (idle is None or time.monotonic() - last < idle):
            requests = _list_requests(folder, ignored)
            for request in requests:
                answered += _answer(folder, request, handler)
                last, wait = time.monotonic(), _SHORTEST
                if stop.is_set():
                    break
            if not requests:
                stop.wait(wait)
                wait = min(1.5 * wait, _LONGEST)
    return answered


def _list_requests(folder: Path, ignored: set[str]) -> list[Path]:
    """List the requests that can be read, in order; others are logged once, and their names added to `ignored`."""
    found = []
    for path in sorted(folder.glob(f"{REQUEST}*"), key=_number):
        with suppress(FileNotFoundError):
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST_REQUEST:
                found.append(path)
            elif path.name not in ignored:
                ignored.add(path.name)
                _log.error("%s is not a plain file of at most %d bytes: it is ignored", path, LARGEST_REQUEST)
    return found


def _answer(folder: Path, request: Path, handler: Callable[[bytes], AnsweredMessage]) -> int:
    """Answer one request; 0 if the keeper has given it up meanwhile."""
    try:
        message = read_file(request, largest=LARGEST_REQUEST)
    except BadInput as e:
        if os.path.lexists(request):
            _log.error("a request is not answered: %s", e)
        return 0
    data = handler(message).to_bytes()
    if not request.exists():  # given up: nobody would remove the answer
        return 0
    try:
        write_atomic(folder / request.name.replace(REQUEST, ANSWER), data)
        return 1
    except OSError as e:  # a full disk: the keeper waits in vain, and the server asks again
        _log.error("an answer cannot be written to %s: %s", folder, e.strerror or e)
        return 0
    finally:
        request.unlink(missing_ok=True)


def _number(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS else 0


def refuse_shared(folder: Path) -> None:
    """Refuse a folder into which others can write.

    Raises:
        BadInput: It belongs to another user, or its group or everybody may write into it.
    """
    facts = folder.stat()
    if facts.st_uid != os.getuid():
        raise BadInput(
            f"the exchange folder {folder} belongs to another user: create it as the user of the keeper and the worker",
            code="folder-not-private",
        )
    mode = stat.S_IMODE(facts.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadInput(
            f"others can write into the exchange folder {folder} (mode {mode:04o}): run `chmod 700 {folder}`",
            code="folder-not-private",
        )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Allow one worker for each folder: two would work on the same state. POSIX locks hold on network file systems, too."""
    try:
        refuse_shared(folder)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as e:
        raise BadInput(
            f"the exchange folder {folder} cannot be used: {e.strerror or e}; start the keeper first (`rounds site start`)",
            code="cannot-write",
        ) from None
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"another worker serves {folder}: stop it first, two would spend the same budget", code="worker-running"
            ) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def _signs_of_life(folder: Path) -> Iterator[None]:
    """Write worker.json every few seconds, from a thread: a message may take minutes."""
    ended = threading.Event()
    facts = {"host": socket.gethostname(), "process": os.getpid(), "job": os.environ.get("SLURM_JOB_ID", "")}

    def beat() -> None:
        while True:
            try:
                write_atomic(folder / ALIVE, json.dumps({**facts, "time": time.time()}).encode())
            except OSError as e:
                _log.error("%s cannot be written: %s", folder / ALIVE, e.strerror or e)
            if ended.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True, name="alive")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        (folder / ALIVE).unlink(missing_ok=True)
