"""Gaps between groups of patients: one panel a figure, each group against the largest of its column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.report.fairness import LABELS
from grandrounds.report.figure import Figure, Layout, Trace
from grandrounds.report.style import COLOURS, QUIET, category, labels, layout

_ORDER = ("sensitivity", "ppv", "calibration", "auroc", "mean_error")
_CLEAR, _ALONE, _NONE = "clear after Holm's correction", "excludes zero alone", "includes zero"
_MARKS = {_CLEAR: (COLOURS[1], "square"), _ALONE: (COLOURS[4], "square-open"), _NONE: (COLOURS[0], "circle")}
_TITLES = {"calibration": "observed minus<br>expected"}
MOST_GROUPS = 40
"""Groups in the figure; of more, those with the clearest gaps are shown."""


def group_gaps(fairness: Mapping[str, Any]) -> Figure | None:
    """Draw the gaps of all groups with 95% intervals, a panel for each figure.

    Args:
        fairness: `fairness` of a summary.

    Returns:
        The figure; None where no groups were compared.
    """
    gaps: Sequence[Mapping[str, Any]] = fairness.get("gaps") or ()
    if not gaps:
        return None
    clearest = sorted({(g["column"], g["group"]) for g in gaps}, key=lambda k: min(g["p"] for g in gaps if _key(g) == k))
    shown = [k for k in dict.fromkeys(_key(g) for g in gaps) if k in clearest[:MOST_GROUPS]]
    names = dict(zip(shown, labels([f"{column}: {group}" for column, group in shown], width=30), strict=True))
    metrics = [m for m in _ORDER if any(g["metric"] == m for g in gaps)]
    traces: list[Trace] = []
    axes: Layout = {}
    seen: set[str] = set()
    for k, metric in enumerate(metrics):
        place = "" if k == 0 else str(k + 1)
        for kind in _MARKS:
            points = [g for g in gaps if g["metric"] == metric and _kind(g) == kind and _key(g) in names]
            if points:
                traces.append(_points(points, [names[_key(g)] for g in points], kind, f"x{place}", shown=kind not in seen))
                seen.add(kind)
        width = 1 / len(metrics)
        title = {"text": _TITLES.get(metric, LABELS[metric])}
        axes[f"xaxis{place}"] = {"title": title, "domain": [k * width + (0.02 if k else 0), (k + 1) * width]}
    lines = [
        {"type": "line", "xref": f"x{'' if k == 0 else k + 1}", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": QUIET, "dash": "dot", "width": 1.5}}
        for k in range(len(metrics))
    ]  # fmt: skip
    note = f"95% intervals; {fairness['comparisons']} comparisons, each group less the largest of its column"
    if len(shown) < len(clearest):
        note += f"; the {len(shown)} clearest of {len(clearest)} groups"
    return Figure(
        traces,
        layout(
            "Gaps between groups of patients",
            note=note,
            height=210 + 24 * max(4, len(shown)),
            **axes,
            yaxis=category(list(names.values()), autorange="reversed"),
            shapes=lines,
            legend={"y": 1.02, "yanchor": "bottom"},
            margin={"t": 96},
        ),
    )


def _key(gap: Mapping[str, Any]) -> tuple[str, str]:
    return str(gap["column"]), str(gap["group"])


def _kind(gap: Mapping[str, Any]) -> str:
    return _CLEAR if gap["flagged"] else _ALONE if gap["excludes_zero"] else _NONE


def _points(gaps: Sequence[Mapping[str, Any]], names: Sequence[str], kind: str, axis: str, *, shown: bool) -> Trace:
    colour, symbol = _MARKS[kind]
    values = [g["difference"] for g in gaps]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "legendgroup": kind,
        "showlegend": shown,
        "x": values,
        "y": list(names),
        "xaxis": axis,
        "customdata": [[g["low"], g["high"], g["p_holm"]] for g in gaps],
        "marker": {"symbol": symbol, "color": colour, "size": 9},
        "error_x": {
            "type": "data", "symmetric": False, "color": colour, "thickness": 1.5,
            "array": [max(g["high"] - v, 0.0) for g, v in zip(gaps, values, strict=True)],
            "arrayminus": [max(v - g["low"], 0.0) for g, v in zip(gaps, values, strict=True)],
        },
        "hovertemplate": "%{y}: %{x:+.3f} (%{customdata[0]:+.3f} to %{customdata[1]:+.3f}), "
        "p after Holm %{customdata[2]:.3f}<extra></extra>",
    }  # fmt: skip
