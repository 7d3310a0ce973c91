"""A forwarder on loopback between a site's SuperNode and the gateways.

A SuperNode can dial one address. The forwarder accepts its connections on loopback, dials the gateways in order of preference
(through the proxy where there is one) and carries the bytes of TLS without reading them: the SuperNode checks the gateway's
certificate, which names localhost, against the consortium's own authority.

While a preferred gateway is down, connections go over a later one. When it is back, they are reset at a quiet moment, and the
SuperNode's next connections go over the preferred gateway.

If no gateway can be reached, the SuperNode's connection is reset. A connection that merely ends within a TLS handshake would
have Flower give up for good; after a reset it tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from grandrounds.capabilities.hospital.keeper.network.connect import CannotConnect, Stream, dial
from grandrounds.capabilities.hospital.keeper.network.route import Hop, Route
from grandrounds.core.errors import BadInput

AVOID_SECONDS = 30.0
"""Seconds for which a gateway that failed is asked last."""

ANSWER_SECONDS = 15.0
"""Seconds that a gateway may take for its first byte; then it counts as failed."""

RETURN_SECONDS = 30.0
"""Seconds between two looks whether a preferred gateway is back, while a connection goes over a later one."""

QUIET_SECONDS = 2.0
"""Seconds without a byte after which a connection over a later gateway may be ended."""

_CHUNK = 256 * 1024

Say = Callable[[str], None]


@dataclass
class _Status:
    """The forwarder's state, for people and metrics."""

    current: Hop | None = None
    fault: str = "no connection yet"
    opened: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


@dataclass
class _Line:
    """A connection that is carried: the time of its last byte."""

    last: float = field(default_factory=time.monotonic)


class Forwarder:
    """Carries connections from a loopback port to the first gateway that answers, in a thread of its own."""

    def __init__(self, route: Route, say: Say) -> None:
        self._route, self._say = route, say
        self._avoid: dict[Hop, float] = {}
        self.status = _Status()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="forwarder")

    def start(self) -> None:
        """Listen on a free loopback port.

        Raises:
            BadInput: No port is free.
        """
        self._thread.start()
        self._ready.wait()
        if not self.port:
            raise BadInput("no free port on 127.0.0.1 for the connection to the gateways", code="port-in-use")

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def fault(self) -> str:
        """The reason why no gateway can be reached; empty while one can."""
        return self.status.fault

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = None
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
            self.port = int(server.sockets[0].getsockname()[1])
        except OSError:
            return
        finally:
            self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward((reader, writer))
        except (OSError, asyncio.CancelledError):
            reset(writer)
        finally:
            self._tasks.discard(task)

    async def _forward(self, near: Stream) -> None:
        """Find a gateway whose first bytes arrive, then carry both directions until they end.

        The first bytes of the SuperNode (its TLS greeting) are sent to each gateway in turn.
        """
        greeting = await near[0].read(_CHUNK)
        if not greeting:
            near[1].close()
            return
        problems = []
        for hop in self._in_order():
            try:
                far, answer = await self._greet(hop, greeting)
            except CannotConnect as e:
                problems.append(str(e))
                self._note_failure(hop, str(e))
                continue
            self._note_success(hop)
            near[1].write(answer)
            await self._carry(near, far, hop, greeting)
            return
        self.status.current, self.status.fault = None, "; ".join(problems)
        reset(near[1])

    def _in_order(self) -> list[Hop]:
        """Order the gateways by preference, with those that failed a moment ago last."""
        now = time.monotonic()
        return sorted(self._route.hops, key=lambda hop: self._avoid.get(hop, 0.0) > now)

    async def _greet(self, hop: Hop, greeting: bytes) -> tuple[Stream, bytes]:
        reader, writer = await dial(hop)
        try:
            writer.write(greeting)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await reader.read(_CHUNK)
        except (OSError, TimeoutError):
            answer = b""
        if not answer:
            writer.transport.abort()
            raise CannotConnect(
                "tls",
                f"the gateway {hop.gateway} accepts connections but does not answer",
                "Ask the operator whether the gateway is up, and the network team whether a firewall interferes with TLS.",
            )
        return (reader, writer), answer

    async def _carry(self, near: Stream, far: Stream, hop: Hop, greeting: bytes) -> None:
        line = _Line()
        both = asyncio.gather(
            self._copy(near[0], far[1], f"up {hop.gateway}", line),
            self._copy(far[0], near[1], f"down {hop.gateway}", line),
        )
        better = asyncio.ensure_future(self._find_better(hop, greeting, line))
        clean = False
        try:
            await asyncio.wait((both, better), return_when=asyncio.FIRST_COMPLETED)
            clean = both.done() and both.exception() is None
        finally:
            both.cancel()
            better.cancel()
            for writer in (near[1], far[1]):
                if clean:
                    writer.close()
                else:
                    reset(writer)

    async def _find_better(self, hop: Hop, greeting: bytes, line: _Line) -> None:
        """Wait until a gateway that is preferred to this hop's answers again and the line is quiet; for ever if none does."""
        better = self._route.hops[: self._route.hops.index(hop)]
        if not better:
            await asyncio.get_running_loop().create_future()
        while True:
            await asyncio.sleep(RETURN_SECONDS)
            for one in better:
                try:
                    far, _ = await self._greet(one, greeting)
                except CannotConnect:
                    continue
                far[1].transport.abort()
                self._avoid.pop(one, None)
                while (quiet := time.monotonic() - line.last) < QUIET_SECONDS:
                    await asyncio.sleep(QUIET_SECONDS - quiet)
                return

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: str, line: _Line
    ) -> None:
        while data := await source.read(_CHUNK):
            line.last = time.monotonic()
            self.status.bytes[direction] += len(data)
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()

    def _note_failure(self, hop: Hop, problem: str) -> None:
        self._avoid[hop] = time.monotonic() + AVOID_SECONDS
        self.status.failed[str(hop.gateway)] += 1
        if self.status.current == hop:
            self._say(f"{problem}")

    def _note_success(self, hop: Hop) -> None:
        self._avoid.pop(hop, None)
        self.status.opened[str(hop.gateway)] += 1
        if self.status.current != hop:
            self._say(f"connected to {hop}")
        self.status.current, self.status.fault = hop, ""


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by a reset (RST)."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
