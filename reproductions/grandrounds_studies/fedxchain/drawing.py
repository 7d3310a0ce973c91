"""The figures of FedXChain's studies: courses over rounds, arms side by side, trust against reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.figures.comparison import arm_colour
from grandrounds.report.style import QUIET, layout, safe
from grandrounds_studies.fedxchain.measures import pearson
from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell

Drawn = tuple[str, Sequence[Figure]]


def over_rounds(results: Results, name: str, heading: str) -> list[Drawn]:
    """A kept course over the rounds, at each point one line an arm with its 95% interval."""
    out: list[Drawn] = []
    for point in results.points:
        arms = {arm: courses for arm in results.arms_at(point) if (courses := _courses(results, point, arm, name))}
        if arms:
            out.append((f"{heading}: {point}", [figures.arm_curves(arms, name)]))
    return out


def _courses(results: Results, point: str, arm: str, name: str) -> list[dict[int, float | None]]:
    """For each seed, round -> value."""
    held = [results.readings.get(Cell(point, arm, i)) for i in range(results.seeds)]
    kept = [r.kept[name] for r in held if r is not None and r.kept.get(name)]
    return [dict(enumerate(values, start=1)) for values in kept]


def bars(results: Results, measures: Sequence[str], heading: str = "Side by side") -> list[Drawn]:
    """Means with 95% intervals, at each point a panel a measure."""
    out: list[Drawn] = []
    for point in results.points:
        rows = [row for arm in results.arms_at(point) for row in _rows(results, point, arm, measures, arm)]
        if rows:
            out.append((f"{heading}: {point}", [figures.intervals(rows)]))
    return out


def by_point(results: Results, measures: Sequence[str], arm: str, heading: str) -> list[Drawn]:
    """The same of one arm, its points beside each other."""
    held = [p for p in results.points if arm in results.arms_at(p)]
    rows = [row for point in held for row in _rows(results, point, arm, measures, point)]
    return [(f"{heading}: {arm}", [figures.intervals(rows)])] if rows else []


def _rows(results: Results, point: str, arm: str, measures: Sequence[str], called: str) -> list[dict[str, Any]]:
    told = [(m, asdict(results.summary(point, arm, m))) for m in measures]
    return [{"arm": called, "metric": m, **s} for m, s in told if s["mean"] == s["mean"]]


def rewards(results: Results) -> list[Drawn]:
    """Fig. 7: every site of every seed by its mean trust and mean reward; sites that attack are a series of their own."""
    out: list[Drawn] = []
    for point in results.points:
        for arm in results.arms_at(point):
            marks = _sites(results, point, arm)
            if marks:
                out.append((f"Fig. 7: {arm}, {point}", [_scatter(marks)]))
    return out


def _sites(results: Results, point: str, arm: str) -> list[tuple[str, float, float, bool]]:
    """Name, trust, reward, and whether it attacks, of all sites of all seeds."""
    marks = []
    for seed in range(results.seeds):
        reading = results.readings.get(Cell(point, arm, seed))
        if reading is not None:
            k = reading.kept
            marks += [(f"{s}, seed {seed}", k["trust"][s], v, s in k["bad"]) for s, v in k.get("reward", {}).items()]
    return marks


def _scatter(marks: Sequence[tuple[str, float, float, bool]]) -> Figure:
    r = pearson([m[1] for m in marks], [m[2] for m in marks])
    traces = []
    for k, (name, bad) in enumerate((("honest", False), ("labels flipped", True))):
        own = [m for m in marks if m[3] is bad]
        if own:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [m[1] for m in own],
                    "y": [m[2] for m in own],
                    "text": [safe(m[0]) for m in own],
                    "marker": {"size": 9, "color": arm_colour(k), "line": {"color": QUIET, "width": 0.5}},
                    "hovertemplate": "%{text}: trust %{x:.3f}, reward %{y:.5f}<extra></extra>",
                }
            )
    note = f"r = {r:.3f} over {len(marks)} sites; the paper has 0.918"
    return Figure(traces, layout("Reward against trust", note=note, x="trust", y="reward", height=420))
