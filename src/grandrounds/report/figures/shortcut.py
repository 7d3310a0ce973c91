"""How much of the reasons falls on a shortcut that was planted in the pictures."""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.figures.blocks import COLOUR, KINDS, MEANING
from grandrounds.report.paint import MANY, QUIET, category, labels, layout


def spurious_masses(masses: Mapping[str, Mapping[str, float]], chance: float) -> Figure:
    """The share of each site's sketch on the tile with its patch (SSE-AGG eq. 25), one bar a question, and chance.

    `masses`: kind ("training", "deployed") -> site -> share. Of many sites it shows those with the largest.
    """
    held = {kind: masses[kind] for kind in KINDS if masses.get(kind)}
    if not held:
        raise BadInput("no sketch was read at the tile with a patch: set data.shortcut.p and explain.sketch, run again")
    every = sorted({site for own in held.values() for site in own})
    top = sorted(every, key=lambda s: -max(own.get(s, 0.0) for own in held.values()))[:MANY]
    sites = [s for s in every if s in set(top)]
    names = labels(sites)
    bars = [
        {
            "type": "bar",
            "name": MEANING[kind],
            "x": names,
            "y": [own.get(s) for s in sites],
            "marker": {"color": COLOUR[kind]},
            "hovertemplate": "%{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        }
        for kind, own in held.items()
    ]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": chance, "y1": chance}
    said = f"dotted: by chance, {chance:.4f}"
    return Figure(
        bars,
        layout(
            "Spurious mass: reasons on the tile with the patch",
            note=said + (f"; the {len(sites)} largest of {len(every)} sites" if len(every) > len(sites) else ""),
            y="share of the sketch",
            height=380,
            xaxis=category(names),
            yaxis={"rangemode": "tozero"},
            shapes=[{**line, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}],
        ),
    )
