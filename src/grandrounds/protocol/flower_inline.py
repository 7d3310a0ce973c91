"""Run the middleware and the small dependencies of Flower's HTTP servers in line.

Eight classes of middleware precede a route of the SuperLink, and Starlette starts tasks and streams for each. That took
more than half of the SuperLink's time for a small request. `run_in_line` keeps the middleware, its order and its code: it
calls the same `dispatch` methods, one within the other, for routes whose request and answer are one protobuf message each.
Other routes (streams, documentation) are served as before. Dependencies that only look something up in memory are called
directly, where FastAPI would use a thread for each; those that read the database keep their thread.

Internals of flwr 1.41 and 1.42.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from importlib import import_module
from typing import Any

PREFIXES = ("/v1/fleet/", "/v1/runtime/")


def run_in_line(app: Any) -> None:
    """Replace the middleware of an app of Flower that was not started yet."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware

    routes = {route for route in PROTOBUF_REQUEST_TYPES if route[1].startswith(PREFIXES)}
    app.user_middleware[:] = [
        Middleware(_InLine, routes=routes, middleware=entry)
        if isinstance(entry.cls, type) and issubclass(entry.cls, BaseHTTPMiddleware)
        else entry
        for entry in app.user_middleware
    ]


def call_dependencies_in_line() -> None:
    """Call Flower's dependencies that cannot block directly, in this process."""
    from flwr.supercore.dependencies.runtime import get_runtime_handlers, get_runtime_state
    from flwr.supercore.dependencies.version import VersionDependency
    from flwr.supercore.protobuf.translation import get_protobuf_request
    from flwr.superlink.dependencies.linkstate import get_linkstate

    quick = {get_runtime_handlers, get_runtime_state, get_protobuf_request, get_linkstate}
    module: Any = import_module("fastapi.dependencies.utils")
    use_thread = module.run_in_threadpool

    async def call(function: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(function, VersionDependency) or function in quick:
            return function(*arguments, **named)
        return await use_thread(function, *arguments, **named)

    module.run_in_threadpool = call


class _InLine:
    """One middleware, whose `dispatch` is called without a task of its own on the routes that are named."""

    def __init__(self, app: Any, *, routes: Collection[tuple[str, str]], middleware: Any) -> None:
        self._app, self._routes = app, routes
        self._original = middleware.cls(app, *middleware.args, **middleware.kwargs)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) not in self._routes:
            await self._original(scope, receive, send)
            return
        from starlette.requests import Request

        response = await self._original.dispatch_func(Request(scope, receive), self._call_next(receive))
        await response(scope, receive, send)

    def _call_next(self, receive: Any) -> Callable[[Any], Awaitable[Any]]:
        async def call_next(request: Any) -> Any:
            """Call what is within, and return its answer in one piece."""
            from starlette.responses import Response

            start: MutableMapping[str, Any] = {}
            body: list[bytes] = []
            unread = [request._body] if hasattr(request, "_body") else []  # `dispatch` has read it

            async def receive_again() -> Any:
                if unread:
                    return {"type": "http.request", "body": unread.pop(), "more_body": False}
                return await receive()

            async def collect(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    start.update(message)
                elif message["type"] == "http.response.body":
                    body.append(message.get("body", b""))

            await self._app(request.scope, receive_again, collect)
            response = Response(b"".join(body), status_code=start["status"])
            response.raw_headers = list(start.get("headers", ()))
            return response

        return call_next
