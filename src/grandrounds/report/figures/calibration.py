"""Calibration of predicted probabilities, and the net benefit of acting on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.metrics.statistics import share_interval
from grandrounds.report.figure import Figure
from grandrounds.report.style import COLOURS, INK, QUIET, layout

_FLOOR = -0.05
"""Net benefit under which treating everyone leaves the chart."""


def reliability(bins: Mapping[str, Any]) -> Figure:
    """Draw predicted probability against observed frequency, bin by bin, with Wilson's 95% interval; rows of each bin below.

    Args:
        bins: `edges` (B + 1), `count`, `confidence` (mean predicted) and `outcome` (share that came true), B each; `of` tells
            whether the probability is of the positive class or of the class with the highest one.

    Raises:
        BadInput: No row fell into any bin.
    """
    occupied = [b for b, n in enumerate(bins["count"]) if n]
    if not occupied:
        raise BadInput("no row fell into any bin: a reliability diagram needs test rows", code="nothing-to-draw")
    predicted = [bins["confidence"][b] for b in occupied]
    came = [bins["outcome"][b] for b in occupied]
    rows = [bins["count"][b] for b in occupied]
    ends = [share_interval(p, n) for p, n in zip(came, rows, strict=True)]
    points = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "the model",
        "x": predicted,
        "y": came,
        "customdata": [[int(n), *e] for n, e in zip(rows, ends, strict=True)],
        "line": {"color": COLOURS[0], "width": 2},
        "marker": {"size": 7},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, e[1] - p) for e, p in zip(ends, came, strict=True)],
            "arrayminus": [max(0.0, p - e[0]) for e, p in zip(ends, came, strict=True)],
            "thickness": 1,
            "color": "#8aa9bf",
        },
        "hovertemplate": "predicted %{x:.3f}, observed %{y:.3f} (95% CI %{customdata[1]:.3f} to %{customdata[2]:.3f})"
        "<br>%{customdata[0]} rows<extra></extra>",
    }
    ideal = {
        "type": "scatter",
        "mode": "lines",
        "name": "perfect calibration",
        "x": [0, 1],
        "y": [0, 1],
        "line": {"color": QUIET, "dash": "dot", "width": 1},
        "hoverinfo": "skip",
    }
    edges = bins["edges"]
    bars = {
        "type": "bar",
        "x": [(a + b) / 2 for a, b in pairwise(edges)],
        "y": bins["count"],
        "width": [b - a for a, b in pairwise(edges)],
        "marker": {"color": "#c3c9cf", "line": {"color": "#ffffff", "width": 1}},
        "yaxis": "y2",
        "showlegend": False,
        "hovertemplate": "%{y} rows<extra></extra>",
    }
    top = bins.get("of") == "top class"
    x, y = (
        ("confidence in the top class", "share right")
        if top
        else ("predicted risk of the event", "share with the event")
    )
    shape = layout("Reliability", note="predicted probability against observed frequency", x=x, y=y, height=420)
    shape["xaxis"] |= {"range": [0, 1], "anchor": "y2"}
    shape["yaxis"] |= {"range": [-0.03, 1.03], "domain": [0.27, 1]}
    shape["yaxis2"] = {"title": {"text": "rows"}, "domain": [0, 0.18], "nticks": 3, "rangemode": "tozero"}
    shape["legend"] = {"y": -0.18}
    return Figure([ideal, points, bars], shape)


def decision_curve(curve: Mapping[str, Sequence[float | None]]) -> Figure:
    """Draw the net benefit of acting on the model at each threshold, against treating everyone and nobody.

    Args:
        curve: The summary's `decision_curve`: `thresholds`, `model`, `treat_all`.
    """
    thresholds = curve["thresholds"]
    everyone = [v if v is not None and v >= _FLOOR else None for v in curve["treat_all"]]
    lines = (
        ("the model", curve["model"], COLOURS[0], "solid", 3),
        ("treat everyone", everyone, COLOURS[1], "dash", 2),
        ("treat nobody", [0.0] * len(thresholds), INK, "dot", 1),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": thresholds,
            "y": y,
            "line": {"color": colour, "dash": dash, "width": width},
            "hovertemplate": "at %{x:.2f}: %{y:.3f}<extra>%{fullData.name}</extra>",
        }
        for name, y, colour, dash, width in lines
    ]
    note = "true positives less weighted false alarms, per patient"
    return Figure(
        traces,
        layout(
            "Decision curve", note=note, x="threshold probability", y="net benefit", height=420, legend={"y": -0.18}
        ),
    )
