"""Progress bars for Python: in a terminal and in a notebook; nothing where output is not shown to a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

RunEvent = Mapping[str, Any]
RunProgress = bool | Callable[[RunEvent], None] | None
"""True shows a bar, False none, None a bar in a terminal or notebook; a function is called with each event instead."""


class Bar(Protocol):
    """A progress bar."""

    def update(self, text: str, done: int, total: int) -> None:
        """Show `done` of `total` steps, with a text."""

    def close(self) -> None:
        """Stop drawing."""


class SilentBar:
    """A bar that shows nothing."""

    def update(self, text: str, done: int, total: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TerminalBar:
    """A bar on standard error, drawn by Rich; markup in texts is not read."""

    def __init__(self, noun: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn(noun, markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bar = Progress(*columns, console=Console(stderr=True, markup=False, highlight=False))
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def update(self, text: str, done: int, total: int) -> None:
        """Show `done` of `total` steps, with a text."""
        from grandrounds.core.errors import visible

        self._bar.update(self._task, completed=done, total=total, description=visible(text))

    def close(self) -> None:
        """Stop drawing; the last state stays on the screen."""
        self._bar.stop()


class NotebookBar:
    """A bar below a notebook's cell: one HTML element that is redrawn. It needs no widgets."""

    def __init__(self, noun: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        self._noun = noun
        self._handle = display({"text/plain": noun}, raw=True, display_id=True)

    def update(self, text: str, done: int, total: int) -> None:
        """Show `done` of `total` steps, with a text."""
        line = f"{self._noun} {done} of {total}"
        bar = f'<progress value="{done}" max="{max(total, 1)}"></progress> {escape(line)} {escape(text)}'
        self._handle.update({"text/html": bar, "text/plain": f"{line} {text}"}, raw=True)

    def close(self) -> None:
        """Do nothing: the last state stays below the cell."""


def make_bar(noun: str, shown: bool | None) -> Bar:
    """Make the bar that fits where Python runs.

    Args:
        noun: The name of one step: "round", "run", "trial".
        shown: True draws a bar in any case, False none; None draws one in a notebook or terminal.
    """
    if shown is False:
        return SilentBar()
    if in_notebook():
        return NotebookBar(noun)
    return TerminalBar(noun) if shown or sys.stderr.isatty() else SilentBar()


def in_notebook() -> bool:
    """Tell whether a Jupyter kernel runs this process."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def run_progress(progress: RunProgress) -> Iterator[Callable[[RunEvent], None]]:
    """Show the rounds of a run.

    Args:
        progress: As in `RunProgress`.

    Yields:
        The function to call with each event of the run.
    """
    if callable(progress):
        yield progress
        return
    bar: Bar = SilentBar()
    total = 0

    def show(event: RunEvent) -> None:
        nonlocal bar, total
        if event["event"] == "start":
            bar = make_bar("exchange" if event.get("exchanges") else "round", progress)
            total = 0 if event.get("exchanges") else int(event["rounds"])  # the end of a fit is not known before
            bar.update(f"{event['sites']} sites", int(event["done"]), total or int(event["done"]))
        elif event["event"] == "round":
            done = int(event["round"])
            step = _scores(event.get("test") or {}) if total else str(event.get("why", "")).partition(" (")[0]
            bar.update(step, done, total or done)

    try:
        yield show
    finally:
        bar.close()


@contextmanager
def exchange_progress(progress: RunProgress) -> Iterator[Callable[[RunEvent], None]]:
    """Show the exchanges of a regression. Their number is not known beforehand.

    Args:
        progress: As in `RunProgress`.

    Yields:
        The function to call with each event of the run.
    """
    if callable(progress):
        yield progress
        return
    bar = make_bar("exchange", progress)

    def show(event: RunEvent) -> None:
        if event["event"] == "round":
            done = int(event["round"])
            bar.update(str(event.get("why", "")).partition(" (")[0], done, done)

    try:
        yield show
    finally:
        bar.close()


def _scores(test: Mapping[str, Any]) -> str:
    """Write the test scores of a round that people look at first."""
    names = {"auroc": "pooled AUROC", "accuracy": "accuracy", "r2": "R2", "rmse": "RMSE", "d2": "D2", "c_index": "C-index"}
    shown = [(word, test.get(name)) for name, word in names.items()]
    return ", ".join(f"test {word} {value:.3f}" for word, value in shown if value is not None)
