"""A network that can be cut: a TCP proxy that stops carrying anything, without telling either side."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress


class Wire:
    """Carries bytes from a port of its own to another on loopback, while it is whole."""

    def __init__(self, to: int) -> None:
        self._to = to
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
            self._open.append(near)
            if self._whole.is_set():
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        """Both ways until one side ends, which the other is told, unless the wire is cut by then."""
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
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        raise ConnectionError
                    if self._whole.is_set():
                        other[key.fileobj].sendall(data)  # type: ignore[index]
        if self._whole.is_set():
            for end in ends:
                end.close()
