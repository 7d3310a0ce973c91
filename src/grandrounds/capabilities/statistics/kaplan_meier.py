"""Kaplan-Meier curves with Greenwood's intervals, median survival and restricted mean, from counts that add.

On the grid "days" the curve is Kaplan and Meier's product, equal to that of the pooled rows. On the grid "bins" it is the
actuarial estimate, in which rows censored in a cell count half: S *= 1 - d / (n - c/2). It is shown at the ends of intervals
that join cells until each has `least` events and leaves `least` rows at risk. Confidence intervals are on the scale
log(-log S), as in lifelines and in R's `conf.type = "log-log"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from grandrounds.capabilities.statistics.log_rank import LogRank, compare_within_sites
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.capabilities.statistics.time_counts import (
    LEAST,
    Grid,
    TimeCounts,
    count_by_cell,
    count_by_day,
    count_small_cells,
    merge_cells,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest

_Z = 1.959963984540054  # 97.5% quantile of the normal distribution


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval; None where the curve does not reach it."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SurvivalCurve:
    """The survival curve of one group.

    Attributes:
        group: Name of the group; "all" for all rows.
        grid: "days": a step at each time. "bins": points at the ends of intervals, joined by straight lines.
        rows: Number of rows; None for a group with fewer than `least`.
        events: Events up to the last time of the curve; None for a group with fewer than `least`.
        times: Times of the points; the curve starts at time 0 with survival 1.
        survival: Share without the event after each time.
        low: Lower end of the pointwise 95% interval.
        high: Upper end.
        at_risk: Rows at risk just before each time ("days"), or at the start of the interval that ends there ("bins").
        died: Events at each time, or in its interval.
        censored: Rows censored at each time, or in its interval.
        median: Median survival time.
        restricted_mean: Mean survival time up to `horizon`.
        horizon: End of the restricted mean; None where there is no curve.
        least: Least number of events in an interval; 1 for days.
    """

    group: str
    grid: Grid
    rows: int | None
    events: int | None
    times: tuple[float, ...] = ()
    survival: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    at_risk: tuple[int, ...] = ()
    died: tuple[int, ...] = ()
    censored: tuple[int, ...] = ()
    median: Estimate = Estimate(None)
    restricted_mean: Estimate = Estimate(None)
    horizon: float | None = None
    least: int = LEAST

    def survival_at(self, time: float) -> Estimate:
        """Return survival with its interval at a time; None after the end of the curve."""
        if not self.times or time > self.times[-1] or time < 0:
            return Estimate(None)
        return Estimate(*(_value_at(self.grid, self.times, y, time) for y in (self.survival, self.low, self.high)))

    def at_risk_at(self, time: float) -> int:
        """Return the number of rows at risk at a time; on intervals, at the start of the interval that has it."""
        if not self.times:
            return 0
        place = int(np.searchsorted(self.times, time, side="left" if self.grid == "days" else "right"))
        if place < len(self.times):
            return self.at_risk[place]
        if self.grid == "bins" and time == self.times[-1]:
            return self.at_risk[-1] - self.died[-1] - self.censored[-1]
        return 0

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()} | {
            "median": vars(self.median) | {},
            "restricted_mean": vars(self.restricted_mean) | {},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SurvivalCurve:
        """Read what `to_dict` wrote."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        fields |= {k: Estimate(**values[k]) for k in ("median", "restricted_mean")}
        return cls(**fields)


@dataclass(frozen=True)
class KaplanMeier:
    """Survival curves, overall and by group, with the log-rank test.

    Attributes:
        overall: The curve of all rows.
        groups: The curve of each group; empty without groups.
        log_rank: The test that the groups' curves are the same; None with fewer than two groups.
        facts: Further numbers: `exchanges`, `sites`, `small_cells`, `width` of a cell. Plain JSON values.
        notes: Sentences for people: disclosed data, sites that left.
    """

    overall: SurvivalCurve
    groups: tuple[SurvivalCurve, ...] = ()
    log_rank: LogRank | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the curves as JSON values."""
        return {
            "overall": self.overall.to_dict(),
            "groups": [c.to_dict() for c in self.groups],
            "log_rank": None if self.log_rank is None else self.log_rank.to_dict(),
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KaplanMeier:
        """Read what `to_dict` wrote."""
        test = values["log_rank"]
        return cls(
            SurvivalCurve.from_dict(values["overall"]),
            tuple(map(SurvivalCurve.from_dict, values["groups"])),
            None if test is None else LogRank.from_dict(test),
            dict(values["facts"]),
            tuple(values["notes"]),
        )


def fit_kaplan_meier(
    groups: Sequence[str] = (),
    *,
    grid: Grid = "bins",
    least: int = LEAST,
    unit: float = 1.0,
    horizon: float | None = None,
) -> Fit[KaplanMeier]:
    """Estimate survival curves, overall and by group, and compare groups by the log-rank test.

    Args:
        groups: Names of the groups of `Rows.group`, in order of their numbers; empty: one curve.
        grid: "bins" (intervals with `least` events), or "days", which tells the day of every event to the server.
        least: Least number of events in an interval.
        unit: Unit in which times are recorded, such as 1 for whole days.
        horizon: End of the restricted mean; None: the last time to which every curve reaches.

    Returns:
        The curves. With groups, the log-rank test, which is stratified by site.

    Raises:
        BadInput: An argument is out of range, no row has a time, or fewer than `least` events were observed.
    """
    if grid not in ("bins", "days"):
        raise BadInput(f"unknown grid '{grid}'; {nearest(grid, ('bins', 'days'))}", code="unknown-choice")
    if not unit > 0 or least < 1 or (horizon is not None and not horizon > 0):
        raise BadInput("unit, least and horizon must be above 0: correct the one that is not", code="out-of-range")
    many = max(1, len(groups))
    if grid == "days":
        counts = yield from count_by_day(groups=many, unit=unit)
    else:
        counts = yield from count_by_cell(groups=many, unit=unit, least=least)
    events = int(counts.events.sum())
    if events < (least if grid == "bins" else 1):
        seen = f"fewer than {least}" if grid == "bins" else "no"
        raise BadInput(f"{seen} events were observed at all sites together: a curve needs more", code="too-few-events")
    wide = float(np.diff(counts.ends, prepend=0.0).max())
    small = count_small_cells(counts, least)
    notes = [_disclosure(grid, unit, wide, small, least)]
    test: LogRank | None = None
    if len(groups) > 1:
        test = yield from compare_within_sites(groups, least=least if grid == "bins" else 1)
    by_group = [counts.select(g) for g in range(len(groups))]
    small_groups = [n for n, c in zip(groups, by_group, strict=True) if grid == "bins" and 0 < c.rows[0] < least]
    if small_groups:  # the curve of all rows less those of other groups would give them away
        notes.append(f"Groups with fewer than {least} rows are left out of all curves: {', '.join(small_groups)}.")
        counts = counts.keep_groups([n not in small_groups for n in groups])
    drawn = [counts.add_groups(), *by_group]
    names = ["all", *groups]
    if horizon is None:
        shown = (merge_cells(c, least) if grid == "bins" else c for c in drawn)
        horizon = min((float(c.ends[-1]) for c in shown if len(c.ends)), default=None)
    curves = [estimate_curve(n, c, grid=grid, least=least, horizon=horizon) for n, c in zip(names, drawn, strict=True)]
    for curve in curves:
        if not curve.times and curve.group not in small_groups:
            notes.append(f"Group '{curve.group}' has fewer than {least} events: its curve is left out.")
    notes += _tell_hidden_events(curves, drawn, least)
    facts = {"grid": grid, "least": least, "small_cells": small, "width": wide, "unit": unit}
    return KaplanMeier(curves[0], tuple(curves[1:]), test, facts, tuple(notes))


def _tell_hidden_events(curves: Sequence[SurvivalCurve], counts: Sequence[TimeCounts], least: int) -> list[str]:
    """State where curves end before the last event: groups' events then need not add up to those of all rows."""
    shown = [(curve, c) for curve, c in zip(curves, counts, strict=True) if curve.times]
    if all(curve.events == int(c.events.sum()) for curve, c in shown):
        return []
    ends = ", ".join(f"{curve.times[-1]:.4g} ({curve.group})" for curve, _ in shown)
    adding = "" if len(shown) < 2 else " So the groups' events need not add up to those of all rows."
    return [
        f"Events are counted up to the end of each curve, {ends}: an interval has at least {least} events and leaves at least "
        f"{least} rows at risk, so that later events are not shown.{adding}"
    ]


def estimate_curve(
    group: str, counts: TimeCounts, *, grid: Grid, least: int = LEAST, horizon: float | None = None
) -> SurvivalCurve:
    """Estimate the survival curve of one group from its counts.

    Args:
        group: Name of the group.
        counts: Counts of one group, by day or by cell.
        grid: "days" or "bins".
        least: Least number of rows that a result shows; not used for days.
        horizon: End of the restricted mean; None: the last time of the curve.

    Returns:
        The curve; without points if there are no intervals.
    """
    cells = counts
    if grid == "bins":
        counts = merge_cells(cells, least)
    rows, events = int(counts.rows[0]), int(counts.events.sum())
    floor = 1 if grid == "days" else least
    shown_rows = rows if rows >= floor else None
    shown_events = events if events >= floor or grid == "days" else None
    if not len(counts.ends):
        return SurvivalCurve(group, grid, shown_rows, shown_events, least=floor)
    times = counts.ends
    survival, variance = product_limit(cells, grid=grid)
    at = np.searchsorted(cells.ends, times)
    survival, variance = survival[at], np.diff(variance.cumsum()[at], prepend=0.0)
    low, high = log_log_interval(survival, variance.cumsum())
    end = float(times[-1]) if horizon is None else min(horizon, float(times[-1]))
    return SurvivalCurve(
        group,
        grid,
        shown_rows,
        shown_events,
        times=tuple(map(float, times)),
        survival=tuple(map(float, survival)),
        low=tuple(map(float, low)),
        high=tuple(map(float, high)),
        at_risk=tuple(map(int, counts.at_risk[0])),
        died=tuple(map(int, counts.events[0])),
        censored=tuple(map(int, counts.censored[0])),
        median=Estimate(*(_crossing(grid, times, y) for y in (survival, low, high))),
        restricted_mean=_restricted_mean(grid, times, survival, variance, end),
        horizon=end,
        least=floor,
    )


def product_limit(counts: TimeCounts, *, grid: Grid) -> tuple[Array, Array]:
    """Return survival after each time, and each time's term of Greenwood's sum.

    Args:
        counts: Counts of one group.
        grid: "bins": rows censored in a cell count half (actuarial estimate). "days": they leave after the events of the day.

    Returns:
        (m,) survival and (m,) d / (n (n - d)), 0 where all rows at risk died, as in lifelines.
    """
    died, at_risk = counts.events[0], counts.at_risk[0]
    exposed = at_risk - counts.censored[0] / 2 if grid == "bins" else at_risk
    left = np.maximum(exposed - died, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        survival = np.cumprod(np.where(exposed > 0, left / exposed, 1.0))
        variance = np.where(left > 0, died / (exposed * left), 0.0)
    return survival, variance


def log_log_interval(survival: Array, variance: Array) -> tuple[Array, Array]:
    """Return the pointwise 95% interval on the scale log(-log S); S itself where it is 0 or 1."""
    inner = (survival > 0) & (survival < 1)
    log = np.log(np.where(inner, survival, 0.5))
    wide = _Z * np.sqrt(variance) / log
    ends = (np.exp(log * np.exp(sign * wide)) for sign in (-1, 1))
    low, high = (np.where(inner, e, survival) for e in ends)
    return low, high


def _crossing(grid: Grid, times: Array, values: Array, level: float = 0.5) -> float | None:
    """Return the first time at which a falling curve is at or below a level."""
    below = np.flatnonzero(values <= level)
    if not len(below):
        return None
    at = int(below[0])
    if grid == "days":
        return float(times[at])
    t0, v0 = (float(times[at - 1]), float(values[at - 1])) if at else (0.0, 1.0)
    share = (v0 - level) / (v0 - float(values[at]))
    return t0 + share * (float(times[at]) - t0)


def _value_at(grid: Grid, times: Sequence[float], values: Sequence[float], time: float) -> float:
    if grid == "bins":
        return float(np.interp(time, [0.0, *times], [1.0, *values]))
    return ([1.0, *values])[int(np.searchsorted(times, time, side="right"))]


def _restricted_mean(grid: Grid, times: Array, survival: Array, variance: Array, end: float) -> Estimate:
    """Return the area under the curve up to a time; its variance is the sum of (area right of t)^2 d / (n (n - d))."""
    used = times < end
    last = _value_at(grid, cast(Sequence[float], times), survival.tolist(), end)
    t = np.concatenate([[0.0], times[used], [end]])
    s = np.concatenate([[1.0], survival[used], [last]])
    height = s[:-1] if grid == "days" else (s[:-1] + s[1:]) / 2
    areas = np.diff(t) * height
    right = areas[::-1].cumsum()[::-1]
    mean, wide = float(right[0]), _Z * float(np.sqrt((right[1:] ** 2 * variance[used]).sum()))
    return Estimate(mean, mean - wide, mean + wide)


def _disclosure(grid: Grid, unit: float, wide: float, small: int, least: int) -> str:
    if grid == "days":
        return (
            f"Disclosed: events and censored rows at each multiple of {unit:g}, summed over sites. The time of every single "
            "event and censoring can be read from them."
        )
    return (
        f"Disclosed to the server: events and censored in cells of up to {wide:g}, summed over sites; {small} of the sums lie "
        f"between 1 and {least - 1}. The curve shows intervals with at least {least} events."
    )
