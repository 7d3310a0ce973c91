"""The progress of downloads and conversions on the terminal: a bar for each file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from grandrounds.data import download
from grandrounds.data.download import size_text


@contextmanager
def show_progress() -> Iterator[download.Progress]:
    """Bars on standard error, for as long as the block lasts; names with a slash are files, the rest are counts."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int | None) -> None:
            amount = (size_text if "/" in name else "{:,}".format)(done)
            whole = "" if total is None else f" of {(size_text if '/' in name else '{:,}'.format)(total)}"
            if name not in tasks:
                tasks[name] = bar.add_task(escape(name.split("/")[-1]), total=total, amount="")
            bar.update(tasks[name], completed=done, total=total, amount=f"{amount}{whole}")

        yield show
