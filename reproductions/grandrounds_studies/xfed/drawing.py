"""The figures of XFed's studies: courses over rounds, arms side by side, columns in several rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.metrics import describe
from grandrounds.report.figure import Figure
from grandrounds.report.figures.comparison import capitalise
from grandrounds.report.style import COLOURS, QUIET, layout, safe
from grandrounds_studies.results import Results
from grandrounds_studies.study import Measure
from grandrounds_studies.xfed.courses import by_round, by_seed

Drawn = tuple[str, Sequence[Figure]]
Printed = Mapping[tuple[str, str], Mapping[str, float]]

WORDS = {
    "accuracy": "accuracy on the test images",
    "xai": "XAI accuracy on the scoring images",
    "grid": "grid accuracy on the scoring images",
    "in_mask": "share of the mask that is hot",
}
"""Courses, as an axis calls them."""


_SEVEN = (*COLOURS, QUIET)
"""A colour for each of XFed's arms."""


def _colour(k: int) -> str:
    return _SEVEN[k % len(_SEVEN)]


def bars(results: Results, measures: Sequence[Measure], *, printed: Printed) -> list[Drawn]:
    """Means over seeds with 95% intervals, a column an arm; what is printed is a mark on it."""
    out: list[Drawn] = []
    for point in results.points:
        figures = [_bars(results, point, m, printed) for m in measures]
        out.append((f"In the last round: {point}", figures))
    return out


def _bars(results: Results, point: str, measure: Measure, printed: Printed) -> Figure:
    arms = results.arms_at(point)
    traces = [_columns(measure.words, arms, [results.summary(point, a, measure.name) for a in arms], COLOURS[0])]
    marks = {a: printed[point, a][measure.name] for a in arms if measure.name in printed.get((point, a), {})}
    if marks:
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "printed", "x": [safe(a) for a in marks], "y": list(marks.values()),
                "marker": {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": COLOURS[1]}},
                "hovertemplate": "%{x}: printed %{y}<extra></extra>",
            }
        )  # fmt: skip
    note = "mean over seeds with its 95% interval" + ("; the line is the paper's" if marks else "")
    return Figure(traces, layout(safe(measure.words), note=note, height=360, showlegend=False, yaxis=_PERCENT))


_PERCENT = {"range": [0, 100], "ticksuffix": "%"}


def _columns(name: str, labels: Sequence[str], summaries: Sequence[Any], colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": safe(name),
        "x": [safe(label) for label in labels],
        "y": [s.mean for s in summaries],
        "error_y": {
            "type": "data",
            "array": [s.high - s.mean for s in summaries],
            "color": QUIET,
            "thickness": 1.2,
        },
        "marker": {"color": colour},
        "hovertemplate": "%{x}: %{y:.2f}<extra>%{fullData.name}</extra>",
    }


def over_rounds(
    results: Results, name: str, *, printed: Mapping[str, Mapping[int, float]] | None = None
) -> list[Figure]:
    """A course over the rounds, one line an arm: the mean over seeds. What is printed is dotted, in the same colour."""
    out = []
    for point in results.points:
        traces = []
        for k, arm in enumerate(results.arms_at(point)):
            found = by_round(results, point, arm, name)
            if found:
                traces.append(_line(arm, found, _colour(k), "solid"))
            if printed and arm in printed:
                traces.append(_line(f"{arm}, printed", printed[arm], _colour(k), "dot"))
        if traces:
            note = "mean over seeds" + ("; dotted: printed" if printed else "")
            title = f"{capitalise(WORDS[name])}: {safe(point)}"
            shape = layout(title, note=note, x="round", height=440, xaxis={"dtick": 1}, yaxis={"ticksuffix": "%"})
            out.append(Figure(traces, shape))
    return out


def _line(name: str, course: Mapping[int, float], colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(course) > 1 else "markers",
        "name": safe(name),
        "x": list(course),
        "y": list(course.values()),
        "line": {"color": colour, "width": 2 if dash == "solid" else 1.3, "dash": dash},
        "marker": {"size": 5, "color": colour},
        "hovertemplate": "round %{x}: %{y:.2f}%<extra>%{fullData.name}</extra>",
    }


def columns(results: Results, name: str, rounds: Sequence[int]) -> list[Figure]:
    """A course in some of the rounds and in the last: a group of columns a round, one an arm, with 95% intervals."""
    out = []
    for point in results.points:
        traces = []
        for k, arm in enumerate(results.arms_at(point)):
            held = [dict(enumerate(c, start=1)) for c in by_seed(results, point, arm, name)]
            if not held:
                continue
            last = max(held[0])
            shown = [r for r in dict.fromkeys((*rounds, last)) if all(r in c for c in held)]
            summaries = [describe([c[r] for c in held]) for r in sorted(shown)]
            traces.append(_columns(arm, [f"round {r}" for r in sorted(shown)], summaries, _colour(k)))
        if traces:
            note = "mean over seeds with its 95% interval"
            shape = layout(
                f"{capitalise(WORDS[name])}: {safe(point)}", note=note, height=440, barmode="group", yaxis=_PERCENT
            )
            out.append(Figure(traces, shape))
    return out
