"""A web server on loopback with the faults that real ones have, for tests of downloads."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """One address: its bytes, and how the server misbehaves.

    `breaks` lists after how many bytes each answer in turn is cut; answers after these are whole. `ranges` is off for a
    server that always sends the whole file; `length` for one that does not
    state the size; `to` for a redirect; `status` for a refusal of the first `refusals` requests.
    """

    data: bytes = b""
    etag: str | None = '"v1"'
    date: str | None = None
    breaks: list[int] = field(default_factory=list)
    ranges: bool = True
    length: bool = True
    to: str | None = None
    status: int = 200
    refusals: int = 10**9
    asked: list[dict[str, str]] = field(default_factory=list)

    @property
    def starts(self) -> list[int]:
        """The first byte of each request."""
        return [int(a.get("range", "bytes=0-")[6:-1]) for a in self.asked]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.close_connection = True
        page = self.server.pages.get(self.path)
        if page is None:
            self.send_error(404)
        else:
            self.answer(page)

    def answer(self, page):
        page.asked.append({k.lower(): v for k, v in self.headers.items()})
        if page.to:
            self.send_response(302)
            self.send_header("Location", page.to)
            self.end_headers()
            return
        if page.status != 200 and len(page.asked) <= page.refusals:
            self.send_error(page.status)
            return
        start, mark = page.starts[-1], page.etag or page.date
        if not page.ranges or page.asked[-1].get("if-range", mark) != mark:
            start = 0
        if start and start >= len(page.data):
            self.send_error(416)
            return
        body = page.data[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(page.data) - 1}/{len(page.data)}")
        if page.length:
            self.send_header("Content-Length", str(len(body)))
        for name, value in (("ETag", page.etag), ("Last-Modified", page.date)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: page.breaks.pop(0)] if page.breaks else body)

    def log_message(self, *args):
        """Quiet: pytest's output is for tests."""


@contextmanager
def serve():
    """A running server; fill its `pages` by path, and take addresses from `at`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.pages = {}
        httpd.at = lambda path: f"http://127.0.0.1:{httpd.server_port}{path}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield httpd
        finally:
            httpd.shutdown()
            thread.join()
