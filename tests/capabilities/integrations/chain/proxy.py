"""A wire that can be cut: it stands between a program and a node, and drops a connection at a chosen request."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Hands requests on. `cut(word, ...)`: the next request that holds the word is not answered.

    `arrives`: whether the node still gets that request. After a cut `refuse` further connections are dropped at once.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self._word: bytes | None = None
        self._arrives, self._refuse = True, 0
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self, word: str, *, arrives: bool, refuse: int = 2) -> None:
        self._arrives, self._after = arrives, refuse
        self._word = word.encode()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuse > 0:
                    self._refuse -= 1
                    client.close()
                else:
                    threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as node, contextlib.suppress(OSError):
            for end in (client, node):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(node, client), daemon=True).start()
            while data := client.recv(65536):
                if self._word is not None and self._word in data:
                    self._word, self._refuse = None, self._after
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    if self._arrives:
                        node.sendall(data)
                        node.recv(65536)
                    return
                node.sendall(data)

    def _answer(self, node: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := node.recv(65536):
                client.sendall(data)
