"""Open a connection to a gateway, directly or through a proxy (CONNECT), over IPv4 or IPv6."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

from grandrounds.capabilities.hospital.keeper.network.route import Endpoint, Hop, Proxy

CONNECT_SECONDS = 8.0
"""Time limit of one attempt. A SuperNode gives a connection up after 30 s, and each gateway must have its turn by then."""

_HEAD = 64 * 1024
"""Largest answer to CONNECT in bytes."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class CannotConnect(Exception):
    """A connection could not be opened.

    Attributes:
        step: `dns`, `tcp` or `proxy`.
        problem: One sentence, without secrets.
        advice: A request to the network team.
    """

    def __init__(self, step: str, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.step, self.problem, self.advice = step, problem, advice


async def dial(hop: Hop) -> Stream:
    """Open a connection to the gateway of a hop.

    Raises:
        CannotConnect: A name is unknown, nothing accepts the connection, or the proxy refuses.
    """
    seconds = CONNECT_SECONDS
    if hop.proxy is None:
        return await _open(hop.gateway, seconds)
    reader, writer = await _open(hop.proxy.endpoint, seconds, role="the proxy")
    try:
        async with asyncio.timeout(seconds):
            await _connect_through(hop.proxy, hop.gateway, reader, writer)
    except BaseException as e:
        writer.transport.abort()
        if isinstance(e, TimeoutError):
            raise CannotConnect(
                "proxy",
                f"the proxy {hop.proxy.endpoint} did not answer within {seconds:.0f} s when asked for {hop.gateway}",
                f"Ask whether the proxy may reach {hop.gateway.host}, port {hop.gateway.port} (TCP).",
            ) from None
        if isinstance(e, OSError | EOFError | asyncio.LimitOverrunError):
            raise CannotConnect(
                "proxy",
                f"the proxy {hop.proxy.endpoint} closed the connection without an HTTP answer",
                "Ask whether this address is an HTTP proxy that allows the method CONNECT.",
            ) from None
        raise
    return reader, writer


async def _open(endpoint: Endpoint, seconds: float, *, role: str = "the gateway") -> Stream:
    """Connect by TCP; of a name with several addresses the first that answers, IPv6 or IPv4."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, happy_eyeballs_delay=0.25, limit=_HEAD
            )
    except socket.gaierror:
        raise CannotConnect(
            "dns",
            f"the name {endpoint.host} of {role} is not known to this machine's DNS",
            f"Ask for the DNS name {endpoint.host} to be resolved on this machine, or for the address of a proxy.",
        ) from None
    except TimeoutError:
        raise CannotConnect(
            "tcp",
            f"{role} {endpoint} did not answer within {seconds:.0f} s: packets are dropped on the way, or the machine is down",
            f"Ask for outbound TCP from this machine to {endpoint.host}, port {endpoint.port}, or for the address of a proxy.",
        ) from None
    except OSError as e:
        problem = f"cannot be reached ({e.strerror or e})"
        if "Errno 111" in str(e) or isinstance(e, ConnectionRefusedError):
            problem = "refused the connection: nothing listens there, or a firewall rejects it"
        raise CannotConnect(
            "tcp",
            f"{role} {endpoint} {problem}",
            f"Ask for outbound TCP from this machine to {endpoint.host}, port {endpoint.port}, and whether it is up.",
        ) from None
    _keep_alive(writer)
    return reader, writer


async def _connect_through(
    proxy: Proxy, gateway: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    lines = [f"CONNECT {gateway} HTTP/1.1", f"Host: {gateway}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    match = re.match(r"HTTP/1\.[01] ([0-9]{3})", head)
    if match is None:
        raise EOFError
    if match[1][0] != "2":
        raise explain_refusal(int(match[1]), head, proxy, gateway)


def explain_refusal(status: int, head: str, proxy: Proxy, gateway: Endpoint) -> CannotConnect:
    """Explain a proxy's refusal of CONNECT.

    Args:
        status: The HTTP status.
        head: Its headers.
        proxy: The proxy.
        gateway: The gateway that was asked for.
    """
    schemes = sorted({m[1] for m in re.finditer(r"(?im)^proxy-authenticate:\s*([A-Za-z]+)", head)})
    name = f"the proxy {proxy.endpoint}"
    if status == 407:
        offered = f" It offers: {', '.join(schemes)}." if schemes else ""
        if schemes and "Basic" not in schemes:
            return CannotConnect(
                "proxy",
                f"{name} asks for a log-in (HTTP 407) in a way that is not supported.{offered}",
                "Ask for an exemption from authentication for this machine and this gateway, or for Basic authentication.",
            )
        if not proxy.user:
            return CannotConnect(
                "proxy",
                f"{name} asks for a user and a password (HTTP 407).{offered}",
                "Ask for a service account, and set user and password_file in [proxy] of site.toml.",
            )
        return CannotConnect(
            "proxy",
            f"{name} does not accept the password of the user {proxy.user} (HTTP 407).{offered}",
            "Ask whether the account is active, and check its password.",
        )
    if status == 403:
        return CannotConnect(
            "proxy",
            f"{name} does not allow a connection to {gateway} (HTTP 403)",
            f"Ask to allow the method CONNECT to {gateway.host}, port {gateway.port}, without TLS inspection.",
        )
    if status in (502, 503, 504):
        return CannotConnect(
            "proxy",
            f"{name} cannot reach {gateway} (HTTP {status})",
            f"Ask whether the proxy may reach {gateway.host}, port {gateway.port}, and the operator whether the gateway is up.",
        )
    return CannotConnect(
        "proxy",
        f"{name} refuses a connection to {gateway} (HTTP {status})",
        f"Ask whether it allows the method CONNECT to {gateway.host}, port {gateway.port}.",
    )


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the system probe a silent line each minute: firewalls forget idle connections."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
