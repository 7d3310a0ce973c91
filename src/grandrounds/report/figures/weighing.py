"""Who had which weight in the common model, and what argued for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, INK, MANY, MORE, category, labels, layout, safe, words

_SITES = 12
_ROUNDS = 200


def weights(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Each site's weight in every round, stacked; of many sites the twelve heaviest and the rest as one."""
    weighed = [r for r in rounds if r["decision"]["weights"]]
    if not weighed:
        raise BadInput("no round of this run weighs sites against one another: there are no weights to draw")
    shown = [weighed[i] for i in even(len(weighed))]
    total: dict[str, float] = {}
    for record in weighed:
        for site, weight in record["decision"]["weights"].items():
            total[site] = total.get(site, 0.0) + (weight or 0.0)
    heavy = sorted(total, key=lambda s: (-total[s], s))
    named = sorted(heavy[:_SITES] if len(heavy) > _SITES + 1 else heavy)
    x = [r["round"] for r in shown]
    traces = []
    for k, site in enumerate(named):
        y = [r["decision"]["weights"].get(site) or 0.0 for r in shown]
        traces.append(bars(x, y, safe(site), ([*COLOURS, *MORE, "#000000"])[k]))
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
    give. Where it does not, signals stand side by side, each divided by its sum over sites, and the weight is a mark:
    how they were joined cannot be read off them.
    """
    given, signals = decision["weights"], decision["signals"]
    if not given or not signals:
        raise BadInput("this round has no weights with signals behind them: there is nothing to draw")
    sites = sorted(given, key=lambda s: (-(given[s] or 0.0), s))[:MANY]
    names = labels(sites)
    shares = decision.get("shares") or {}
    traces = _parts(shares, signals, sites) if shares else _side_by_side(signals, sites)
    rows = {s: n for s, n in signals.get("data_size", {}).items() if s in given}
    if shares and sum(rows.values()):
        alone = [rows.get(s, 0.0) / sum(rows.values()) for s in sites]
        ring = {"symbol": "circle", "size": 9, "color": "#ffffff", "line": {"color": INK, "width": 1.5}}
        traces.append(_marks("by rows alone", names, alone, ring))
    traces.append(_marks("weight", names, [given[s] for s in sites], {"symbol": "diamond", "size": 9, "color": INK}))
    notes = ["bars add up to the weight" if shares else "each signal divided by its sum over sites"]
    notes += [f"the {len(sites)} heaviest of {len(given)} sites"] if len(given) > len(sites) else []
    return Figure(
        traces,
        layout(f"Round {decision['round']}: what argued for each weight", note="; ".join(notes), y="weight", height=400,
               barmode="stack" if shares else "group",
            legend={"traceorder": "normal"}, xaxis=category(names, tickangle=-45 if len(names) > 8 else 0)),
    )  # fmt: skip


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


def _side_by_side(signals: Mapping[str, Any], sites: Sequence[str]) -> list[dict[str, Any]]:
    """A bar for each signal, divided by its sum over sites."""
    traces = []
    for k, (signal, values) in enumerate(signals.items()):
        whole = sum(v or 0.0 for v in values.values()) or 1.0
        y = [(values.get(s) or 0.0) / whole for s in sites]
        told = [f"raw {_raw(values.get(s))}" for s in sites]
        traces.append(_signal(k, signal.replace("_", " "), labels(sites), y, told))
    return traces


def _signal(k: int, name: str, x: Sequence[str], y: Sequence[float], told: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": safe(name),
        "x": list(x),
        "y": list(y),
        "customdata": [safe(words) for words in told],
        "marker": {"color": COLOURS[k % len(COLOURS)]},
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
