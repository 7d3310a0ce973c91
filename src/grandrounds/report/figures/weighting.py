"""Weights of sites round by round, the signals behind them, disagreement and cohorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from grandrounds.core.errors import BadInput
from grandrounds.core.records import Decision, RoundRecord
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import (
    COLOURS,
    DISTANCE,
    INK,
    MAX_SITES,
    MORE_COLOURS,
    QUIET,
    SITE_COLOURS,
    category,
    labels,
    largest,
    layout,
    safe,
    site_colours,
    words,
)

SiteValues = Mapping[str, Mapping[str, float]]
"""Signal (or part of a weight) -> site -> value."""

_NAMED_SITES = 12
_MAX_ROUNDS = 200


def weights(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw each site's weight in every round, stacked; with many sites, the twelve heaviest and the rest as one.

    Raises:
        BadInput: No round weighs sites.
    """
    weighed = [r for r in rounds if r.decision.weights]
    if not weighed:
        raise BadInput(
            "no round of this run has aggregation weights: there is nothing to draw",
            code="nothing-to-draw",
        )
    shown = [weighed[i] for i in spread_positions(len(weighed))]
    total: dict[str, float] = {}
    for record in weighed:
        for site, weight in record.decision.weights.items():
            total[site] = total.get(site, 0.0) + (weight or 0.0)
    heavy = sorted(total, key=lambda s: (-total[s], s))
    named = sorted(heavy[:_NAMED_SITES] if len(heavy) > _NAMED_SITES + 1 else heavy)
    x = [r.round for r in shown]
    traces, colours = [], site_colours(rounds)
    for site in named:
        y = [r.decision.weights.get(site) or 0.0 for r in shown]
        traces.append(bars(x, y, safe(site), colours[site]))
    rest_count = len(heavy) - len(named)
    if rest_count:
        rest = [sum(w or 0.0 for s, w in r.decision.weights.items() if s not in named) for r in shown]
        traces.append(bars(x, rest, f"{rest_count} other sites", "#c3c9cf"))
    note = f"{len(shown)} of {len(weighed)} rounds" if len(shown) < len(weighed) else ""
    return Figure(
        traces,
        layout("Aggregation weights", note=note, x="round", y="weight", height=400, barmode="stack",
               bargap=0.15 if len(x) <= 60 else 0, legend={"traceorder": "normal"}),
    )  # fmt: skip


def bars(x: Sequence[int], y: Sequence[float], name: str, colour: str, *, number_format: str = ".4f") -> Trace:
    """Draw a bar per round.

    Args:
        x: The rounds.
        y: The heights.
        name: The name in the legend.
        colour: The colour.
        number_format: The format of the number on hover.
    """
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": [round(v, 6) for v in y],
        "marker": {"color": colour},
        "hovertemplate": f"round %{{x}}: %{{y:{number_format}}}<extra>%{{fullData.name}}</extra>",
    }


def spread_positions(count: int, most: int = _MAX_ROUNDS) -> list[int]:
    """Choose at most `most` positions out of `count`, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def weights_by_signal(decision: Decision) -> Figure:
    """Draw one round's weights by site, with the signals that determined them.

    Where the Decision splits weights among signals (`shares`: signal -> site -> part of the weight) the bars are stacked and add
    up to the weight, the numbers behind them are on hover, and a ring marks the weight by number of rows alone. Otherwise the
    weight and each signal have a panel with its own scale: signals can have either sign.

    Raises:
        BadInput: The round has no weights with signals.
    """
    by_site, signals = decision.weights, decision.signals
    if not by_site or not signals:
        raise BadInput(
            "this round has no weights with signals behind them: there is nothing to draw", code="nothing-to-draw"
        )
    sites = sorted(by_site, key=lambda s: (-(by_site[s] or 0.0), s))[:MAX_SITES]
    names = labels(sites)
    some = [f"the {len(sites)} heaviest of {len(by_site)} sites"] if len(by_site) > len(sites) else []
    title = f"Round {decision.round}: what determined each weight"
    shares = decision.shares or {}
    if not shares:
        return _panels(decision, sites, title=title, note="; ".join([_OWN_SCALES, *some]))
    traces = _parts(shares, signals, sites)
    rows = {s: n for s, n in signals.get("data_size", {}).items() if s in by_site}
    if sum(rows.values()):
        alone = [rows.get(s, 0.0) / sum(rows.values()) for s in sites]
        ring = {"symbol": "circle", "size": 9, "color": "#ffffff", "line": {"color": INK, "width": 1.5}}
        traces.append(_marks("by number of rows alone", names, alone, ring))
    traces.append(_marks("weight", names, [by_site[s] for s in sites], {"symbol": "diamond", "size": 9, "color": INK}))
    return Figure(
        traces,
        layout(title, note="; ".join(["bars add up to the weight", *some]), y="weight", height=400, barmode="stack",
               legend={"traceorder": "normal"}, xaxis=category(names, tickangle=-45 if len(names) > 8 else 0)),
    )  # fmt: skip


_OWN_SCALES = "each signal on its own scale, as reported; the text above explains how they determine the weight"
_PANEL, _GAP = 74, 30
"""Height of a panel and of the space above it, in pixels."""


def _panels(decision: Decision, sites: Sequence[str], *, title: str, note: str) -> Figure:
    """Draw a panel for the weight and one for each signal, over the same sites, each with its own scale and colour."""
    names = labels(sites)
    rows = {"weight": decision.weights, **decision.signals}
    height = len(rows) * (_PANEL + _GAP)
    traces, axes, notes = [], {}, []
    for k, (name, values) in enumerate(rows.items()):
        axis = "" if k == 0 else str(k + 1)
        top = 1 - (k * (_PANEL + _GAP) + _GAP) / height
        colour = INK if k == 0 else SITE_COLOURS[(k - 1) % len(SITE_COLOURS)]
        bar = _signal(
            k,
            name.replace("_", " "),
            names,
            [values.get(s) for s in sites],
            [_format_signal(values.get(s)) for s in sites],
        )
        traces.append({**bar, "marker": {"color": colour}, "yaxis": f"y{axis}", "showlegend": False})
        axes[f"yaxis{axis}"] = {"domain": [max(0.0, top - _PANEL / height), top], "nticks": 3, "zeroline": True}
        axes[f"yaxis{axis}"] |= {"zerolinecolor": QUIET, "title": {"text": ""}}
        notes.append({"text": safe(words(name)), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": top,
                      "xanchor": "left", "yanchor": "bottom", "font": {"size": 12}})  # fmt: skip
    last = "y" if len(rows) == 1 else f"y{len(rows)}"
    across = category(names, tickangle=-45 if len(names) > 8 else 0, anchor=last)
    shape = layout(title, note=note, height=height + 150, xaxis=across)
    return Figure(traces, {**shape, **axes, "annotations": notes})


_SIGNALS_OF_PART = {
    "data": ("data_size",),
    "agreement": ("disagreement", "standing", "in_line", "agreement", "importance", "flat"),
    "worst_site": ("val_loss",),
    "calibration": ("ece",),
}
"""The numbers that a part of a weight comes from."""
_PART_NAMES = {"data": "data size", "agreement": "agreement of explanations"}


def _parts(shares: SiteValues, signals: SiteValues, sites: Sequence[str]) -> list[Trace]:
    """Draw a bar for each part of the weights, with the numbers it comes from."""
    traces = []
    for k, (part, values) in enumerate(shares.items()):
        behind = [name for name in _SIGNALS_OF_PART.get(part, (part,)) if name in signals]
        name = (
            "rows x agreement of explanations"
            if "in_line" in behind
            else _PART_NAMES.get(part, part.replace("_", " "))
        )
        texts = [", ".join(f"{words(n)} {_format_signal(signals[n].get(s))}" for n in behind) for s in sites]
        y = [values.get(s) or 0.0 for s in sites]
        traces.append(_signal(k, name, labels(sites), y, texts))
    return traces


def _signal(k: int, name: str, x: Sequence[str], y: Sequence[float | None], texts: Sequence[str]) -> Trace:
    return {
        "type": "bar",
        "name": safe(name),
        "x": list(x),
        "y": list(y),
        "customdata": [safe(words) for words in texts],
        "marker": {"color": SITE_COLOURS[k % len(SITE_COLOURS)]},
        "hovertemplate": "%{x}: %{y:.4f} (%{customdata})<extra>%{fullData.name}</extra>",
    }


def _marks(name: str, x: Sequence[str], y: Sequence[float], marker: Trace) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": dict(marker),
        "hovertemplate": f"%{{x}}: {name} %{{y:.4f}}<extra></extra>",
    }


def _format_signal(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


_PALETTE = (*COLOURS, *MORE_COLOURS)


def disagreement_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the distance of each site's explanations from the consensus it was weighed by.

    It is the method's own number, within a cohort where there are cohorts; `distance_to_consensus` draws that of
    explanations.json.

    Raises:
        BadInput: No round weighs sites by their explanations.
    """
    decisions = [r.decision for r in rounds if r.decision.signals.get("disagreement")]
    if not decisions:
        raise BadInput(
            "no round of this run weighs sites by their explanations: there is no disagreement to draw",
            code="nothing-to-draw",
        )
    shown = [decisions[i] for i in spread_positions(len(decisions))]
    away = [_compared_distances(d) for d in shown]
    both = list(zip(away, shown, strict=True))
    every = list(dict.fromkeys(s for d in shown for s in d.signals["disagreement"]))
    farthest = {s: max(d.get(s) or 0.0 for d in away) for s in every}
    sites = sorted(every, key=lambda s: (-farthest[s], s))[:MAX_SITES]
    z = [[_shorten(d.get(s)) for d in away] for s in sites]
    weights = [[_shorten(d.weights.get(s)) for d in shown] for s in sites]
    trace = _heat(shown, sites, z) | {
        "customdata": weights,
        "zmin": 0,
        "zmax": largest(z),
        "colorscale": DISTANCE,
        "colorbar": {"title": {"text": "distance", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}, round %{x}: %{z:.3f} from the consensus, weight %{customdata:.4f}<extra></extra>",
    }
    blank = ["blank: alone in its cohort"] if any(len(a) < len(d.signals["disagreement"]) for a, d in both) else []
    notes = ["distance to the consensus it was weighed by", *blank, *_shown_note(sites, every)]
    return _site_by_round("Disagreement of explanations", notes, trace, len(sites))


def cohorts_over_rounds(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the cohort of each site in every round with cohorts; with many sites, those that changed most often.

    Raises:
        BadInput: No round groups its sites.
    """
    decisions = [r.decision for r in rounds if (r.decision.cohorts or {}).get("of")]
    if not decisions:
        raise BadInput("no round of this run groups its sites into cohorts: there is nothing to draw", code="nothing-to-draw")
    shown = [decisions[i] for i in spread_positions(len(decisions))]
    assignments = [d.cohorts["of"] for d in shown]
    every = list(dict.fromkeys(s for d in decisions for s in d.cohorts["of"]))
    moved = {s: _changes([d.cohorts["of"].get(s) for d in decisions]) for s in every}
    most_moved = set(sorted(every, key=lambda s: (-moved[s], s))[:MAX_SITES])
    sites = [s for s in every if s in most_moved]
    most = max(c for d in assignments for c in d.values())
    trace = _heat(shown, sites, [[d.get(s) for d in assignments] for s in sites]) | {
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
    notes = [*_consistency([d.cohorts.get("consistency") for d in decisions]), *_shown_note(sites, every)]
    return _site_by_round("Cohorts of sites", notes, trace, len(sites))


def _compared_distances(decision: Decision) -> dict[str, float | None]:
    """Return the distances of a round, without sites that were alone in their cohort."""
    cohort_by_site = (decision.cohorts or {}).get("of", {})
    alone = {s for s, c in cohort_by_site.items() if list(cohort_by_site.values()).count(c) == 1}
    return {s: v for s, v in decision.signals["disagreement"].items() if v or s not in alone}


def _heat(shown: Sequence[Decision], sites: Sequence[str], z: Sequence[Sequence[float | None]]) -> Trace:
    return {
        "type": "heatmap",
        "x": [str(d.round) for d in shown],
        "y": labels(sites),
        "z": z,
        "xgap": 1 if len(shown) <= 40 else 0,
        "ygap": 1,
    }


def _site_by_round(title: str, notes: Sequence[str], trace: Trace, sites: int) -> Figure:
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


def _steps(most: int) -> list[list[float | str]]:
    """Build a colour scale in steps: one colour per cohort, in the palette's order, repeated."""
    colours = [_PALETTE[c % len(_PALETTE)] for c in range(most)]
    return [[edge / most, colour] for c, colour in enumerate(colours) for edge in (c, c + 1)]


def _changes(cohorts: Sequence[int | None]) -> int:
    present = [c for c in cohorts if c is not None]
    return sum(a != b for a, b in pairwise(present))


def _consistency(indices: Sequence[float | None]) -> list[str]:
    """Summarise the stability of cohorts from round to round: the mean of the adjusted Rand index, and its minimum."""
    defined = [v for v in indices if v is not None]
    if not defined:
        return []
    mean, least = sum(defined) / len(defined), min(defined)
    return [f"consistency (adjusted Rand index to the round before) {mean:.2f}, at least {least:.2f}"]


def _shown_note(shown: Sequence[str], every: Sequence[str]) -> list[str]:
    return [f"{len(shown)} of {len(every)} sites"] if len(shown) < len(every) else []


def _shorten(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
