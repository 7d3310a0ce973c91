"""The part of the access log that each role may see and export, as tables, CSV and JSON lines.

| role | content |
|---|---|
| auditor | every entry: user, patient's row, time, address |
| clinician | the entries of the user's own requests |
| board, approver | counts by day and event, without users and patients |
| viewer, engineer | nothing |
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from grandrounds.capabilities.console.access_log import Filter, LogEntry, read_entries
from grandrounds.capabilities.console.auth.users import Role

COLUMNS = ("time", "event", "user", "roles", "address", "by", "site", "run", "row", "rows", "view", "area", "why")
"""Columns of a table of entries; others of an entry (the provider's subject) are in JSON lines only."""
COUNTED = ("day", "event", "entries")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Extent(StrEnum):
    """The part of the access log that a user may see."""

    ALL = "all entries"
    OWN = "your own entries"
    COUNTS = "counts by day"


def extent_of(roles: Iterable[Role]) -> Extent | None:
    """Choose the widest part of the log that some roles may see; None for no part."""
    held = set(roles)
    if Role.AUDITOR in held:
        return Extent.ALL
    if Role.CLINICIAN in held:
        return Extent.OWN
    return Extent.COUNTS if held & {Role.BOARD, Role.APPROVER} else None


@dataclass(frozen=True)
class EntryPage:
    """A page of entries, the newest first. `damaged`: lines of the file that cannot be read."""

    entries: tuple[LogEntry, ...]
    matching: int
    damaged: int
    page: int
    pages: int


def read_page(file: Path, chosen: Filter, *, page: int, size: int) -> EntryPage:
    """Read a page of the log, with no more entries in memory than up to that page.

    Args:
        file: The log.
        chosen: Which entries.
        page: The page, from 1; one beyond the last is the last.
        size: Entries of a page.

    Raises:
        BadInput: The log cannot be read.
    """
    newest: deque[LogEntry] = deque(maxlen=page * size)
    matching = damaged = 0
    for entry in read_entries(file, chosen):
        if "damaged" in entry:
            damaged += 1
            continue
        newest.append(entry)
        matching += 1
    pages = max(1, -(-matching // size))
    number = min(page, pages)
    shown = list(reversed(newest))[(number - 1) * size : number * size]
    return EntryPage(tuple(shown), matching, damaged, number, pages)


def count_by_day(entries: Iterable[LogEntry]) -> list[LogEntry]:
    """Count entries by day and event, the newest day first; users and patients are left out."""
    counts = Counter((str(e.get("time", ""))[:10], str(e.get("event", "?"))) for e in entries if "damaged" not in e)
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1]), reverse=True)
    return [{"day": day, "event": event, "entries": count} for (day, event), count in ordered]


def to_csv(entries: Iterable[LogEntry], columns: tuple[str, ...] = COLUMNS) -> Iterator[str]:
    """Write entries as lines of CSV with a head. Text that a spreadsheet would run as a formula begins with an apostrophe.

    Args:
        entries: The entries; damaged lines are left out.
        columns: The columns.
    """
    yield _line(columns)
    for entry in entries:
        if "damaged" not in entry:
            yield _line([_cell(entry.get(name)) for name in columns])


def to_json_lines(entries: Iterable[LogEntry]) -> Iterator[str]:
    """Write entries as JSON lines; a damaged line is one with its number."""
    return (json.dumps(entry) + "\n" for entry in entries)


def _cell(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _line(cells: Iterable[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
