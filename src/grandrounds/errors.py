"""What can go wrong, said in one sentence: what, where, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrandRoundsError(Exception):
    """Base of every error the product raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class BadInput(GrandRoundsError):
    """The user's file, key or flag is at fault and can be mended by them."""

    exit_code = 2


class RunFailed(GrandRoundsError):
    """The run could not go on (too few sites, disk full); what was finished is on disk."""

    exit_code = 1


def nearest(word: str, known: Iterable[str]) -> str:
    """The clause "did you mean 'x'? known: a, b, c", for messages about an unknown name."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'? " if close else ""
    shown = ", ".join(names[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")
    return f"{hint}known: {shown}"
