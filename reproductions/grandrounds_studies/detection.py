"""Signals as detectors of sites that attack: the area under the ROC curve in a run, and the curve over all runs.

A signal is a number of every site that is low where the method thinks little of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.report.figure import Figure
from grandrounds.report.figures.comparison import arm_colour
from grandrounds.report.style import QUIET, layout, safe
from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def area(bad: Sequence[float], honest: Sequence[float]) -> float:
    """The chance that an attacker is below an honest site, ties by half (Hanley & McNeil 1982); NaN without both."""
    if not len(bad) or not len(honest):
        return nan
    b, h = np.asarray(bad)[:, None], np.asarray(honest)[None]
    return float(((b < h) + 0.5 * (b == h)).mean())


def sides(run: Run, signal: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """A signal by site as that of the sites that attack, and that of the honest ones."""
    bad = run.summary["attacks"].get("sites", {})
    return [v for s, v in signal.items() if s in bad], [v for s, v in signal.items() if s not in bad]


def curve(bad: Sequence[float], honest: Sequence[float]) -> tuple[list[float], list[float]]:
    """Shares of honest sites and of attackers that are below a threshold, for every threshold."""
    cuts = [-np.inf, *sorted({*bad, *honest}), np.inf]
    return [float(np.mean(np.asarray(honest) < c)) for c in cuts], [float(np.mean(np.asarray(bad) < c)) for c in cuts]


def roc_curves(results: Results, what: str) -> list[tuple[str, Sequence[Figure]]]:
    """At each point one curve an arm, of all sites of all seeds, whose runs keep the signal's `bad` and `honest` values."""
    out: list[tuple[str, Sequence[Figure]]] = []
    for point in results.points:
        drawn = [(arm, *_pooled(results, point, arm)) for arm in results.arms_at(point)]
        held = [(arm, bad, honest) for arm, bad, honest in drawn if bad and honest]
        if held:
            out.append((f"{what} as a detector: {point}", [_figure(held, what, point)]))
    return out


def _pooled(results: Results, point: str, arm: str) -> tuple[list[float], list[float]]:
    readings = [results.readings.get(Cell(point, arm, i)) for i in range(results.seeds)]
    kept = [r.kept for r in readings if r is not None]
    return [t for k in kept for t in k.get("bad", [])], [t for k in kept for t in k.get("honest", [])]


def _figure(held: Sequence[tuple[str, list[float], list[float]]], what: str, point: str) -> Figure:
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0, 1],
            "y": [0, 1],
            "line": {"color": QUIET, "dash": "dot", "width": 1},
            "showlegend": False,
            "hoverinfo": "skip",
        }
    ]
    for k, (arm, bad, honest) in enumerate(held):
        x, y = curve(bad, honest)
        name = f"{safe(arm)}: {area(bad, honest):.2f}"
        line = {"color": arm_colour(k), "shape": "hv"}
        traces.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": line})
    return Figure(
        traces,
        layout(
            f"{what} as a detector",
            note=f"{safe(point)}: all sites of all seeds; the area beside each name",
            x="honest sites below the threshold",
            y="attackers below the threshold",
            height=420,
            xaxis={"range": [-0.01, 1.01]},
            yaxis={"range": [-0.01, 1.01]},
        ),
    )
