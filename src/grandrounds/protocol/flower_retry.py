"""Send a request to a Flower server again without its effect taking place twice.

A SuperLink marks a message as delivered before its answer arrives, and takes each part of a reply once. If a gateway dies
between the two, Flower's client sends the request again, gets nothing, and the message is lost: a run then waits for a site
that was never asked. Here each request carries `grandrounds-request`, a number that stays the same until it is answered. The
server keeps its last answers to each node, and answers a number that it knows with the same answer.

A server that does not know the header ignores it. Internals of flwr 1.41 and 1.42, as in `flower_wait`.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, MutableMapping
from typing import Any

from grandrounds.protocol.flower_wait import WAIT, App, Receive, Scope, Send

REQUEST = "grandrounds-request"
"""Header: the number of a request."""

ANSWERS = 64
"""Answers that are kept for each node: more than a node has requests under way."""

AWAY = (502, 503, 504)
"""Statuses of a gateway that got no answer from the server: Flower's client sends such a request again."""

_Answers = OrderedDict[tuple[str, str], "asyncio.Future[Any]"]


class RetryInterceptor:
    """The client's side: an interceptor of Flower's HTTP client that numbers requests.

    Args:
        methods: Names of the methods whose requests are numbered, such as `/flwr.proto.Fleet/PullMessages`.
    """

    def __init__(self, methods: Collection[str]) -> None:
        self._methods = frozenset(methods)
        self._local = threading.local()  # Flower repeats a request in the thread that sent it

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add a request's number: that of the last request if it was the same and was not answered, else a new one."""
        method = context.rpc_method
        if method not in self._methods or WAIT in context.request.headers:
            return call_next(context)
        unanswered: dict[str, tuple[Any, str]] = self._local.__dict__.setdefault("unanswered", {})
        message, number = unanswered.get(method, (None, ""))
        if message != context.message:
            number = secrets.token_hex(16)
        unanswered[method] = context.message, number
        context.request.headers[REQUEST] = number
        response = call_next(context)
        if response.status_code not in AWAY:
            del unanswered[method]
        return response


class RetryMiddleware:
    """The server's side, inside of Flower's own middleware: requests are parsed, and nodes authenticated.

    Args:
        app: The routes.
        paths: The routes whose answers are kept.
    """

    def __init__(self, app: App, *, paths: Collection[str]) -> None:
        self._app, self._paths = app, frozenset(paths)
        self._answers: dict[int, _Answers] = {}  # by node, the oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = scope.get("state", {}).get("protobuf_request") if scope["type"] == "http" else None
        number = dict(scope["headers"]).get(REQUEST.encode(), b"").decode("latin-1") if request is not None else ""
        if request is None or not number or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        answers = self._answers.setdefault(request.node.node_id, OrderedDict())
        key = str(scope["path"]), number
        if key in answers:
            answer = await asyncio.shield(answers[key])  # it may still be under way
            if answer is not None:
                scope["state"]["protobuf_response"] = answer
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._answer(scope, receive, send, answers, key)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, answers: _Answers, key: tuple[str, str]
    ) -> None:
        """Call the route, and keep its answer if it succeeds."""
        answers[key] = pending = asyncio.get_running_loop().create_future()
        while len(answers) > ANSWERS:
            answers.popitem(last=False)

        async def send_and_keep(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200 and not pending.done():
                pending.set_result(scope["state"].get("protobuf_response"))
            await send(message)

        try:
            await self._app(scope, receive, send_and_keep)
        finally:
            if not pending.done():
                pending.set_result(None)
            if pending.result() is None:
                answers.pop(key, None)
