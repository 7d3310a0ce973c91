"""The SuperLink and its gateway as programs, started from a server's folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grandrounds.capabilities.hospital.deploy.consortium import load
from grandrounds.capabilities.hospital.deploy.processes import Program
from grandrounds.core.errors import BadInput
from grandrounds.core.event_log import Form

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Environment of every Flower process: no telemetry."""
MEMORY = ":flwr-in-memory:"
"""Flower's name for a database in memory."""


@dataclass(frozen=True)
class Link:
    """A server's folder (OUT/server), and the address of its SuperLink on this host."""

    folder: Path
    port: int
    insecure: bool = False
    """Plain text on loopback and nodes without keys, for experiments on one machine."""
    in_memory: bool = False
    """True if the SuperLink keeps its messages in memory; our own record and checkpoints are on disk in any case."""
    log_format: Form = "json"
    """Format of the logs of the server and of its runs."""

    @classmethod
    def from_folder(cls, path: Path, *, insecure: bool = False) -> Link:
        """Open the server's folder that `rounds provision` wrote: OUT, or OUT/server.

        Raises:
            BadInput: It is not such a folder.
        """
        folder = path / "server" if (path / "server" / "consortium.toml").is_file() else path
        if not (folder / "consortium.toml").is_file():
            raise BadInput(
                f"{path} is not a server's folder: give the folder that `rounds provision --out` wrote", code="not-server-folder"
            )
        folder = folder.resolve()
        return cls(folder, load(folder / "consortium.toml").server.superlink_port, insecure)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path | None:
        """Certificate authority of the SuperLink."""
        return None if self.insecure else self.folder / "pki" / "server-ca.pem"

    @property
    def secret(self) -> Path:
        return self.folder / "runtime.secret"

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def prepare(self) -> None:
        """Create the folders that a server writes to, for its owner only."""
        for folder in (self.state, self.logs, self.runs, self.state / "runs"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def flower_environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a Flower program: no telemetry, its own home, and our programs first on the path."""
    base = os.environ if base is None else base
    programs = str(Path(sys.executable).parent)
    return {
        **{name: value for name, value in base.items() if not name.startswith("FLWR_")},
        **QUIET,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([programs, base.get("PATH", os.defpath)]),
        "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
        "OPENBLAS_NUM_THREADS": base.get("OPENBLAS_NUM_THREADS", "1"),
    }


def superlink_program(link: Link) -> Program:
    """Return the SuperLink on loopback: TLS, nodes by key, state on disk or in memory, no app code installed or run."""
    database = MEMORY if link.in_memory else str(link.state / "link.db")
    pki = link.folder / "pki"
    tls = [
        *("--ssl-certfile", str(pki / "superlink.pem")),
        *("--ssl-keyfile", str(pki / "superlink.key")),
        *("--ssl-ca-certfile", str(pki / "server-ca.pem")),
        "--enable-supernode-auth",
    ]
    command = [
        *(sys.executable, "-m", "grandrounds.capabilities.hospital.deploy.superlink_launcher"),
        *(["--insecure"] if link.insecure else tls),
        *("--host", "127.0.0.1", "--port", str(link.port)),
        *("--database", database),
        *("--isolation", "process", "--superexec-auth-secret-file", str(link.secret)),
        "--disable-runtime-dependency-installation",
    ]
    home = link.state / "flower"
    return Program("the SuperLink", command, flower_environment(home), link.logs / "superlink.log", str(link.secret))


def gateway_program(link: Link) -> Program | None:
    """Return nginx with the folder's configuration; None if it is not installed."""
    return _nginx_program(link, "the gateway", link.folder, "gateway")


def further_gateway_programs(link: Link) -> list[Program]:
    """Return the further gateways that run on this host, or the relay for those on other hosts."""
    server = load(link.folder / "consortium.toml").server
    if server.relay is not None:
        programs = [_nginx_program(link, "the relay", link.folder / "relay", "relay")]
    else:
        programs = [
            _nginx_program(link, f"the gateway {gateway}", link.folder / "gateways" / gateway.folder, f"gateway-{gateway.folder}")
            for gateway in server.gateways
        ]
    return [program for program in programs if program is not None]


def _nginx_program(link: Link, name: str, folder: Path, log: str) -> Program | None:
    config, nginx = folder / "nginx.conf", shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if link.insecure or nginx is None or not config.is_file():
        return None
    for inside in ("run", "logs"):
        (folder / inside).mkdir(mode=0o700, exist_ok=True)
    command = [nginx, "-e", "stderr", "-p", str(folder), "-c", str(config)]
    return Program(name, command, dict(os.environ), link.logs / f"{log}.log", str(config))
