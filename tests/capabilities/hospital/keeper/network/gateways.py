"""Gateways and an outbound proxy for tests: real sockets, TLS by a consortium's authority, and the method CONNECT."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from grandrounds.capabilities.hospital.deploy.pki import IssuedCertificate, issue
from grandrounds.capabilities.hospital.keeper.network.route import Endpoint

NAMES = ("localhost", "127.0.0.1", "::1")


class TlsGateway:
    """An HTTPS server that answers with its name; its clock is `ahead` seconds ahead of this machine's."""

    def __init__(
        self,
        authority: IssuedCertificate,
        folder: Path,
        name: str,
        *,
        host: str = "127.0.0.1",
        names: tuple[str, ...] = NAMES,
        ahead: float = 0.0,
        port: int = 0,
    ) -> None:
        issue(authority, name, days=90, addresses=names).save(folder, name)

        class Page(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = name.encode()
                self.send_response(404 if self.path == "/clock" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time.time() + ahead, usegmt=True)

            def log_message(self, format: str, *args: object) -> None:
                """Log no requests."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Print nothing: clients end connections in these tests."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        self._server = Server((host, port), Page)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.endpoint = Endpoint(host, int(self._server.server_address[1]))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ConnectProxy:
    """An HTTP proxy that knows only CONNECT, with a user and a password where they are given."""

    def __init__(self, *, user: str = "", password: str = "", refuse: bytes = b"", names: dict[str, str] | None = None) -> None:
        self._expected = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
        self._refuse, self._names = refuse, names or {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", int(self._listener.getsockname()[1]))
        self.requests: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError), near:
            head = b""
            while b"\r\n\r\n" not in head:
                head += near.recv(4096)
            lines = head.decode().split("\r\n")
            self.requests.append(lines[0])
            if self._refuse:
                near.sendall(self._refuse)
                return
            if self._expected and f"Proxy-Authorization: {self._expected}" not in lines:
                near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\n\r\n")
                return
            host, _, port = lines[0].split()[1].rpartition(":")
            host = self._names.get(host, host).strip("[]")
            try:
                far = socket.create_connection((host, int(port)), 5)
            except OSError:
                near.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            far.settimeout(None)  # the 5 s are for connecting; a silent line stays open
            with far:
                threading.Thread(target=_copy, args=(far, near), daemon=True).start()
                _copy(near, far)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes until the source ends or is reset, and end the target's side either way."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
