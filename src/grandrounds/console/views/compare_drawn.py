"""The figures of a comparison: which it has, and each of them."""

from __future__ import annotations

from grandrounds.console.library import NotFound
from grandrounds.console.views.arms import COURSES, MEGABYTES, Sides
from grandrounds.console.views.compared import Column, Compared, with_figure
from grandrounds.core.errors import BadInput
from grandrounds.report import figures
from grandrounds.report.figure import Figure

INTERVALS, PARETO, RADAR, COURSE = "intervals", "pareto", "radar", "course-"


def drawn(sides: Sides, shown: Compared, which: str, *, x: str = "", y: str = "") -> Figure:
    """A figure. `x`, `y`: the axes of `pareto`."""
    if which not in shown.figures:
        raise NotFound(f"this comparison has no figure '{which[:80]}'; it has: {', '.join(shown.figures) or 'none'}")
    if which == PARETO:
        return _pareto(shown, x or shown.across, y or shown.columns[0].name)
    if which == RADAR:
        axes = [axis.name for axis in _round(shown)]
        return figures.radar(axes, {a.short: {name: a.cells[name].mean for name in axes} for a in shown.arms})
    if which == INTERVALS:
        held = {c.name for c in shown.columns}
        called = {s.label: s.short for s in sides.sides}
        return figures.intervals([{**r, "arm": called[r["arm"]]} for r in sides.rows if r["metric"] in held])
    metric = which.removeprefix(COURSE)
    return figures.arm_curves({s.short: s.courses.get(metric, ()) for s in sides.sides}, metric)


def drawable(sides: Sides, shown: Compared) -> list[str]:
    """The figures that a comparison has."""
    several = len(shown.arms) > 1
    out = [INTERVALS] if shown.columns else []
    if several and shown.across:
        out.append(PARETO)
    if several and len(_round(shown)) > 2:
        out.append(RADAR)
    for metric in COURSES:
        own = [course for side in sides.sides for course in side.courses.get(metric, ())]
        if sides.at is None and any(len(c) > 1 and any(v is not None for v in c.values()) for c in own):
            out.append(f"{COURSE}{metric}")
    return out


def across(columns: list[Column], axes: list[Column]) -> str:
    """What is held against the first figure: drift where arms have it, else what was sent, else another figure."""
    names = [axis.name for axis in axes]
    first = columns[0].name if columns else ""
    if first not in names:
        return ""
    wanted = ("training_drift", "deployed_divergence", MEGABYTES, *names)
    return next((n for n in wanted if n in names and n != first), "")


def _round(shown: Compared) -> list[Column]:
    """The axes of a radar: figures that every arm has."""
    return [axis for axis in shown.axes if len(with_figure(shown.arms, axis.name)) == len(shown.arms)]


def _pareto(shown: Compared, x: str, y: str) -> Figure:
    axes = {axis.name: axis for axis in shown.axes}
    for name in (x, y):
        if name not in axes:
            raise NotFound(f"'{name[:80]}' is no figure that two arms have; they have: {', '.join(axes)}")
    if x == y:
        raise BadInput("choose two different figures for the axes")
    points = []
    for arm in with_figure(with_figure(shown.arms, x), y):
        told = {n: (c.mean, c.low, c.high) for n, c in arm.cells.items() if n in (x, y)}
        points.append({"label": arm.short, **told})
    return figures.pareto(points, x=x, y=y, called={n: a.words for n, a in axes.items()}, arms=[a.short for a in shown.arms])
