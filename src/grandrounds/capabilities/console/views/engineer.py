"""The list of runs by page: search, order, groups of runs that belong together, and the runs that need attention.

A page reads the runs that it shows. Search reads the plans of all runs, and an order by a score their summaries; both are cached
while the files stay as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from grandrounds.capabilities.console.cache import get_cache, stamp_files
from grandrounds.capabilities.console.comparisons import ComparisonIndex, find_comparisons
from grandrounds.capabilities.console.run_index import FINISHED, RUNNING, UNREADABLE, RunEntry, RunIndex, is_plain
from grandrounds.capabilities.console.views.runs import SHOWN, RunLine, data_name, run_line
from grandrounds.core.ending import FAILED, INTERRUPTED, STOPPED
from grandrounds.metrics.fairness import decision_metric, deployed_scores

PAGE_SIZE = 50
PLAN, SUMMARY = "checkpoint/plan.json", "summary.json"
STATES = (RUNNING, FAILED, INTERRUPTED, STOPPED, FINISHED, UNREADABLE)
"""States of runs, in the order of the filter."""
NEWEST = "-changed"
_SORTED = ("name", "sites", *SHOWN, "epsilon", "megabytes", "changed")
ORDERS = (*_SORTED, *(f"-{key}" for key in _SORTED))
"""Orders of the list; a minus is the largest first."""
_LISTED = 3
"""Runs that the page lists above the table: running ones, and those that failed last."""

T = TypeVar("T")


@dataclass(frozen=True)
class RunQuery:
    """The part of the list that a user asked for.

    Attributes:
        text: Words that a run must have in its name, data, method or model.
        state: A state; "" for all.
        group: A folder of runs; "" for all.
        sort: One of `ORDERS`.
        page: The page, from 1.
    """

    text: str = ""
    state: str = ""
    group: str = ""
    sort: str = NEWEST
    page: int = 1

    @property
    def is_grouped(self) -> bool:
        """True where runs of one comparison or study share a row."""
        return not (self.text or self.state or self.group) and self.sort == NEWEST


@dataclass(frozen=True)
class RunGroup:
    """Runs of one comparison, study or folder.

    Attributes:
        name: The folder.
        kind: "comparison", "study" or "folder".
        states: Runs by state.
        changed: When the newest of them changed, in seconds since 1970.
    """

    name: str
    kind: str
    states: dict[str, int]
    changed: float

    @property
    def size(self) -> int:
        """Number of runs."""
        return sum(self.states.values())


@dataclass(frozen=True)
class RunPage:
    """One page of the list.

    Attributes:
        query: What was asked for.
        rows: Runs, and groups of runs.
        total: Rows on all pages.
        pages: Number of pages.
        states: All runs by state.
        running: Runs at work, the newest first.
        ended: Runs that failed or were interrupted last.
    """

    query: RunQuery
    rows: list[RunLine | RunGroup]
    total: int
    pages: int
    states: dict[str, int]
    running: list[RunLine] = field(default_factory=list)
    ended: list[RunLine] = field(default_factory=list)


@dataclass(frozen=True)
class EntryPage:
    """One page of runs without their figures.

    Attributes:
        query: What was asked for, with the page that is shown.
        entries: The runs.
        total: Runs on all pages.
        pages: Number of pages.
    """

    query: RunQuery
    entries: list[RunEntry]
    total: int
    pages: int


def page_entries(run_index: RunIndex, query: RunQuery) -> EntryPage:
    """Find one page of the runs that a query asks for, without reading their figures.

    Args:
        run_index: The runs.
        query: The part that was asked for; a page beyond the last one shows the last one.

    Returns:
        The page.
    """
    entries = run_index.runs()
    found = find_runs(run_index, query, entries, {entry.name: entry.state for entry in entries})
    shown, page, pages = _cut(found, query.page)
    return EntryPage(replace(query, page=page), shown, len(found), pages)


def _cut(found: list[T], page: int) -> tuple[list[T], int, int]:
    """Return one page of a list, its number (the last one for a page beyond it), and the number of pages."""
    pages = max(1, -(-len(found) // PAGE_SIZE))
    page = min(max(page, 1), pages)
    return found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE], page, pages


def page_runs(run_index: RunIndex, query: RunQuery) -> RunPage:
    """Make one page of the list of runs.

    Args:
        run_index: The runs.
        query: The part that was asked for; a page beyond the last one shows the last one.

    Returns:
        The page.
    """
    entries = run_index.runs()
    states = {entry.name: entry.state for entry in entries}
    units = _select(run_index, entries, states, query)
    shown, page, pages = _cut(units, query.page)
    rows = [unit if isinstance(unit, RunGroup) else run_line(run_index, unit) for unit in shown]
    counts = Counter(states.values())
    return RunPage(
        query=replace(query, page=page),
        rows=rows,
        total=len(units),
        pages=pages,
        states={state: counts[state] for state in STATES if counts[state]},
        running=_lines(run_index, (e for e in entries if states[e.name] == RUNNING)),
        ended=_lines(run_index, (e for e in entries if states[e.name] in (FAILED, INTERRUPTED))),
    )


def _lines(run_index: RunIndex, entries: Iterable[RunEntry]) -> list[RunLine]:
    return [run_line(run_index, entry) for entry, _ in zip(entries, range(_LISTED), strict=False)]


def _select(
    run_index: RunIndex, entries: Sequence[RunEntry], states: dict[str, str], query: RunQuery
) -> list[RunEntry | RunGroup]:
    """Select the rows of all pages, in their order."""
    if query.is_grouped:
        return _group(entries, states, find_comparisons(run_index))
    return list(find_runs(run_index, query, entries, states))


def find_runs(
    run_index: RunIndex, query: RunQuery, entries: Sequence[RunEntry], states: dict[str, str]
) -> list[RunEntry]:
    """Find the runs of all pages, without groups.

    Args:
        run_index: The runs.
        query: The search; its page is not used.
        entries: All runs, the newest first.
        states: The state of each run, by name.

    Returns:
        The runs that fit, in the order of the query.
    """
    found = [entry for entry in entries if not query.group or group_name(entry.name) == query.group]
    if query.state in STATES:
        found = [entry for entry in found if states[entry.name] == query.state]
    words = query.text.lower().split()
    if words:
        found = [entry for entry in found if _matches(run_index, entry, words)]
    return found if query.sort == NEWEST else _sort(run_index, found, query.sort)


def _matches(run_index: RunIndex, entry: RunEntry, words: Sequence[str]) -> bool:
    """Check that a run has all words; its plan is read only where its name does not have them."""
    name = entry.name.lower()
    missing = [word for word in words if word not in name]
    if not missing:
        return True
    text = get_cache(run_index).get_or_make(
        "search", entry.name, stamp_files(entry.folder, (PLAN,)), lambda: _read_search_text(entry)
    )
    return all(word in text for word in missing)


def _read_search_text(entry: RunEntry) -> str:
    """Read the data, method and model of a plan, in small letters; "" for a plan that cannot be read."""
    path = entry.folder / PLAN
    if not is_plain(path):
        return ""
    try:
        plan = json.loads(path.read_bytes())
        words = (data_name(plan["data"]), str(plan["method"]["name"]), str(plan["model"]["name"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return " ".join(words).lower()


def _sort(run_index: RunIndex, entries: Sequence[RunEntry], sort: str) -> list[RunEntry]:
    """Order runs by a column; runs without a value come last."""
    key = sort.removeprefix("-")
    if key == "name":
        return sorted(entries, key=lambda e: e.name, reverse=sort.startswith("-"))
    sign = -1.0 if sort.startswith("-") else 1.0

    def place(entry: RunEntry) -> tuple[bool, float]:
        value = _newest(entry) if key == "changed" else _find_values(run_index, entry).get(key)
        return (value is None, 0.0 if value is None else sign * value)

    return sorted(entries, key=place)


def _find_values(run_index: RunIndex, entry: RunEntry) -> dict[str, float | None]:
    return get_cache(run_index).get_or_make(
        "order", entry.name, stamp_files(entry.folder, (SUMMARY,)), lambda: _read_values(entry)
    )


def _read_values(entry: RunEntry) -> dict[str, float | None]:
    """Read the values of a summary that the list is ordered by; {} for a run without one that can be read."""
    path = entry.folder / SUMMARY
    if not is_plain(path):
        return {}
    try:
        summary = json.loads(path.read_bytes())
        values = {name: decision_metric(name, deployed_scores(summary)["final"]) for name in SHOWN}
        cost = summary.get("cost") or {}
        values |= {"sites": summary["sites"]["all"], "epsilon": summary["privacy"].get("epsilon")}
        values["megabytes"] = (cost.get("bytes_down", 0) + cost.get("bytes_up", 0)) / 1e6
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: value if _is_number(value) else None for name, value in values.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _newest(entry: RunEntry) -> float:
    """Time of the newest file of a run, in seconds since 1970."""
    return max(written for written, _ in entry.stamp()) / 1e9


def group_name(run: str) -> str:
    """Name the folder that a run shares with the other runs of a comparison or study; "" for a run on its own."""
    parent = run.rpartition("/")[0]
    return parent.removesuffix("/runs") if parent else ""


def _group(
    entries: Sequence[RunEntry], states: dict[str, str], comparisons: ComparisonIndex
) -> list[RunEntry | RunGroup]:
    """Give runs of one folder one row, at the place of the newest of them."""
    members: dict[str, list[RunEntry]] = {}
    for entry in entries:
        members.setdefault(group_name(entry.name), []).append(entry)
    rows: dict[str, RunEntry | RunGroup] = {}
    for entry in entries:
        name = group_name(entry.name)
        if not name or len(members[name]) == 1:
            rows[f"run {entry.name}"] = entry
        elif f"group {name}" not in rows:
            kind = "study" if name in comparisons.studies else "folder"
            kind = "comparison" if name in comparisons.comparisons else kind
            counts = Counter(states[e.name] for e in members[name])
            rows[f"group {name}"] = RunGroup(name, kind, dict(counts), _newest(entry))
    return list(rows.values())
