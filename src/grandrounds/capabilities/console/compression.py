"""Compress figures and lists of the API.

Pages are not compressed, since they contain the session's CSRF token, and the size of a compressed response tells something
about its content (BREACH). Responses about patients are not compressed for the same reason.
"""

from __future__ import annotations

import gzip

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grandrounds.capabilities.console.static_files import accepts_gzip

_PATHS = tuple(
    f"{root}/{name}" for root in ("/api", "/api/v1") for name in ("run", "compar", "privacy", "progress", "openapi")
)
_NEVER = ("case", "patient", "/sign", "session")
_SMALLEST, _LEVEL = 2048, 5


class Compression:
    """ASGI middleware that compresses JSON of runs, comparisons, privacy accounts and the description of the API."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _may_compress(scope):
            send = _Compressed(send)
        await self._app(scope, receive, send)


def _may_compress(scope: Scope) -> bool:
    path = scope["path"]
    accepted = next((v.decode("latin-1") for n, v in scope["headers"] if n == b"accept-encoding"), "")
    return path.startswith(_PATHS) and not any(word in path for word in _NEVER) and accepts_gzip(accepted)


class _Compressed:
    """Compresses a response that is sent in one piece; others pass unchanged."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {n.lower(): v for n, v in message["headers"]}
            if headers.get(b"content-type", b"").startswith(b"application/json"):
                self._start = message  # its headers depend on the body
                return
        elif self._start is not None:
            start, self._start = self._start, None
            body = message.get("body", b"")
            if not message.get("more_body") and len(body) >= _SMALLEST:
                body = gzip.compress(body, _LEVEL, mtime=0)
                kept = [(n, v) for n, v in start["headers"] if n.lower() != b"content-length"]
                extra = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
                start = {**start, "headers": [*kept, *extra, (b"content-length", str(len(body)).encode())]}
                message = {**message, "body": body}
            await self._send(start)
        await self._send(message)
