"""Standing between a method and whoever drives it: what it asks passes through other hands, and so do the answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


def intercept(
    work: Generator[Any, Any, Any], through: Callable[[Any], Generator[Any, Any, Any]]
) -> Generator[Any, Any, Any]:
    """A generator that ends as `work` does; each effect of it goes `through` another, which ends with the reply."""
    reply: Any = None
    while True:
        try:
            effect = work.send(reply)
        except StopIteration as end:
            return end.value
        reply = yield from through(effect)
