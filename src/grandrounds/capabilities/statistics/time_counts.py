"""Counts of events and censored rows by interval of follow-up time (kind `counts.time`), and the choice of intervals.

Kaplan-Meier curves, log-rank tests and censoring weights are functions of these counts. The grid of intervals is public: it
follows from the longest follow-up up to a power of two (kind `range.time`), never from a single row.

- On a grid of cells, `merge_cells` joins neighbours until each interval has `least` events. Results show merged intervals only.
- On a grid of days (or any other unit of recording) the counts tell the day of every event and every censoring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

Grid = Literal["bins", "days"]

LEAST = 5
"""Least number of events in an interval, unless the policy says otherwise."""

_LOWEST, _HIGHEST = -4, 27
"""Powers of two between which the longest follow-up may lie: 30 days recorded in years, 250 years recorded in minutes."""
_MOST_DAYS = 50_000
_COARSE_CELLS = 32
_CELLS_PER_INTERVAL = 2.0


@dataclass(frozen=True, eq=False)
class TimeCounts:
    """Events and censored rows of each group in the intervals (0, ends[0]], (ends[0], ends[1]], ...

    A time of 0 counts in the first interval.

    Attributes:
        ends: Ends of the m intervals, (m,).
        events: (groups, m).
        censored: (groups, m).
        beyond: Rows whose time lies beyond the last interval, (groups,).
    """

    ends: Array
    events: Array
    censored: Array
    beyond: Array

    @property
    def at_risk(self) -> Array:
        """Rows at risk at the start of each interval, (groups, m)."""
        left = self.events + self.censored
        return left[:, ::-1].cumsum(1)[:, ::-1] + self.beyond[:, None]

    @property
    def rows(self) -> Array:
        """Rows of each group, (groups,)."""
        total: Array = self.events.sum(1) + self.censored.sum(1) + self.beyond
        return total

    def add_groups(self) -> TimeCounts:
        """Return the counts of all groups together, as one group."""
        return TimeCounts(
            self.ends,
            self.events.sum(0, keepdims=True),
            self.censored.sum(0, keepdims=True),
            self.beyond.sum(keepdims=True),
        )

    def keep_groups(self, mask: Sequence[bool]) -> TimeCounts:
        """Return the counts of the groups that a mask keeps."""
        kept = np.asarray(mask, bool)
        return TimeCounts(self.ends, self.events[kept], self.censored[kept], self.beyond[kept])

    def select(self, group: int) -> TimeCounts:
        """Return the counts of one group."""
        one = slice(group, group + 1)
        return TimeCounts(self.ends, self.events[one], self.censored[one], self.beyond[one])

    def cut(self, horizon: float) -> TimeCounts:
        """Return the counts of the intervals that end by a horizon; later rows are beyond the grid."""
        m = int(np.searchsorted(self.ends, horizon, side="right"))
        later = self.events[:, m:].sum(1) + self.censored[:, m:].sum(1)
        return TimeCounts(self.ends[:m], self.events[:, :m], self.censored[:, :m], self.beyond + later)


def survival_outcome(rows: Rows) -> tuple[Array, Array]:
    """Return times and events (0 or 1) of a site's rows.

    Raises:
        BadInput: The rows have no times, a time is negative or not finite, or an event is not 0 or 1.
    """
    if rows.time is None:
        raise BadInput(
            "survival needs follow-up times, and the rows have none: name the column with data.duration (--time)",
            code="missing-time",
        )
    time, event = np.asarray(rows.time, np.float64), np.asarray(rows.y, np.float64)
    if wrong := int((~np.isfinite(time) | (time < 0)).sum()):
        raise BadInput(
            f"{wrong} of {len(time)} follow-up times are negative or missing: correct or leave out these rows",
            code="bad-time",
        )
    if wrong := int((~np.isin(event, (0.0, 1.0))).sum()):
        raise BadInput(
            f"{wrong} of {len(event)} events are neither 0 (censored) nor 1 (observed): recode the event column",
            code="bad-event",
        )
    return time, event


def answer_time_range(question: Question, rows: Rows) -> Blocks:
    """Count a site's rows by power of two of their follow-up time."""
    time, _ = survival_outcome(rows)
    return {"rows": np.bincount(np.searchsorted(_powers(), time), minlength=len(_powers()) + 1)}


def answer_time_counts(question: Question, rows: Rows) -> Blocks:
    """Count a site's events and censored rows by group and interval."""
    time, event = survival_outcome(rows)
    ends, groups = np.asarray(question.values["ends"], np.float64), int(str(question.values["groups"]))
    group = np.zeros(len(time), int) if groups == 1 or rows.group is None else np.asarray(rows.group, int)
    return count_times(time, event, group, ends, groups) | {"off": np.asarray((~np.isin(time, ends)).sum())}


def count_times(time: Array, event: Array, group: Array, ends: Array, groups: int) -> dict[str, Array]:
    """Count events and censored rows by group and interval, the last interval being "beyond the grid".

    Args:
        time: (n,).
        event: (n,) 0 or 1.
        group: (n,) number of the group; rows with another number are left out.
        ends: (m,) ends of the intervals.
        groups: Number of groups.

    Returns:
        `events` and `censored`, (groups, m + 1) each.
    """
    width = len(ends) + 1
    inside = (group >= 0) & (group < groups)
    cell = group[inside] * width + np.searchsorted(ends, time[inside])
    died = event[inside] == 1
    return {
        name: np.bincount(cell[mask], minlength=groups * width).reshape(groups, width).astype(np.float64)
        for name, mask in (("events", died), ("censored", ~died))
    }


def find_time_range() -> Fit[tuple[float, int]]:
    """Find a power of two that no follow-up time exceeds.

    Returns:
        The power of two and the number of rows.

    Raises:
        BadInput: There are no rows, or times are too large.
    """
    powers = _powers()
    total = yield Question(
        "range.time", {}, {"rows": (len(powers) + 1,)}, step="range of follow-up times", cells=("rows",)
    )
    rows = np.rint(total["rows"])
    if not rows.sum():
        raise BadInput("no row of any site has a follow-up time: look at the columns and the sites", code="no-rows")
    if rows[-1]:
        raise BadInput(
            f"{int(rows[-1])} follow-up times exceed {int(powers[-1]):,}: give them in a larger unit, such as days",
            code="bad-time",
        )
    return float(powers[np.flatnonzero(rows)[-1]]), int(rows.sum())


def ask_time_counts(ends: Array, *, groups: int = 1, step: str = "events by interval") -> Fit[tuple[TimeCounts, int]]:
    """Ask for counts on a grid.

    Args:
        ends: (m,) ends of the intervals, ascending.
        groups: Number of groups of `Rows.group`; 1: all rows are one group.
        step: Text for progress and the ledger.

    Returns:
        The counts, and the number of rows whose time is not the end of an interval.
    """
    shape = (groups, len(ends) + 1)
    total = yield Question(
        "counts.time",
        {"ends": np.asarray(ends, np.float64), "groups": groups},
        {"events": shape, "censored": shape, "off": ()},
        step=step,
        cells=("events", "censored"),
    )
    events, censored = np.rint(total["events"]), np.rint(total["censored"])
    beyond = events[:, -1] + censored[:, -1]
    return TimeCounts(np.asarray(ends), events[:, :-1], censored[:, :-1], beyond), round(float(total["off"]))


def find_density() -> Fit[TimeCounts]:
    """Count events and censored rows of all groups on 32 equal cells, up to a power of two. Two exchanges."""
    longest, _ = yield from find_time_range()
    width = longest / _COARSE_CELLS
    counts, _ = yield from ask_time_counts(width * np.arange(1, _COARSE_CELLS + 1), step="density of events")
    return _drop_tail(counts)


def place_cells(density: TimeCounts, cells: Array, *, unit: float = 1.0) -> Array:
    """Divide each coarse cell into a number of equal cells.

    Args:
        density: Counts on equal cells.
        cells: (m,) number of cells wanted in each; rounded up, and at least one.
        unit: Unit in which times are recorded; cells end at multiples of it, if coarse cells are as wide.

    Returns:
        Ends of the cells, ascending.
    """
    width = float(density.ends[0])
    parts = np.maximum(np.ceil(cells), 1).astype(int)
    starts = density.ends - width
    ends = np.concatenate([a + width * np.arange(1, k + 1) / k for a, k in zip(starts, parts, strict=True)])
    return np.unique(np.ceil(ends / unit - 1e-9) * unit) if width >= unit else ends


def count_by_cell(
    *, groups: int = 1, unit: float = 1.0, least: int = LEAST, least_censored: int = 0
) -> Fit[TimeCounts]:
    """Count on a grid of cells with about as many events each, about two to an interval. Three exchanges.

    The number of cells follows from the number of events, so few numbers are sent.

    Args:
        groups: Number of groups.
        unit: Unit in which times are recorded; cells end at multiples of it.
        least: Least number of events of an interval, after `merge_cells`.
        least_censored: Least number of censored rows of an interval, for a censoring curve; 0: there is none.

    Returns:
        The counts, without the empty cells after the longest follow-up.
    """
    density = yield from find_density()
    wanted = density.events[0] / least
    if least_censored:
        wanted = np.maximum(wanted, density.censored[0] / least_censored)
    # curves of groups have fewer and wider intervals; with the root, few numbers are sent for many groups
    ends = place_cells(density, _CELLS_PER_INTERVAL / np.sqrt(groups) * wanted, unit=unit)
    counts, _ = yield from ask_time_counts(ends, groups=groups)
    return _drop_tail(counts)


def count_by_day(*, groups: int = 1, unit: float = 1.0) -> Fit[TimeCounts]:
    """Count on the grid of all days (or other units of recording): exact, and tells the day of every event. Three exchanges.

    Args:
        groups: Number of groups.
        unit: Unit in which times are recorded, such as 1 for whole days.

    Returns:
        The counts on the days on which somebody died or left.

    Raises:
        BadInput: Times are not multiples of the unit, or the grid is too long.
    """
    longest, _ = yield from find_time_range()
    quarter = max(longest / 64, unit)
    ends = quarter * np.arange(1, int(np.ceil(longest / quarter)) + 1)
    coarse, _ = yield from ask_time_counts(ends, step="longest follow-up")
    last = float(_drop_tail(coarse).ends[-1])
    days = int(np.ceil(last / unit)) + 1
    if days > _MOST_DAYS:
        raise BadInput(
            f"a grid by {unit:g} up to {last:g} has {days:,} points, more than {_MOST_DAYS:,}: choose a larger unit, or the "
            "grid 'bins'",
            code="grid-too-long",
        )
    counts, off = yield from ask_time_counts(unit * np.arange(days), groups=groups, step="events by day")
    if off:
        raise BadInput(
            f"{off} follow-up times are not multiples of {unit:g}: set the unit in which they are recorded, or choose the "
            "grid 'bins'",
            code="bad-time",
        )
    used = np.flatnonzero((counts.events + counts.censored).sum(0))
    return TimeCounts(counts.ends[used], counts.events[:, used], counts.censored[:, used], counts.beyond)


def merge_cells(counts: TimeCounts, least: int, *, of: Literal["events", "censored", "both"] = "events") -> TimeCounts:
    """Join neighbouring cells of one group until each interval has enough rows.

    An interval also leaves at least `least` rows at risk at its end. Rows after the last interval are beyond the grid.

    Args:
        counts: Counts of one group.
        least: Least number of rows in an interval, and at risk at its end.
        of: The rows that must be so many: events, censored, or each of both.

    Returns:
        Counts on the intervals; no interval where the group has too few rows.
    """
    closed, start, rows = [], 0, float(counts.rows[0])
    events, censored = counts.events[0].cumsum(), counts.censored[0].cumsum()
    for j in range(len(counts.ends)):
        new = [c[j] - (c[start - 1] if start else 0) for c in (events, censored)]
        tested = {"events": new[:1], "censored": new[1:], "both": new}[of]
        if min(tested) >= least and rows - events[j] - censored[j] >= least:
            closed.append(j)
            start = j + 1
    at = np.array(closed, int)
    sums = [np.diff(c[at], prepend=0.0)[None] for c in (events, censored)]
    beyond = counts.rows - sums[0].sum(1) - sums[1].sum(1)
    return TimeCounts(counts.ends[at], sums[0], sums[1], beyond)


def count_small_cells(counts: TimeCounts, least: int) -> int:
    """Count the cells with at least one and fewer than `least` events, or censored rows."""
    return int(sum(((c > 0) & (c < least)).sum() for c in (counts.events, counts.censored)))


def _drop_tail(counts: TimeCounts) -> TimeCounts:
    """Leave out the empty cells after the last one with a row."""
    last = int(np.flatnonzero((counts.events + counts.censored).sum(0))[-1]) + 1
    return TimeCounts(counts.ends[:last], counts.events[:, :last], counts.censored[:, :last], counts.beyond)


def _powers() -> Array:
    return np.exp2(np.arange(_LOWEST, _HIGHEST + 1))
