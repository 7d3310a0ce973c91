"""A health page on loopback, for people (`/health`) and for Prometheus (`/metrics`)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from grandrounds.core.errors import BadInput
from grandrounds.core.prometheus import Metrics, prometheus


class Health:
    """Health server on 127.0.0.1.

    `faults` returns fixed descriptions of problems, an empty list if there are none; `facts` further values of the page.
    """

    def __init__(
        self,
        port: int,
        *,
        faults: Callable[[], list[str]],
        metrics: Callable[[], Metrics],
        facts: Callable[[], Mapping[str, object]] | None = None,
    ) -> None:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/health":
                    wrong = faults()
                    page = {"ok": not wrong, "wrong": wrong, **({} if facts is None else facts())}
                    self._respond(503 if wrong else 200, "application/json", json.dumps(page))
                elif self.path == "/metrics":
                    self._respond(200, "text/plain; version=0.0.4", prometheus(metrics()))
                else:
                    self._respond(404, "text/plain", "/health or /metrics\n")

            def _respond(self, code: int, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log no requests."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Page)
        except OSError as e:
            raise BadInput(
                f"cannot listen on 127.0.0.1:{port} ({e.strerror or e}): choose another health port", code="port-in-use"
            ) from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True, name="health").start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
