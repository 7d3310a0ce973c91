"""The figures that studies share: lines over a setting, two measures against each other, distances pair by pair."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.metrics.names import metric_range
from grandrounds.metrics.statistics import describe_bounded
from grandrounds.report import figures
from grandrounds.report.explanations import Block, ExplainedRound, Explanations
from grandrounds.report.figure import Figure
from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell

Triple = tuple[float, float, float]


def lines(results: Results, measure: str, groups: Sequence[str], *, x: str) -> list[Figure]:
    """A measure over the points of each group, one line an arm, with 95% intervals."""
    out = []
    for group in groups:
        points = [p for p in results.study.points if p.group == group]
        found: dict[str, dict[float, Triple]] = {}
        for p in points:
            for arm in results.arms_at(p.label):
                found.setdefault(arm, {})[p.x] = triple(results, p.label, arm, measure)
        if found:
            out.append(figures.setting_curves(found, measure, x=x, title=group))
    return out


def fronts(results: Results, points: Sequence[str], *, x: str, y: str) -> list[Figure]:
    """The arms of each point by two measures, and those that none beats in both."""
    out = []
    called = {name: results.study.measure(name).words for name in (x, y)}
    for point in points:
        arms = results.arms_at(point)
        marks = [{"label": a, x: triple(results, point, a, x), y: triple(results, point, a, y)} for a in arms]
        marks = [m for m in marks if m[x][0] == m[x][0] and m[y][0] == m[y][0]]
        if marks:
            out.append(figures.pareto(marks, x=x, y=y, called=called))
    return out


def heat_maps(results: Results, point: str, arms: Sequence[str], *, seed: int = 0) -> list[Figure]:
    """The distance of every two sites' sketches in the last round of one run of each arm, in the same colours."""
    out = []
    for arm in arms:
        reading = results.readings.get(Cell(point, arm, seed))
        if reading is not None and reading.kept.get("pairs"):
            last = ExplainedRound(round=reading.kept["round"], training=Block(pairs=reading.kept["pairs"]))
            out.append(figures.pairwise_drift(Explanations(rounds=[last]), label=arm))
    for figure in out:
        figure["data"][0]["zmax"] = max(f["data"][0]["zmax"] for f in out)
    return out


def triple(results: Results, point: str, arm: str, measure: str) -> Triple:
    """A mean with the ends of its 95% interval."""
    s = describe_bounded(results.values(point, arm, measure), metric_range(measure))
    return s.mean, s.low, s.high
