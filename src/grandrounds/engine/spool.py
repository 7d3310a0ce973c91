"""Answers that wait for their turn, on disk where they are large or many: the server's memory does not grow with the sites.

Answers come in any order and are taken in the order of the sites, so that sums are the same to the bit whoever was first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from grandrounds.core.errors import RunFailed

_SMALL = 64 * 2**10
"""Bytes up to which an answer waits in memory,"""
_MANY = 16 * 2**20
"""where all that wait there have no more than these."""


class Spool:
    """Bytes by name, each taken once. `folder` is this spool's own: what a process that was killed left there is removed."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._held: dict[str, bytes] = {}
        self._in_memory = 0
        self._files: dict[str, Path] = {}
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for left in folder.glob("answer-*"):
                    left.unlink()
            except OSError as e:
                raise RunFailed(
                    f"cannot use {folder} for the sites' answers: {e.strerror}", code="cannot-write"
                ) from None

    def put(self, name: str, data: bytes) -> None:
        """Keep these bytes until they are taken."""
        if len(data) <= _SMALL and self._in_memory + len(data) <= _MANY:
            self._held[name] = data
            self._in_memory += len(data)
            return
        try:
            handle, path = tempfile.mkstemp(prefix="answer-", dir=self.folder)
            self._files[name] = Path(path)
            with os.fdopen(handle, "wb") as f:
                f.write(data)
        except OSError as e:
            where = self.folder or tempfile.gettempdir()
            raise RunFailed(
                f"cannot keep a site's answer in {where} ({e.strerror}): make room there, then resume",
                code="cannot-write",
            ) from None

    def take(self, name: str) -> bytes:
        """The bytes of this name, which are then gone from here."""
        if name in self._held:
            return self._let_go(name)
        path = self._files.pop(name)
        try:
            return path.read_bytes()
        finally:
            path.unlink(missing_ok=True)

    def drop(self, names: Iterable[str]) -> None:
        """Forget what nobody took of these."""
        for name in names:
            if name in self._held:
                self._let_go(name)
            path = self._files.pop(name, None)
            if path is not None:
                path.unlink(missing_ok=True)

    def _let_go(self, name: str) -> bytes:
        data = self._held.pop(name)
        self._in_memory -= len(data)
        return data
