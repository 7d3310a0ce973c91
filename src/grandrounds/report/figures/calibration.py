"""Calibration of predicted probabilities, and the net benefit of acting on them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.metrics.statistics import share_interval
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, INK, QUIET, layout

_FLOOR = -0.05
"""Net benefit under which treating everyone leaves the chart."""


def reliability(bins: Mapping[str, Any]) -> Figure:
    """Said probability against what happened, bin by bin, with Wilson's 95% interval; rows of each bin below.

    `bins`: `edges` (B + 1), `count`, `confidence` (mean said) and `outcome` (share that came true), B each; `of` says
    whether the probability is of the positive class or of the class with the highest one.
    """
    held = [b for b, n in enumerate(bins["count"]) if n]
    if not held:
        raise BadInput("no row fell into any bin: a reliability diagram needs test rows", code="nothing-to-draw")
    said = [bins["confidence"][b] for b in held]
    came = [bins["outcome"][b] for b in held]
    rows = [bins["count"][b] for b in held]
    ends = [share_interval(p, n) for p, n in zip(came, rows, strict=True)]
    points = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "the model",
        "x": said,
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
        "hovertemplate": "said %{x:.3f}, came true %{y:.3f} (95% CI %{customdata[1]:.3f} to %{customdata[2]:.3f})"
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
    shape = layout("Reliability", note="do probabilities mean what they say?", x=x, y=y, height=420)
    shape["xaxis"] |= {"range": [0, 1], "anchor": "y2"}
    shape["yaxis"] |= {"range": [-0.03, 1.03], "domain": [0.27, 1]}
    shape["yaxis2"] = {"title": {"text": "rows"}, "domain": [0, 0.18], "nticks": 3, "rangemode": "tozero"}
    shape["legend"] = {"y": -0.18}
    return Figure([ideal, points, bars], shape)


def decision_curve(curve: Mapping[str, Any]) -> Figure:
    """Net benefit of acting on the model at each threshold, against treating everyone and nobody."""
    at = curve["thresholds"]
    everyone = [v if v is not None and v >= _FLOOR else None for v in curve["treat_all"]]
    lines = (
        ("the model", curve["model"], COLOURS[0], "solid", 3),
        ("treat everyone", everyone, COLOURS[1], "dash", 2),
        ("treat nobody", [0.0] * len(at), INK, "dot", 1),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": at,
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
