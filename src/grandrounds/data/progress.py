"""Progress of reading many files, such as scans, for the command that waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[str, int, int], None]
"""Takes what is counted ("files", "scans"), and the number of finished ones and of all."""

_progress: ContextVar[Progress | None] = ContextVar("scans", default=None)


@contextmanager
def watch_progress(progress: Progress) -> Iterator[None]:
    """Send the progress of reading scans to a function while the block lasts."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def report_progress(what: str, done: int, total: int) -> None:
    """Report progress to whoever watches it."""
    progress = _progress.get()
    if progress is not None:
        progress(what, done, total)
