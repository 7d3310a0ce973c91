"""The terminal: names from data are printed letter by letter, and only our own words are styled.

Rich reads `[mg/l]` in any text as markup of its own, so that a column `CRP [mg/l]` would lose its unit and
`Leukozyten [/nl]` would end the program. Here markup is off; a style is an argument.
"""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from grandrounds.errors import visible


class Terminal(Console):
    """A Rich console without markup, emoji codes and highlighting; control characters are shown as escapes."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False) -> None:
        super().__init__(
            stderr=stderr, width=width, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Make the text of a string: a line, a cell, a title."""
        return super().render_str(visible(text), **options)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Join texts, each plain or with the style it is shown in: `styled(("warning:", "yellow"), " few rows")`."""
    return Text.assemble(*(visible(p) if isinstance(p, str) else (visible(p[0]), p[1]) for p in parts))


def warn(text: str, word: str = "warning:") -> Text:
    """Put a yellow word before a text."""
    return styled((word, "yellow"), f" {text}")


def plain_column(template: str, style: str = "none") -> TextColumn:
    """A column of a progress bar that shows names letter by letter."""
    return TextColumn(template, style=style, markup=False)


def echo(text: str, *, err: bool = False, nl: bool = True, colour: str | None = None) -> None:
    """Print a line with its control characters shown as escapes; in a colour where the terminal has colours."""
    typer.secho(visible(text), err=err, nl=nl, fg=colour)
