"""Who took part in which round, and what rounds cost in bytes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.report.figure import Figure
from grandrounds.report.figures.weighing import bars, even
from grandrounds.report.paint import COLOURS, FAINT, MANY, category, labels, layout, safe

_NOT_ASKED, _MISSING, _THERE = 0, 1, 2
_STEPS = [[0, FAINT], [0.333, FAINT], [0.334, COLOURS[1]], [0.666, COLOURS[1]], [0.667, COLOURS[5]], [1, COLOURS[5]]]


def presence_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """For each site and round whether it took part, was asked and missing, or was not asked.

    Of many sites it shows those that were missing most often.
    """
    decisions = [r["decision"] for r in rounds]
    every = list(dict.fromkeys(s for d in decisions for s in (*d["asked"], *d["missing"])))
    missed = {s: sum(s in d["missing"] for d in decisions) for s in every}
    sites = sorted(every, key=lambda s: (-missed[s], s))[:MANY]
    shown = [decisions[i] for i in even(len(decisions))]
    z = [[_state(d, site) for d in shown] for site in sites]
    told = [[_words(d, site) for d in shown] for site in sites]
    x, y = [str(d["round"]) for d in shown], labels(sites)
    total = sum(missed.values())
    note = f"missing {total} times in {len(rounds)} rounds" if total else "nobody who was asked was missing"
    if len(every) > len(sites):
        note += f"; {len(sites)} of {len(every)} sites, most often missing first"
    trace = {
        "type": "heatmap",
        "x": x,
        "y": y,
        "z": z,
        "text": told,
        "zmin": 0,
        "zmax": 2,
        "colorscale": _STEPS,
        "xgap": 1 if len(x) <= 60 else 0,
        "ygap": 1,
        "hovertemplate": "%{y}, round %{x}: %{text}<extra></extra>",
        "colorbar": {
            "tickvals": [0.33, 1.0, 1.67],
            "ticktext": ["not asked", "missing", "took part"],
            "thickness": 12,
        },
    }
    return Figure(
        [trace],
        layout(
            "Who took part",
            note=note,
            x="round",
            height=180 + 16 * len(sites),
            xaxis=category(x, showgrid=False),
            yaxis=category(y, autorange="reversed", showgrid=False),
        ),
    )


def bytes_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Megabytes to and from sites in each round, evaluation included."""
    shown = [rounds[i] for i in even(len(rounds))]
    x = [r["round"] for r in shown]
    down, up = ([r["decision"]["cost"][key] / 1e6 for r in shown] for key in ("bytes_down", "bytes_up"))
    drawn = [bars(x, down, "to sites", COLOURS[5], said=".4g"), bars(x, up, "from sites", COLOURS[0], said=".4g")]
    whole = sum(r["decision"]["cost"][key] for r in rounds for key in ("bytes_down", "bytes_up")) / 1e6
    note = f"{whole:,.2f} MB in rounds; setup and the final evaluation are not in it"
    return Figure(drawn, layout("Bytes", note=note, x="round", y="MB a round", height=340, barmode="stack"))


def seconds_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds of each round by the clock."""
    shown = [rounds[i] for i in even(len(rounds))]
    took = [r["decision"]["cost"]["seconds"] for r in shown]
    whole = sum(r["decision"]["cost"]["seconds"] for r in rounds)
    drawn = [bars([r["round"] for r in shown], took, "seconds", COLOURS[2], said=".4g")]
    return Figure(drawn, layout("Time", note=f"{whole:,.2f} s in rounds", x="round", y="seconds a round", height=340))


def _state(decision: Mapping[str, Any], site: str) -> int:
    if site in decision["missing"]:
        return _MISSING
    return _THERE if site in decision["asked"] else _NOT_ASKED


def _words(decision: Mapping[str, Any], site: str) -> str:
    if site in decision["missing"]:
        return safe(f"missing ({decision['missing'][site]})")
    return "took part" if site in decision["asked"] else "not asked"
