"""The terminal: names from data are printed character by character, and only our own words are styled.

Rich reads `[mg/l]` in any text as markup of its own, so that a column `CRP [mg/l]` would lose its unit and
`Leukozyten [/nl]` would end the program. Here markup is off; a style is an argument.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from grandrounds.core.errors import BadInput, visible
from grandrounds.data.progress import watch_progress


class Terminal(Console):
    """A Rich console without markup, emoji codes and highlighting; control characters are shown as escapes."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, width=width, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string without markup: a line, a cell, a title."""
        return super().render_str(visible(text), **options)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Join texts, each plain or with the style it is shown in: `styled(("warning:", "yellow"), " few rows")`."""
    return Text.assemble(*(visible(p) if isinstance(p, str) else (visible(p[0]), p[1]) for p in parts))


def warn(text: str, word: str = "warning:") -> Text:
    """Put a yellow word before a text."""
    return styled((word, "yellow"), f" {text}")


def plain_column(template: str, style: str = "none") -> TextColumn:
    """Make a column of a progress bar that shows names character by character."""
    return TextColumn(template, style=style, markup=False)


def echo(text: str, *, err: bool = False, nl: bool = True, colour: str | None = None) -> None:
    """Print a line with its control characters shown as escapes; in a colour where the terminal has colours."""
    typer.secho(visible(text), err=err, nl=nl, fg=colour)


def show_fingerprints(fingerprints: Mapping[str, str]) -> None:
    """Print fingerprints to compare, in one column, each with its label."""
    wide = max(map(len, fingerprints))
    for label, mark in fingerprints.items():
        echo(f"  {label:{wide}}  {mark}")


_TERMINAL_PAUSE, _LOG_PAUSE = 0.2, 30.0  # seconds between two reports of progress
_LINE = 60  # characters of the line of progress


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[None]:
    """Show the progress of reading scans on standard error while the block lasts: one line that changes, or lines in a log."""
    terminal = sys.stderr.isatty()
    start = last = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - start < 1 or (now - last < (_TERMINAL_PAUSE if terminal else _LOG_PAUSE) and not (terminal and done == total)):
            return
        last = now
        text = f"reading scans: {done:,} of {total:,} {what}"
        if not terminal:
            sys.stderr.write(f"{text}\n")
        elif done == total:
            sys.stderr.write(f"\r{' ' * _LINE}\r")
        else:
            sys.stderr.write(f"\r{text:<{_LINE}}")
        sys.stderr.flush()

    if quiet:
        yield
        return
    with watch_progress(show):
        yield


LONGEST_ERROR = 1500
"""Characters of an error that are printed: a name in it may be of any length."""


def echo_error(sentence: str, code: str = "") -> None:
    """Print an error on standard error: the sentence, then its code in brackets, which people can search for.

    Nothing here is read as Rich markup, to which `[unknown-column]` would be a style.

    Args:
        sentence: What is wrong, where, and what to do.
        code: The kind of error; "" prints none.
    """
    shown = sentence if len(sentence) <= LONGEST_ERROR else f"{sentence[:LONGEST_ERROR]} ..."
    suffix = typer.style(f" [{visible(code)}]", dim=True) if code else ""
    typer.echo(f"error: {visible(shown)}{suffix}", err=True)


P = ParamSpec("P")
R = TypeVar("R")
TRACEBACK = "GRANDROUNDS_TRACEBACK"
"""The variable that shows a traceback in place of that sentence."""


Unverified = Annotated[
    bool,
    typer.Option("--unverified", help="Go on where files of the run are not those that its ledger names, and say so first."),
]


def reads_run(command: Callable[P, R], *, verified: bool = True, prints_data: bool = False) -> Callable[P, R]:
    """Guard a command that reads a run folder: refuse changed files, and turn an error that no check caught into one sentence.

    Files are checked as they are read (`RunFolder.read`, `Checkpoint`, `TrainedModel.load`). This is the last resort, and
    names the place in the program, since the fault may also be the program's own.

    Args:
        command: The command; it is given the option --unverified.
        verified: Compare the run's files with its ledger first.
        prints_data: The command prints a table for programs, so that warnings are on standard error.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **named: P.kwargs) -> R:
        try:
            if verified:
                on_error = prints_data or bool(named.get("as_json") or named.get("quiet"))
                _check_record(_list_folders(named), unverified=bool(named.pop("unverified", False)), on_error=on_error)
            return command(*args, **named)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            AssertionError,
            RecursionError,
        ) as e:
            if os.environ.get(TRACEBACK):
                raise
            names = " ".join(map(str, _list_folders(named)))
            frame = traceback.extract_tb(e.__traceback__)[-1]
            words = " ".join(str(e).split())[:80]
            raise BadInput(
                f"{names} cannot be read ({type(e).__name__}: {words}; {Path(frame.filename).name} line {frame.lineno}): its "
                f"files are damaged, or it is a fault of this program, which {TRACEBACK}=1 shows in full",
                code="damaged-run",
            ) from None

    if verified:
        option = inspect.Parameter("unverified", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Unverified)
        shown = [*inspect.signature(command, eval_str=True).parameters.values(), option]
        guarded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        guarded.__annotations__ = {p.name: p.annotation for p in shown}
    return guarded


def _list_folders(named: Mapping[str, Any]) -> list[Path]:
    """List the folders of runs among the arguments of a command."""
    folder: Any = next((v for n, v in named.items() if n in ("run", "folder", "runs", "folders") and v is not None), [])
    return [Path(f) for f in (folder if isinstance(folder, list) else [folder])]


def _check_record(folders: list[Path], *, unverified: bool, on_error: bool) -> None:
    """Refuse runs whose files are not those that their ledgers name; with --unverified say so in the first line.

    Raises:
        ChangedRun: Files of a run were changed.
    """
    from grandrounds.analysis.audit.changes import ChangedRun, find_changes

    for folder in folders:
        sentence = find_changes(folder)
        if sentence and not unverified:
            fix = f"run `rounds audit verify {folder}`; --unverified goes on all the same"
            raise ChangedRun(f"{folder}: {sentence} To see every change, {fix}", code="changed-run")
        if sentence:
            echo(f"UNVERIFIED {folder}: {sentence}", err=on_error, colour="red")
