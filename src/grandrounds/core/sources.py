"""Decide which files, addresses and queries of a plan may be opened.

A run folder may come from anybody. What its plan names is opened only where the run was made here or the reader trusts it, as
its code is (see `plugins`): a query reaches a database, an address tells its host who reads, and a path may name any file of
the reader. Rows that the reader names on the command line or in Python are read either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.plan import PlanValues

AT_SITES = "at the sites"
"""Value of data.table when every hospital holds its own rows and the server none."""

DATA_FRAME = "data frame"
"""Value of data.table when the rows came from memory and cannot be read again."""

STROKES = "strokes"
"""Value of data.masks when truth masks are to be made from bright strokes (digits, writing)."""

ROWS = ("data.table", "data.query", "data.pictures", "data.masks")
"""Settings of a plan that its rows are read with."""

REFERENCE, WEIGHTS, WATCHED_RUN, WATCHED_TABLE = (
    "reference.*.source", "model.weights", "method.watch.run", "method.watch.table"
)  # fmt: skip
FIELDS = (*ROWS, REFERENCE, WEIGHTS, WATCHED_RUN, WATCHED_TABLE)
"""All settings of a plan that name a file, a folder, an address or a query; `*` is any name."""

_LONGEST = 60
"""Characters of a value that an error names."""

_refused: dict[tuple[str, str], str] = {}  # setting and value -> why it is not opened in this process
_opened: set[tuple[str, str]] = set()  # settings and values that the user of this process named


def named_in(plan: PlanValues) -> dict[tuple[str, str], str]:
    """List the files, addresses and queries that a plan names; rows at the sites are read there, from no setting of the plan.

    Args:
        plan: A plan, also a damaged one: fields of another type name nothing.

    Returns:
        The full key of each pair of setting and value: {("data.table", "/data/ward.csv"): "data.table"}.
    """
    data = plan.get("data")
    at_sites = isinstance(data, Mapping) and data.get("table") == AT_SITES
    return {
        (field, value): key
        for field in (FIELDS if not at_sites else [field for field in FIELDS if field not in ROWS])
        for key, value in _values(plan, field.split("."), ())
        if value and value not in (AT_SITES, DATA_FRAME, STROKES)
    }


def _values(values: object, names: list[str], path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each text that a field, such as `reference.*.source`, has, with its full key."""
    if not names:
        if isinstance(values, str):
            yield ".".join(path), values
        return
    if not isinstance(values, Mapping):
        return
    for name in list(values) if names[0] == "*" else [names[0]]:
        yield from _values(values.get(name), names[1:], (*path, str(name)))


def allow(plan: PlanValues) -> None:
    """Let this process open what an experiment of its user names."""
    _opened.update(named_in(plan))


def decide(plan: PlanValues, *, reason: str) -> None:
    """Decide for a run folder; what the user of this process named stays allowed.

    Args:
        plan: Its plan.
        reason: The reason why nothing that it names is opened; "" where it may be.
    """
    if not reason:
        allow(plan)
        return
    _refused.update(dict.fromkeys(named_in(plan), reason))


def refusal(field: str, value: str | None) -> str:
    """Explain why a value of a setting is not opened; "" where it may be."""
    key = (field, value or "")
    return "" if key in _opened else _refused.get(key, "")


def check(field: str, value: str | None, *, key: str = "") -> None:
    """Refuse to open what only somebody else's run folder names.

    Args:
        field: The setting, one of `FIELDS`.
        value: Its value.
        key: The full key for the message, where it differs.

    Raises:
        BadInput: The value may not be opened.
    """
    reason = refusal(field, value)
    if reason:
        text = str(value) if "://" in str(value) or field == "data.query" else PurePath(str(value)).name  # no folder of a server
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        raise BadInput(f"{key or field} is '{text}': {reason}", code="source-not-opened")


def check_rows(data: Mapping[str, Any]) -> None:
    """Refuse to read rows from what only somebody else's run folder names; arguments as `rows_refused`."""
    for field in ROWS:
        check(field, data.get(field.removeprefix("data.")))


def rows_refused(data: Mapping[str, Any]) -> bool:
    """Return True if the rows of a section [data] may not be read from what it names."""
    return any(refusal(field, data.get(field.removeprefix("data."))) for field in ROWS)


def refuse(plan: PlanValues) -> None:
    """Raise BadInput if a plan names something that may not be opened. Call it before another process is started."""
    for (field, value), key in named_in(plan).items():
        check(field, value, key=key)
