"""Evidence of a watch over the patients that it read, with the threshold and the alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, INK, QUIET, layout, safe

HIGHEST = 6.0
"""Evidence up to which the figure reaches: after an alarm it grows without bound."""
MOST = 6
"""Checks that the figure shows: those that raised an alarm, then those that came closest to one."""


def evidence_over_patients(
    timeline: Sequence[Mapping[str, Any]], alarms: Sequence[Mapping[str, Any]], *, site: str, checks: int
) -> Figure:
    """Draw the evidence of the checks that came closest to an alarm.

    Args:
        timeline: Points of watch.json: `patients` so far, and the `evidence` of each check as log over its threshold.
        alarms: Alarms with `id`, `check` and `patient`.
        site: The site's name.
        checks: Number of checks of the watch.

    Returns:
        The figure.

    Raises:
        BadInput: No patients were read yet.
    """
    if not timeline:
        raise BadInput("the watch has read no patients yet: there is nothing to draw", code="nothing-to-draw")
    shown = _closest(timeline, alarms)
    x = [int(point["patients"]) for point in timeline]
    lines = [_line(x, [point["evidence"].get(name) for point in timeline], name, k) for k, name in enumerate(shown)]
    last = max(x[-1], *(int(a["patient"]) for a in alarms), 1) if alarms else max(x[-1], 1)
    threshold: Trace = {
        "type": "scatter", "mode": "lines", "name": "threshold", "x": [0, last], "y": [0, 0],
        "line": {"color": INK, "width": 2, "dash": "dash"}, "hoverinfo": "name",
    }  # fmt: skip
    found = [*lines, threshold]
    if alarms:
        found.append(_marks(alarms))
    note = f"{len(shown)} of {checks} checks: those of the newest alarms, and the closest to one" if checks > len(shown) else ""
    shape = layout(
        f"Evidence of a change at {safe(site)}", note=note, x="patients read", y="log of evidence over threshold", height=400
    )
    shape["xaxis"]["rangemode"] = "tozero"
    values = [0.0, *(v for line in lines for v in line["y"] if v is not None)]
    shape["yaxis"]["range"] = [min(values) - 1, min(max(values), HIGHEST) + 1.5]
    return Figure(found, shape)


def _closest(timeline: Sequence[Mapping[str, Any]], alarms: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the checks to show: those with alarms, the newest first, then by their largest evidence."""
    largest: dict[str, float] = {}
    for point in timeline:
        for name, value in point["evidence"].items():
            if value is not None:
                largest[name] = max(value, largest.get(name, float("-inf")))
    raised = [str(a["check"]) for a in reversed(alarms) if a["check"] in largest]
    ranked = sorted(largest, key=lambda name: (-largest[name], name))
    return list(dict.fromkeys([*raised, *ranked]))[:MOST]


def _line(x: Sequence[int], y: Sequence[float | None], name: str, number: int) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 30 else "lines",
        "name": safe(name),
        "x": list(x),
        "y": list(y),
        "line": {"color": COLOURS[number % len(COLOURS)], "width": 2},
        "marker": {"size": 5},
        "hovertemplate": "%{x} patients: %{y:.2f}<extra>%{fullData.name}</extra>",
    }


def _marks(alarms: Sequence[Mapping[str, Any]]) -> Trace:
    """Mark each alarm on the threshold, with its id above it; alarms at one patient share a mark."""
    by_patient: dict[int, list[Mapping[str, Any]]] = {}
    for alarm in alarms:
        by_patient.setdefault(int(alarm["patient"]), []).append(alarm)
    texts = [", ".join(str(a["id"]) for a in group) for group in by_patient.values()]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "alarm",
        "x": list(by_patient),
        "y": [0] * len(by_patient),
        "text": [safe(text) for text in texts],
        "textposition": "top center",
        "textfont": {"color": INK},
        "marker": {"symbol": "triangle-down", "size": 13, "color": INK, "line": {"color": QUIET, "width": 1}},
        "customdata": [safe("; ".join(f"{a['id']}: {a['check']}" for a in group)) for group in by_patient.values()],
        "hovertemplate": "%{customdata}<br>at patient %{x}<extra>alarm</extra>",
    }
