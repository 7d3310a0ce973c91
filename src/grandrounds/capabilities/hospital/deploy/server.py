"""Serve a consortium: keep SuperLink and gateway running, register nodes, schedule runs; in the foreground or background."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grandrounds.capabilities.hospital.deploy.control import Control, sync_nodes
from grandrounds.capabilities.hospital.deploy.metrics import server_metrics
from grandrounds.capabilities.hospital.deploy.processes import SupervisedProgram, end_leftover
from grandrounds.capabilities.hospital.deploy.scheduler import RunScheduler
from grandrounds.capabilities.hospital.deploy.superlink import (
    Link,
    further_gateway_programs,
    gateway_program,
    superlink_program,
)
from grandrounds.capabilities.hospital.keeper.network.route import exempt_loopback
from grandrounds.capabilities.hospital.keeper.runtime.health import Health
from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.core.event_log import log_event, rotate
from grandrounds.core.prometheus import Metrics
from grandrounds.protocol.flower_message import require_flower

_log = logging.getLogger("grandrounds.server")
READY = "ready"
TICK, LOOK = 0.25, 5.0
"""Seconds between checks of programs and runs, and between checks of the folder of nodes."""


def serve(link: Link, stop: threading.Event, *, health: int | None = None) -> None:
    """Serve until stopped.

    Args:
        link: The server's folder.
        stop: Set to stop.
        health: Port of a health page on loopback; None for no page.

    Raises:
        BadInput: Another server of this folder is running, or the port is in use.
    """
    require_flower()
    os.environ.update(exempt_loopback())  # programs of this host are reached directly, whatever proxy the environment names
    link.prepare()
    with _lock(link):
        server = _Server(link)
        page = None if health is None else Health(health, faults=server.problems, metrics=server.metrics)
        try:
            if page is not None:
                log_event(_log, "health page", f"health page: http://127.0.0.1:{page.port}/health", port=page.port)
            server.serve(stop)
        finally:
            if page is not None:
                page.close()


class _Server:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._superlink = SupervisedProgram(superlink_program(link))
        self._programs = [self._superlink]
        if (before := gateway_program(link)) is not None:
            self._programs += [SupervisedProgram(before), *map(SupervisedProgram, further_gateway_programs(link))]
        elif not link.insecure:
            log_event(
                _log,
                "no gateway",
                "nginx is not installed on this machine: sites reach the SuperLink only through a gateway that you start "
                "yourself",
                level=logging.WARNING,
            )
        self._known_nodes: frozenset[tuple[str, float]] | None = None
        self._last_look = 0.0
        self._scheduler: RunScheduler | None = None

    def problems(self) -> list[str]:
        """List the problems that need attention."""
        down = [f"{supervised.program.name} is down" for supervised in self._programs if not supervised.alive]
        return down if down or self._scheduler is not None else ["the SuperLink does not answer yet"]

    def metrics(self) -> Metrics:
        """Collect metrics for Prometheus."""
        return server_metrics(self._link, self._programs)

    def serve(self, stop: threading.Event) -> None:
        ready = self._link.state / READY
        ready.unlink(missing_ok=True)
        self._check_port()
        try:
            while not stop.wait(TICK):
                self._tend()
                if not self._sync_nodes():
                    continue
                if self._scheduler is None:
                    self._scheduler = RunScheduler(self._link)
                    for run in self._scheduler.resume_interrupted():
                        log_event(_log, "run resumed", f"run {run} was running when the server ended: it continues", run=run)
                    ready.write_text(f"{os.getpid()}\n")
                    log_event(_log, "server ready", f"ready: the SuperLink listens at {self._link.address}")
                self._scheduler.tick()
        finally:
            ready.unlink(missing_ok=True)
            if self._scheduler is not None:
                self._scheduler.close()
            for supervised in reversed(self._programs):
                supervised.stop()

    def _check_port(self) -> None:
        end_leftover(self._superlink.pid_file, self._superlink.program.mark)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", self._link.port))
            except OSError:
                raise BadInput(
                    f"another program listens at {self._link.address}: stop it, or change superlink_port in consortium.toml",
                    code="port-in-use",
                ) from None

    def _tend(self) -> None:
        for supervised in self._programs:
            again = supervised.starts > 0
            if supervised.tend() and again:
                self._known_nodes = None  # a SuperLink with its state in memory has lost its nodes
                sentence = f"{supervised.program.name} ended and was started again: see {supervised.program.log}"
                log_event(_log, "program restarted", sentence, level=logging.WARNING, program=supervised.program.log.stem)

    def _sync_nodes(self) -> bool:
        """Register and unregister nodes to match the folder; returns True if they match."""
        now = time.monotonic()
        if self._known_nodes is not None and now - self._last_look < LOOK:
            return True
        self._last_look = now
        for path in self._link.logs.glob("*.log"):
            rotate(path)
        if self._link.insecure:  # nodes then have no keys
            return self._answers()
        listed = frozenset((p.name, p.stat().st_mtime) for p in self._link.nodes.glob("*.pub"))
        if listed == self._known_nodes:
            return True
        try:
            with Control.local(self._link) as control:
                new, old = sync_nodes(control, self._link.nodes)
        except BadInput:
            raise
        except GrandRoundsError:
            return self._known_nodes is not None  # the SuperLink is not up yet
        for names, change in ((new, "may take part now"), (old, "may no longer take part")):
            if names:
                log_event(_log, "sites changed", f"{', '.join(names)} {change}", sites=list(names))
        self._known_nodes = listed
        return True

    def _answers(self) -> bool:
        with suppress(GrandRoundsError), Control.local(self._link) as control:
            control.nodes()
            self._known_nodes = frozenset()
            return True
        return False


@contextmanager
def _lock(link: Link) -> Iterator[None]:
    """Allow one server for each folder."""
    handle = os.open(link.state / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    except BlockingIOError:
        raise BadInput(
            f"the server of {link.folder} is already running: stop it with `rounds server stop`", code="server-running"
        ) from None
    finally:
        os.close(handle)


def server_process(link: Link) -> int | None:
    """Return the id of the process that serves this folder, if there is one."""
    path: Path = link.state / "server.lock"
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(path.read_text() or 0) or None
    finally:
        os.close(handle)
    return None


PATIENCE = 120.0


def start_in_background(link: Link, health: int) -> None:
    """Start `rounds server start --foreground` and wait until it accepts runs.

    Raises:
        BadInput: A server of this folder is running.
        RunFailed: It ended, or does not answer.
    """
    link.prepare()
    if (running := server_process(link)) is not None:
        raise BadInput(
            f"the server of {link.folder} is already running (process {running}): stop it with `rounds server stop`",
            code="server-running",
        )
    (link.state / READY).unlink(missing_ok=True)
    flag = ["--health", str(health), *(["--insecure-loopback"] if link.insecure else [])]
    flag += ["--in-memory"] if link.in_memory else []
    flag += ["--log-format", link.log_format]
    log = link.logs / "server.log"
    rotate(log)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "rounds"), "server", "start", str(link.folder), "--foreground", *flag],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end = time.monotonic() + PATIENCE
    while not (link.state / READY).exists():
        if process.poll() is not None:
            raise RunFailed(f"the server ended at once: {_last_line(log)}", code="server-ended")
        if time.monotonic() > end:
            os.kill(process.pid, signal.SIGTERM)
            raise RunFailed(
                f"the SuperLink did not answer within {PATIENCE:.0f} s: see {link.logs / 'superlink.log'}",
                code="server-unreachable",
            )
        time.sleep(0.1)


def stop_in_background(link: Link) -> None:
    """Stop the server of a folder, and wait until it has ended.

    Raises:
        BadInput: None runs.
        RunFailed: It does not stop.
    """
    process = server_process(link)
    if process is None:
        raise BadInput(f"no server of {link.folder} is running", code="server-not-running")
    os.kill(process, signal.SIGTERM)
    end = time.monotonic() + 60.0
    while server_process(link) is not None:
        if time.monotonic() > end:
            raise RunFailed(
                f"the server (process {process}) does not stop: see {link.logs / 'server.log'}",
                code="server-does-not-stop",
            )
        time.sleep(0.1)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
