"""Who had which weight in the common model, and what argued for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.paint import INK, MANY, QUIET, SITES, category, labels, layout, safe, site_colours, words

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
        raise BadInput("this round has no weights with signals behind them: there is nothing to draw")
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
        bar = _signal(k, name.replace("_", " "), names, [values.get(s) for s in sites], [_raw(values.get(s)) for s in sites])
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
