"""Heat maps over rounds: how sharp they are, and how alike those of local and common models, and of one round and the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.explain.mapped import COMMON, LOCAL, REPORT, TITLES
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, layout

_SHARP = {(LOCAL, "concentration"): ("own models", "dash"), (COMMON, "concentration"): ("common model", "solid")}
_ALIKE = {
    ("alike", "ssim"): ("own and common", "solid"),
    ("since", "local_ssim"): ("own and its last", "dash"),
    ("since", "common_ssim"): ("common and its last", "dot"),
}


def maps_sharp(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Concentration of heat, means over sites: of the models that sites trained, and of the common one."""
    note = "mean over sites; 0 spread evenly, 1 on one pixel"
    return _drawn(rounds, _SHARP, "How sharply models look", note, "concentration", {"rangemode": "tozero"})


def maps_alike(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """SSIM of maps: a site's own model with the common one, and either with itself the last time."""
    note = "mean over sites; 1 is the same map"
    return _drawn(rounds, _ALIKE, "How alike heat maps are", note, "SSIM", {"range": [None, 1.02]})


def _drawn(
    rounds: Sequence[Mapping[str, Any]],
    wanted: Mapping[tuple[str, str], tuple[str, str]],
    title: str,
    note: str,
    y: str,
    axis: Mapping[str, Any],
) -> Figure:
    told = {r["round"]: r[REPORT]["means"] for r in rounds if r.get(REPORT)}
    if not told:
        raise BadInput("no round of this run has heat maps: set explain.maps and run it again")
    lines = []
    for name, colour in zip(next(iter(told.values())), COLOURS, strict=False):
        for (block, key), (words, dash) in wanted.items():
            lines.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{TITLES[name]}, {words}",
                    "x": list(told),
                    "y": [means[name][block][key] for means in told.values()],
                    "line": {"color": colour, "dash": dash, "width": 2},
                    "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
                }
            )
    drawn = [line for line in lines if any(v is not None for v in line["y"])]
    return Figure(drawn, layout(title, note=note, x="round", y=y, height=380, yaxis=dict(axis)))
