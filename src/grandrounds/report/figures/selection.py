"""Scores by which sites are selected, round by round, with the sites that were not asked for their models (XFed)."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord
from grandrounds.methods.xfed.summary import left_out_sites
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.figures.weighting import spread_positions
from grandrounds.report.style import INK, MAX_SITES, layout, line_dashes, safe, site_colours


def selection_over_rounds(rounds: Sequence[RoundRecord], keep: float) -> Figure:
    """Draw each site's fused score, with a cross where it was not asked for its model; of many sites, those left out most often.

    Args:
        rounds: The record of each round.
        keep: The share of the sites that send their model (method.xfed.keep).

    Raises:
        BadInput: No round selects sites by their scores.
    """
    selecting = [r.decision for r in rounds if "place" in r.decision.signals]
    if not selecting:
        raise BadInput("no round of this run selects sites by their scores: use method 'xfed'", code="nothing-to-draw")
    decisions = [selecting[i] for i in spread_positions(len(selecting))]
    left_out = {d.round: left_out_sites(d, keep) for d in selecting}
    every = sorted({s for d in selecting for s in d.signals["score"]})
    times = {s: sum(s in names for names in left_out.values()) for s in every}
    shown = sorted(sorted(every, key=lambda s: (-times[s], s))[:MAX_SITES])
    colours, dashes = site_colours(rounds), line_dashes(shown, site_colours(rounds))
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": safe(site),
            "x": [d.round for d in decisions],
            "y": [d.signals["score"].get(site) for d in decisions],
            "line": {"color": colours[site], "width": 1.5, "dash": dashes[site]},
            "marker": {"size": 4},
            "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        }
        for site in shown
    ]
    points = [(d.round, d.signals["score"][s], s) for d in decisions for s in left_out[d.round] if s in shown]
    crosses: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "not asked for its model",
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "text": [safe(site) for _, _, site in points],
        "marker": {"symbol": "x", "size": 10, "color": INK},
        "hovertemplate": "round %{x}: %{text} was not asked for its model, score %{y:.3f}<extra></extra>",
    }
    note = f"{len(shown)} of {len(every)} sites, those left out most often" if len(shown) < len(every) else ""
    return Figure([*lines, crosses], layout("Selection of sites", note=note, x="round", y="score (0 to 1)", height=400))
