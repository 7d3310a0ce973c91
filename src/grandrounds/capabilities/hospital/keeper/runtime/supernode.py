"""A site's SuperNode as a process: started with its way to the gateways and the server's time, and restarted when it fails.

`rounds site start` runs it together with the keeper, `rounds site node` alone, where the keeper has no network of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.keeper.flower import launcher
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.network.clock import ClockCheck
from grandrounds.capabilities.hospital.keeper.network.forwarder import Forwarder
from grandrounds.capabilities.hospital.keeper.network.route import exempt_loopback, read_route
from grandrounds.core.event_log import rotate

Say = Callable[[str], None]

TEND = 5.0
MEASURE = 600.0
"""Seconds between two looks at the process, and between two measurements of the clock."""

_STATUS = "connection.json"


@dataclass(frozen=True)
class ConnectionStatus:
    """The connection of a site, as its node last wrote it.

    Attributes:
        path: The gateway in use, and the proxy; empty if unknown.
        fault: The reason why no gateway can be reached; else empty.
        offset: Seconds that the server's clock is ahead; None if unknown.
        warning: A sentence about the clock; else empty.
        bytes: Bytes by direction and gateway, where a forwarder counts them.
        written: Unix time.
    """

    path: str = ""
    fault: str = ""
    offset: float | None = None
    warning: str = ""
    bytes: Mapping[str, int] = field(default_factory=dict)
    written: float = 0.0

    def save(self, state: Path) -> None:
        """Write the status into a site's state folder."""
        part = state / f"{_STATUS}.part"
        with suppress(OSError):  # a full disk must not stop the node
            part.write_text(json.dumps(asdict(self)))
            part.replace(state / _STATUS)

    @classmethod
    def load(cls, state: Path) -> ConnectionStatus:
        """Read the status of a site; an empty one if there is none."""
        try:
            values: dict[str, Any] = json.loads((state / _STATUS).read_text())
            return cls(**values)
        except (OSError, ValueError, TypeError):
            return cls()


class SuperNode:
    """The process of one site's SuperNode."""

    def __init__(self, folder: SiteFolder, *, say: Say) -> None:
        self._folder, self._say = folder, say
        settings = folder.settings()
        self._port = int(settings["node"]["port"])
        self._route = read_route(settings, folder.path)
        self._clock = ClockCheck(self._route, folder.path / "server-ca.pem")
        self._forwarder = None if self._route.is_plain else Forwarder(self._route, say)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder.state / "node.log"
        self.starts = 0
        self._said = ""
        self._measured = 0.0

    def start(self) -> None:
        """Start the forwarder where one is needed, and the process."""
        if self._forwarder is not None:
            self._forwarder.start()
        self._start_process()

    def tend(self, stop: threading.Event) -> None:
        """Restart the process if it ended, with a minimum interval, until `stop` is set."""
        while not stop.wait(TEND):
            assert self._process is not None
            rotate(self._log)
            rotate(self._folder.state / "work.log")
            if self._process.poll() is not None:
                self._start_process()
            elif time.monotonic() - self._measured > MEASURE:
                self._measure()
            self.status().save(self._folder.state)

    def close(self) -> None:
        """End the process and its connections."""
        self._stop_process()
        if self._forwarder is not None:
            self._forwarder.close()

    def status(self) -> ConnectionStatus:
        """Return the state of the connection."""
        clock = {"offset": self._clock.offset, "warning": self._clock.warning, "written": time.time()}
        if self._forwarder is None:
            return ConnectionStatus(path=str(self._route.hops[0]), **clock)  # type: ignore[arg-type]
        now = self._forwarder.status
        path = "" if now.current is None else str(now.current)
        return ConnectionStatus(path=path, fault=now.fault, bytes=dict(now.bytes), **clock)  # type: ignore[arg-type]

    def _measure(self) -> None:
        self._measured = time.monotonic()
        self._clock.measure()
        if self._clock.warning != self._said:
            self._said = self._clock.warning
            self._say(self._said or "this machine's clock agrees with the server's again")

    def _start_process(self) -> None:
        self._measure()
        self.starts += 1
        path, insecure = self._folder.path, self._route.insecure
        correction = self._clock.correction
        gateway = str(self._route.hops[0].gateway) if self._forwarder is None else f"127.0.0.1:{self._forwarder.port}"
        command = launcher.command(
            superlink=gateway,
            authority=None if insecure else path / "server-ca.pem",
            key=None if insecure else path / "keys" / "node",
            port=self._port,
            secret=path / "keys" / "runtime.secret",
        )
        environment = self._environment()
        if correction:
            environment[launcher.OFFSET] = f"{correction:.3f}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.status().save(self._folder.state)

    def _stop_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _environment(self) -> dict[str, str]:
        """Return the environment of the process: no telemetry, and no proxy, because the forwarder uses it."""
        programs, home = str(Path(sys.executable).parent), self._folder.state / "flwr"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRANDROUNDS_PROXY_PASSWORD")
        plain = {name: value for name, value in os.environ.items() if name.upper() not in names}
        return {**plain, **quiet, **exempt_loopback(), "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
