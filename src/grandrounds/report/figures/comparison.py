"""Comparison of methods: means with intervals, learning curves, trade-offs and radar charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.metrics.names import describe_direction, lower_is_better, metric_range
from grandrounds.metrics.statistics import MIN_RUNS, describe_bounded
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, FAINT, QUIET, category, labels, layout, safe, words

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def pareto(
    points: Sequence[Mapping[str, Any]],
    x: str = "drift",
    y: str = "accuracy",
    *,
    called: Mapping[str, str] | None = None,
    arms: Sequence[str] = (),
) -> Figure:
    """Draw arms by two figures with their 95% intervals, and the Pareto front.

    Args:
        points: For each arm its `label` and, by their names, its two figures: a number, or (mean, low, high).
        x: The figure on the x axis.
        y: The figure on the y axis.
        called: Labels of figures that are not metrics.
        arms: All arms of the page in order, which sets the colour of each; by default these points.

    Raises:
        BadInput: No arm has both figures.
    """
    across, up = (safe((called or {}).get(name) or words(name)) for name in (x, y))
    read = [(str(p["label"]), as_triple(p[x]), as_triple(p[y])) for p in points]
    placed = [(label, a, b) for label, a, b in read if a is not None and b is not None]
    if not placed:
        raise BadInput(f"no arm has both {x} and {y}: there is nothing to draw", code="nothing-to-draw")
    front = _front([(a[0], b[0]) for _, a, b in placed], lower=(lower_is_better(x), lower_is_better(y)))
    ordered = sorted((placed[i] for i in front), key=lambda p: p[1][0])
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "Pareto front",
            "x": [a[0] for _, a, _ in ordered],
            "y": [b[0] for _, _, b in ordered],
            "line": {"color": QUIET, "dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
        }
    ]
    for k, (label, a, b) in enumerate(placed):
        ends = f"{a[0]:.4f} ({a[1]:.4f} to {a[2]:.4f})", f"{b[0]:.4f} ({b[1]:.4f} to {b[2]:.4f})"
        place = list(arms).index(label) if label in arms else k
        colour = arm_colour(place)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(label) + (" (Pareto-optimal)" if k in front else ""),
                "x": [a[0]],
                "y": [b[0]],
                "error_x": _whiskers(a, colour),
                "error_y": _whiskers(b, colour),
                "marker": {
                    "size": 11,
                    "symbol": _SYMBOLS[place // len(COLOURS) % len(_SYMBOLS)],
                    "color": colour if k in front else "#ffffff",
                    "line": {"color": colour, "width": 2},
                },
                "customdata": [list(ends)],
                "hovertemplate": f"{across} %{{customdata[0]}}<br>{up} %{{customdata[1]}}"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return Figure(
        traces,
        layout(
            f"{capitalise(up)} against {across}",
            note="filled marks: Pareto-optimal, no other arm is better in both",
            x=f"{across}{_in_brackets(x)}",
            y=f"{up}{_in_brackets(y)}",
            height=460,
        ),
    )


def _in_brackets(metric: str) -> str:
    better = describe_direction(metric)
    return f" ({better})" if better else ""


def trade_off(curves: Mapping[str, Sequence[Mapping[str, Any]]], x: str = "drift", y: str = "accuracy") -> Figure:
    """Draw two figures against each other, one line per method through its strengths.

    Args:
        curves: Method -> points, each with a `label` (the strength) and, by their names, the two figures.
        x: The figure on the x axis.
        y: The figure on the y axis.
    """
    across, up = safe(words(x)), safe(words(y))
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": safe(name),
            "x": [p[x] for p in points],
            "y": [p[y] for p in points],
            "text": [safe(str(p["label"])) for p in points],
            "textposition": "top center",
            "textfont": {"size": 10, "color": arm_colour(k)},
            "line": {"color": arm_colour(k), "width": 2},
            "marker": {"size": 8 if len(points) > 1 else 13, "symbol": _SYMBOLS[k % len(_SYMBOLS)]},
            "hovertemplate": f"strength %{{text}}<br>{across} %{{x:.4f}}<br>{up} %{{y:.4f}}<extra>%{{fullData.name}}</extra>",
        }
        for k, (name, points) in enumerate(curves.items())
    ]
    title = f"{capitalise(up)} against {across}"
    return Figure(traces, layout(title, note="marks: strengths", x=across, y=up, height=460))


def as_triple(value: Any) -> tuple[float, float, float] | None:
    """Return (mean, low, high) of a figure; without an interval all three are the figure. None where it is not finite."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value, value, value)
    if values[0] is None or not isfinite(values[0]):
        return None
    mean, low, high = (float(values[0]) if v is None or not isfinite(v) else float(v) for v in values)
    return mean, low, high


def _front(points: Sequence[tuple[float, float]], *, lower: tuple[bool, bool]) -> set[int]:
    """Find the points that no other point beats: at least as good in both figures and better in one."""
    turned = [tuple(-v if low else v for v, low in zip(p, lower, strict=True)) for p in points]
    return {i for i, a in enumerate(turned) if not any(b[0] >= a[0] and b[1] >= a[1] and b != a for b in turned)}


def _whiskers(value: tuple[float, float, float], colour: str) -> Trace:
    mean, low, high = value
    return {"type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low], "color": colour,
            "thickness": 1}  # fmt: skip


def arm_colour(k: int) -> str:
    """Return the colour of the k-th arm."""
    return COLOURS[k % len(COLOURS)]


def capitalise(text: str) -> str:
    """Capitalise the first character only."""
    return text[:1].upper() + text[1:]


def radar(axes: Sequence[str], methods: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Draw methods over several figures at once: each axis runs from the worst of them (centre) to the best (rim).

    The scale is the range among these methods, so distances on one axis mean nothing on another; the figures
    themselves are on hover.

    Args:
        axes: The figures, three or more.
        methods: Method -> figure -> value.

    Raises:
        BadInput: There are fewer than three axes.
    """
    if len(axes) < 3:
        raise BadInput(
            f"a radar needs three axes or more, not {len(axes)}: use pareto or intervals", code="too-few-axes"
        )
    scaled = {axis: _scale({m: v.get(axis) for m, v in methods.items()}, lower=lower_is_better(axis)) for axis in axes}
    shown = [safe(words(a)) for a in axes]
    traces = []
    for k, (method, values) in enumerate(methods.items()):
        r = [scaled[a][method] for a in axes]
        raw = ["–" if values.get(a) is None else f"{values[a]:.4f}" for a in axes]
        traces.append(
            {
                "type": "scatterpolar",
                "name": safe(method),
                "r": [*r, r[0]],
                "theta": [*shown, shown[0]],
                "customdata": [*raw, raw[0]],
                "mode": "lines+markers",
                "line": {"color": arm_colour(k), "width": 2, "dash": "solid" if k < len(COLOURS) else "dash"},
                "hovertemplate": "%{theta}: %{customdata}<extra>%{fullData.name}</extra>",
            }
        )
    polar = {
        "radialaxis": {"range": [0, 1.05], "tickvals": [0, 0.5, 1], "ticktext": ["worst", "", "best"], "gridcolor": FAINT,
                       "tickfont": {"size": 10, "color": QUIET}, "angle": 90, "tickangle": 90},
        "angularaxis": {"gridcolor": FAINT, "linecolor": "#b6bec6", "direction": "clockwise", "rotation": 90},
        "bgcolor": "#ffffff",
    }  # fmt: skip
    shape = layout(
        "All metrics",
        note="each axis runs from the worst of these arms (centre) to the best (rim)",
        height=480,
        polar=polar,
    )
    return Figure(traces, {**shape, "margin": {"t": 90, "l": 90, "r": 90, "b": 40}, "legend": {"y": -0.1}})


def _scale(values: Mapping[str, float | None], *, lower: bool) -> dict[str, float | None]:
    """Scale values from 0 for the worst to 1 for the best; 1 for all where they are the same."""
    defined = [v for v in values.values() if v is not None]
    low, high = min(defined, default=0.0), max(defined, default=0.0)

    def place(v: float) -> float:
        share = (v - low) / (high - low)
        return 1 - share if lower else share

    return {m: None if v is None else (1.0 if high == low else place(v)) for m, v in values.items()}


_PANEL_GAP = 0.05
"""Gap between two panels, as a share of the figure's width."""


def intervals(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw mean and 95% interval of every arm, one panel per metric, each with its own scale.

    Args:
        rows: The rows of comparison.json: `arm`, `metric`, `mean`, `low`, `high`, `n`.

    Raises:
        BadInput: There are no rows.
    """
    metrics = list(dict.fromkeys(r["metric"] for r in rows))
    arms = list(dict.fromkeys(r["arm"] for r in rows))
    if not rows:
        raise BadInput("there is no arm to draw", code="nothing-to-draw")
    names = dict(zip(arms, labels(arms, width=30), strict=True))
    across = min(3, len(metrics))
    down = -(-len(metrics) // across)
    height = 100 + down * (96 + 24 * len(arms))
    below = 76 / (height - 100)
    wide, tall = (1 - _PANEL_GAP * (across - 1)) / across, (1 - below * (down - 1)) / down
    traces, axes, notes = [], {}, []
    for k, metric in enumerate(metrics):
        number = "" if k == 0 else str(k + 1)
        row, column = divmod(k, across)
        by_arm = {r["arm"]: r for r in rows if r["metric"] == metric and r["mean"] is not None}
        triples = {a: as_triple((r["mean"], r.get("low"), r.get("high"))) for a, r in by_arm.items()}
        drawn = {a: t for a, t in triples.items() if t is not None}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [t[0] for t in drawn.values()],
                "y": [names[a] for a in drawn],
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
                "showlegend": False,
                "marker": {"size": 9, "color": [arm_colour(arms.index(a)) for a in drawn]},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [t[2] - t[0] for t in drawn.values()],
                    "arrayminus": [t[0] - t[1] for t in drawn.values()],
                    "color": QUIET,
                    "thickness": 1.4,
                },
                "customdata": [[t[1], t[2], by_arm[a]["n"]] for a, t in drawn.items()],
                "hovertemplate": "%{y}: %{x:.4f}, 95% CI %{customdata[0]:.4f} to %{customdata[1]:.4f}, "
                "%{customdata[2]} runs<extra></extra>",
            }
        )
        start, top = column * (wide + _PANEL_GAP), 1 - row * (tall + below)
        right, bottom = start + wide, top - tall
        axes[f"xaxis{number}"] = {"domain": [start, right], "anchor": f"y{number}", "nticks": 5, **_from_zero(metric)}
        axes[f"yaxis{number}"] = category(
            list(names.values()), domain=[bottom, top], anchor=f"x{number}", range=[len(arms) - 0.5, -0.5],
            showticklabels=column == 0,
        )  # fmt: skip
        notes.append(
            {"text": f"{safe(words(metric))} <span style='color:{QUIET}'>{_in_brackets(metric)}</span>", "showarrow": False,
             "xref": "paper", "yref": "paper", "x": start, "xanchor": "left", "y": top, "yanchor": "bottom",
             "font": {"size": 12}}
        )  # fmt: skip
    note = "over seeds and folds, for three runs or more; each panel has its own scale"
    shape = layout("Means and 95% intervals", note=note, height=height)
    return Figure(traces, {**shape, **axes, "annotations": notes, "margin": {"t": 78, "b": 40}})


def _from_zero(metric: str) -> dict[str, str]:
    """Keep an axis from negative values that a metric cannot have: the axis of counts that are all 0 would go from -1 to 1."""
    limits = metric_range(metric)
    return {"rangemode": "nonnegative"} if limits is not None and limits[0] >= 0 else {}


def arm_curves(arms: Mapping[str, Sequence[Mapping[int, float | None]]], metric: str) -> Figure:
    """Draw a metric over the rounds, one line per arm: the mean of its runs, with its 95% interval as a band.

    Args:
        arms: Arm -> for each of its runs, round -> value. A round counts where every run of the arm has it.
        metric: The metric.

    Raises:
        BadInput: No arm has the metric by round.
    """
    traces: list[Trace] = []
    for k, (arm, runs) in enumerate(arms.items()):
        shared = sorted(set.intersection(*[set(r) for r in runs])) if runs else []
        by_round = {r: [run[r] for run in runs] for r in shared}
        complete = {r: [v for v in vs if v is not None] for r, vs in by_round.items() if None not in vs}
        means = {r: describe_bounded(vs, metric_range(metric)) for r, vs in complete.items()}
        if not means:
            continue
        rounds, colour = list(means), arm_colour(k)
        line = {"color": colour, "width": 2, "dash": "solid" if k < len(COLOURS) else "dash"}
        group = f"arm {k}"
        if len(runs) >= MIN_RUNS and len(rounds) > 1:
            band = [*(means[r].high for r in rounds), *(means[r].low for r in reversed(rounds))]
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "x": [*rounds, *reversed(rounds)], "y": band, "fill": "toself",
                    "fillcolor": _transparent_fill(colour), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
                    "legendgroup": group,
                }
            )  # fmt: skip
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(rounds) > 1 else "markers",
                "name": safe(arm),
                "x": rounds,
                "y": [means[r].mean for r in rounds],
                "line": line,
                "marker": {"size": 9, "color": colour},
                "legendgroup": group,
                "hovertemplate": "round %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
            }
        )
    if not traces:
        raise BadInput(f"no arm has {metric} by round: there is nothing to draw", code="nothing-to-draw")
    return Figure(
        traces,
        layout(
            f"{capitalise(words(metric))}, by round",
            note=f"mean over runs, with its 95% interval where there are {MIN_RUNS} or more",
            x="round",
            y=words(metric),
            height=400,
        ),
    )


def setting_curves(
    arms: Mapping[str, Mapping[float, tuple[float, float, float]]], metric: str, *, x: str, title: str = ""
) -> Figure:
    """Draw a metric over values of a setting (on a logarithmic axis), one line per arm, with 95% intervals as whiskers.

    Args:
        arms: Arm -> value of the setting -> (mean, low, high).
        metric: The metric.
        x: The setting.
        title: An addition to the title.

    Raises:
        BadInput: There are no arms.
    """
    traces = []
    for k, (arm, by_value) in enumerate(arms.items()):
        read = {value: as_triple(figure) for value, figure in sorted(by_value.items())}
        drawn = {value: t for value, t in read.items() if t is not None}
        colour = arm_colour(k)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": safe(arm),
                "x": list(drawn),
                "y": [t[0] for t in drawn.values()],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [t[2] - t[0] for t in drawn.values()],
                    "arrayminus": [t[0] - t[1] for t in drawn.values()],
                    "color": colour,
                    "thickness": 1.2,
                },
                "line": {"color": colour, "width": 2, "dash": "solid" if k < len(COLOURS) else "dash"},
                "marker": {"size": 8},
                "hovertemplate": f"{safe(x)} %{{x}}: %{{y:.4f}}<extra>%{{fullData.name}}</extra>",
            }
        )
    values = sorted({value for by_value in arms.values() for value in by_value})
    if not values:
        raise BadInput("there is no arm to draw", code="nothing-to-draw")
    axis = {"type": "log", "tickvals": values, "ticktext": [f"{v:g}" for v in values]}
    name = safe(words(metric))
    return Figure(
        traces,
        layout(
            f"{capitalise(name)}{f': {safe(title)}' if title else ''}",
            note="mean over runs, with its 95% interval",
            x=safe(x),
            y=f"{name}{_in_brackets(metric)}",
            height=420,
            xaxis=axis,
        ),
    )


def _transparent_fill(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.12)"
