"""Which reference rows are meant: those the method uses, and of those that sites were sent those an anchor means."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from grandrounds.errors import BadInput, nearest

USUAL = "anchor"
"""The set that sites are anchored to where several are sent and none is named."""


def which(names: Collection[str], named: str) -> str | None:
    """The set of lent rows that a method means: the one it names, or the usual one, or the only one."""
    if named or USUAL in names:
        return named or USUAL
    return next(iter(names)) if len(names) == 1 else None


def reference_name(plan: Any) -> str | None:
    """The reference set that the method uses: the one it names, or the only one there is."""
    known, named = list(plan.reference.plain()), plan.method.reference
    if named is not None and named not in known:
        raise BadInput(
            f"method.reference is '{named}'; {nearest(named, known) if known else 'there is no [reference]'}"
        )
    return named or (known[0] if len(known) == 1 else None)
