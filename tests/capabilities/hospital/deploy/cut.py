"""A network that can be cut, slowed and counted: a TCP proxy that carries bytes while it is whole."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from contextlib import suppress


class Wire:
    """Carries bytes from a port of its own to another on loopback, while it is whole.

    Args:
        to: The other port.
        rate: Bytes per second in each direction, for all connections together; None for no limit.

    `up` and `down` count the bytes that were carried to the other port and back.
    """

    def __init__(self, to: int, *, rate: float | None = None) -> None:
        self._to = to
        self._pace = {"up": _Pace(rate), "down": _Pace(rate)}
        self._size = 65536 if rate is None else 16384
        self.up = self.down = 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self._whole, self._over = threading.Event(), threading.Event()
        self._whole.set()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes: connections stay open and silent, and new ones too, as when packets are dropped."""
        self._whole.clear()

    def mend(self) -> None:
        """New connections are carried again; those of before are gone."""
        for end in self._open:
            with suppress(OSError):
                end.close()
        self._open.clear()
        self._whole.set()

    def drop(self) -> None:
        """Reset all connections, as a firewall does that has forgotten them; new ones are carried."""
        for end in self._open:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)  # wakes the thread that carries it, which closes it
        self._open.clear()

    def close(self) -> None:
        self._over.set()
        self._door.close()
        self.mend()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * self._size)  # a slow line has no large buffer
            self._open.append(near)
            if self._whole.is_set():
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        """Carry both directions until one side ends; the other side is ended too, unless the wire is cut by then."""
        ends = [near]
        with suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            far = socket.create_connection(("127.0.0.1", self._to))
            ends.append(far)
            self._open.append(far)
            other = {near: far, far: near}
            for end in other:
                ready.register(end, selectors.EVENT_READ)
            while self._whole.is_set():
                for key, _ in ready.select(0.2):
                    data = key.fileobj.recv(self._size)  # type: ignore[union-attr]
                    if not data:
                        raise ConnectionError
                    if self._whole.is_set():
                        self._count("up" if key.fileobj is near else "down", len(data))
                        other[key.fileobj].sendall(data)  # type: ignore[index]
        if self._whole.is_set():
            for end in ends:
                end.close()

    def _count(self, direction: str, size: int) -> None:
        self._pace[direction].wait(size)
        if direction == "up":
            self.up += size
        else:
            self.down += size


class _Pace:
    """Delays callers so that all of them together stay below a rate."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._next, self._turn = rate, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        if self._rate is None:
            return
        with self._turn:
            now = time.monotonic()
            self._next = max(self._next, now) + size / self._rate
            until = self._next
        time.sleep(max(0.0, until - now))
