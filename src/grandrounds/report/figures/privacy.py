"""Privacy budget spent over rounds and by site, and the success of membership attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, INK, MANY, QUIET, category, labels, layout, safe

_SYMBOLS = ("square", "diamond", "triangle-up", "cross", "x", "star")


def epsilon_by_site(sites: Mapping[str, Mapping[str, float]], budget: float | None, *, together: str) -> Figure:
    """A row for each site: epsilon of all that it released, and of each mechanism alone, beside the budget.

    `sites`: site -> mechanism -> epsilon; `together` is the name of all. Of many sites those that spent most are shown.
    """
    if not sites:
        raise BadInput("no site released anything under a promise: there is nothing to draw", code="nothing-to-draw")
    ranked = sorted(sites, key=lambda s: (-sites[s].get(together, 0.0), s))[:MANY]
    names = labels(ranked)
    kinds = list(dict.fromkeys(kind for own in sites.values() for kind in own))
    traces: list[dict[str, Any]] = []
    if budget is not None:
        traces.append(_upright(budget, names, "budget", "dot"))
    alone = [k for k in kinds if k != together]
    for k, kind in enumerate([*(alone if len(alone) > 1 else []), together]):
        held = [(n, sites[s][kind]) for s, n in zip(ranked, names, strict=True) if kind in sites[s]]
        whole = kind == together
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(kind if whole else f"{kind} alone"),
                "x": [v for _, v in held],
                "y": [n for n, _ in held],
                "marker": {
                    "size": 11 if whole else 9,
                    "symbol": "circle" if whole else _SYMBOLS[k % len(_SYMBOLS)],
                    "color": COLOURS[0] if whole else COLOURS[1 + k % (len(COLOURS) - 1)],
                },
                "hovertemplate": "%{y}: epsilon %{x:.4g}<extra>%{fullData.name}</extra>",
            }
        )
    few = f"the {MANY} of {len(sites)} sites that spent most" if len(sites) > MANY else ""
    parts = "parts do not add up: together they tell less" if len(alone) > 1 else ""
    shape = layout(
        "Epsilon by site and mechanism",
        note="; ".join(n for n in (few, parts) if n),
        x="epsilon",
        height=_tall(len(ranked)),
        yaxis=category(names, autorange="reversed"),
        legend=_below(len(ranked)),
    )
    shape["xaxis"]["rangemode"] = "tozero"
    return Figure(traces, shape)


def attack_areas(attacks: Sequence[Mapping[str, Any]], bound: float | None) -> Figure:
    """The area under the ROC curve of each attack with its 95% interval, beside guessing and the most that epsilon allows.

    An attack has its name as `attack`, and `auc`, `low` and `high`.
    """
    held = [a for a in attacks if a["auc"] is not None]
    if not held:
        raise BadInput("no attack has an AUC: there is nothing to draw", code="nothing-to-draw")
    names = labels([a["attack"] for a in held], width=40)
    low = [a["auc"] if a["low"] is None else a["low"] for a in held]
    high = [a["auc"] if a["high"] is None else a["high"] for a in held]
    traces: list[dict[str, Any]] = [_upright(0.5, names, "guessing", "dot")]
    if bound is not None:
        traces.append(_upright(bound, names, "the most that epsilon allows", "dash", colour=COLOURS[1]))
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "attack, with its 95% interval",
            "x": [a["auc"] for a in held],
            "y": names,
            "marker": {"size": 11, "color": COLOURS[0]},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [b - a["auc"] for a, b in zip(held, high, strict=True)],
                "arrayminus": [a["auc"] - b for a, b in zip(held, low, strict=True)],
                "color": QUIET,
                "thickness": 1.4,
            },
            "customdata": [list(ends) for ends in zip(low, high, strict=True)],
            "hovertemplate": "%{y}: AUC %{x:.3f}, 95% CI %{customdata[0]:.3f} to %{customdata[1]:.3f}<extra></extra>",
        }
    )
    shape = layout(
        "Who was trained on? Attacks against the promise",
        x="AUC (0.5 is guessing)",
        height=_tall(len(held)),
        yaxis=category(names, autorange="reversed"),
        legend=_below(len(held)),
    )
    shape["xaxis"]["range"] = [0.35, 1.02]
    return Figure(traces, shape)


def _tall(rows: int) -> int:
    return 210 + 24 * rows


def _below(rows: int) -> dict[str, Any]:
    """A legend under the axis' title, however low the figure is."""
    return {"y": -60 / (_tall(rows) - 130)}


def _upright(at: float, names: Sequence[str], name: str, dash: str, *, colour: str = QUIET) -> dict[str, Any]:
    """A line across all rows; with one row, over the whole height of it."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(names) == 1 else "lines",
        "name": f"{name} ({at:.3g})",
        "x": [at] * len(names),
        "y": list(names),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"symbol": "line-ns-open", "size": 40, "color": colour, "line": {"width": 2, "color": colour}},
        "hoverinfo": "name",
    }


def epsilon_over_rounds(
    rounds: Sequence[int], total: Sequence[float], alone: Mapping[str, Sequence[float]], budget: float | None
) -> Figure:
    """Epsilon so far after each round, of all releases and of each kind of them alone, under the budget if there is one.

    Parts do not add up to the whole: several releases together tell less than the sum of what each tells.
    """
    lines = [_line(rounds, total, "all together", INK, width=3)]
    if len(alone) > 1:
        for colour, (name, values) in zip(COLOURS, alone.items(), strict=False):
            lines.append(_line(rounds, values, f"{safe(name)} alone", colour, width=2))
    if budget is not None:
        lines.append(_line(rounds, [budget] * len(rounds), "budget", QUIET, width=1, dash="dot"))
    note = "parts do not add up: together they tell less" if len(alone) > 1 else ""
    shape = layout("Epsilon so far", note=note, x="round", y="epsilon", height=320)
    shape["yaxis"]["rangemode"] = "tozero"
    return Figure(lines, shape)


def _line(
    x: Sequence[int], y: Sequence[float], name: str, colour: str, *, width: int, dash: str = "solid"
) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": width, "dash": dash},
        "hovertemplate": "round %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }
