"""Trust in sites, divergence of their explanations and their rewards, round by round (FedXChain)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from grandrounds.core.errors import BadInput
from grandrounds.core.records import Decision, RoundRecord
from grandrounds.explain.trust import agreement
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.figures.weighting import spread_positions
from grandrounds.report.style import (
    COLOURS,
    INK,
    MAX_SITES,
    QUIET,
    category,
    labels,
    layout,
    line_dashes,
    safe,
    site_colours,
)


class TrustRuleRecord(TypedDict):
    """The rule of trust in the summary of a run: its shares and the penalty for divergence."""

    alpha: float
    beta: float
    gamma: float
    tau: float
    kappa: float
    form: str
    signed: bool
    reasons: bool


_COLOURED_SITES = 3
"""Number of sites that are drawn in colour and listed in the legend."""
_NSDS_FLOOR = 1e-4
"""The lowest NSDS that a logarithmic axis shows; below it sites agree."""
_TICKS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


def trust_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw each site's trust, the least trusted in colour and the mean in bold; with many sites, the thirty least trusted.

    Raises:
        BadInput: No round records trust.
    """
    decisions = _require_trust(rounds)
    values = _values(decisions, "trust")
    order = _order(values)
    colours = site_colours(rounds)
    lines = [
        *_site_lines(decisions, values, order[:MAX_SITES], coloured=order[:_COLOURED_SITES], colours=colours),
        _mean_line(decisions, values),
    ]
    shape = layout("Trust", note=_note(order, "least trusted"), x="round", y="trust (0 to 1)", height=380)
    return Figure(lines, shape)


def nsds_over_rounds(rounds: Sequence[RoundRecord], alarm: float) -> Figure:
    """Draw the divergence of each site's explanations from the consortium's, the farthest in colour, with the alarm threshold.

    Args:
        rounds: The record of each round.
        alarm: The NSDS above which a site raises an alarm.

    Raises:
        BadInput: No round records trust.
    """
    decisions = _require_trust(rounds)
    values = _values(decisions, "nsds")
    order = _order(values, highest=True)
    floored = {s: [None if v is None else max(v, _NSDS_FLOOR) for v in series] for s, series in values.items()}
    lines = _site_lines(
        decisions, floored, order[:MAX_SITES], coloured=order[:_COLOURED_SITES], colours=site_colours(rounds)
    )
    x = [d.round for d in decisions]
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
    plotted = [v for series in floored.values() for v in series if v is not None]
    low, high = min([*plotted, alarm]), max([*plotted, alarm])
    ends = [math.log10(low) - 0.1, math.log10(high) + 0.15]
    axis = {"type": "log", "range": ends, "tickvals": _TICKS, "ticktext": [f"{v:g}" for v in _TICKS]}
    note = _note(order, "farthest")
    return Figure(
        lines,
        layout(
            "Divergence of explanations (NSDS)",
            note=note,
            x="round",
            y="NSDS in nats, log scale",
            height=380,
            yaxis=axis,
        ),
    )


def trust_parts(decision: Decision, rule: TrustRuleRecord) -> Figure:
    """Draw the three parts of one round's trust, site by site, the least trusted first.

    Args:
        decision: The Decision of the round.
        rule: The rule in the summary's `trust`.

    Raises:
        BadInput: The round records no trust.
    """
    signals = decision.signals
    trust = {s: v for s, v in signals.get("trust", {}).items() if v is not None}
    if not trust or "nsds" not in signals:
        raise BadInput("this round records no trust in its sites: there is nothing to draw", code="nothing-to-draw")
    sites = sorted(trust, key=lambda s: (trust[s], s))[:MAX_SITES]
    names = labels(sites)
    agreed = [rule["beta"] * _agreement(signals, s, rule) for s in sites]
    steady = [rule["gamma"] * (signals["consistency"].get(s) or 0.0) for s in sites]
    accuracy = [max(trust[s] - a - c, 0.0) for s, a, c in zip(sites, agreed, steady, strict=True)]
    parts = {"accuracy": accuracy, "agreement of explanations": agreed, "consistency": steady}
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [round(v, 6) for v in heights],
            "marker": {"color": COLOURS[k]},
            "hovertemplate": "%{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
        }
        for k, (name, heights) in enumerate(parts.items())
    ]
    notes = ["bars add up to trust"]
    notes += [f"the {len(sites)} least trusted of {len(trust)} sites"] if len(trust) > len(sites) else []
    return Figure(
        traces,
        layout(f"Round {decision.round}: components of trust", note="; ".join(notes), y="trust", height=380,
               barmode="stack", legend={"traceorder": "normal", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
               xaxis=category(names, tickangle=-45 if len(names) > 8 else 0)),
    )  # fmt: skip


def rewards_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw each site's rewards so far, the highest and the lowest in colour; with many sites, the fifteen at either end.

    Raises:
        BadInput: No round has rewards.
    """
    decisions = [d for d in _require_trust(rounds) if d.signals.get("reward")]
    if not decisions:
        raise BadInput(
            "no round of this run computes rewards: set method.trust.rewards, and reference rows with labels",
            code="nothing-to-draw",
        )
    values = {s: _running_sum(series) for s, series in _values(decisions, "reward").items()}
    order = _order(values, highest=True)
    some = len(order) > MAX_SITES
    shown = [*order[: MAX_SITES // 2], *order[-MAX_SITES // 2 :]] if some else order
    ends = [*order[:_COLOURED_SITES], *[s for s in order[-_COLOURED_SITES:] if s not in order[:_COLOURED_SITES]]]
    note = f"{f'{MAX_SITES} of {len(order)} sites; ' if some else ''}highest and lowest in colour; names on hover"
    return Figure(
        _site_lines(decisions, values, shown, coloured=ends, colours=site_colours(rounds)),
        layout("Rewards so far", note=note, x="round", y="sum of trust x contribution", height=380,
               yaxis={"zeroline": True, "zerolinecolor": QUIET}),
    )  # fmt: skip


def trust_decisions(rounds: Sequence[RoundRecord]) -> list[Decision]:
    """Return the Decisions that record FedXChain's trust."""
    return [r.decision for r in rounds if r.decision.has_trust]


def _require_trust(rounds: Sequence[RoundRecord]) -> list[Decision]:
    """Return the Decisions that record trust; refuse runs without any."""
    decisions = trust_decisions(rounds)
    if not decisions:
        raise BadInput("no round of this run records trust in its sites: use method 'fedxchain'", code="nothing-to-draw")
    return decisions


def _values(decisions: Sequence[Decision], signal: str) -> dict[str, list[float | None]]:
    """Collect site -> its value in every round, None where it has none."""
    every = dict.fromkeys(s for d in decisions for s in d.signals.get(signal, {}))
    return {s: [d.signals.get(signal, {}).get(s) for d in decisions] for s in every}


def _order(values: Mapping[str, Sequence[float | None]], *, highest: bool = False) -> list[str]:
    """Order sites by their newest value, the lowest first, or the highest."""
    newest = {s: next((v for v in reversed(series) if v is not None), None) for s, series in values.items()}
    defined = {s: v for s, v in newest.items() if v is not None}
    return sorted(defined, key=lambda s: (-defined[s] if highest else defined[s], s))


def _site_lines(
    decisions: Sequence[Decision],
    values: Mapping[str, Sequence[float | None]],
    shown: Sequence[str],
    *,
    coloured: Sequence[str],
    colours: Mapping[str, str],
) -> list[Trace]:
    """Draw a line per site, those in colour last so that they lie on top."""
    positions = spread_positions(len(decisions))
    colour = {site: colours.get(site, QUIET) for site in coloured}
    dashes = line_dashes(coloured, colours)
    out = []
    for site in sorted(shown, key=lambda s: s in colour):
        line = _line(
            [decisions[i]["round"] for i in positions], [_shorten(values[site][i]) for i in positions], safe(site)
        )
        line["line"] = {"color": colour.get(site, "#c3c9cf"), "width": 2 if site in colour else 1}
        line["line"]["dash"] = dashes.get(site, "solid")
        rank = list(colour).index(site) if site in colour else len(colour)
        out.append({**line, "showlegend": site in colour, "legendrank": 1001 + rank})
    return out


def _mean_line(decisions: Sequence[Decision], values: Mapping[str, Sequence[float | None]]) -> Trace:
    positions = spread_positions(len(decisions))
    means = []
    for i in positions:
        defined = [v for series in values.values() if (v := series[i]) is not None]
        means.append(_shorten(sum(defined) / len(defined)) if defined else None)
    line = _line([decisions[i]["round"] for i in positions], means, "mean of all sites")
    return {**line, "line": {"color": INK, "width": 4}, "legendrank": 1000}


def _line(x: Sequence[int], y: Sequence[float | None], name: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "hovertemplate": "round %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def _note(order: Sequence[str], word: str) -> str:
    some = f"the {MAX_SITES} {word} of {len(order)} sites; " if len(order) > MAX_SITES else ""
    named = min(_COLOURED_SITES, len(order))
    return f"{some}the {word}{f' {named}' if named > 1 else ''} in colour; names on hover"


def _agreement(signals: Mapping[str, Mapping[str, float]], site: str, rule: TrustRuleRecord) -> float:
    points = signals.get("alignment", {}).get(site) if rule["signed"] else None
    return float(agreement(signals["nsds"][site], points))


def _running_sum(values: Sequence[float | None]) -> list[float | None]:
    """Add values up to each round; None before a site's first."""
    out: list[float | None] = []
    total: float | None = None
    for value in values:
        total = total if value is None else (total or 0.0) + value
        out.append(total)
    return out


def _shorten(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
