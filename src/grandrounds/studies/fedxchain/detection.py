"""Trust as a detector of attackers: the area under its ROC curve in a run, and the curve over all runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.report.figure import Figure
from grandrounds.report.figures.trade import colour_of
from grandrounds.report.paint import QUIET, layout, safe
from grandrounds.studies.fedxchain.measures import means, sides
from grandrounds.studies.results import Results
from grandrounds.studies.study import Cell, Measure

if TYPE_CHECKING:
    from grandrounds.runs import Run


def area(bad: Sequence[float], honest: Sequence[float]) -> float:
    """The chance that an attacker is trusted less than an honest site, ties by half (Hanley & McNeil 1982); NaN without both."""
    if not len(bad) or not len(honest):
        return nan
    b, h = np.asarray(bad)[:, None], np.asarray(honest)[None]
    return float(((b < h) + 0.5 * (b == h)).mean())


def trust_of_sites(run: Run) -> dict[str, Any]:
    """The last round's trust of attackers and of honest sites."""
    bad, honest = sides(run)
    return {"bad": bad, "honest": honest}


DETECTED = Measure("detected", "ROC area of trust", lambda run: area(*sides(run)), lower=False, digits=2)


def _by_contribution(run: Run) -> float:
    """The same by what sites contributed, as the mean over rounds."""
    bad, mean = run.summary["attacks"].get("sites", {}), means(run, "contribution")
    return area([c for s, c in mean.items() if s in bad], [c for s, c in mean.items() if s not in bad])


CONTRIBUTED = Measure("contributed", "ROC area of contribution", _by_contribution, lower=False, digits=2)


def curve(bad: Sequence[float], honest: Sequence[float]) -> tuple[list[float], list[float]]:
    """Shares of honest sites and of attackers that are trusted less than a threshold, for every threshold."""
    cuts = [-np.inf, *sorted({*bad, *honest}), np.inf]
    return [float(np.mean(np.asarray(honest) < c)) for c in cuts], [float(np.mean(np.asarray(bad) < c)) for c in cuts]


def roc_curves(results: Results) -> list[tuple[str, Sequence[Figure]]]:
    """At each point one curve an arm, of all sites of all seeds."""
    out: list[tuple[str, Sequence[Figure]]] = []
    for point in results.points:
        drawn = [(arm, *_pooled(results, point, arm)) for arm in results.arms_at(point)]
        held = [(arm, bad, honest) for arm, bad, honest in drawn if bad and honest]
        if held:
            out.append((f"Trust as a detector: {point}", [_figure(held, point)]))
    return out


def _pooled(results: Results, point: str, arm: str) -> tuple[list[float], list[float]]:
    readings = [results.readings.get(Cell(point, arm, i)) for i in range(results.seeds)]
    kept = [r.kept for r in readings if r is not None]
    return [t for k in kept for t in k.get("bad", [])], [t for k in kept for t in k.get("honest", [])]


def _figure(held: Sequence[tuple[str, list[float], list[float]]], point: str) -> Figure:
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
        line = {"color": colour_of(k), "shape": "hv"}
        traces.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": line})
    return Figure(
        traces,
        layout(
            "Trust as a detector",
            note=f"{safe(point)}: all sites of all seeds; the area beside each name",
            x="honest sites below the threshold",
            y="attackers below the threshold",
            height=420,
            xaxis={"range": [-0.01, 1.01]},
            yaxis={"range": [-0.01, 1.01]},
        ),
    )
