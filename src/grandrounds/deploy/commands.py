"""The command lines that start scripts, units and Compose files share."""

from __future__ import annotations

from pathlib import Path

from grandrounds.deploy.consortium_file import Server
from grandrounds.keeper.flower import launcher

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""In every process: nothing calls home, and linear algebra keeps to one thread."""


def serve(rounds: str, folder: str, *, insecure: bool) -> list[str]:
    """SuperLink, gateway and the registration of nodes."""
    return [rounds, "server", "start", folder, "--foreground", *(["--insecure-loopback"] if insecure else [])]


def supernode(program: str, folder: str, server: Server, port: int, *, insecure: bool) -> list[str]:
    """A SuperNode that starts no code of anybody: tasks wait on loopback for the keeper, which knows the secret."""
    at, keys = Path(folder), Path(folder) / "keys"
    said = launcher.command(
        superlink=f"{server.address}:{server.superlink_port}" if insecure else server.dialled,
        authority=None if insecure else at / "server-ca.pem",
        key=None if insecure else keys / "node",
        port=port,
        secret=keys / "runtime.secret",
    )
    return [program, *said[1:]]


def keeper(rounds: str, folder: str, table: str) -> list[str]:
    """The keeper with a site's table; its SuperNode is a program of its own."""
    return [rounds, "site", "start", folder, "--data", table, "--no-node"]
