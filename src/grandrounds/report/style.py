"""Style of all figures: a palette for colour-blind readers, one layout, escaped names.

Plotly reads `<b>`, `<a href>` and `&lt;` in any text as markup, so names from data are escaped
before they go into a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.core.errors import visible
from grandrounds.core.records import RoundRecord
from grandrounds.metrics import names
from grandrounds.report.figure import Layout

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette."""
MORE_COLOURS = ("#003377", "#994422", "#AAEEAA", "#663333", "#DDBB66", "#554466")
"""For the seventh series of a figure to the twelfth. Any two of the twelve, black and the grey of other sites lie at
least 16 apart in CIELAB, also for readers with protanopia, deuteranopia or tritanopia."""
ON_DARK = {"#003377": "#7da7f5", "#994422": "#e08a5e", "#663333": "#d68f8f", "#554466": "#b7a3d9", "#c3c9cf": "#6b747e"}
"""Colours of series on dark paper, where the dark ones would not be seen and the grey of other sites would glare."""
INK, QUIET, FAINT = "#1b1f24", "#57606a", "#e5e8eb"
AMOUNT = [[0, "#ffffff"], [0.5, "#6baed6"], [1, "#08306b"]]
"""Sequential scale for importances."""
DISTANCE = [[0, "#ffffff"], [0.5, "#f4a261"], [1, "#8c2d04"]]
"""Sequential scale for distances."""
SIGNED = [[0, "#2f8ecb"], [0.5, "#f7f7f7"], [1, "#e0690f"]]
"""Diverging scale for signed values; dark text is readable on all of it."""

MAX_SITES = 30
"""Largest number of sites in a figure; with more sites it shows the most important ones and says so."""

_AXIS = {
    "gridcolor": FAINT, "linecolor": "#b6bec6", "showline": True, "zeroline": False, "automargin": True,
    "tickfont": {"color": QUIET}, "title": {"font": {"color": QUIET, "size": 12}, "standoff": 8},
}  # fmt: skip
_TEMPLATE = {
    "layout": {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif", "size": 12, "color": INK},
        "colorway": list(COLOURS),
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "bordercolor": "#b6bec6", "font": {"color": INK}},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.22, "yanchor": "top", "font": {"size": 11}},
        "margin": {"l": 56, "r": 16, "t": 48, "b": 48},
    }
}  # fmt: skip

SITE_COLOURS = (*COLOURS, *MORE_COLOURS)
"""The colours of sites; black is that of all sites together."""


def site_colours(rounds: Sequence[RoundRecord]) -> dict[str, str]:
    """Assign a colour to each site, the same in every figure of these rounds.

    Up to twelve sites have one each, in order of their names. With more sites, the heaviest have one each and the others share
    them. Records of reproductions have no Decisions: their sites are those with scores.

    Args:
        rounds: The record of each round.

    Returns:
        Site -> colour.
    """
    weight: dict[str, float] = {}
    for record in rounds:
        decision = record.decision
        scores = (*record.sites.values(), record.local.get("train_accuracy", ()))
        names = (*decision.asked, *next(iter(scores)))
        for site in (*names, *decision.weights, *next(iter(decision.signals.values()), ())):
            weight.setdefault(site, 0.0)
        for site, share in decision.weights.items():
            weight[site] += share or 0.0
    order = sorted(weight) if len(weight) <= len(SITE_COLOURS) else sorted(weight, key=lambda s: (-weight[s], s))
    return {site: SITE_COLOURS[k % len(SITE_COLOURS)] for k, site in enumerate(order)}


def line_dashes(coloured: Sequence[str], colours: Mapping[str, str]) -> dict[str, str]:
    """Assign a dash to each site's line in one figure, so that sites that share a colour differ."""
    dashes, used, out = ("solid", "dash", "dot", "dashdot"), dict[str, int](), dict[str, str]()
    for site in coloured:
        colour = colours.get(site, "")
        out[site] = dashes[used.get(colour, 0) % len(dashes)]
        used[colour] = used.get(colour, 0) + 1
    return out


def safe(name: object) -> str:
    """Escape a name from data, so that Plotly shows it literally."""
    return escape(visible(str(name)), quote=False)


def labels(names: Sequence[object], *, width: int = 26) -> list[str]:
    """Escape names for an axis, cut to `width` characters where they stay distinct."""
    words = [str(n) for n in names]
    short = [w if len(w) <= width else f"{w[: width - 1]}…" for w in words]
    return [safe(w) for w in (short if len(set(short)) == len(set(words)) else words)]


def words(metric: str) -> str:
    """Return the long label of a metric, for pages."""
    long = {"auroc_low": "AUROC, lower end", "auroc_high": "AUROC, upper end", "brier": "Brier score"}
    long |= {"training_jaccard": "training Jaccard", "deployed_jaccard": "deployed Jaccard"}
    return long.get(metric, names.metric_label(metric))


def heading(title: str, note: str = "") -> Layout:
    """Build a figure's title, with a note in small print under it."""
    text = f"<b>{title}</b>" + (f"<br><span style='font-size:11px;color:{QUIET}'>{note}</span>" if note else "")
    return {"text": text, "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container",
            "yanchor": "top", "pad": {"t": 16 if note else 7, "l": 6}, "font": {"size": 14}}  # fmt: skip


def layout(title: str, *, note: str = "", x: str = "", y: str = "", height: int = 360, **more: Any) -> Layout:
    """Build the layout of a figure with one pair of axes.

    Args:
        title: The title.
        note: A note under it.
        x: The title of the x axis.
        y: The title of the y axis.
        height: The height in pixels.
        more: Plotly's own keys, merged into the layout.
    """
    out: Layout = {
        "template": _TEMPLATE,
        "title": heading(title, note),
        "height": height,
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
    }
    if note:
        out["margin"] = {"t": 64}
    for key, value in more.items():
        out[key] = {**out[key], **value} if isinstance(out.get(key), dict) and isinstance(value, dict) else value
    return out


def category(names: Sequence[str], **more: Any) -> Layout:
    """Build an axis of names in this order; names such as "7" stay names."""
    return {"type": "category", "categoryorder": "array", "categoryarray": list(names), **more}


def largest(matrix: Sequence[Sequence[float | None]]) -> float:
    """Return the end of a colour scale that begins at 0."""
    return max((v for row in matrix for v in row if v is not None), default=0.0) or 1.0
