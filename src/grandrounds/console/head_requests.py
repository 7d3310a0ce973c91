"""HEAD requests of the API: the headers of the same GET request, without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAM = "/live"


class HeadRequests:
    """ASGI middleware that answers HEAD below /api as GET without a body. Streams, which have no end, are left out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or not scope["path"].startswith("/api/") or scope["path"].endswith(_STREAM):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)
