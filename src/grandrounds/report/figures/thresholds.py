"""Curves of the threshold explorer: shares of decisions and net benefit as the threshold moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grandrounds.metrics.confusion import Decisions, Estimate
from grandrounds.metrics.score_counts import ScoreCounts
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, INK, QUIET, layout, safe

_FLOOR = -0.05
"""Net benefit under which treating everyone leaves the chart."""


def threshold_curves(counts: ScoreCounts, threshold: float, *, name: str = "all hospitals") -> Figure | None:
    """Draw sensitivity, specificity, PPV and alerts against the threshold, with net benefit below.

    Args:
        counts: Patients by predicted risk.
        threshold: The run's threshold.
        name: Whose patients they are.

    Returns:
        The figure; None where the counts have no edge between 0 and 1.
    """
    found = [counts.decide(k) for k in range(1, len(counts.edges) - 1)]
    if not found:
        return None
    shares: tuple[tuple[str, Callable[[Decisions], Estimate | None], str, str], ...] = (
        ("sensitivity", lambda d: d.sensitivity, COLOURS[0], "solid"),
        ("specificity", lambda d: d.specificity, COLOURS[2], "solid"),
        ("PPV", lambda d: d.ppv, COLOURS[1], "dash"),
        ("alerts (share of patients)", _alert_share, COLOURS[4], "dot"),
    )
    traces = [_curve(label, [read(d) for d in found], found, colour, dash) for label, read, colour, dash in shares]
    benefit = [d.net_benefit for d in found]
    traces.append({**_curve("net benefit", benefit, found, COLOURS[3], "solid"), "yaxis": "y2"})
    everyone = [_treat_all(d) for d in found]
    for label, y, colour, dash in (
        ("treat everyone", [v if v is not None and v >= _FLOOR else None for v in everyone], COLOURS[5], "dash"),
        ("treat nobody", [0.0] * len(found), INK, "dot"),
    ):
        traces.append(_line(label, [d.threshold for d in found], y, colour, dash) | {"yaxis": "y2"})
    mark = {"color": QUIET, "dash": "dash", "width": 1.5}
    shape = layout(
        f"Decisions as the threshold moves: {safe(name)}",
        note=f"{counts.rows:,} test patients; the dashed line is the run's threshold",
        x="threshold on the predicted risk",
        y="share",
        height=560,
        legend={"y": -0.12},
        shapes=[
            {
                "type": "line",
                "xref": "x",
                "x0": threshold,
                "x1": threshold,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": mark,
            }
        ],
    )
    shape["xaxis"] |= {"range": [0, 1], "tickformat": ".0%", "anchor": "y2"}
    shape["yaxis"] |= {"range": [-0.03, 1.03], "tickformat": ".0%", "domain": [0.4, 1]}
    shape["yaxis2"] = {"title": {"text": "net benefit"}, "domain": [0, 0.32], "nticks": 4}
    return Figure(traces, shape)


def _alert_share(decisions: Decisions) -> Estimate | None:
    found = decisions.alerts_per_100
    return None if found is None else Estimate(found.value / 100, (found.low or 0.0) / 100, (found.high or 0.0) / 100)


def _treat_all(decisions: Decisions) -> float | None:
    odds = decisions.odds
    return None if odds is None or not decisions.rows else (decisions.events - odds * decisions.others) / decisions.rows


def _curve(label: str, values: Sequence[Estimate | None], found: Sequence[Decisions], colour: str, dash: str) -> Trace:
    """Draw a curve with intervals: bars where the points are few, in the hover text where they are many."""
    few = len(found) <= 12
    ends = [(None, None) if e is None else (e.low, e.high) for e in values]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if e is None or e.high is None else e.high - e.value for e in values],
        "arrayminus": [0.0 if e is None or e.low is None else e.value - e.low for e in values],
        "thickness": 1,
        "color": colour,
    }
    return {
        **_line(label, [d.threshold for d in found], [None if e is None else e.value for e in values], colour, dash),
        "mode": "lines+markers" if few else "lines",
        "customdata": [list(pair) for pair in ends],
        **({"error_y": bars} if few else {}),
        "hovertemplate": "at %{x:.1%}: %{y:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra>%{fullData.name}</extra>",
    }


def _line(label: str, x: Sequence[float], y: Sequence[float | None], colour: str, dash: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertemplate": "at %{x:.1%}: %{y:.3f}<extra>%{fullData.name}</extra>",
    }
