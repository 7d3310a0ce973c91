"""Processes of a consortium without Flower, which `piped.Piped` starts.

    python -m tests.capabilities.hospital.deploy.piped_process keeper SITE_FOLDER TABLE      # supervisor and worker of one site
    python -m tests.capabilities.hospital.deploy.piped_process run SOCKET OUT RUN            # the run's process at the server
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.keeper.runtime.worker import (
    READY,
    Supervisor,
    end_with_parent,
    read_frame,
    write_frame,
)
from grandrounds.engine.transport import Reply

STARTS = 600.0
"""Seconds that a site may take to start, and to be away before it is missing: a machine may be busy with other tests."""


class PipeTransport:
    """The run's side of the socket."""

    def __init__(self, path: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self._pipe: Any = connection.makefile("rwb")
        self._sent, self._start = 0, time.monotonic_ns()

    def addresses(self) -> tuple[str, ...]:
        return tuple(self._call({})[0])

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        tickets = []
        for address, data in messages:
            self._sent += 1
            tickets.append(f"{self._start}-{self._sent}")
            self._call({"to": address, "ticket": tickets[-1]}, data)
        return tickets

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        head, data = self._call({"tickets": list(tickets), "wait": wait})
        return [Reply(head["ticket"], data or None, head["error"])] if head else []

    def _call(self, head: dict[str, Any], data: bytes = b"") -> tuple[Any, bytes]:
        write_frame(self._pipe, json.dumps(head).encode() + b"\n" + data)
        frame = read_frame(self._pipe)
        assert frame is not None, "the test has ended"
        answer, _, body = frame.partition(b"\n")
        return json.loads(answer), body


def keep(folder: Path, table: str) -> None:
    """Answer messages from standard input with a supervised worker."""
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder

    end_with_parent()
    site = SiteFolder(folder)
    site.state.mkdir(exist_ok=True)
    limit = float(site.settings()["limits"]["seconds"])
    supervisor = Supervisor.for_folder(
        folder, site.identity(), site.name, data=table, query=None, device="cpu", seconds=limit
    )
    supervisor.start()
    write_frame(sys.stdout.buffer, READY)
    while (message := read_frame(sys.stdin.buffer)) is not None:
        write_frame(sys.stdout.buffer, supervisor.handle(message).message)
    supervisor.close()


def run(path: str, out: Path, name: str) -> None:
    """Begin or resume a run at the sites."""
    from grandrounds.capabilities.hospital.deploy import run_worker
    from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
    from grandrounds.engine.dispatcher import Timeouts

    end_with_parent()
    Timeouts.__init__.__defaults__ = (STARTS, STARTS, 0.5, 1.0)  # type: ignore[misc]
    signal.signal(signal.SIGTERM, lambda *_: run_worker._STOP.set())
    plan = deployed_plan(out.parent / f"{name}.toml", ())
    run_worker._run_at_sites(plan, out / "server" / "runs" / name, PipeTransport(path), out / "server", resume=True)


if __name__ == "__main__":
    if sys.argv[1] == "keeper":
        keep(Path(sys.argv[2]), sys.argv[3])
    else:
        run(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
