"""Checks of every request before a route sees it, and headers of every response: sizes, hosts, and limits for browsers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST = 64 * 1024
"""Bytes of a request's body: only forms and what-if values are sent to this console."""


def policy(nonce: str) -> str:
    """Build the Content-Security-Policy: no script but our own files.

    Plotly may put rules into the one style element with the nonce and set style attributes, which cannot run anything.
    """
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            f"style-src-elem 'self' 'nonce-{nonce}'",
            "style-src-attr 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ]
    )


_ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without a policy a browser would hide the origin of a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Protection:
    """ASGI middleware that checks requests and adds headers to responses.

    Args:
        hosts: Host names that are accepted; other names are refused (DNS rebinding).
        tls: Tell browsers to keep to HTTPS.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], tls: bool) -> None:
        self._app, self._hosts, self._tls = app, frozenset(h.lower() for h in hosts), tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce
        send = self._add_headers(send, nonce, scope["path"])
        if _host(headers.get("host", "")) not in self._hosts:
            await _say(send, 421, "unknown host name: start the console with --name NAME")
        elif not headers.get("content-length", "0").isdigit() or int(headers.get("content-length", "0")) > LARGEST:
            await _say(send, 413, f"a request may have {LARGEST} bytes")
        else:
            await self._app(scope, _limit_body(receive), send)

    def _add_headers(self, send: Send, nonce: str, path: str) -> Send:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = {**_ALWAYS, "content-security-policy": policy(nonce)}
                if not path.startswith("/static/"):
                    extra["cache-control"] = "no-store"  # patients' values are not cached
                if self._tls:
                    extra["strict-transport-security"] = "max-age=31536000"
                headers = [(n, v) for n, v in message["headers"] if n.decode("latin-1").lower() not in extra]
                message["headers"] = headers + [(n.encode(), v.encode()) for n, v in extra.items()]
            await send(message)

        return dressed


class TooLarge(Exception):
    """The body of a request exceeds the limit."""


def _limit_body(receive: Receive) -> Receive:
    """Limit the size of a body without a length, or with a false one."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > LARGEST:
                raise TooLarge
        return message

    return limited


def _host(header: str) -> str:
    """Return the name in a Host header without its port; "" where more than a port follows the name."""
    matched = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", header)
    return "" if matched is None else matched[1].lower()


async def _say(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
