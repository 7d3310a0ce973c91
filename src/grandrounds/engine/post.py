"""How letters get to sites and back: what a `RemoteEngine` needs of a network, and all that it knows of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

UNAVAILABLE, FAILED, GONE = "unavailable", "failed", "gone"
"""Why no answer came: the node was not there just now (ask again), could not do it, or is no longer known."""


@dataclass(frozen=True)
class Reply:
    """What came of one letter: a sealed Answer, or why there is none."""

    ticket: str
    data: bytes | None
    error: str = ""


class Post(Protocol):
    """Carries sealed Asks to addresses and sealed Answers back. It reads neither."""

    def addresses(self) -> tuple[str, ...]:
        """Nodes that are there now."""
        ...

    def send(self, letters: Sequence[tuple[str, bytes]]) -> list[str]:
        """Put letters on their way, each to an address; their tickets, in order."""
        ...

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        """What has come of these letters, as soon as there is anything; nothing after `wait` seconds."""
        ...
