"""Weights of sites round by round, the signals behind them, disagreement and cohorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.paint import (
    COLOURS,
    DISTANCE,
    INK,
    MANY,
    MORE,
    QUIET,
    SITES,
    category,
    labels,
    largest,
    layout,
    safe,
    site_colours,
    words,
)

_SITES = 12
_ROUNDS = 200


def weights(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Each site's weight in every round, stacked; of many sites the twelve heaviest and the rest as one."""
    weighed = [r for r in rounds if r["decision"]["weights"]]
    if not weighed:
        raise BadInput(
            "no round of this run weighs sites against one another: there are no weights to draw",
            code="nothing-to-draw",
        )
    shown = [weighed[i] for i in even(len(weighed))]
    total: dict[str, float] = {}
    for record in weighed:
        for site, weight in record["decision"]["weights"].items():
            total[site] = total.get(site, 0.0) + (weight or 0.0)
    heavy = sorted(total, key=lambda s: (-total[s], s))
    named = sorted(heavy[:_SITES] if len(heavy) > _SITES + 1 else heavy)
    x = [r["round"] for r in shown]
    traces, colours = [], site_colours(rounds)
    for site in named:
        y = [r["decision"]["weights"].get(site) or 0.0 for r in shown]
        traces.append(bars(x, y, safe(site), colours[site]))
    others = len(heavy) - len(named)
    if others:
        rest = [sum(w or 0.0 for s, w in r["decision"]["weights"].items() if s not in named) for r in shown]
        traces.append(bars(x, rest, f"{others} other sites", "#c3c9cf"))
    note = f"{len(shown)} of {len(weighed)} rounds" if len(shown) < len(weighed) else ""
    return Figure(
        traces,
        layout("Weights in the common model", note=note, x="round", y="weight", height=400, barmode="stack",
               bargap=0.15 if len(x) <= 60 else 0, legend={"traceorder": "normal"}),
    )  # fmt: skip


def bars(x: Sequence[int], y: Sequence[float], name: str, colour: str, *, said: str = ".4f") -> dict[str, Any]:
    """A bar for each round; `said`: how its number is written where the pointer is."""
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": [round(v, 6) for v in y],
        "marker": {"color": colour},
        "hovertemplate": f"round %{{x}}: %{{y:{said}}}<extra>%{{fullData.name}}</extra>",
    }


def even(count: int) -> list[int]:
    """Places of at most `_ROUNDS` out of `count`, even, with the first and the last."""
    if count <= _ROUNDS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_ROUNDS - 1)) for i in range(_ROUNDS)})


def weights_by_signal(decision: Mapping[str, Any]) -> Figure:
    """One round's weights by site, with the signals that argued for them.

    Where the Decision parts weights among signals (`shares`: signal -> site -> part of the weight) the bars are stacked
    and add up to the weight, the numbers behind them come up beside them, and a ring says what the rows alone would
    give. Where it does not, the weight and every signal have a panel each, on a scale of its own: signals can have either
    sign, and how they were joined cannot be read off them.
    """
    given, signals = decision["weights"], decision["signals"]
    if not given or not signals:
        raise BadInput(
            "this round has no weights with signals behind them: there is nothing to draw", code="nothing-to-draw"
        )
    sites = sorted(given, key=lambda s: (-(given[s] or 0.0), s))[:MANY]
    names = labels(sites)
    some = [f"the {len(sites)} heaviest of {len(given)} sites"] if len(given) > len(sites) else []
    title = f"Round {decision['round']}: what argued for each weight"
    shares = decision.get("shares") or {}
    if not shares:
        return _panels(decision, sites, title=title, note="; ".join([_OWN_SCALES, *some]))
    traces = _parts(shares, signals, sites)
    rows = {s: n for s, n in signals.get("data_size", {}).items() if s in given}
    if sum(rows.values()):
        alone = [rows.get(s, 0.0) / sum(rows.values()) for s in sites]
        ring = {"symbol": "circle", "size": 9, "color": "#ffffff", "line": {"color": INK, "width": 1.5}}
        traces.append(_marks("by rows alone", names, alone, ring))
    traces.append(_marks("weight", names, [given[s] for s in sites], {"symbol": "diamond", "size": 9, "color": INK}))
    return Figure(
        traces,
        layout(title, note="; ".join(["bars add up to the weight", *some]), y="weight", height=400, barmode="stack",
               legend={"traceorder": "normal"}, xaxis=category(names, tickangle=-45 if len(names) > 8 else 0)),
    )  # fmt: skip


_OWN_SCALES = "every signal on a scale of its own, as it was told; how they make the weight is told in words"
_PANEL, _GAP = 74, 30
"""Height of a panel and of the space above it, in pixels."""


def _panels(decision: Mapping[str, Any], sites: Sequence[str], *, title: str, note: str) -> Figure:
    """A panel for the weight and one for each signal, over the same sites, each with its own scale and colour."""
    names = labels(sites)
    rows = {"weight": decision["weights"], **decision["signals"]}
    whole = len(rows) * (_PANEL + _GAP)
    traces, axes, notes = [], {}, []
    for k, (name, values) in enumerate(rows.items()):
        axis = "" if k == 0 else str(k + 1)
        top = 1 - (k * (_PANEL + _GAP) + _GAP) / whole
        colour = INK if k == 0 else SITES[(k - 1) % len(SITES)]
        bar = _signal(
            k, name.replace("_", " "), names, [values.get(s) for s in sites], [_raw(values.get(s)) for s in sites]
        )
        traces.append({**bar, "marker": {"color": colour}, "yaxis": f"y{axis}", "showlegend": False})
        axes[f"yaxis{axis}"] = {"domain": [max(0.0, top - _PANEL / whole), top], "nticks": 3, "zeroline": True}
        axes[f"yaxis{axis}"] |= {"zerolinecolor": QUIET, "title": {"text": ""}}
        notes.append({"text": safe(words(name)), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": top,
                      "xanchor": "left", "yanchor": "bottom", "font": {"size": 12}})  # fmt: skip
    last = "y" if len(rows) == 1 else f"y{len(rows)}"
    across = category(names, tickangle=-45 if len(names) > 8 else 0, anchor=last)
    shape = layout(title, note=note, height=whole + 150, xaxis=across)
    return Figure(traces, {**shape, **axes, "annotations": notes})


_BEHIND = {
    "data": ("data_size",),
    "agreement": ("disagreement", "standing", "in_line", "agreement", "importance", "flat"),
    "worst_site": ("val_loss",),
    "calibration": ("ece",),
}
"""The numbers that a part of a weight comes from."""
_NAMED = {"data": "data size", "agreement": "agreement of reasons"}


def _parts(shares: Mapping[str, Any], signals: Mapping[str, Any], sites: Sequence[str]) -> list[dict[str, Any]]:
    """A bar for each part of the weights, with the numbers it comes from."""
    traces = []
    for k, (part, values) in enumerate(shares.items()):
        behind = [name for name in _BEHIND.get(part, (part,)) if name in signals]
        name = (
            "rows, as far as reasons are in line" if "in_line" in behind else _NAMED.get(part, part.replace("_", " "))
        )
        told = [", ".join(f"{words(n)} {_raw(signals[n].get(s))}" for n in behind) for s in sites]
        y = [values.get(s) or 0.0 for s in sites]
        traces.append(_signal(k, name, labels(sites), y, told))
    return traces


def _signal(k: int, name: str, x: Sequence[str], y: Sequence[float | None], told: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": safe(name),
        "x": list(x),
        "y": list(y),
        "customdata": [safe(words) for words in told],
        "marker": {"color": SITES[k % len(SITES)]},
        "hovertemplate": "%{x}: %{y:.4f} (%{customdata})<extra>%{fullData.name}</extra>",
    }


def _marks(name: str, x: Sequence[str], y: Sequence[float], marker: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": dict(marker),
        "hovertemplate": f"%{{x}}: {name} %{{y:.4f}}<extra></extra>",
    }


def _raw(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


_PALETTE = (*COLOURS, *MORE)


def disagreement_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """How far each site's reasons lay from the consensus it was weighed by, in the rounds that looked at it.

    It is the method's own number, within a cohort where there are some; `distance_to_consensus` is that of explanations.
    """
    held = [r["decision"] for r in rounds if r["decision"]["signals"].get("disagreement")]
    if not held:
        raise BadInput(
            "no round of this run weighs sites by their reasons: there is no disagreement to draw",
            code="nothing-to-draw",
        )
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
        raise BadInput("no round of this run groups its sites: there are no cohorts to draw", code="nothing-to-draw")
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
