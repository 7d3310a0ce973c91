"""Effects: what a method's round yields, Asks above all. They can be handled on their way to the engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


def intercept(
    generator: Generator[Any, Any, Any], handler: Callable[[Any], Generator[Any, Any, Any]]
) -> Generator[Any, Any, Any]:
    """Run a generator of Asks through a handler, which receives each one and returns the reply.

    Args:
        generator: A method's round, or an exchange.
        handler: Called with each effect. It may yield its own effects, and returns the reply to the generator.

    Returns:
        The return value of the generator.
    """
    reply: Any = None
    while True:
        try:
            effect = generator.send(reply)
        except StopIteration as end:
            return end.value
        reply = yield from handler(effect)
