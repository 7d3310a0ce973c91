"""How far sites are trusted, how far their reasons diverge and what their part was worth, round by round (FedXChain)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.explain.trust import agreement
from grandrounds.methods.fedxchain.summary import trust_decisions
from grandrounds.report.figure import Figure
from grandrounds.report.figures.weighting import even
from grandrounds.report.paint import COLOURS, INK, MANY, QUIET, apart, category, labels, layout, safe, site_colours

_NAMED = 3
"""Sites that have a colour and a line in the legend, at the end that matters."""
_LEAST = 1e-4
"""The lowest NSDS that a logarithmic axis shows; below it sites agree."""
_TICKS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]

Decision = Mapping[str, Any]


def trust_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Each site's trust, the least trusted in colour and the mean in bold; of many sites the thirty least trusted."""
    told = _told(rounds)
    values = _values(told, "trust")
    order = _order(values)
    colours = site_colours(rounds)
    lines = [*_sites(told, values, order[:MANY], coloured=order[:_NAMED], colours=colours), _mean(told, values)]
    shape = layout("Trust", note=_note(order, "least trusted"), x="round", y="trust (0 to 1)", height=380)
    return Figure(lines, shape)


def nsds_over_rounds(rounds: Sequence[Mapping[str, Any]], alarm: float) -> Figure:
    """How far each site's reasons diverge from the consortium's, the farthest in colour, under the alarm's line."""
    told = _told(rounds)
    values = _values(told, "nsds")
    order = _order(values, highest=True)
    floored = {s: [None if v is None else max(v, _LEAST) for v in held] for s, held in values.items()}
    lines = _sites(told, floored, order[:MANY], coloured=order[:_NAMED], colours=site_colours(rounds))
    x = [d["round"] for d in told]
    lines.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"alarm, {alarm:g}",
            "x": [x[0], x[-1]] if len(x) > 1 else [x[0] - 0.5, x[0] + 0.5],
            "y": [alarm, alarm],
            "line": {"color": INK, "width": 1.5, "dash": "dot"},
            "hovertemplate": f"alarm: NSDS {alarm:g}<extra></extra>",
        }
    )
    known = [v for held in floored.values() for v in held if v is not None]
    low, high = min([*known, alarm]), max([*known, alarm])
    ends = [math.log10(low) - 0.1, math.log10(high) + 0.15]
    axis = {"type": "log", "range": ends, "tickvals": _TICKS, "ticktext": [f"{v:g}" for v in _TICKS]}
    note = _note(order, "farthest")
    return Figure(
        lines,
        layout(
            "Divergence of reasons (NSDS)", note=note, x="round", y="NSDS in nats, log scale", height=380, yaxis=axis
        ),
    )


def trust_parts(decision: Decision, rule: Mapping[str, Any]) -> Figure:
    """What one round's trust is made of, site by site: three parts that add up to it, the least trusted first."""
    signals = decision["signals"]
    trust = {s: v for s, v in signals.get("trust", {}).items() if v is not None}
    if not trust or "nsds" not in signals:
        raise BadInput("this round keeps no trust of its sites: there is nothing to draw", code="nothing-to-draw")
    sites = sorted(trust, key=lambda s: (trust[s], s))[:MANY]
    names = labels(sites)
    agreed = [rule["beta"] * _agrees(signals, s, rule) for s in sites]
    steady = [rule["gamma"] * (signals["consistency"].get(s) or 0.0) for s in sites]
    accuracy = [max(trust[s] - a - c, 0.0) for s, a, c in zip(sites, agreed, steady, strict=True)]
    parts = {"accuracy": accuracy, "agreement of reasons": agreed, "consistency": steady}
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [round(v, 6) for v in held],
            "marker": {"color": COLOURS[k]},
            "hovertemplate": "%{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
        }
        for k, (name, held) in enumerate(parts.items())
    ]
    notes = ["bars add up to trust"]
    notes += [f"the {len(sites)} least trusted of {len(trust)} sites"] if len(trust) > len(sites) else []
    return Figure(
        traces,
        layout(f"Round {decision['round']}: what trust is made of", note="; ".join(notes), y="trust", height=380,
               barmode="stack", legend={"traceorder": "normal", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
               xaxis=category(names, tickangle=-45 if len(names) > 8 else 0)),
    )  # fmt: skip


def rewards_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """What each site was rewarded so far, the highest and the lowest in colour; of many sites the fifteen at either end."""
    told = [d for d in _told(rounds) if d["signals"].get("reward")]
    if not told:
        raise BadInput(
            "no round of this run works rewards out: set method.trust.rewards, and reference rows with labels",
            code="nothing-to-draw",
        )
    values = {s: _summed(held) for s, held in _values(told, "reward").items()}
    order = _order(values, highest=True)
    some = len(order) > MANY
    shown = [*order[: MANY // 2], *order[-MANY // 2 :]] if some else order
    ends = [*order[:_NAMED], *[s for s in order[-_NAMED:] if s not in order[:_NAMED]]]
    note = f"{f'{MANY} of {len(order)} sites; ' if some else ''}highest and lowest in colour; names on hover"
    return Figure(
        _sites(told, values, shown, coloured=ends, colours=site_colours(rounds)),
        layout("Rewards so far", note=note, x="round", y="sum of trust x contribution", height=380,
               yaxis={"zeroline": True, "zerolinecolor": QUIET}),
    )  # fmt: skip


def _told(rounds: Sequence[Mapping[str, Any]]) -> list[Decision]:
    """The Decisions with trust; of many rounds some, evenly."""
    told = trust_decisions(rounds)
    if not told:
        raise BadInput("no round of this run keeps trust of its sites: run method 'fedxchain'", code="nothing-to-draw")
    return told


def _values(told: Sequence[Decision], signal: str) -> dict[str, list[float | None]]:
    """Site -> its value in every round, None where it has none."""
    every = dict.fromkeys(s for d in told for s in d["signals"].get(signal, {}))
    return {s: [d["signals"].get(signal, {}).get(s) for d in told] for s in every}


def _order(values: Mapping[str, Sequence[float | None]], *, highest: bool = False) -> list[str]:
    """Sites by their newest value, the lowest first, or the highest."""
    newest = {s: next((v for v in reversed(held) if v is not None), None) for s, held in values.items()}
    known = {s: v for s, v in newest.items() if v is not None}
    return sorted(known, key=lambda s: (-known[s] if highest else known[s], s))


def _sites(
    told: Sequence[Decision],
    values: Mapping[str, Sequence[float | None]],
    shown: Sequence[str],
    *,
    coloured: Sequence[str],
    colours: Mapping[str, str],
) -> list[dict[str, Any]]:
    """A line a site, those in colour last so that they lie on top."""
    at = even(len(told))
    colour = {site: colours.get(site, QUIET) for site in coloured}
    dashes = apart(coloured, colours)
    out = []
    for site in sorted(shown, key=lambda s: s in colour):
        line = _line([told[i]["round"] for i in at], [_short(values[site][i]) for i in at], safe(site))
        line["line"] = {"color": colour.get(site, "#c3c9cf"), "width": 2 if site in colour else 1}
        line["line"]["dash"] = dashes.get(site, "solid")
        rank = list(colour).index(site) if site in colour else len(colour)
        out.append({**line, "showlegend": site in colour, "legendrank": 1001 + rank})
    return out


def _mean(told: Sequence[Decision], values: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    at = even(len(told))
    means = []
    for i in at:
        known = [v for held in values.values() if (v := held[i]) is not None]
        means.append(_short(sum(known) / len(known)) if known else None)
    line = _line([told[i]["round"] for i in at], means, "mean of all sites")
    return {**line, "line": {"color": INK, "width": 4}, "legendrank": 1000}


def _line(x: Sequence[int], y: Sequence[float | None], name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "hovertemplate": "round %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def _note(order: Sequence[str], word: str) -> str:
    some = f"the {MANY} {word} of {len(order)} sites; " if len(order) > MANY else ""
    named = min(_NAMED, len(order))
    return f"{some}the {word}{f' {named}' if named > 1 else ''} in colour; names on hover"


def _agrees(signals: Mapping[str, Any], site: str, rule: Mapping[str, Any]) -> float:
    points = signals.get("alignment", {}).get(site) if rule["signed"] else None
    return float(agreement(signals["nsds"][site], points))


def _summed(values: Sequence[float | None]) -> list[float | None]:
    """What has come together up to each round; nothing before a site's first."""
    out: list[float | None] = []
    total: float | None = None
    for value in values:
        total = total if value is None else (total or 0.0) + value
        out.append(total)
    return out


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
