"""Errors raised on purpose: one sentence with what is wrong, where, and a suggested fix; and a code for programs."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar


class GrandRoundsError(Exception):
    """Base of every error that the product raises on purpose.

    Attributes:
        code: The kind of error, such as "unknown-column": it stays when the sentence is reworded.
        exit_code: The exit status of the command line.
        quotes_cells: The sentence can quote cells of a table, so it is not stored where people without the rows read it.
    """

    exit_code = 1
    quotes_cells = False

    def __init__(self, sentence: str = "", *, code: str = "") -> None:
        """Create the error.

        Args:
            sentence: The problem with its value, the place, and a suggested fix.
            code: The kind of error: two to four words in lower case, joined by hyphens.
        """
        super().__init__(sentence)
        self.code = code


class GrandRoundsWarning(UserWarning):
    """A sentence on rows, columns or a result that a user should know of. The command line prints the same sentences."""


def warn_user(sentences: Iterable[str]) -> None:
    """Show sentences as Python warnings, at the line that called the caller.

    Args:
        sentences: The sentences.
    """
    for sentence in sentences:
        warnings.warn(sentence, GrandRoundsWarning, stacklevel=3)


class BadInput(GrandRoundsError):
    """The user's file, setting or flag is at fault, and the user can correct it."""

    exit_code = 2


class RunFailed(GrandRoundsError):
    """The run could not continue (too few sites, disk full); finished rounds are on disk.

    Attributes:
        settings: Settings with which a resumed run gets past the error, such as "engine.min_sites=6"; empty where none helps.
    """

    exit_code = 1

    def __init__(self, sentence: str = "", *, code: str = "", settings: tuple[str, ...] = ()) -> None:
        """Create the error; see `GrandRoundsError` for `sentence` and `code`."""
        super().__init__(sentence, code=code)
        self.settings = settings


E = TypeVar("E", bound=GrandRoundsError)


def mark_cells(error: E) -> E:
    """Mark an error whose sentence can quote cells of a table."""
    error.quotes_cells = True
    return error


@contextmanager
def reading_rows() -> Iterator[None]:
    """Mark every BadInput that is raised while rows are read or used, whichever module raises it."""
    try:
        yield
    except BadInput as e:
        mark_cells(e)
        raise


FROM_CLONE = "in a clone of the repository run"
"""The package is on no registry: whoever took its name there would own every install of it."""


def install_extra(extra: str) -> str:
    """Return the clause that installs an extra of pyproject.toml, for messages about a missing package."""
    return f"{FROM_CLONE} `pip install '.[{extra}]'`"


_LONGEST = 100  # characters of a word that are compared: the time that takes grows with their square


def closest(word: str, choices: Iterable[str]) -> str:
    """Return the clause "did you mean 'x'?", or "" without a similar name; case and a unit in brackets do not count."""
    names = {_plain(name): name for name in choices}
    close = difflib.get_close_matches(_plain(word), names, n=1, cutoff=0.6)
    return f"did you mean '{names[close[0]]}'?" if close else ""


def _plain(name: str) -> str:
    short = name[:_LONGEST].casefold()
    return short.split("(")[0].split("[")[0].strip() or short


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the clause "did you mean 'x'? known: a, b, c", for messages about an unknown name."""
    names = [str(k) for k in choices]
    close = closest(word, names)
    hint = f"{close} " if close else ""
    shown = ", ".join(names[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")
    return f"{hint}known: {shown}"


_KEPT = "\n\t"
_HIDDEN = (
    *range(0x20), *range(0x7F, 0xA0),  # control characters: an ANSI code begins with one
    0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # turn the direction of text round
    0x200B, 0x2028, 0x2029, 0xFEFF,  # no width, or a line that a terminal does not know
)  # fmt: skip
_SHOWN = {c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" for c in _HIDDEN if chr(c) not in _KEPT}


def visible(text: str) -> str:
    r"""Show control characters and marks of text direction as escapes (`\x1b`, `\u202e`); lines and tabs stay.

    Names come from tables of other people. Printed unescaped, they could send commands to a terminal.
    """
    return text.translate(_SHOWN)
