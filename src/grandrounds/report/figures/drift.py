"""Drift of explanations between sites, over rounds and pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.core.errors import BadInput
from grandrounds.report.explanations import (
    KINDS,
    Block,
    Explanations,
    Pairs,
    blocks_by_round,
    farthest_sites,
    require_blocks,
)
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.figures.importance import COLOUR, MEANING, MEASURE
from grandrounds.report.style import COLOURS, DISTANCE, MAX_SITES, QUIET, category, labels, largest, layout, safe

_STEPS = 60
"""Stops of a slider."""
_L1 = "L1 distance of sketches (0 to 2)"
_SHORT = {"training": "own models, same rows", "deployed": "one model, own patients"}


def drift_over_rounds(explanations: Explanations) -> Figure:
    """Draw the mean distance between sites' sketches, and the distance expected by chance, for each kind.

    Raises:
        BadInput: No round has sketches.
    """
    lines: list[Trace] = []
    for kind in KINDS:
        by_round = blocks_by_round(explanations, kind)
        if not by_round:
            continue
        name = MEASURE[kind]
        lines.append(_line(by_round, "drift", f"{name} ({_SHORT[kind]})", COLOUR[kind], width=3))
        noise = _line(by_round, "sampling", f"{name} expected by chance", COLOUR[kind], dash="dot")
        if any(v is not None for v in noise["y"]):
            lines.append(noise)
        if kind == "training" or len(lines) <= 2:
            lines.append(
                _line(by_round, "consensus_drift", f"consensus drift ({kind}, from round to round)", COLOURS[2])
            )
    return _over_rounds(lines, "Drift of explanations between sites", _L1)


def jaccard_over_rounds(explanations: Explanations) -> Figure:
    """Draw the overlap of two sites' top k features, and the correlation of their rankings.

    Raises:
        BadInput: No round has sketches.
    """
    lines = []
    for kind in KINDS:
        by_round = blocks_by_round(explanations, kind)
        if by_round:
            k = next(iter(by_round.values()))["k"]
            lines.append(_line(by_round, "jaccard", f"Jaccard of the top {k}, {kind}", COLOUR[kind], width=3))
            lines.append(_line(by_round, "rank_correlation", f"rank correlation, {kind}", COLOUR[kind], dash="dash"))
    return _over_rounds(lines, "Overlap of sites' explanations", "mean over pairs of sites", height=340)


def _line(
    by_round: Mapping[int, Block], key: str, name: str, colour: str, *, dash: str = "solid", width: int = 2
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers" if dash == "solid" and len(by_round) <= 40 else "lines",
        "name": name,
        "x": list(by_round),
        "y": [b.get(key) for b in by_round.values()],
        "line": {"color": colour, "dash": dash, "width": width},
        "marker": {"size": 5},
        "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
    }


def _over_rounds(lines: Sequence[Trace], title: str, y: str, *, height: int = 400) -> Figure:
    drawn = [line for line in lines if any(v is not None for v in line["y"])]
    if not drawn:
        raise BadInput(
            "no round of these explanations has sketches: set explain.sketch and run again", code="nothing-to-draw"
        )
    return Figure(drawn, layout(title, x="round", y=y, height=height, yaxis={"rangemode": "tozero"}))


def pairwise_drift(explanations: Explanations, kind: str = "training", *, label: str = "") -> Figure:
    """Draw the distance of every two sites' sketches as a heat map, with a slider over the rounds.

    With many sites it shows those farthest from the consensus in the last round.

    Args:
        explanations: explanations.json.
        kind: "training" or "deployed".
        label: An addition to the title that tells figures of several runs apart.

    Raises:
        BadInput: No round has pairs of this kind.
    """
    blocks = require_blocks(explanations, kind)
    by_round = {r: pairs for r, b in blocks.items() if (pairs := b.get("pairs"))}
    if not by_round:
        raise BadInput(
            "distances of single pairs are not stored for so many sites: use distance_to_consensus",
            code="nothing-to-draw",
        )
    last = blocks[max(by_round)]
    every = list(dict.fromkeys(s for b in by_round.values() for s in b["sites"]))
    worst = set(farthest_sites(last, MAX_SITES)) if len(every) > MAX_SITES else set(every)
    sites = [s for s in every if s in worst]
    stops = {r: _matrix(by_round[r], sites) for r in _slider_rounds(list(by_round))}
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
        f"; the {len(sites)} of {len(every)} sites farthest from the consensus" if len(every) > MAX_SITES else ""
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
            f"{MEASURE[kind].capitalize()}, by pair of sites{f': {safe(label)}' if label else ''}",
            note=note,
            height=(270 if slid else 190) + 20 * max(6, len(sites)),
            margin={"t": 132 if slid else 62},
            xaxis=category(names, tickangle=-45, showgrid=False),
            yaxis=category(names, autorange="reversed", showgrid=False),
            sliders=[slider] if slid else [],
        ),
    )


def distance_to_consensus(explanations: Explanations, kind: str = "training") -> Figure:
    """Draw each site's distance to the consensus in every round; with many sites, those farthest from it in the last.

    Raises:
        BadInput: No round has sketches of this kind.
    """
    by_round = require_blocks(explanations, kind)
    last = by_round[max(by_round)]
    sites = farthest_sites(last, MAX_SITES)
    names, rounds = labels(sites), _slider_rounds(list(by_round))
    z = [[_shorten(by_round[r]["to_consensus"].get(s)) for r in rounds] for s in sites]
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


def _matrix(pairs: Pairs, sites: Sequence[str]) -> list[list[float | None]]:
    """Return the distances of these sites; None for a site that was absent."""
    index = {s: k for k, s in enumerate(pairs["sites"])}
    return [
        [_shorten(pairs["drift"][index[a]][index[b]]) if a in index and b in index else None for b in sites]
        for a in sites
    ]


def _shorten(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _slider_rounds(rounds: Sequence[int]) -> list[int]:
    """Choose rounds for a slider: all, or evenly chosen ones with the first and the last."""
    if len(rounds) <= _STEPS:
        return list(rounds)
    return sorted({rounds[round(i * (len(rounds) - 1) / (_STEPS - 1))] for i in range(_STEPS)})
