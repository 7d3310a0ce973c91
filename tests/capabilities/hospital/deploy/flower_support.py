"""A consortium on one machine for tests and benchmarks: a SuperLink, its gateway, SuperNodes, and workers in this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx

from grandrounds.capabilities.hospital.deploy import nginx, pki
from grandrounds.capabilities.hospital.deploy.consortium import load
from grandrounds.capabilities.hospital.deploy.control import Control, sync_nodes
from grandrounds.capabilities.hospital.deploy.files import make_folder, write, write_secret
from grandrounds.capabilities.hospital.deploy.keys import make_identity, make_keys
from grandrounds.capabilities.hospital.deploy.processes import Program, SupervisedProgram
from grandrounds.capabilities.hospital.deploy.run_worker import open_grid
from grandrounds.capabilities.hospital.deploy.scheduler import open_client, take_task
from grandrounds.capabilities.hospital.deploy.superlink import (
    Link,
    flower_environment,
    gateway_program,
    superlink_program,
)
from grandrounds.capabilities.hospital.keeper.flower.launcher import command
from grandrounds.capabilities.hospital.keeper.flower.node import Handler, serve
from grandrounds.core.errors import RunFailed
from grandrounds.engine.transport import FlowerTransport


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(there: Callable[[], object], *, seconds: float = 60.0, every: float = 0.1) -> object:
    """What `there` gives once it gives something; an error after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := there()):
        if time.monotonic() > end:
            raise TimeoutError(there)
        time.sleep(every)
    return found


def echo(letter: bytes) -> bytes:
    return b"heard " + letter


class Site:
    """A SuperNode as a process of its own, and a worker of ours in this process."""

    def __init__(self, consortium: Consortium, name: str, handler: Handler, *, stock: bool) -> None:
        self.name, self.handler = name, handler
        self.folder = make_folder(consortium.folder / "sites" / name)
        self.port = free_port()
        keys = make_keys(make_folder(self.folder / "keys"), name)
        make_folder(consortium.link.nodes)
        make_folder(consortium.link.folder / "sites")
        keys.save(consortium.link.folder, name)
        self.secret = self.folder / "keys" / "runtime.secret"
        log = self.folder / "node.log"
        started = command(
            superlink=f"localhost:{consortium.dialled}",
            authority=consortium.link.authority,
            key=self.folder / "keys" / "node",
            port=self.port,
            secret=self.secret,
        )
        if stock:
            started = [str(Path(sys.executable).parent / "flower-supernode"), *started[3:]]
        self.node = SupervisedProgram(Program(name, started, flower_environment(self.folder / "flower"), log, str(self.secret)))
        self.words: list[str] = []
        self.stop = threading.Event()
        self.worker: threading.Thread | None = None

    def start_worker(self, *, seconds: float | None = None) -> None:
        self.stop.clear()

        def work() -> None:
            serve(
                lambda letter: self.handler(letter),
                address=f"127.0.0.1:{self.port}",
                secret=self.secret.read_bytes(),
                stop=self.stop,
                seconds=seconds,
                note=self.note,
            )

        self.worker = threading.Thread(target=work, daemon=True)
        self.worker.start()

    def note(self, word: str) -> None:
        self.words.append(word)

    def end(self) -> None:
        self.stop.set()
        self.node.stop(grace=3)
        if self.worker is not None:
            self.worker.join(10)


class Consortium:
    """Everything but the sites' data; `close` ends all that was started."""

    def __init__(
        self, folder: Path, *names: str, handler: Handler = echo, through_gateway: bool = False, stock: bool = False
    ) -> None:
        self.folder = folder
        server = make_folder(folder / "server")
        ports = free_port(), free_port()
        sites = "".join(f'[[sites]]\nname = "{name}"\n' for name in names)
        write(
            server / "consortium.toml",
            f'name = "test"\n[server]\naddress = "127.0.0.1"\nport = {ports[0]}\nsuperlink_port = {ports[1]}\n{sites}',
        )
        for inside in ("pki", "run", "logs", "state"):
            make_folder(server / inside)
        authority = pki.new_authority("test", "server CA")
        authority.save(server / "pki", "server-ca")
        operators = pki.new_authority("test", "operator CA")
        operators.save(server / "pki", "operator-ca")
        write(server / "pki" / "operator.crl", pki.revocation_list(operators, {}))
        for one in ("superlink", "gateway"):
            pki.issue(authority, one, days=10, addresses=("localhost", "127.0.0.1")).save(server / "pki", one)
        operator = make_folder(folder / "operator")
        pki.issue(operators, "operator", days=10).save(operator, "operator")
        write(operator / "server-ca.pem", (server / "pki" / "server-ca.pem").read_bytes())
        make_identity(server, "server")
        write_secret(server / "runtime.secret")
        write(server / "nginx.conf", nginx.gateway_config(load(server / "consortium.toml").server))
        self.link = Link.from_folder(folder)
        self.link.prepare()
        self.dialled = ports[0] if through_gateway else ports[1]
        self.superlink = SupervisedProgram(superlink_program(self.link))
        if stock:
            program = self.superlink.program
            stock_command = [str(Path(sys.executable).parent / "flower-superlink"), *program.command[3:]]
            self.superlink = SupervisedProgram(replace(program, command=stock_command))
        program = gateway_program(self.link) if through_gateway else None
        self.gateway = SupervisedProgram(program) if program is not None else None
        self.sites = [Site(self, name, handler, stock=stock) for name in names]

    def start(self) -> None:
        self.superlink.start()
        self.answering()
        if self.gateway is not None:
            self.gateway.start()
        with Control.local(self.link) as control:
            sync_nodes(control, self.link.nodes)
        for site in self.sites:
            site.node.start()
            site.start_worker()

    def answering(self) -> None:
        """Wait for the SuperLink."""

        def up() -> bool:
            with suppress(RunFailed), Control.local(self.link) as control:
                control.nodes()
                return True
            return False

        until(up, seconds=180)

    def online(self) -> set[str]:
        with Control.local(self.link) as control:
            return {node.name for node in control.nodes() if node.status == "online"}

    def run(self, **config: str) -> HeldRun:
        """Start a run and conduct it from here."""
        with Control.local(self.link) as control:
            control.start({"run": "test", "plan": "{}", **config})
        return HeldRun(self.link)

    def close(self) -> None:
        for site in self.sites:
            site.end()
        if self.gateway is not None:
            self.gateway.stop(grace=3)
        self.superlink.stop(grace=3)


class HeldRun:
    """A run taken from the SuperLink by this process, as the conductor takes it."""

    def __init__(self, link: Link) -> None:
        with open_client(link, secret=link.secret) as door:
            self.task, self._inside = until(lambda: take_task(door, link), seconds=30)
        self.grid = open_grid(self.task)
        self.transport = FlowerTransport(self.grid, interval=0.05)
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def addresses(self, n: int, *, seconds: float = 60.0) -> tuple[str, ...]:
        return until(lambda: len(found := self.transport.addresses()) == n and found, seconds=seconds)

    def exchange(self, messages: list[tuple[str, bytes]], *, seconds: float = 60.0) -> dict[str, object]:
        """Send, and collect until every letter has its reply: address -> Reply."""
        tickets = self.transport.send(messages)
        where, end, got = dict(zip(tickets, (to for to, _ in messages), strict=True)), time.monotonic() + seconds, {}
        while where and time.monotonic() < end:
            for reply in self.transport.collect(list(where), wait=1.0):
                got[where.pop(reply.ticket)] = reply
        return got

    def _beat(self) -> None:
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        while not self._over.wait(5.0):
            with suppress(httpx.HTTPError):
                self._inside.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def finish(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        with suppress(httpx.HTTPError):
            self._inside.PushTaskOutput(PushTaskOutputRequest(sub_status="completed", details=""))
        self.grid.close()
        self._inside.close()


def start_node(consortium: Consortium, folder: Path) -> int:
    """Start a SuperNode with the keys of this folder and wait for its end: the exit code."""
    started = command(
        superlink=f"localhost:{consortium.dialled}",
        authority=consortium.link.authority,
        key=folder / "keys" / "node",
        port=free_port(),
        secret=folder / "keys" / "runtime.secret",
    )
    with (folder / "node.log").open("wb") as log:
        environment = flower_environment(folder / "flower")
        return subprocess.run(started, env=environment, stdout=log, stderr=log, timeout=60).returncode


os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
