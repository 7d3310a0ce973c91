"""Consortia without Flower: keepers and the run are processes (`piped_process`) that talk over pipes, so kills are quick.

Supervisor, worker, policy, budget, checkpoint and ledger are those of a consortium. `Piped` in the test's process carries
messages between them. A message whose keeper is killed comes back as unavailable, as from a SuperLink.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from grandrounds.capabilities.hospital.keeper.runtime.worker import READY, read_frame, write_frame
from grandrounds.core.toml import dumps
from grandrounds.engine.transport import UNAVAILABLE, Reply
from grandrounds.runs.run import Run
from tests.capabilities.hospital.deploy.faulty import Faulty, Outcome
from tests.capabilities.hospital.deploy.piped_process import STARTS

PROCESS = (sys.executable, "-m", "tests.capabilities.hospital.deploy.piped_process")


class KeeperProcess:
    """A keeper and its worker as processes, started again when they were killed; answers one message at a time."""

    def __init__(self, folder: Path, table: Path, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._command = [*PROCESS, "keeper", str(folder), str(table)]
        self._log = folder.parent / f"{folder.name}.piped.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.ready = threading.Event()
        self.answers = 0
        self._is_closed = threading.Event()
        self._messages: queue.Queue[tuple[Piped, str, bytes]] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, message: tuple[Piped, str, bytes]) -> None:
        self._messages.put(message)

    def kill(self, *, whole: bool) -> bool:
        """kill -9 of keeper and worker, or of the worker; False if there is none now."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        with suppress(psutil.NoSuchProcess):
            keeper = psutil.Process(process.pid)
            workers = keeper.children(recursive=True)
            victims = [keeper, *workers] if whole else workers
            for victim in victims:
                victim.kill()
            return bool(victims)
        return False

    def close(self) -> None:
        self._is_closed.set()
        self.kill(whole=True)
        self._thread.join(60)

    def _work(self) -> None:
        while not self._is_closed.is_set():
            if self._process is None or self._process.poll() is not None:
                self._start()
            try:
                piped, ticket, data = self._messages.get(timeout=0.1)
            except queue.Empty:
                continue
            answer = self._ask(data)
            self.answers += answer is not None
            piped.deliver(Reply(ticket, None, UNAVAILABLE) if answer is None else Reply(ticket, answer))
        self.kill(whole=True)
        if self._process is not None:
            self._process.wait()

    def _start(self) -> None:
        self.ready.clear()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )
        assert self._process.stdout is not None
        if read_frame(self._process.stdout) == READY:
            self.ready.set()

    def _ask(self, data: bytes) -> bytes | None:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            write_frame(self._process.stdin, data)
            return read_frame(self._process.stdout)
        except OSError:
            return None


@dataclass
class Piped:
    """Keepers of a consortium, and a run that is sent messages over a socket."""

    consortium: Faulty
    environment: Mapping[str, str] = field(default_factory=dict)
    keepers: dict[str, KeeperProcess] = field(default_factory=dict)
    run: subprocess.Popen[bytes] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        self._replies: dict[str, Reply] = {}
        self._arrived = threading.Condition()
        self._socket = Path(tempfile.mkdtemp(prefix="gr-")) / "s"  # the path of a socket must be short
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self._socket))
        self._door.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        for name in self.consortium.names:
            folder, table = self.consortium.site_folder(name), self.consortium.dealt.files[name]
            self.keepers[name] = KeeperProcess(folder, table, self.environment)

    def start_run(self, name: str) -> None:
        """Start or resume the run whose plan lies in the consortium's folder."""
        self.name = name
        self.consortium.link.prepare()
        if self.run is None:
            assert all(keeper.ready.wait(STARTS) for keeper in self.keepers.values()), "a keeper did not start"
        words = [*PROCESS, "run", str(self._socket), str(self.consortium.out), name]
        with (self.consortium.link.logs / f"run-{name}.log").open("ab") as log:
            self.run = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    def stop_run(self) -> int:
        """Ask the run to stop after its round."""
        assert self.run is not None
        self.run.terminate()
        return self.run.wait(STARTS)

    def kill_run(self) -> None:
        assert self.run is not None
        self.run.kill()
        self.run.wait()

    def close(self) -> None:
        if self.run is not None:
            self.kill_run()
        for keeper in self.keepers.values():
            keeper.close()
        self._door.close()

    def deliver(self, reply: Reply) -> None:
        with self._arrived:
            self._replies[reply.ticket] = reply
            self._arrived.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Serve one process of the run until it ends; a later one has tickets of its own."""
        with connection, connection.makefile("rwb") as pipe, suppress(OSError):
            while (frame := read_frame(pipe)) is not None:  # type: ignore[arg-type]
                head, _, data = frame.partition(b"\n")
                self._answer(json.loads(head), data, pipe)  # type: ignore[arg-type]

    def _answer(self, asked: dict[str, Any], data: bytes, pipe: IO[bytes]) -> None:
        if "to" in asked:
            self.keepers[asked["to"]].put((self, asked["ticket"], data))
            write_frame(pipe, b"{}\n")
        elif "tickets" in asked:
            reply = self._wait_for(asked["tickets"], asked["wait"])
            head = {} if reply is None else {"ticket": reply.ticket, "error": reply.error}
            write_frame(pipe, json.dumps(head).encode() + b"\n" + (b"" if reply is None else reply.data or b""))
        else:
            ready = [name for name, keeper in self.keepers.items() if keeper.ready.is_set()]
            write_frame(pipe, json.dumps(ready).encode() + b"\n")

    def _wait_for(self, tickets: Collection[str], seconds: float) -> Reply | None:
        end = time.monotonic() + seconds
        with self._arrived:
            while True:
                found = next((ticket for ticket in tickets if ticket in self._replies), None)
                if found is not None:
                    return self._replies.pop(found)
                if not self._arrived.wait(max(0.0, end - time.monotonic())):
                    return None


def calm_over_pipes(consortium: Faulty, plans: Mapping[str, Mapping[str, Any]]) -> dict[str, Outcome]:
    """Run experiments without faults and forget them: messages over pipes give the bits of messages over Flower."""
    outcomes = {}
    piped = Piped(consortium)
    try:
        for name, settings in plans.items():
            (consortium.folder / f"{name}.toml").write_text(dumps({"name": name, **settings}))
            piped.start_run(name)
            assert piped.run is not None
            assert piped.run.wait(1200) == 0, consortium.end_of_log(name)
            outcomes[name] = consortium.outcome(Run(consortium.link.runs / name))
    finally:
        piped.close()
        consortium.put_aside()
    return outcomes
