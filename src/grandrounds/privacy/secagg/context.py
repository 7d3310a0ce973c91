"""Which sum this is. Every key, signature and sealed share is bound to it, so none fits another round."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


def joined(*parts: bytes | str | int) -> bytes:
    """Parts as one byte string that can be cut up in one way only: each follows its length."""
    raw = [p if isinstance(p, bytes) else str(p).encode() for p in parts]
    return b"".join(len(p).to_bytes(8, "big") + p for p in raw)


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """SHA-256 of parts, for one purpose."""
    return hashlib.sha256(joined("grandrounds secagg", purpose, *parts)).digest()


@dataclass(frozen=True)
class Context:
    """A run, its round, and which of the round's sums."""

    run: str
    round: int
    tag: str

    def __str__(self) -> str:
        return f"{self.run}/{self.round}/{self.tag}"

    @property
    def bytes(self) -> bytes:
        return joined("grandrounds secagg", self.run, self.round, self.tag)
