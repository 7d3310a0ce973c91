"""Whose reasons stood apart when sites were weighed, and who was grouped with whom, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.figures.weighing import even
from grandrounds.report.paint import COLOURS, DISTANCE, MANY, MORE, category, labels, largest, layout

_PALETTE = (*COLOURS, *MORE)


def disagreement_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """How far each site's reasons lay from the consensus it was weighed by, in the rounds that looked at it.

    It is the method's own number, within a cohort where there are some; `distance_to_consensus` is that of explanations.
    """
    held = [r["decision"] for r in rounds if r["decision"]["signals"].get("disagreement")]
    if not held:
        raise BadInput("no round of this run weighs sites by their reasons: there is no disagreement to draw")
    shown = [held[i] for i in even(len(held))]
    away = [_compared(d) for d in shown]
    both = list(zip(away, shown, strict=True))
    every = list(dict.fromkeys(s for d in shown for s in d["signals"]["disagreement"]))
    farthest = {s: max(d.get(s) or 0.0 for d in away) for s in every}
    sites = sorted(every, key=lambda s: (-farthest[s], s))[:MANY]
    z = [[_short(d.get(s)) for d in away] for s in sites]
    weights = [[_short(d["weights"].get(s)) for d in shown] for s in sites]
    trace = _heat(shown, sites, z) | {
        "customdata": weights,
        "zmin": 0,
        "zmax": largest(z),
        "colorscale": DISTANCE,
        "colorbar": {"title": {"text": "distance", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}, round %{x}: %{z:.3f} from the consensus, weight %{customdata:.4f}<extra></extra>",
    }
    blank = ["blank: alone in its cohort"] if any(len(a) < len(d["signals"]["disagreement"]) for a, d in both) else []
    notes = ["distance to the consensus it was weighed by", *blank, *_left_out(sites, every)]
    return _site_by_round("Whose reasons stood apart", notes, trace, len(sites))


def cohorts_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """The cohort of each site in every round that had cohorts; of many sites those that changed most often."""
    held = [r["decision"] for r in rounds if (r["decision"].get("cohorts") or {}).get("of")]
    if not held:
        raise BadInput("no round of this run groups its sites: there are no cohorts to draw")
    shown = [held[i] for i in even(len(held))]
    of = [d["cohorts"]["of"] for d in shown]
    every = list(dict.fromkeys(s for d in held for s in d["cohorts"]["of"]))
    moved = {s: _changes([d["cohorts"]["of"].get(s) for d in held]) for s in every}
    kept = set(sorted(every, key=lambda s: (-moved[s], s))[:MANY])
    sites = [s for s in every if s in kept]
    most = max(c for d in of for c in d.values())
    trace = _heat(shown, sites, [[d.get(s) for d in of] for s in sites]) | {
        "zmin": 0.5,
        "zmax": most + 0.5,
        "colorscale": _steps(most),
        "colorbar": {
            "title": {"text": "cohort", "side": "right"},
            "thickness": 12,
            "tickvals": list(range(1, most + 1)),
        },
        "hovertemplate": "%{y}, round %{x}: cohort %{z}<extra></extra>",
    }
    notes = [*_consistency([d["cohorts"].get("consistency") for d in held]), *_left_out(sites, every)]
    return _site_by_round("Who was grouped with whom", notes, trace, len(sites))


def _compared(decision: Mapping[str, Any]) -> dict[str, float | None]:
    """The distances of a round without those of sites that were compared with nobody but themselves."""
    of = (decision.get("cohorts") or {}).get("of", {})
    alone = {s for s, c in of.items() if list(of.values()).count(c) == 1}
    return {s: v for s, v in decision["signals"]["disagreement"].items() if v or s not in alone}


def _heat(shown: Sequence[Mapping[str, Any]], sites: Sequence[str], z: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": [str(d["round"]) for d in shown],
        "y": labels(sites),
        "z": z,
        "xgap": 1 if len(shown) <= 40 else 0,
        "ygap": 1,
    }


def _site_by_round(title: str, notes: Sequence[str], trace: Mapping[str, Any], sites: int) -> Figure:
    return Figure(
        [trace],
        layout(
            title,
            note="; ".join(notes),
            x="round",
            height=180 + 16 * max(5, sites),
            xaxis=category(trace["x"], showgrid=False),
            yaxis=category(trace["y"], autorange="reversed", showgrid=False),
        ),
    )


def _steps(most: int) -> list[list[Any]]:
    """A colour scale in steps: one colour a cohort, in the palette's order and round again."""
    colours = [_PALETTE[c % len(_PALETTE)] for c in range(most)]
    return [[at / most, colour] for c, colour in enumerate(colours) for at in (c, c + 1)]


def _changes(cohorts: Sequence[int | None]) -> int:
    there = [c for c in cohorts if c is not None]
    return sum(a != b for a, b in pairwise(there))


def _consistency(found: Sequence[float | None]) -> list[str]:
    """How far cohorts are those of the round before: the mean of the adjusted Rand index, and its least."""
    known = [v for v in found if v is not None]
    if not known:
        return []
    mean, least = sum(known) / len(known), min(known)
    return [f"consistency (adjusted Rand index to the round before) {mean:.2f}, at least {least:.2f}"]


def _left_out(shown: Sequence[str], every: Sequence[str]) -> list[str]:
    return [f"{len(shown)} of {len(every)} sites"] if len(shown) < len(every) else []


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
