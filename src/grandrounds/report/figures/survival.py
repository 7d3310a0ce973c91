"""Figures of survival: Kaplan-Meier curves with numbers at risk, calibration at a horizon, Brier score by horizon."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, INK, QUIET, SITE_COLOURS, category, labels, layout, safe

if TYPE_CHECKING:  # statistics import scipy, and pages are drawn without it
    from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, SurvivalCurve
    from grandrounds.capabilities.statistics.log_rank import LogRank
    from grandrounds.capabilities.statistics.survival_scores import SurvivalScores

_MOST_TICKS = 8
_ROW = 20
"""Height of a line of the table of numbers at risk, in pixels."""
_CURVES = 340


def survival_curves(result: KaplanMeier, *, unit: str = "") -> Figure:
    """Draw Kaplan-Meier curves with 95% intervals, and the table of numbers at risk below.

    Curves by day are steps. Curves on intervals are points at the ends of intervals, joined by straight lines.

    Args:
        result: Curves of groups; the curve of all rows is drawn where there are no groups.
        unit: Unit of time for the axis, such as "days".

    Raises:
        BadInput: No group has enough events for a curve.
    """
    curves = [c for c in (result.groups or (result.overall,)) if c.times]
    if not curves:
        raise BadInput("no group has enough events for a survival curve", code="nothing-to-draw")
    names = ["all patients" if not result.groups else c.group for c in curves]
    texts = labels(names)
    colours = dict(zip(names, SITE_COLOURS * (1 + len(names) // len(SITE_COLOURS)), strict=False))
    traces: list[Trace] = []
    for name, curve in zip(names, curves, strict=True):
        traces += _curve(curve, safe(name), colours[name])
    ticks = choose_ticks(max(c.times[-1] for c in curves))
    for name, text, curve in zip(names, texts, curves, strict=True):
        traces.append(_at_risk(curve, text, ticks, colours[name]))
    rows, height = len(curves) * _ROW, _CURVES + len(curves) * _ROW + 130
    below = rows / (height - 130)
    note = "shaded: pointwise 95% intervals"
    if curves[0].grid == "bins":
        note += f"; points at the ends of intervals with at least {curves[0].least} events"
    if result.log_rank is not None:
        note += f"; {describe_log_rank(result.log_rank)}"
    shape = layout(
        "Survival", note=note, x=f"time ({safe(unit)})" if unit else "time", y="share without the event", height=height
    )
    shape["xaxis"] |= {
        "range": [-0.02 * ticks[-1], 1.03 * ticks[-1]],
        "tickvals": ticks,
        "anchor": "y2",
        "domain": [0, 1],
    }
    shape["yaxis"] |= {"range": [-0.02, 1.02], "domain": [min(below + 0.12, 0.8), 1]}
    shape["yaxis2"] = category(texts[::-1], domain=[0, min(below, 0.66)], showgrid=False, title={"text": "at risk"})
    shape["yaxis2"]["range"] = [-0.6, len(texts) - 0.4]
    shape["legend"] = {"y": -0.16, "traceorder": "normal"}
    return Figure(traces, shape)


def survival_calibration(scores: SurvivalScores, *, unit: str = "") -> Figure:
    """Draw observed against predicted risk at a horizon, by group of predicted risk, with 95% intervals.

    Args:
        scores: The scores of a survival model.
        unit: Unit of time, such as "days".

    Raises:
        BadInput: The scores have no calibration.
    """
    groups = scores.calibration
    if not groups or scores.horizon is None:
        raise BadInput(
            "no calibration at a horizon: it needs predicted risks and at least five events in a group",
            code="nothing-to-draw",
        )
    top = min(1.0, 1.1 * max(max(g.high, g.predicted) for g in groups))
    points = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "the model",
        "x": [g.predicted for g in groups],
        "y": [g.observed for g in groups],
        "customdata": [[g.rows, g.low, g.high] for g in groups],
        "line": {"color": COLOURS[0], "width": 2},
        "marker": {"size": 7},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, g.high - g.observed) for g in groups],
            "arrayminus": [max(0.0, g.observed - g.low) for g in groups],
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
        "x": [0, top],
        "y": [0, top],
        "line": {"color": QUIET, "dash": "dot", "width": 1},
        "hoverinfo": "skip",
    }
    when = f"{scores.horizon:g} {safe(unit)}".strip()
    note = f"{len(groups)} groups of predicted risk; observed risk by Kaplan-Meier"
    shape = layout(
        f"Calibration at {when}",
        note=note,
        x=f"predicted risk by {when}",
        y="observed risk",
        height=420,
        legend={"y": -0.18},
    )
    shape["xaxis"] |= {"range": [0, top]}
    shape["yaxis"] |= {"range": [0, top]}
    return Figure([ideal, points], shape)


def brier_over_time(scores: SurvivalScores, *, unit: str = "") -> Figure:
    """Draw the Brier score of the model by horizon, and that of one survival curve for all patients.

    Args:
        scores: The scores of a survival model.
        unit: Unit of time, such as "days".

    Raises:
        BadInput: The scores have no Brier score.
    """
    brier = scores.brier
    if brier is None:
        raise BadInput("no Brier score: it needs predicted risks of the event", code="nothing-to-draw")
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": list(brier.horizons),
            "y": list(values),
            "line": {"color": colour, "dash": dash, "width": 2},
            "hovertemplate": "at %{x:.4g}: %{y:.4f}<extra>%{fullData.name}</extra>",
        }
        for name, values, colour, dash in (
            ("the model", brier.model, COLOURS[0], "solid"),
            ("one curve for all patients", brier.null, INK, "dot"),
        )
    ]
    note = "lower is better"
    if brier.integrated is not None and brier.integrated_null is not None:
        note += f"; integrated {brier.integrated:.4f}, without the model {brier.integrated_null:.4f}"
    x = f"time ({safe(unit)})" if unit else "time"
    return Figure(lines, layout("Brier score", note=note, x=x, y="Brier score", height=360))


def describe_log_rank(test: LogRank) -> str:
    """Describe a log-rank test in one clause, for notes and tables."""
    p = "p < 0.0001" if test.p < 1e-4 else f"p = {test.p:.4f}"
    return f"log-rank test stratified by site: chi-squared {test.statistic:.2f} with {test.degrees} df, {p}"


def choose_ticks(end: float, most: int = _MOST_TICKS) -> list[float]:
    """Choose round times from 0 to an end, at most so many."""
    raw = end / (most - 1)
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [round(step * k, 10) for k in range(int(end / step + 1e-9) + 1)]


def _curve(curve: SurvivalCurve, name: str, colour: str) -> list[Trace]:
    """Draw a curve, and its interval as a shaded band."""
    is_step = curve.grid == "days"
    x = [0.0, *curve.times]
    low, high = [1.0, *curve.low], [1.0, *curve.high]
    edge = {"color": colour, "width": 0, "shape": "hv" if is_step else "linear"}
    band = {"type": "scatter", "mode": "lines", "x": x, "line": edge, "hoverinfo": "skip", "showlegend": False}
    deaths: Sequence[int] = [0, *curve.died]
    return [
        {**band, "y": low, "name": f"{name}, lower end"},
        {**band, "y": high, "name": f"{name}, upper end", "fill": "tonexty", "fillcolor": _faint(colour)},
        {
            "type": "scatter",
            "mode": "lines" if is_step else "lines+markers",
            "name": name,
            "x": x,
            "y": [1.0, *curve.survival],
            "customdata": [list(v) for v in zip(low, high, deaths, strict=True)],
            "line": {"color": colour, "width": 2, "shape": "hv" if is_step else "linear"},
            "marker": {"size": 4},
            "hovertemplate": "%{x:.4g}: %{y:.3f} (95% CI %{customdata[0]:.3f} to %{customdata[1]:.3f}), "
            "%{customdata[2]} events<extra>%{fullData.name}</extra>",
        },
    ]


def _at_risk(curve: SurvivalCurve, name: str, ticks: Sequence[float], colour: str) -> Trace:
    """Write the numbers at risk of one group below the curves; nothing after the end of its curve."""
    counts = [curve.at_risk_at(t) if t <= curve.times[-1] else None for t in ticks]
    texts = ["" if n is None else f"<{curve.least}" if 0 < n < curve.least else f"{n:,}" for n in counts]
    return {
        "type": "scatter",
        "mode": "text",
        "name": f"{name}, at risk",
        "x": list(ticks),
        "y": [name] * len(ticks),
        "text": [t.replace("<", "&lt;") for t in texts],
        "textfont": {"color": colour, "size": 11},
        "yaxis": "y2",
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
