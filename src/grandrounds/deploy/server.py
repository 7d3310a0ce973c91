"""The server of a consortium: SuperLink and gateway kept running, nodes registered, runs scheduled; in the background or not."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.deploy.control import ONLINE, Control, agree_on_nodes
from grandrounds.deploy.processes import SupervisedProgram, end_leftover
from grandrounds.deploy.records import RunRecords
from grandrounds.deploy.scheduler import RunScheduler
from grandrounds.deploy.superlink import Link, gateway, superlink
from grandrounds.keeper.runtime.health import Health, Metrics, label
from grandrounds.protocol.flower_message import require_flower

Say = Callable[[str], None]
READY = "ready"
TICK, LOOK = 0.25, 5.0
"""Seconds between two looks at programs and runs, and between two looks at the folder of nodes."""


def serve(link: Link, stop: threading.Event, say: Say, *, health: int | None = None) -> None:
    """Until told to stop. `say` is told what happens, in sentences for a log; `health`: the port of a page on loopback."""
    require_flower()
    link.prepare()
    with _lock(link):
        server = _Server(link, say)
        page = None if health is None else Health(health, well=server.wrong, metrics=server.metrics)
        try:
            if page is not None:
                say(f"health page: http://127.0.0.1:{page.port}/health")
            server.serve(stop)
        finally:
            if page is not None:
                page.close()


class _Server:
    def __init__(self, link: Link, say: Say) -> None:
        self._link, self._say = link, say
        self._superlink = SupervisedProgram(superlink(link))
        self._kept = [self._superlink]
        if (before := gateway(link)) is not None:
            self._kept.append(SupervisedProgram(before))
        elif not link.insecure:
            say(
                "there is no nginx on this machine: sites reach the SuperLink only through a gateway that you start yourself"
            )
        self._listed: frozenset[tuple[str, float]] | None = None
        self._looked = 0.0
        self._scheduler: RunScheduler | None = None

    def wrong(self) -> list[str]:
        """What a person should look after."""
        down = [f"{kept.program.name} is down" for kept in self._kept if not kept.alive]
        return down if down or self._scheduler is not None else ["the SuperLink does not answer yet"]

    def metrics(self) -> Metrics:
        """For Prometheus."""
        states = Counter(str(record.get("state")) for record in RunRecords(self._link.state / "runs").all())
        up = {label(program=kept.program.log.stem): float(kept.alive) for kept in self._kept}
        again = {label(program=kept.program.log.stem): float(max(0, kept.starts - 1)) for kept in self._kept}
        there: dict[str, float] = {}
        with suppress(GrandRoundsError), Control.local(self._link) as control:
            for node in control.nodes():
                there[label(site=node.name)] = float(node.status == ONLINE)
        return {
            "grandrounds_up": ("gauge", "Whether a program runs.", up),
            "grandrounds_restarts_total": ("counter", "How often a program was started again.", again),
            "grandrounds_site_up": ("gauge", "Whether a site's SuperNode is there.", there),
            "grandrounds_runs": ("gauge", "Runs by state.", {label(state=s): float(n) for s, n in states.items()}),
        }

    def serve(self, stop: threading.Event) -> None:
        ready = self._link.state / READY
        ready.unlink(missing_ok=True)
        self._refuse_a_taken_port()
        try:
            while not stop.wait(TICK):
                self._tend()
                if not self._nodes_agreed():
                    continue
                if self._scheduler is None:
                    self._scheduler = RunScheduler(self._link)
                    for run in self._scheduler.take_up():
                        self._say(f"run {run} was at work when the server ended: it goes on")
                    ready.write_text(f"{os.getpid()}\n")
                    self._say(f"ready: the SuperLink listens at {self._link.address}")
                self._scheduler.tick()
        finally:
            ready.unlink(missing_ok=True)
            if self._scheduler is not None:
                self._scheduler.close()
            for kept in reversed(self._kept):
                kept.stop()

    def _refuse_a_taken_port(self) -> None:
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
        for kept in self._kept:
            again = kept.starts > 0
            if kept.tend() and again:
                self._listed = None  # a SuperLink that kept them in memory has forgotten its nodes
                self._say(f"{kept.program.name} had ended and was started again: see {kept.program.log}")

    def _nodes_agreed(self) -> bool:
        """Whether the SuperLink knows the nodes of the folder and no other; a changed folder is told to it."""
        now = time.monotonic()
        if self._listed is not None and now - self._looked < LOOK:
            return True
        self._looked = now
        if self._link.insecure:  # nodes have no keys then
            return self._answers()
        listed = frozenset((p.name, p.stat().st_mtime) for p in self._link.nodes.glob("*.pub"))
        if listed == self._listed:
            return True
        try:
            with Control.local(self._link) as control:
                new, old = agree_on_nodes(control, self._link.nodes)
        except BadInput:
            raise
        except GrandRoundsError:
            return self._listed is not None  # the SuperLink is not there yet
        for names, what in ((new, "may take part now"), (old, "may no longer take part")):
            if names:
                self._say(f"{', '.join(names)} {what}")
        self._listed = listed
        return True

    def _answers(self) -> bool:
        with suppress(GrandRoundsError), Control.local(self._link) as control:
            control.nodes()
            self._listed = frozenset()
            return True
        return False


@contextmanager
def _lock(link: Link) -> Iterator[None]:
    """One server a folder."""
    handle = os.open(link.state / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    except BlockingIOError:
        raise BadInput(
            f"the server of {link.folder} is running already: `rounds server stop` ends it", code="server-running"
        ) from None
    finally:
        os.close(handle)


def server_process(link: Link) -> int | None:
    """The process that serves this folder now, if one does."""
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
    """Start `rounds server start --foreground` and wait until it takes runs."""
    link.prepare()
    if (found := server_process(link)) is not None:
        raise BadInput(
            f"the server of {link.folder} is running already (process {found}): `rounds server stop` ends it",
            code="server-running",
        )
    (link.state / READY).unlink(missing_ok=True)
    flag = ["--health", str(health), *(["--insecure-loopback"] if link.insecure else [])]
    flag += ["--in-memory"] if link.in_memory else []
    log = link.logs / "server.log"
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
    """End the server of a folder, and wait until it has."""
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
    return lines[-1] if lines else "it said nothing"
