"""One patient's reasons beside those of other sites: by each site's own model, or by what the run recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, QUIET, SIGNED, category, labels, layout, safe


def reasons_by_model(
    columns: Sequence[str], models: Sequence[str], contributions: Sequence[Sequence[float]], *, unit: str
) -> Figure:
    """What each model (rows) says each column (columns) adds to one patient's score."""
    across, down = labels(columns, width=22), labels(models, width=26)
    far = max((abs(v) for row in contributions for v in row), default=0.0) or 1.0
    trace = {
        "type": "heatmap",
        "x": across,
        "y": down,
        "z": [list(row) for row in contributions],
        "text": [[f"{v:+.2f}" for v in row] for row in contributions],
        "texttemplate": "%{text}",
        "textfont": {"color": "#1b1f24", "size": 11},
        "colorscale": SIGNED,
        "zmin": -far,
        "zmax": far,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}, %{x}: %{z:+.3f}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    return Figure(
        [trace],
        layout(
            "The same patient by each site's own model",
            note="what each column adds: orange raises, blue lowers",
            height=190 + 30 * max(3, len(models)),
            xaxis=category(across, showgrid=False, tickangle=-30),
            yaxis=category(down, autorange="reversed", showgrid=False),
        ),
    )


def weight_elsewhere(
    columns: Sequence[str],
    patient: Sequence[float],
    here: Sequence[float] | None,
    others: Mapping[str, Sequence[float]],
    *,
    site: str,
    title: str,
    note: str,
) -> Figure:
    """The share that columns have of one patient's reasons, of those at this site, and of those at each other site."""
    names = labels(columns, width=30)
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "other sites",
        "x": [v for shares in others.values() for v in shares],
        "y": [name for _ in others for name in names],
        "customdata": [safe(other) for other in others for _ in names],
        "marker": {"color": QUIET, "size": 7, "opacity": 0.45},
        "hovertemplate": "%{customdata}, %{y}: %{x:.1%}<extra></extra>",
    }
    own = {
        "type": "scatter",
        "mode": "markers",
        "name": f"at {safe(site)}",
        "x": list(here or ()),
        "y": names if here is not None else [],
        "marker": {"color": COLOURS[0], "size": 13, "symbol": "line-ns-open", "line": {"width": 3}},
        "hovertemplate": "%{y}: %{x:.1%}<extra>this site</extra>",
    }
    patients = {
        "type": "scatter",
        "mode": "markers",
        "name": "for this patient",
        "x": list(patient),
        "y": names,
        "marker": {"color": COLOURS[1], "size": 10, "symbol": "diamond"},
        "hovertemplate": "%{y}: %{x:.1%}<extra>this patient</extra>",
    }
    return Figure(
        [dots, *([own] if here is not None else []), patients],
        layout(
            title,
            note=note,
            x="share of the reasons",
            height=190 + 28 * max(3, len(names)),
            xaxis={"tickformat": ".0%", "rangemode": "tozero"},
            yaxis=category(names, autorange="reversed"),
            legend={"y": -0.2},
        ),
    )
