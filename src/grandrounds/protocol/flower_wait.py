"""Wait for news at a Flower server instead of asking it again and again.

Flower's programs poll: a SuperNode asks the SuperLink every three seconds, a grid likewise. Here a client sends the same
request with the header `grandrounds-wait`, and the server answers it, empty, as soon as there is news, or after that many
seconds. Then the client sends the request once more without the header. A wait takes nothing from the server, so a wait that
is lost with its connection loses no message.

Every answer to a watched route carries `grandrounds-news`, a number that changes with each piece of news. A wait names the
number that it knows, and ends at once if there is another. A server that does not know these headers answers a wait like any
request; its answer is used, and the client polls.

Internals of flwr 1.41 and 1.42: interceptors of its client, and `scope["state"]` of its translation of protobuf.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping
from typing import Any

WAIT, NEWS, WAITED = "grandrounds-wait", "grandrounds-news", "grandrounds-waited"
"""Headers: seconds to wait; number of the news; 1 on an answer that is only the end of a wait."""

LONGEST = 20.0
"""Seconds of the longest wait: below the 30 s that Flower's clients wait for an answer, and below idle limits of firewalls."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class News:
    """Counts news by key, and wakes those who wait for a key. Safe to call from any thread and from signal handlers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._start = secrets.token_hex(4)  # numbers of a server that was restarted are other numbers
        self._counts: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}
        self._closed = False

    def number(self, key: Hashable) -> str:
        """Return the number of the latest news of a key."""
        with self._lock:
            return f"{self._start}-{self._counts.get(key, 0)}"

    def announce(self, key: Hashable) -> None:
        """Count a piece of news, and wake those who wait for it."""
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._wake(key)

    def close(self) -> None:
        """End all waits, now and later: the server stops."""
        with self._lock:
            self._closed = True
            for key in list(self._waiting):
                self._wake(key)

    def _wake(self, key: Hashable) -> None:
        for loop, event in self._waiting.pop(key, ()):
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    async def wait(self, key: Hashable, number: str, seconds: float) -> None:
        """Wait until the number of a key is another one than `number`, at most `seconds`."""
        me = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._closed or self.number(key) != number:
                return
            self._waiting.setdefault(key, set()).add(me)
        try:
            async with asyncio.timeout(seconds):
                await me[1].wait()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.get(key, set()).discard(me)


class WaitMiddleware:
    """The server's side, inside of Flower's own middleware: requests are parsed, and those of nodes authenticated.

    Args:
        app: The routes.
        news: Where news are announced.
        keys: By path of a watched route, the function from its request to the key that it waits for.
        empty: By path, the class of its answer.
        after: Called with path, request and answer of every request that succeeded.
    """

    def __init__(
        self,
        app: App,
        *,
        news: News,
        keys: Mapping[str, Callable[[Any], Hashable]],
        empty: Mapping[str, Callable[[], Any]],
        after: Callable[[str, Any, Any], None],
    ) -> None:
        self._app, self._news, self._keys, self._empty, self._after = app, news, keys, empty, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = scope.get("state", {}).get("protobuf_request") if scope["type"] == "http" else None
        if request is None:
            await self._app(scope, receive, send)
            return
        path, number = str(scope["path"]), ""
        if path in self._keys:
            key, sent = self._keys[path](request), dict(scope["headers"])
            seconds = _seconds(sent.get(WAIT.encode(), b""))
            if seconds is not None:
                await self._news.wait(key, sent.get(NEWS.encode(), b"").decode("latin-1"), seconds)
                scope["state"]["protobuf_response"] = self._empty[path]()
                marks = [(WAITED.encode(), b"1"), (NEWS.encode(), self._news.number(key).encode())]
                await send({"type": "http.response.start", "status": 200, "headers": marks})
                await send({"type": "http.response.body", "body": b""})
                return
            number = self._news.number(key)  # before the route looks: news that come meanwhile end the next wait

        async def send_marked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 200:
                    self._after(path, request, scope["state"].get("protobuf_response"))
                if number:
                    message["headers"] = [*message.get("headers", ()), (NEWS.encode(), number.encode())]
            await send(message)

        await self._app(scope, receive, send_marked)


def _seconds(text: bytes) -> float | None:
    """Read the seconds of a wait; None without a valid header."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(seconds, LONGEST) if seconds > 0 else None


class WaitInterceptor:
    """The client's side, for one method: an interceptor of Flower's HTTP client.

    Args:
        method: Name of the watched method, such as `/flwr.proto.Fleet/PullMessages`.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._local = threading.local()  # the client may be used by several threads
        self._number = ""
        self._longest = LONGEST
        self.failed = False
        """True if the last wait failed."""

    @property
    def supported(self) -> bool:
        """True if the server's last answer named a number, so that waits are possible."""
        return bool(self._number)

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add the headers of a wait, and read the number of an answer."""
        if context.rpc_method != self._method:
            return call_next(context)
        seconds = getattr(self._local, "seconds", 0.0)
        if seconds:
            context.request.headers[WAIT], context.request.headers[NEWS] = f"{seconds:.2f}", self._number
        response = call_next(context)
        self._local.waited = WAITED in response.headers
        if not self._local.waited:  # after a wait the next ordinary answer names the number that was looked at
            self._number = response.headers.get(NEWS, "")
        return response

    def wait(self, call: Callable[[], Any], seconds: float = LONGEST) -> Any:
        """Send a request as a wait.

        A wait that fails is not an error: the caller looks for itself, and further waits are shorter, since a proxy
        between may end connections that are silent for long.

        Args:
            call: Sends the request.
            seconds: Longest wait.

        Returns:
            None after a wait; the answer, if the server does not know waits and answered at once.
        """
        import httpx

        self._local.seconds = min(seconds, self._longest)
        try:
            answer = call()
        except httpx.HTTPError:
            self._longest, self.failed = max(1.0, self._longest / 2), True
            return None
        finally:
            self._local.seconds = 0.0
        self._longest, self.failed = min(LONGEST, 1.25 * self._longest), False
        return None if self._local.waited else answer
