"""Answers that wait for their turn, on disk where they are large: the server's memory does not grow with the sites.

Answers come in any order and are taken in the order of the sites, so that sums are the same to the bit whoever was first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

_SMALL = 64 * 2**10
"""Bytes up to which an answer waits in memory."""


class Spool:
    """Bytes by name, each taken once."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}

    def put(self, name: str, data: bytes) -> None:
        """Keep these bytes until they are taken."""
        if len(data) <= _SMALL:
            self._held[name] = data
            return
        handle, path = tempfile.mkstemp(prefix="answer-", dir=self._folder)
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        self._files[name] = Path(path)

    def take(self, name: str) -> bytes:
        """The bytes of this name, which are then gone from here."""
        if name in self._held:
            return self._held.pop(name)
        path = self._files.pop(name)
        try:
            return path.read_bytes()
        finally:
            path.unlink(missing_ok=True)

    def drop(self, names: Iterable[str]) -> None:
        """Forget what nobody took of these."""
        for name in names:
            self._held.pop(name, None)
            path = self._files.pop(name, None)
            if path is not None:
                path.unlink(missing_ok=True)
