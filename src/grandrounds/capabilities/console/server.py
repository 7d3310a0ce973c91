"""The web server of the console: on loopback by default, over TLS elsewhere; limits of requests and connections."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from grandrounds.capabilities.console.auth.access import plain_address
from grandrounds.core.errors import BadInput

HEADERS = 64 * 1024
"""Bytes of a request's headers."""
REQUEST = 15.0
"""Seconds for a request to arrive, headers and body."""
STALLED = 60.0
"""Seconds for a client to read more of a response."""
CONNECTIONS = 512
"""Connections at a time."""


@dataclass(frozen=True)
class Address:
    """The address of the console. `certificate`, `key`: PEM files; without them it speaks plain HTTP, on loopback only."""

    host: str = "127.0.0.1"
    port: int = 8600
    certificate: Path | None = None
    key: Path | None = None

    @property
    def tls(self) -> bool:
        return self.certificate is not None

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{name}:{self.port}/"

    def check(self) -> None:
        """Check that passwords are not sent in plain text over a network, and that TLS files can be read.

        Raises:
            BadInput: TLS is missing or incomplete.
        """
        if (self.certificate is None) != (self.key is None):
            raise BadInput(
                "--tls-certificate and --tls-key belong together: give both or neither", code="missing-option"
            )
        if not self.tls and not is_loopback(self.host):
            raise BadInput(
                f"--host {self.host} is not loopback, and without TLS passwords would travel in plain text: "
                "give --tls-certificate and --tls-key, or leave --host out",
                code="insecure-address",
            )
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise BadInput(f"{file} does not exist: give a PEM file", code="file-not-found")


def parse_proxies(texts: Iterable[str]) -> frozenset[str]:
    """Read the addresses of trusted reverse proxies.

    Args:
        texts: The values of --proxy.

    Returns:
        The normalised addresses.

    Raises:
        BadInput: One is no IP address.
    """
    addresses = {text: plain_address(text) for text in texts}
    for text, address in addresses.items():
        if address is None:
            raise BadInput(
                f"--proxy {text} is not an IP address: give the one that the proxy connects from, such as 10.0.0.2",
                code="invalid-address",
            )
    return frozenset(a for a in addresses.values() if a is not None)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def make_server(app: FastAPI, place: Address) -> uvicorn.Server:
    """Set up the server: small headers, a time limit for each request, and as many connections as there are files for.

    Requests are not logged: their addresses name runs and sites.

    Args:
        app: The console.
        place: Where it listens.

    Returns:
        The server, which does not run yet.
    """
    config = uvicorn.Config(
        app,
        host=place.host,
        port=place.port,
        ssl_certfile=None if place.certificate is None else str(place.certificate),
        ssl_keyfile=None if place.key is None else str(place.key),
        http=LimitedProtocol,
        ws="none",
        h11_max_incomplete_event_size=HEADERS,
        limit_concurrency=most_connections(),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)


def serve(app: FastAPI, place: Address) -> None:
    """Serve until Ctrl-C."""
    _check_port(place)
    make_server(app, place).run()


def most_connections() -> int:
    """Compute the limit of connections, leaving file descriptors for run files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(CONNECTIONS, soft // 2))


_ARRIVES = (h11.IDLE, h11.SEND_BODY)  # a request that is not complete


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 in which a request has to be complete within `REQUEST` seconds.

    A connection that is opened and says nothing, or a header or body that comes byte by byte, is closed then, and so is one
    whose client does not take its answer. Where there are as many connections as are kept, the one that waits longest makes
    room for a new one, so that half-open ones shut nobody out.
    """

    since: float = 0.0
    _limit: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            waiting = [c for c in self.connections if isinstance(c, LimitedProtocol) and c is not self and c.is_waiting]
            if waiting:
                longest = min(waiting, key=lambda c: c.since)
                self.connections.discard(longest)
                longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._limit is None and self.conn.their_state in _ARRIVES:
            self._begin()
        super().data_received(data)
        if self.conn.their_state not in _ARRIVES:
            self._end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is not h11.SEND_BODY:
            self._end()  # the time between two requests is limited by timeout_keep_alive
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._begin()  # a part of the next one is here

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    @property
    def is_waiting(self) -> bool:
        """True while no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _begin(self) -> None:
        self.since = self.loop.time()
        self._limit = self.loop.call_later(REQUEST, self._close)

    def _end(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _close(self) -> None:
        self._limit = None
        self.transport.abort()


def _check_port(place: Address) -> None:
    try:
        family = socket.getaddrinfo(place.host, place.port)[0]
        with socket.socket(family[0]) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(family[4])
    except OSError as e:
        raise BadInput(
            f"cannot listen on {place.host}:{place.port} ({e.strerror or e}): choose another --port",
            code="port-in-use",
        ) from None
