"""Forest plot of features that count differently at hospitals than in the common model."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.report.differences import SiteDifferences, effect_unit, feature_name
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, QUIET, category, labels, layout

MOST = 30
"""Differences that are drawn, at most."""


def differences_forest(sites: Sequence[SiteDifferences]) -> Figure | None:
    """Draw the differences of hospitals from the common model with 95% intervals, hospital by hospital.

    Args:
        sites: Hospitals that were tested.

    Returns:
        The figure; None where no feature differs.
    """
    found = [(site, d) for site in sites for d in site.found]
    if not found:
        return None
    shown = found[:MOST]
    names = labels(
        [f"{site.site}: {feature_name(d, site.labels)}, {effect_unit(d, site)}" for site, d in shown], width=64
    )
    points: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [d.difference for _, d in shown],
        "y": names,
        "customdata": [[d.low, d.high, d.p] for _, d in shown],
        "marker": {"symbol": "square", "color": COLOURS[0], "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [d.high - d.difference for _, d in shown],
            "arrayminus": [d.difference - d.low for _, d in shown],
            "color": QUIET,
            "thickness": 1.5,
        },
        "hovertemplate": (
            "%{y}: %{x:+.2f} (%{customdata[0]:+.2f} to %{customdata[1]:+.2f}), p = %{customdata[2]:.3f}<extra></extra>"
        ),
        "showlegend": False,
    }
    line = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    rest = f"; {len(found) - MOST} more are not shown" if len(found) > MOST else ""
    return Figure(
        [points],
        layout(
            "Features that count differently at a hospital",
            note=f"difference from the common model with 95% intervals{rest}",
            x="difference of the effect",
            height=170 + 26 * max(3, len(shown)),
            yaxis=category(names, autorange="reversed"),
            shapes=[{**line, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}],
        ),
    )
