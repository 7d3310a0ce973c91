"""Ways of doing it side by side: means with intervals, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.metrics.names import range_of
from grandrounds.metrics.statistics import LEAST_RUNS, describe_within
from grandrounds.report.figure import Figure
from grandrounds.report.figures.trade import capital, colour_of, lower_is_better, triple
from grandrounds.report.paint import COLOURS, QUIET, category, labels, layout, safe, words

_BESIDE = 0.05
"""Between two panels, of the figure's width."""


def intervals(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Mean and 95% interval of every arm, one panel a metric: each with a scale of its own.

    `rows` are those of comparison.json: `arm`, `metric`, `mean`, `low`, `high`, `n`.
    """
    metrics = list(dict.fromkeys(r["metric"] for r in rows))
    arms = list(dict.fromkeys(r["arm"] for r in rows))
    if not rows:
        raise BadInput("there is no arm to draw")
    names = dict(zip(arms, labels(arms, width=30), strict=True))
    across = min(3, len(metrics))
    down = -(-len(metrics) // across)
    height = 100 + down * (96 + 24 * len(arms))
    below = 76 / (height - 100)
    wide, tall = (1 - _BESIDE * (across - 1)) / across, (1 - below * (down - 1)) / down
    traces, axes, notes = [], {}, []
    for k, metric in enumerate(metrics):
        number = "" if k == 0 else str(k + 1)
        row, column = divmod(k, across)
        own = {r["arm"]: r for r in rows if r["metric"] == metric and r["mean"] is not None}
        found = {a: triple((r["mean"], r.get("low"), r.get("high"))) for a, r in own.items()}
        held = {a: t for a, t in found.items() if t is not None}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [t[0] for t in held.values()],
                "y": [names[a] for a in held],
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
                "showlegend": False,
                "marker": {"size": 9, "color": [colour_of(arms.index(a)) for a in held]},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [t[2] - t[0] for t in held.values()],
                    "arrayminus": [t[0] - t[1] for t in held.values()],
                    "color": QUIET,
                    "thickness": 1.4,
                },
                "customdata": [[t[1], t[2], own[a]["n"]] for a, t in held.items()],
                "hovertemplate": "%{y}: %{x:.4f}, 95% CI %{customdata[0]:.4f} to %{customdata[1]:.4f}, "
                "%{customdata[2]} runs<extra></extra>",
            }
        )
        left, top = column * (wide + _BESIDE), 1 - row * (tall + below)
        right, bottom = left + wide, top - tall
        axes[f"xaxis{number}"] = {"domain": [left, right], "anchor": f"y{number}", "nticks": 5}
        axes[f"yaxis{number}"] = category(
            list(names.values()), domain=[bottom, top], anchor=f"x{number}", autorange="reversed",
            showticklabels=column == 0,
        )  # fmt: skip
        better = "less is better" if lower_is_better(metric) else "more is better"
        notes.append(
            {"text": f"{safe(words(metric))} <span style='color:{QUIET}'>({better})</span>", "showarrow": False,
             "xref": "paper", "yref": "paper", "x": left, "xanchor": "left", "y": top, "yanchor": "bottom",
             "font": {"size": 12}}
        )  # fmt: skip
    note = "over seeds and folds, of three runs or more; every panel has its own scale"
    shape = layout("Means and 95% intervals", note=note, height=height)
    return Figure(traces, {**shape, **axes, "annotations": notes, "margin": {"t": 78, "b": 40}})


def arm_curves(arms: Mapping[str, Sequence[Mapping[int, float | None]]], metric: str) -> Figure:
    """A metric over the rounds, one line an arm: the mean of its runs, with its 95% interval as a band.

    `arms`: arm -> for each of its runs, round -> value. A round counts where every run of the arm has it.
    """
    traces: list[dict[str, Any]] = []
    for k, (arm, runs) in enumerate(arms.items()):
        shared = sorted(set.intersection(*[set(r) for r in runs])) if runs else []
        found = {r: [run[r] for run in runs] for r in shared}
        known = {r: [v for v in vs if v is not None] for r, vs in found.items() if None not in vs}
        held = {r: describe_within(vs, range_of(metric)) for r, vs in known.items()}
        if not held:
            continue
        rounds, colour = list(held), colour_of(k)
        line = {"color": colour, "width": 2, "dash": "solid" if k < len(COLOURS) else "dash"}
        group = f"arm {k}"
        if len(runs) >= LEAST_RUNS and len(rounds) > 1:
            band = [*(held[r].high for r in rounds), *(held[r].low for r in reversed(rounds))]
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "x": [*rounds, *reversed(rounds)], "y": band, "fill": "toself",
                    "fillcolor": _transparent(colour), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
                    "legendgroup": group,
                }
            )  # fmt: skip
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(rounds) > 1 else "markers",
                "name": safe(arm),
                "x": rounds,
                "y": [held[r].mean for r in rounds],
                "line": line,
                "marker": {"size": 9, "color": colour},
                "legendgroup": group,
                "hovertemplate": "round %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
            }
        )
    if not traces:
        raise BadInput(f"no arm has {metric} by round: there is nothing to draw")
    return Figure(
        traces,
        layout(
            f"{capital(words(metric))}, round by round",
            note=f"mean over runs, with its 95% interval where there are {LEAST_RUNS} or more",
            x="round",
            y=words(metric),
            height=400,
        ),
    )


def by_setting(
    arms: Mapping[str, Mapping[float, tuple[float, float, float]]], metric: str, *, x: str, title: str = ""
) -> Figure:
    """A metric over values of a setting (on a logarithmic axis), one line an arm, with 95% intervals as whiskers.

    `arms`: arm -> value of the setting `x` -> (mean, low, high).
    """
    traces = []
    for k, (arm, found) in enumerate(arms.items()):
        read = {value: triple(figure) for value, figure in sorted(found.items())}
        held = {value: t for value, t in read.items() if t is not None}
        colour = colour_of(k)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": safe(arm),
                "x": list(held),
                "y": [t[0] for t in held.values()],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [t[2] - t[0] for t in held.values()],
                    "arrayminus": [t[0] - t[1] for t in held.values()],
                    "color": colour,
                    "thickness": 1.2,
                },
                "line": {"color": colour, "width": 2, "dash": "solid" if k < len(COLOURS) else "dash"},
                "marker": {"size": 8},
                "hovertemplate": f"{safe(x)} %{{x}}: %{{y:.4f}}<extra>%{{fullData.name}}</extra>",
            }
        )
    values = sorted({value for found in arms.values() for value in found})
    if not values:
        raise BadInput("there is no arm to draw")
    better = "less is better" if lower_is_better(metric) else "more is better"
    axis = {"type": "log", "tickvals": values, "ticktext": [f"{v:g}" for v in values]}
    name = safe(words(metric))
    return Figure(
        traces,
        layout(
            f"{capital(name)}{f': {safe(title)}' if title else ''}",
            note="mean over runs, with its 95% interval",
            x=safe(x),
            y=f"{name} ({better})",
            height=420,
            xaxis=axis,
        ),
    )


def _transparent(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.12)"
