"""Intervals of time that all sites share, chosen from summed counts before any sum over inputs is asked for.

Two exchanges. The first counts events in intervals that grow by the fourth root of two: it shows the range of times and nothing
finer. The second counts events, and rows that leave without event, in cells with about one event each. Cells are then merged
until each interval has at least `least` events.

Disclosed by this: those counts, summed over all sites. The count of a cell can be small. Sums over inputs are asked for later,
at the starts of the merged intervals: two of them differ by at least `least` rows that left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grandrounds.capabilities.statistics.cox_terms import FEWEST_EVENTS, CoxTerms, note_roster
from grandrounds.capabilities.statistics.partial_likelihood import read_outcome
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

TIMES = "cox.times"

_OCTAVES = (-10, 20)
"""The range of times that is counted: 2^-10 to 2^20."""
_MOST_DAYS = 2**16


@dataclass(frozen=True, eq=False)
class Grid:
    """A common grid of m intervals.

    Attributes:
        edges: (m,) starts of the intervals; rows that leave before the first are in no risk set.
        end: End of the last interval.
        events: (m,) summed number of events.
        leavers: (m,) summed number of rows that leave without event.
        notes: Sentences for people about its choice.
    """

    edges: Array
    end: float
    events: Array
    leavers: Array
    notes: tuple[str, ...] = ()

    @property
    def at_risk(self) -> Array:
        """Summed number of rows at risk at the start of each interval, (m,)."""
        return np.cumsum((self.events + self.leavers)[::-1])[::-1]


def answer_times(question: Question, rows: Rows) -> Blocks:
    """Answer with counts of events and of rows that leave without event, by interval.

    Args:
        question: `edges`: starts of the intervals, the first 0; on single days `unit`, the length of a day.
        rows: The site's rows.

    Returns:
        Counts `events` and, where they are asked for, `leavers`, one for each interval; `off`, the rows whose time is not a whole
        number of days.
    """
    time, event = read_outcome(rows)
    edges = np.asarray(question.values["edges"])
    place = np.searchsorted(edges, time, "right") - 1
    counts = {
        "events": np.bincount(place[event], minlength=len(edges)).astype(float),
        "leavers": np.bincount(place[~event], minlength=len(edges)).astype(float),
    }
    if "off" in question.blocks:
        days = time / float(np.asarray(question.values["unit"]))
        counts["off"] = np.asarray(float((np.abs(days - np.rint(days)) > 1e-9 * np.maximum(days, 1)).sum()))
    return {name: counts[name] for name in question.blocks}


def choose_grid(terms: CoxTerms) -> Fit[Grid]:
    """Choose the common grid from summed counts, in two exchanges.

    Args:
        terms: The terms: "grid" merges intervals to at least `least` events, "days" has one interval for each day with events.

    Returns:
        The grid.

    Raises:
        BadInput: Too few events; times beyond the range; fewer than `least` rows without event.
    """
    low, high = _OCTAVES
    edges = np.concatenate([[0.0], 2.0 ** (np.arange(4 * low, 4 * high + 1) / 4)])
    total = yield _ask(terms, edges, ("events",), "range of times")
    events, notes = np.rint(total["events"]), note_roster(total)
    if events.sum() < FEWEST_EVENTS:
        raise BadInput(
            f"there are {int(events.sum())} events over all sites; Cox regression needs at least {FEWEST_EVENTS}",
            code="few-events",
        )
    if events[-1]:
        raise BadInput(
            f"times of events exceed {edges[-1]:.0f}; a common baseline needs shorter ones: use a larger unit, such as days",
            code="out-of-range",
        )
    last = int(np.flatnonzero(events).max()) + 1  # after the last event nothing changes
    if terms.baseline == "days":
        days = int(np.ceil(edges[last] / terms.unit))
        if days > _MOST_DAYS:
            raise BadInput(
                f"follow-up covers {days} days; a grid of days has at most {_MOST_DAYS}: use the baseline 'grid'",
                code="out-of-range",
            )
        cells = np.arange(days) * terms.unit
    else:
        cells = _divide(edges[: last + 1], events[:last], min(4 * terms.intervals, int(events.sum())))
    total = yield _ask(terms, cells, ("events", "leavers"), "times")
    events, leavers = np.rint(total["events"]), np.rint(total["leavers"])
    end, notes = float(edges[last]), [*notes, *note_roster(total)]
    if terms.baseline == "days":
        if off := int(np.rint(total["off"])):
            notes.append(
                f"{off:,} times are not whole numbers: the baseline 'days' moves them to the start of their day, and events of a "
                "day are tied; 'strata' takes times as they are."
            )
        return replace(_keep_event_days(cells, end, events, leavers), notes=tuple(notes))
    return replace(
        merge_cells(cells, end, events, leavers, least=terms.least, intervals=terms.intervals), notes=tuple(notes)
    )


def _ask(terms: CoxTerms, edges: Array, names: tuple[str, ...], step: str) -> Question:
    blocks: dict[str, tuple[int, ...]] = dict.fromkeys(names, (len(edges),))
    if terms.baseline != "days":
        return Question(TIMES, {"edges": edges}, blocks, step, cells=names)
    # single days are allowed together with single patients
    return Question(TIMES, {"edges": edges, "unit": terms.unit}, {**blocks, "off": ()}, step)


def _divide(edges: Array, events: Array, count: int) -> Array:
    """Divide intervals into equal cells, in proportion to their events, and return the cells' starts."""
    parts = np.ceil(count * events / events.sum()).astype(int)
    cells = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(edges[:-1], edges[1:], parts, strict=True)]
    starts = np.concatenate(cells)
    starts[0] = 0.0
    return starts


def _keep_event_days(days: Array, end: float, events: Array, leavers: Array) -> Grid:
    """Return the grid of days with events; rows that leave between two of them are last at risk on the first."""
    at = np.flatnonzero(events)
    return Grid(days[at], end, events[at], np.add.reduceat(leavers, at))


def merge_cells(starts: Array, end: float, events: Array, leavers: Array, *, least: int, intervals: int) -> Grid:
    """Merge cells to intervals with at least `least` events.

    Args:
        starts: (c,) starts of the cells.
        end: End of the last cell.
        events: (c,) summed events.
        leavers: (c,) summed rows that leave without event.
        least: Fewest events of an interval.
        intervals: Most intervals.

    Returns:
        The grid.

    Raises:
        BadInput: There are fewer events, or fewer rows without event, than `least`.
    """
    if events.sum() < least:
        raise BadInput(
            f"there are {int(events.sum())} events over all sites; a common baseline needs at least {least}",
            code="small-cell",
        )
    if 0 < leavers.sum() < least:
        raise BadInput(
            f"{int(leavers.sum())} rows leave without event; sums over fewer than {least} rows are not allowed: "
            "use the baseline 'strata'",
            code="small-cell",
        )
    group = _group(events, max(least, int(np.ceil(events.sum() / intervals))))
    first = np.flatnonzero(np.diff(group, prepend=-1))
    return Grid(starts[first], end, np.bincount(group, events), np.bincount(group, leavers))


def _group(counts: Array, least: int) -> Array:
    """Number consecutive cells by groups with a count of at least `least`; the rest joins the last group."""
    out, group, count = np.zeros(len(counts), int), 0, 0.0
    for i, c in enumerate(counts):
        out[i] = group
        count += c
        if count >= least:
            group, count = group + 1, 0.0
    if count < least and group:  # the cells after the last full group
        out[out == group] = group - 1
    return out
