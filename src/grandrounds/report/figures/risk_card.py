"""Risk cards: the printed risk of each total of points, with its interval and the patients behind it."""

from __future__ import annotations

from grandrounds.models.risk_card import show_risk
from grandrounds.report.figure import Figure
from grandrounds.report.risk_card import CardRecord, total_text
from grandrounds.report.style import COLOURS, category, layout, safe


def risk_by_total(record: CardRecord) -> Figure:
    """Draw the printed risk of each range of totals with its 95% interval, the share with the event, and patients below.

    Args:
        record: The card of a run.
    """
    totals = record.card.totals
    names = [total_text(t, record.card) for t in totals]
    risks = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "printed risk",
        "x": names,
        "y": [100 * t.risk for t in totals],
        "customdata": [[show_risk(t.risk), show_risk(t.low), show_risk(t.high)] for t in totals],
        "line": {"color": COLOURS[0], "width": 2},
        "marker": {"size": 9},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, 100 * (t.high - t.risk)) for t in totals],
            "arrayminus": [max(0.0, 100 * (t.risk - t.low)) for t in totals],
            "color": "#8aa9bf",
            "thickness": 1.5,
        },
        "hovertemplate": "total %{x}: %{customdata[0]} (95% CI %{customdata[1]} to %{customdata[2]})<extra></extra>",
    }
    seen = [t for t in totals if t.rows]
    observed = {
        "type": "scatter",
        "mode": "markers",
        "name": "share with the event in the fit",
        "x": [total_text(t, record.card) for t in seen],
        "y": [100 * t.events / t.rows for t in seen],
        "marker": {"symbol": "diamond-open", "size": 9, "color": COLOURS[1], "line": {"width": 2}},
        "hovertemplate": "total %{x}: %{y:.1f}% of the patients of the fit<extra></extra>",
    }
    patients = {
        "type": "bar",
        "name": "patients",
        "x": names,
        "y": [t.rows for t in totals],
        "yaxis": "y2",
        "marker": {"color": "#8aa9bf"},
        "showlegend": False,
        "hovertemplate": "total %{x}: %{y:,} patients<extra></extra>",
    }
    shown = layout(
        "Risk by total of points",
        note=f"95% intervals; below: patients of the fit{f'; {safe(record.outcome)}' if record.outcome else ''}",
        y="risk, %",
        height=400,
        xaxis=category(names, title={"text": "total of points"}),
    )
    shown["xaxis"] |= {"anchor": "y2"}
    highest = max([100 * t.high for t in totals] + [100 * t.events / t.rows for t in seen])
    shown["yaxis"] |= {"domain": [0.29, 1], "range": [-0.04 * highest, 1.05 * highest]}
    shown["yaxis2"] = {"title": {"text": "patients"}, "domain": [0, 0.2], "nticks": 3, "rangemode": "tozero"}
    shown["legend"] = {"y": -0.3}
    return Figure([risks, observed, patients], shown)
