"""Privacy budget spent over rounds and by site, and the success of membership attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, INK, MAX_SITES, QUIET, category, labels, layout, safe

_SYMBOLS = ("square", "diamond", "triangle-up", "cross", "x", "star")


def epsilon_by_site(sites: Mapping[str, Mapping[str, float]], budget: float | None, *, together: str) -> Figure:
    """Draw the epsilon of all releases of each site, and of each mechanism alone, with the budget.

    Args:
        sites: Site -> mechanism -> epsilon. With many sites, those that spent most are shown.
        budget: The budget; None where there is none.
        together: The name under which `sites` has all mechanisms together.

    Raises:
        BadInput: There are no sites.
    """
    if not sites:
        raise BadInput(
            "no site released anything under differential privacy: there is nothing to draw", code="nothing-to-draw"
        )
    ranked = sorted(sites, key=lambda s: (-sites[s].get(together, 0.0), s))[:MAX_SITES]
    names = labels(ranked)
    kinds = list(dict.fromkeys(kind for by_kind in sites.values() for kind in by_kind))
    traces: list[Trace] = []
    if budget is not None:
        traces.append(_vertical_line(budget, names, "budget", "dot"))
    alone = [k for k in kinds if k != together]
    for k, kind in enumerate([*(alone if len(alone) > 1 else []), together]):
        points = [(n, sites[s][kind]) for s, n in zip(ranked, names, strict=True) if kind in sites[s]]
        is_total = kind == together
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(kind if is_total else f"{kind} alone"),
                "x": [v for _, v in points],
                "y": [n for n, _ in points],
                "marker": {
                    "size": 11 if is_total else 9,
                    "symbol": "circle" if is_total else _SYMBOLS[k % len(_SYMBOLS)],
                    "color": COLOURS[0] if is_total else COLOURS[1 + k % (len(COLOURS) - 1)],
                },
                "hovertemplate": "%{y}: epsilon %{x:.4g}<extra>%{fullData.name}</extra>",
            }
        )
    few = f"the {MAX_SITES} of {len(sites)} sites that spent most" if len(sites) > MAX_SITES else ""
    parts = "epsilons of single mechanisms do not add up: together they disclose less" if len(alone) > 1 else ""
    shape = layout(
        "Epsilon by site and mechanism",
        note="; ".join(n for n in (few, parts) if n),
        x="epsilon",
        height=_height(len(ranked)),
        yaxis=category(names, autorange="reversed"),
        legend=_legend_below(len(ranked)),
    )
    shape["xaxis"]["rangemode"] = "tozero"
    return Figure(traces, shape)


def attack_areas(attacks: Sequence[Mapping[str, Any]], bound: float | None) -> Figure:
    """Draw the AUC of each membership attack with its 95% interval, the level of guessing and the maximum that epsilon allows.

    Args:
        attacks: For each attack its name as `attack`, and `auc`, `low` and `high`.
        bound: The highest AUC that epsilon allows; None where there is no bound.

    Raises:
        BadInput: No attack has an AUC.
    """
    scored = [a for a in attacks if a["auc"] is not None]
    if not scored:
        raise BadInput("no attack has an AUC: there is nothing to draw", code="nothing-to-draw")
    names = labels([a["attack"] for a in scored], width=40)
    low = [a["auc"] if a["low"] is None else a["low"] for a in scored]
    high = [a["auc"] if a["high"] is None else a["high"] for a in scored]
    traces: list[Trace] = [_vertical_line(0.5, names, "guessing", "dot")]
    if bound is not None:
        traces.append(_vertical_line(bound, names, "the maximum that epsilon allows", "dash", colour=COLOURS[1]))
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "attack, with its 95% interval",
            "x": [a["auc"] for a in scored],
            "y": names,
            "marker": {"size": 11, "color": COLOURS[0]},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [b - a["auc"] for a, b in zip(scored, high, strict=True)],
                "arrayminus": [a["auc"] - b for a, b in zip(scored, low, strict=True)],
                "color": QUIET,
                "thickness": 1.4,
            },
            "customdata": [list(ends) for ends in zip(low, high, strict=True)],
            "hovertemplate": "%{y}: AUC %{x:.3f}, 95% CI %{customdata[0]:.3f} to %{customdata[1]:.3f}<extra></extra>",
        }
    )
    shape = layout(
        "Membership attacks against the privacy guarantee",
        x="AUC (0.5 is guessing)",
        height=_height(len(scored)),
        yaxis=category(names, autorange="reversed"),
        legend=_legend_below(len(scored)),
    )
    shape["xaxis"]["range"] = [0.35, 1.02]
    return Figure(traces, shape)


def _height(rows: int) -> int:
    return 210 + 24 * rows


def _legend_below(rows: int) -> Trace:
    """Place a legend below the axis title, for figures of any height."""
    return {"y": -60 / (_height(rows) - 130)}


def _vertical_line(value: float, names: Sequence[str], name: str, dash: str, *, colour: str = QUIET) -> Trace:
    """Draw a line across all rows; with one row, over the whole height of it."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(names) == 1 else "lines",
        "name": f"{name} ({value:.3g})",
        "x": [value] * len(names),
        "y": list(names),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"symbol": "line-ns-open", "size": 40, "color": colour, "line": {"width": 2, "color": colour}},
        "hoverinfo": "name",
    }


def epsilon_over_rounds(
    rounds: Sequence[int], total: Sequence[float], alone: Mapping[str, Sequence[float]], budget: float | None
) -> Figure:
    """Draw epsilon so far after each round, of all releases and of each kind of them alone, under the budget.

    Parts do not add up to the whole: several releases together disclose less than the sum of what each discloses.

    Args:
        rounds: The rounds.
        total: Epsilon of all releases after each round.
        alone: Kind of release -> its epsilon alone after each round.
        budget: The budget; None where there is none.
    """
    lines = [_line(rounds, total, "all together", INK, width=3)]
    if len(alone) > 1:
        for colour, (name, values) in zip(COLOURS, alone.items(), strict=False):
            lines.append(_line(rounds, values, f"{safe(name)} alone", colour, width=2))
    if budget is not None:
        lines.append(_line(rounds, [budget] * len(rounds), "budget", QUIET, width=1, dash="dot"))
    note = "epsilons of single mechanisms do not add up: together they disclose less" if len(alone) > 1 else ""
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
