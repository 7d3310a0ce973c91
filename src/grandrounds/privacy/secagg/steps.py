"""The steps of a sum, each once and in order."""

from __future__ import annotations

from collections.abc import Callable

from grandrounds.privacy.secagg.refusals import Refused
from grandrounds.protocol.messages import Value

STEPS = ("keys", "shares", "masked", "sign", "unmask")

Message = dict[str, Value]


class Steps:
    """What a site answered so far. A step asked again gives the same answer, asked otherwise it is refused."""

    def __init__(self) -> None:
        self._done: dict[str, tuple[bytes, Message]] = {}

    def take(self, step: str, content: bytes, work: Callable[[], Message]) -> Message:
        """The answer to a step whose question has this fingerprint. Where `work` refuses, nothing is answered or kept."""
        if step in self._done:
            before, answer = self._done[step]
            if before != content:
                raise Refused("replayed")
            return answer
        if STEPS[len(self._done)] != step:
            raise Refused("out-of-order")
        answer = work()
        self._done[step] = (content, answer)
        return answer
