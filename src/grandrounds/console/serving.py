"""Serving the console until it is stopped: on loopback unless told otherwise, and over TLS where it is not."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from grandrounds.errors import BadInput


@dataclass(frozen=True)
class Place:
    """Where the console listens. `certificate`, `key`: PEM files; without them it speaks plain HTTP, on loopback only."""

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
        """Refuse what would send passwords in plain text over a network, or cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise BadInput("--tls-certificate and --tls-key belong together: give both or neither")
        if not self.tls and not on_loopback(self.host):
            raise BadInput(
                f"--host {self.host} is not loopback, and without TLS passwords would travel in plain text: "
                "give --tls-certificate and --tls-key, or leave --host out"
            )
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise BadInput(f"{file} is not there: give a PEM file")


def on_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def serve(app: FastAPI, place: Place) -> None:
    """Until somebody presses Ctrl-C. Requests are not logged: their addresses name runs and sites."""
    import uvicorn

    _free(place)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        host=place.host,
        port=place.port,
        ssl_certfile=None if place.certificate is None else str(place.certificate),
        ssl_keyfile=None if place.key is None else str(place.key),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run()


def _free(place: Place) -> None:
    try:
        family = socket.getaddrinfo(place.host, place.port)[0]
        with socket.socket(family[0]) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(family[4])
    except OSError as e:
        raise BadInput(
            f"cannot listen on {place.host}:{place.port} ({e.strerror or e}): choose another --port"
        ) from None
