"""Which of the reference rows that sites were sent an anchor means: the server and the sites must agree on it."""

from __future__ import annotations

from collections.abc import Collection

USUAL = "anchor"
"""The set that sites are anchored to where several are sent and none is named."""


def which(names: Collection[str], named: str) -> str | None:
    """The set of lent rows that a method means: the one it names, or the usual one, or the only one."""
    if named or USUAL in names:
        return named or USUAL
    return next(iter(names)) if len(names) == 1 else None
