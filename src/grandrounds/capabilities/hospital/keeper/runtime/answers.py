"""An answered message with the facts that the site's log needs of it: the message itself is encrypted."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from grandrounds.core.errors import BadInput

UNREADABLE = "unreadable"
"""Task of an Ask that could not be read or decrypted."""

_LENGTH = 4
_TEXT = 100
"""Characters of a run's or a task's name that are logged."""
_SENTENCE = 1000
"""Characters of a sentence that are logged."""


@dataclass(frozen=True)
class AnsweredAsk:
    """One Ask of a message. `code` is empty if it was answered, else `sentence` states the cause; it never leaves the site."""

    run: str
    round: int
    step: int
    task: str
    code: str
    sentence: str = ""


@dataclass(frozen=True)
class AnsweredMessage:
    """The sealed answer, and its Asks."""

    message: bytes
    asks: tuple[AnsweredAsk, ...]

    def to_bytes(self) -> bytes:
        """Encode it for the pipe between the worker process and its supervisor."""
        rows = [(a.run[:_TEXT], a.round, a.step, a.task[:_TEXT], a.code[:_TEXT], a.sentence[:_SENTENCE]) for a in self.asks]
        text = json.dumps(rows).encode()
        return len(text).to_bytes(_LENGTH, "big") + text + self.message

    @classmethod
    def from_bytes(cls, data: bytes) -> AnsweredMessage:
        """Decode what `to_bytes` encoded.

        Raises:
            BadInput: It is something else.
        """
        try:
            end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
            asks = tuple(AnsweredAsk(*row) for row in json.loads(data[_LENGTH:end]))
            if any(tuple(map(type, astuple(ask))) != (str, int, int, str, str, str) for ask in asks):
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise BadInput("the worker process sent something that is not an answer", code="malformed-message") from None
        return cls(data[end:], asks)
