"""Control a SuperLink as its operator: list and register nodes, start and stop runs.

The connection uses loopback on the server's host, or the gateway with the operator's certificate from other machines
(Flower's own command cannot send one).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.capabilities.hospital.keeper.network.route import exempt_loopback
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.protocol.flower_message import require_flower

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

APP = Path(__file__).parent / "app"
"""The Flower app that is submitted: it names the settings of a run and contains no code for a site."""

ONLINE, UNREGISTERED = "online", "unregistered"
PENDING, FINISHED = "pending", "finished"
"""First words of Flower's status of a run that nobody has taken, and of one that is over."""

OPERATOR_STOPPED = "finished:stopped"
"""Flower's status of a run that an operator stopped; a run whose heartbeats it missed has "finished:failed"."""


@dataclass(frozen=True)
class Node:
    """A SuperNode as the SuperLink knows it."""

    id: int
    name: str
    key: bytes
    status: str


@dataclass(frozen=True)
class FlowerRun:
    """A run as Flower knows it. Its status says nothing about our run; the run folder does. `plan` is as submitted."""

    id: int
    name: str
    status: str
    plan: str = ""


class Unreachable(RunFailed):
    """No server answers at the address of the SuperLink or the gateway."""


class Control:
    """A connection to a SuperLink's control routes."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        require_flower()
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self._address = address
        self._client: ControlHttpClient = ControlHttpClient(
            f"{'http' if context is None else 'https'}://{address}",
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-cli")],
            verify=context if context is not None else False,
        )

    @classmethod
    def local(cls, link: Link) -> Self:
        """Connect on the server's own host, never through a proxy of the environment."""
        os.environ.update(exempt_loopback())
        return cls(link.address, _ssl_context(link.authority) if link.authority is not None else None)

    @classmethod
    def operator(cls, folder: Path) -> Self:
        """Connect through the gateway with an operator's folder.

        Raises:
            BadInput: It is not an operator's folder, or its certificate and key do not match.
        """
        address = gateway_address(folder)
        context = _ssl_context(folder / "server-ca.pem")
        try:
            context.load_cert_chain(folder / "operator.pem", folder / "operator.key")
        except (OSError, ssl.SSLError):
            raise BadInput(
                f"{folder} has no matching operator.pem and operator.key: ask for the folder again", code="invalid-certificate"
            ) from None
        return cls(address, context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def nodes(self) -> list[Node]:
        """List the registered nodes."""
        from flwr.proto.control_pb2 import ListNodesRequest

        listed = self._call(self._client.ListNodes, ListNodesRequest()).nodes_info
        nodes = [Node(n.node_id, n.name, n.public_key, n.status) for n in listed]
        return [node for node in nodes if node.status != UNREGISTERED]

    def register(self, key: bytes, name: str) -> int:
        """Register a node by its public key (from `node_key`).

        Returns:
            The node's id.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest

        return int(self._call(self._client.RegisterNode, RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """Unregister a node."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._call(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node))

    def start(self, config: Mapping[str, str | bool | int | float]) -> int:
        """Submit a run with these settings.

        Returns:
            Flower's id of the run.

        Raises:
            RunFailed: The SuperLink did not accept it.
        """
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        bundle = _bundle()
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})),
            override_config=user_config_to_proto(dict(config)),
        )
        started = self._call(self._client.StartRun, request)
        if not started.HasField("run_id"):
            raise RunFailed(f"the SuperLink at {self._address} did not accept the run", code="run-not-accepted")
        return int(started.run_id)

    def stop(self, run: int) -> None:
        """Stop a Flower run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._call(self._client.StopRun, StopRunRequest(run_id=run))

    def runs(self) -> list[FlowerRun]:
        """List the latest runs, newest last."""
        from flwr.proto.control_pb2 import ListRunsRequest

        listed = self._call(self._client.ListRuns, ListRunsRequest(limit=100)).run_dict
        latest = sorted(listed.values(), key=lambda run: run.pending_at)
        return [
            FlowerRun(r.run_id, r.override_config["run"].string, _status(r), r.override_config["plan"].string)
            for r in latest
        ]

    def _call(self, call: Callable[[Any], Any], request: Any) -> Any:
        """Call a route; HTTP errors become RunFailed."""
        import httpx

        try:
            return call(request)
        except httpx.HTTPStatusError as e:
            raise RunFailed(_refusal_text(self._address, e), code="server-unreachable") from None
        except httpx.TransportError as e:
            raise Unreachable(
                f"no server answers at {self._address} ({type(e).__name__})", code="server-unreachable"
            ) from None


def node_key(path: Path) -> bytes:
    """Read a SuperNode's public key file, in the form that the SuperLink stores."""
    from cryptography.hazmat.primitives import serialization
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    from grandrounds.capabilities.hospital.deploy.keys import read_node_key

    key = serialization.load_ssh_public_key(read_node_key(path).encode())
    return bytes(public_key_to_bytes(key))  # type: ignore[arg-type]


def sync_nodes(control: Control, folder: Path) -> tuple[list[str], list[str]]:
    """Register the nodes of a folder of public keys and unregister all others.

    Returns:
        The names of the nodes that were registered, and of those that were unregistered.
    """
    wanted = {node_key(path): path.stem for path in sorted(folder.glob("*.pub"))}
    registered = {node.key: node for node in control.nodes()}
    new, old = [], []
    for key, node in registered.items():
        if key not in wanted:
            control.unregister(node.id)
            old.append(node.name)
    for key, name in wanted.items():
        if key not in registered:
            control.register(key, name)
            new.append(name)
    return new, old


def gateway_address(folder: Path) -> str:
    """Read address:port of the gateway from the proxy's configuration in an operator's folder.

    Raises:
        BadInput: It is no operator's folder.
    """
    try:
        match = re.search(r"proxy_pass https://([^/;\s]+);", (folder / "nginx.conf").read_text())
    except OSError:
        match = None
    if match is None:
        raise BadInput(
            f"{folder} is not an operator's folder: it has no nginx.conf that names the gateway", code="not-operator-folder"
        )
    return match.group(1)


@functools.cache
def _bundle() -> bytes:
    from flwr.cli.build import build_fab_from_disk

    return bytes(build_fab_from_disk(APP))


def _ssl_context(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError):
        raise BadInput(f"{authority} is not a certificate authority in PEM format", code="invalid-certificate") from None
    return context


def _status(run: Any) -> str:
    return ":".join(word for word in (run.status.status, run.status.sub_status) if word)


def _refusal_text(address: str, error: Any) -> str:
    code = error.response.status_code
    texts = {
        401: "is unknown to it",
        403: "is not allowed to do this: the gateway requires an operator's certificate",
        400: "was not accepted: the gateway refused the certificate or the request",
        404: "asked for something that does not exist",
        409: "asked for something that is not possible now",
    }
    return f"the server at {address} refused (HTTP {code}): the caller {texts.get(code, 'got no answer')}"
