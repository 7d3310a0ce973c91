"""Names of consortia and sites, and what their folders are called."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

from grandrounds.core.errors import BadInput

LONGEST = 64
"""Characters of a name: the most that the common name of a certificate may have."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARKS = "-_. "


def checked_name(value: Any, what: str) -> str:
    """A name as it may stand in a certificate, a key's comment and a log; others are refused."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{what} needs a name: some text that is not empty")
    wrong = [c for c in value if not (c.isalnum() or c in _MARKS)]
    if wrong:
        raise BadInput(f"{what} {value!r} has {wrong[0]!r} in its name: letters, digits, - _ . and spaces are allowed")
    if value != value.strip() or "  " in value:
        raise BadInput(f"{what} {value!r} has spaces at an end of its name, or two in a row: take them away")
    if not any(c.isalnum() for c in value):
        raise BadInput(f"{what} {value!r} has neither a letter nor a digit in its name")
    if len(value.encode()) > LONGEST:
        raise BadInput(
            f"{what} {value[:20]!r}... has a name of {len(value.encode())} bytes: at most {LONGEST} are allowed"
        )
    return value


def slug(name: str) -> str:
    """What a site's files and folder are called: ASCII without spaces, and another one for every other name.

    A plain name is its own slug. Any other ends in a digest of the name, since two of them may look alike in ASCII.
    """
    if _PLAIN.fullmatch(name) and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    ascii_ = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", ascii_).strip("._-") or "site"
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def alike(name: str) -> str:
    """What two names share that people, or file systems, take for one."""
    return unicodedata.normalize("NFKC", name).casefold()
