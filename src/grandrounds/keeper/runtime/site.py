"""A running site: its SuperNode, the supervisor of its worker process, its log and its health page."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from grandrounds.analysis.watch.metrics import read_metrics
from grandrounds.core.prometheus import Metrics
from grandrounds.keeper.flower import launcher
from grandrounds.keeper.flower.node import runtime_secret, serve
from grandrounds.keeper.folder import SiteFolder
from grandrounds.keeper.runtime.health import Health
from grandrounds.keeper.runtime.log import SiteLog
from grandrounds.keeper.runtime.worker import Supervisor

Say = Callable[[str], None]

GAVE_UP = b"SSL/TLS handshake error detected"
"""Flower's log message for an abandoned connection."""


class Site:
    """One running site, until it is stopped."""

    def __init__(
        self, folder: SiteFolder, *, data: str, query: str | None, device: str, fast: bool, node: bool
    ) -> None:
        """Create a site; with `node` its SuperNode is started too, else a running one is used."""
        self.folder, self._fast, self._with_node = folder, fast, node
        self.settings = folder.settings()
        limit = float(self.settings["limits"]["seconds"])
        self.supervisor = Supervisor.for_folder(
            folder.path, folder.identity(), folder.name, data=data, query=query, device=device, seconds=limit
        )
        self.log = SiteLog(folder.state / "log.jsonl", self.supervisor.handle)
        self._connected = False
        self._node: subprocess.Popen[bytes] | None = None
        self._node_log = folder.state / "node.log"
        self._node_read = 0  # bytes of the SuperNode's log that were read

    @property
    def port(self) -> int:
        return int(self.settings["node"]["port"])

    def run(self, stop: threading.Event, say: Say) -> None:
        """Answer messages until `stop` is set."""
        with ExitStack() as ends:
            self.supervisor.start()
            ends.callback(self.supervisor.close)
            health = self._health()
            if health is not None:
                ends.callback(health.close)
                say(f"health page: http://127.0.0.1:{health.port}/health")
            if self._with_node and not _listens(self.port):
                self._start_node()
                ends.callback(self._stop_node)
            secret = runtime_secret(self.folder.path / "keys" / "runtime.secret")
            tend = threading.Thread(target=self._tend, args=(stop,), daemon=True, name="node")
            tend.start()
            serve(
                self.log.handle,
                address=f"127.0.0.1:{self.port}",
                secret=secret,
                stop=stop,
                note=lambda word: self._noted(word, say),
            )

    def _noted(self, word: str, say: Say) -> None:
        if word in ("connected", "away"):
            self._connected = word == "connected"
            say("the SuperNode is connected" if self._connected else "the SuperNode is offline; waiting for it")

    def _start_node(self) -> None:
        server, path = self.settings["server"], self.folder.path
        insecure = bool(server.get("insecure", False))
        command = launcher.command(
            superlink=f"{server['address']}:{server['port']}",
            authority=None if insecure else path / "server-ca.pem",
            key=None if insecure else path / "keys" / "node",
            port=self.port,
            secret=path / "keys" / "runtime.secret",
            fast=self._fast,
        )
        with self._node_log.open("ab") as log:
            self._node_read = log.tell()
            self._node = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(self.folder.state / "flwr")
            )

    def _stop_node(self) -> None:
        if self._node is not None and self._node.poll() is None:
            self._node.terminate()
            try:
                self._node.wait(10)
            except subprocess.TimeoutExpired:
                self._node.kill()
                self._node.wait()

    def _tend(self, stop: threading.Event) -> None:
        """Restart the SuperNode if it died or gave up, with a minimum interval."""
        while not stop.wait(5.0):
            if self._node is None:
                continue
            size = self._node_log.stat().st_size
            if gave_up(self._node_log, self._node_read):
                self._stop_node()
            self._node_read = max(self._node_read, size - len(GAVE_UP))
            if self._node.poll() is not None:
                self._start_node()

    def _health(self) -> Health | None:
        port = self.settings.get("health", {}).get("port")
        return None if port is None else Health(int(port), faults=self._faults, metrics=self._metrics)

    def _faults(self) -> list[str]:
        return [] if self._connected else ["the SuperNode is offline"]

    def _metrics(self) -> Metrics:
        budget = self.folder.budget()
        return {
            **self.log.metrics(),
            "grandrounds_node_up": ("gauge", "1 if the SuperNode is connected.", {"": float(self._connected)}),
            "grandrounds_restarts_total": (
                "counter",
                "Restarts of the worker process.",
                {"": float(max(0, self.supervisor.restarts))},
            ),
            "grandrounds_epsilon_spent": ("gauge", "Epsilon spent for training rows over all runs.", {"": budget.spent()}),
            "grandrounds_epsilon_limit": ("gauge", "Limit of the site budget.", {"": float(budget.budget().epsilon or 0.0)}),
            **read_metrics(self.folder.path / "watch"),
        }


def gave_up(log: Path, since: int) -> bool:
    """Check whether a SuperNode stopped working without ending its process, by its log from this byte on.

    Flower does so when a connection ends within a TLS handshake, for example when a proxy or firewall accepts connections
    while the gateway is down. The process would stay, receive nothing more, and look healthy.
    """
    with log.open("rb") as f:
        f.seek(since)
        return GAVE_UP in f.read()


def _environment(home: Path) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
    return {**os.environ, **quiet, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}


def _listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(0.5)
        return s.connect_ex(("127.0.0.1", port)) == 0
