"""A running site: its SuperNode, the supervisor of its worker process, its log and its health page."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from grandrounds.capabilities.hospital.keeper.flower.node import runtime_secret, serve
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.network.route import describe, exempt_loopback, read_route
from grandrounds.capabilities.hospital.keeper.runtime.exchange_folder import FolderWorker, read_exchange
from grandrounds.capabilities.hospital.keeper.runtime.health import Health
from grandrounds.capabilities.hospital.keeper.runtime.large_answers import LargeAnswers
from grandrounds.capabilities.hospital.keeper.runtime.log import SiteLog
from grandrounds.capabilities.hospital.keeper.runtime.supernode import ConnectionStatus, SuperNode
from grandrounds.capabilities.hospital.keeper.runtime.worker import Supervisor
from grandrounds.capabilities.watch.at_sites.metrics import read_metrics
from grandrounds.core.prometheus import Metrics, build_info, disk_metrics, label

Say = Callable[[str], None]

OBJECT_SIZE = ("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", str(2**20))
"""Flower's setting for the bytes of one request: a line that is cut repeats two of them, and 5 MiB would be the default."""


class Site:
    """One running site, until it is stopped."""

    def __init__(
        self, folder: SiteFolder, *, data: str | None, query: str | None, device: str, node: bool
    ) -> None:
        """Create a site; with `node` its SuperNode is started too, else a running one is used.

        Without `data` its worker is a program of its own, which messages reach through the folder that site.toml names.
        """
        self.folder, self._with_node = folder, node
        self.settings = folder.settings()
        limit = float(self.settings["limits"]["seconds"])
        self.supervisor: Supervisor | FolderWorker
        if data is None:
            exchange = read_exchange(self.settings, folder.path)
            self.supervisor = FolderWorker(
                exchange.folder, folder.identity(), folder.name, seconds=limit, job=exchange.job
            )
        else:
            self.supervisor = Supervisor.for_folder(
                folder.path, folder.identity(), folder.name, data=data, query=query, device=device, seconds=limit
            )
        self.log = SiteLog(folder.state / "log.jsonl", self.supervisor.handle)
        self._connected = False
        self._node: SuperNode | None = None

    @property
    def port(self) -> int:
        return int(self.settings["node"]["port"])

    def run(self, stop: threading.Event, say: Say) -> None:
        """Answer messages until `stop` is set."""
        os.environ.update(exempt_loopback())  # a proxy of the environment cannot reach this machine's SuperNode
        self.log.say = say
        with ExitStack() as ends:
            self.supervisor.start()
            ends.callback(self.supervisor.close)
            health = self._health()
            if health is not None:
                ends.callback(health.close)
                say(f"health page: http://127.0.0.1:{health.port}/health")
            if self._with_node and not _listens(self.port):
                say(f"gateway: {describe(read_route(self.settings, self.folder.path).hops)}")
                self._node = node = SuperNode(self.folder, say=say)
                ends.callback(node.close)
                node.start()
                threading.Thread(target=node.tend, args=(stop,), daemon=True, name="node").start()
            secret = runtime_secret(self.folder.path / "keys" / "runtime.secret")
            os.environ.setdefault(*OBJECT_SIZE)
            answers = LargeAnswers(self.folder.state / "outgoing", self.log.handle)
            serve(
                answers.handle,
                address=f"127.0.0.1:{self.port}",
                secret=secret,
                stop=stop,
                note=lambda word: self._noted(word, say),
            )

    def _noted(self, word: str, say: Say) -> None:
        if word in ("connected", "away"):
            self._connected = word == "connected"
            say("the SuperNode is connected" if self._connected else "the SuperNode is offline; waiting for it")

    def _health(self) -> Health | None:
        port = self.settings.get("health", {}).get("port")
        if port is None:
            return None
        return Health(int(port), faults=self._faults, metrics=self._metrics, facts=self._facts)

    def _faults(self) -> list[str]:
        fault = self._connection().fault
        offline = "" if self._connected else "the SuperNode is offline"
        return [text for text in (offline, fault, self.log.fault) if text]

    def _facts(self) -> Mapping[str, object]:
        connection = self._connection()
        warnings = [connection.warning] if connection.warning else []
        return {"gateway": connection.path or None, "clock_offset_seconds": connection.offset, "warnings": warnings}

    def _connection(self) -> ConnectionStatus:
        return ConnectionStatus.load(self.folder.state)

    def _metrics(self) -> Metrics:
        budget, connection = self.folder.stored_budget(), self._connection()
        limits: Metrics = {}
        if budget is not None:
            limits = {
                "grandrounds_epsilon_spent": ("gauge", "Epsilon spent for training rows over all runs.", {"": budget.spent()}),
                "grandrounds_epsilon_limit": ("gauge", "Limit of the site budget.", {"": budget.epsilon or 0.0}),
            }
        clock = {} if connection.offset is None else {"": connection.offset}
        carried = {tuple(key.split(" ", 1)): float(n) for key, n in connection.bytes.items()}
        return {
            **self.log.metrics(),
            "grandrounds_node_up": ("gauge", "1 if the SuperNode is connected.", {"": float(self._connected)}),
            "grandrounds_restarts_total": (
                "counter",
                "Restarts of a program.",
                {
                    label(program="worker"): float(max(0, self.supervisor.restarts)),
                    label(program="node"): float(max(0, self._node.starts - 1) if self._node is not None else 0),
                },
            ),
            **limits,
            "grandrounds_clock_offset_seconds": ("gauge", "Seconds that the server's clock is ahead of this machine's.", clock),
            "grandrounds_gateway_bytes_total": (
                "counter",
                "Bytes of TLS by direction and gateway, where a forwarder carries them.",
                {label(direction=direction, gateway=gateway): n for (direction, gateway), n in carried.items()},
            ),
            **disk_metrics({"site": self.folder.path}),
            **build_info(),
            **read_metrics(self.folder.path / "watch"),
        }


def _listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(0.5)
        return s.connect_ex(("127.0.0.1", port)) == 0
