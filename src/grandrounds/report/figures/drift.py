"""How far apart sites reason, over rounds and pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.figures.importance import COLOUR, KINDS, MEANING, MEASURE, blocks, farthest, needed
from grandrounds.report.paint import COLOURS, DISTANCE, MANY, QUIET, category, labels, largest, layout, safe

_STEPS = 60
"""Stops of a slider."""
_L1 = "L1 distance of sketches (0 to 2)"
_SHORT = {"training": "own models, same rows", "deployed": "one model, own patients"}


def drift_over_rounds(explanations: Mapping[str, Any]) -> Figure:
    """Mean distance between sites' sketches, and what sampling alone would give; apart for each question asked."""
    lines: list[dict[str, Any]] = []
    for kind in KINDS:
        found = blocks(explanations, kind)
        if not found:
            continue
        name = MEASURE[kind]
        lines.append(_line(found, "drift", f"{name} ({_SHORT[kind]})", COLOUR[kind], width=3))
        noise = _line(found, "sampling", f"{name} by sampling alone", COLOUR[kind], dash="dot")
        if any(v is not None for v in noise["y"]):
            lines.append(noise)
        if kind == "training" or len(lines) <= 2:
            lines.append(_line(found, "consensus_drift", f"consensus drift ({kind}, from round to round)", COLOURS[2]))
    return _over_rounds(lines, "How far apart sites reason", _L1)


def jaccard_over_rounds(explanations: Mapping[str, Any]) -> Figure:
    """How much of their top k features two sites share, and how alike they rank all features."""
    lines = []
    for kind in KINDS:
        found = blocks(explanations, kind)
        if found:
            k = next(iter(found.values()))["k"]
            lines.append(_line(found, "jaccard", f"Jaccard of the top {k}, {kind}", COLOUR[kind], width=3))
            lines.append(_line(found, "rank_correlation", f"rank correlation, {kind}", COLOUR[kind], dash="dash"))
    return _over_rounds(lines, "How much sites' reasons overlap", "mean over pairs of sites", height=340)


def _line(
    found: Mapping[int, Mapping[str, Any]], key: str, name: str, colour: str, *, dash: str = "solid", width: int = 2
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if dash == "solid" and len(found) <= 40 else "lines",
        "name": name,
        "x": list(found),
        "y": [b.get(key) for b in found.values()],
        "line": {"color": colour, "dash": dash, "width": width},
        "marker": {"size": 5},
        "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
    }


def _over_rounds(lines: Sequence[dict[str, Any]], title: str, y: str, *, height: int = 400) -> Figure:
    drawn = [line for line in lines if any(v is not None for v in line["y"])]
    if not drawn:
        raise BadInput(
            "no round of these explanations has sketches: set explain.sketch and run again", code="nothing-to-draw"
        )
    return Figure(drawn, layout(title, x="round", y=y, height=height, yaxis={"rangemode": "tozero"}))


def pairwise_drift(explanations: Mapping[str, Any], kind: str = "training", *, of: str = "") -> Figure:
    """The distance of every two sites' sketches as a heat map, with a slider over the rounds.

    Of many sites it shows those farthest from the consensus in the last round. `of` says whose they are, among others.
    """
    found = {r: b for r, b in needed(explanations, kind).items() if b.get("pairs")}
    if not found:
        raise BadInput(
            "distances of single pairs are not kept for so many sites: use distance_to_consensus",
            code="nothing-to-draw",
        )
    last = found[max(found)]
    known = list(dict.fromkeys(s for b in found.values() for s in b["pairs"]["sites"]))
    worst = set(farthest(last, MANY)) if len(known) > MANY else set(known)
    sites = [s for s in known if s in worst]
    stops = {r: _matrix(found[r]["pairs"], sites) for r in _some(list(found))}
    names = labels(sites)
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": stops[max(stops)],
        "zmin": 0,
        "zmax": max(largest(m) for m in stops.values()),
        "colorscale": DISTANCE,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "L1", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y} and %{x}: %{z:.3f}<extra></extra>",
    }
    note = MEANING[kind] + (
        f"; the {len(sites)} of {len(known)} sites farthest from the consensus" if len(known) > MANY else ""
    )
    steps = [{"label": str(r), "method": "restyle", "args": [{"z": [m]}, [0]]} for r, m in stops.items()]
    slider = {
        "active": len(steps) - 1,
        "steps": steps,
        "currentvalue": {"prefix": "round ", "font": {"size": 12}, "xanchor": "right"},
        "font": {"size": 10, "color": QUIET},
        "pad": {"b": 16, "t": 0},
        "len": 1,
        "x": 0,
        "y": 1,
        "yanchor": "bottom",
        "ticklen": 4,
    }
    slid = len(steps) > 1
    return Figure(
        [trace],
        layout(
            f"{MEASURE[kind].capitalize()}, pair by pair{f': {safe(of)}' if of else ''}",
            note=note,
            height=(270 if slid else 190) + 20 * max(6, len(sites)),
            margin={"t": 132 if slid else 62},
            xaxis=category(names, tickangle=-45, showgrid=False),
            yaxis=category(names, autorange="reversed", showgrid=False),
            sliders=[slider] if slid else [],
        ),
    )


def distance_to_consensus(explanations: Mapping[str, Any], kind: str = "training") -> Figure:
    """Each site's distance to the consensus in every round; of many sites those farthest from it in the last."""
    found = needed(explanations, kind)
    last = found[max(found)]
    sites = farthest(last, MANY)
    names, rounds = labels(sites), _some(list(found))
    z = [[_short(found[r]["to_consensus"].get(s)) for r in rounds] for s in sites]
    trace = {
        "type": "heatmap",
        "x": [str(r) for r in rounds],
        "y": names,
        "z": z,
        "zmin": 0,
        "zmax": largest(z),
        "colorscale": DISTANCE,
        "xgap": 1 if len(rounds) <= 40 else 0,
        "ygap": 1,
        "colorbar": {"title": {"text": "L1", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}, round %{x}: %{z:.3f}<extra></extra>",
    }
    count = len(last["to_consensus"])
    note = MEANING[kind] + (f"; the {len(sites)} farthest of {count} sites" if count > len(sites) else "")
    return Figure(
        [trace],
        layout(
            "Distance to the consensus",
            note=note,
            x="round",
            height=180 + 16 * len(sites),
            xaxis=category([str(r) for r in rounds], showgrid=False),
            yaxis=category(names, autorange="reversed", showgrid=False),
        ),
    )


def _matrix(pairs: Mapping[str, Any], sites: Sequence[str]) -> list[list[float | None]]:
    """The distances of these sites; a site that was not there has none."""
    at = {s: k for k, s in enumerate(pairs["sites"])}
    return [[_short(pairs["drift"][at[a]][at[b]]) if a in at and b in at else None for b in sites] for a in sites]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _some(rounds: Sequence[int]) -> list[int]:
    """Rounds for a slider: all, or evenly chosen with the first and the last."""
    if len(rounds) <= _STEPS:
        return list(rounds)
    return sorted({rounds[round(i * (len(rounds) - 1) / (_STEPS - 1))] for i in range(_STEPS)})
