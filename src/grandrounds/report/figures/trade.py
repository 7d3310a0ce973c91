"""What is given up for what: arms of a comparison by two figures, or by many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.metrics.names import bare
from grandrounds.metrics.scores import BY_NAME
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, FAINT, QUIET, layout, safe, words

LOWER = ("drift", "nsds", "spurious_gap", "sketch_entries", "megabytes", "payload", "bad_weight", "epsilon")
"""Figures of explanations and traffic of which less is better; metrics know their own direction."""

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def lower_is_better(name: str) -> bool:
    metric = BY_NAME.get(bare(name))
    return name in LOWER or (metric is not None and metric.higher_is_better is False)


def pareto(
    points: Sequence[Mapping[str, Any]],
    x: str = "drift",
    y: str = "accuracy",
    *,
    called: Mapping[str, str] | None = None,
    arms: Sequence[str] = (),
) -> Figure:
    """Arms by two figures with their 95% intervals, and the front: the arms that none beats in both.

    A point has a `label` and, by their names, its two figures: a number, or (mean, low, high). `called`: their words, where
    they are no metrics. `arms`: all arms of the page in order, from which each has its colour; by default these points.
    """
    across, up = (safe((called or {}).get(name) or words(name)) for name in (x, y))
    read = [(str(p["label"]), triple(p[x]), triple(p[y])) for p in points]
    placed = [(label, a, b) for label, a, b in read if a is not None and b is not None]
    if not placed:
        raise BadInput(f"no arm has both {x} and {y}: there is nothing to draw")
    front = _front([(a[0], b[0]) for _, a, b in placed], lower=(lower_is_better(x), lower_is_better(y)))
    ordered = sorted((placed[i] for i in front), key=lambda p: p[1][0])
    traces: list[dict[str, Any]] = [
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
        colour = colour_of(place)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(label) + (" (on the front)" if k in front else ""),
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
    better = ["less is better" if lower_is_better(n) else "more is better" for n in (x, y)]
    return Figure(
        traces,
        layout(
            f"{capital(up)} against {across}",
            note="filled marks: no other arm is better in both",
            x=f"{across} ({better[0]})",
            y=f"{up} ({better[1]})",
            height=460,
        ),
    )


def trade_off(curves: Mapping[str, Sequence[Mapping[str, Any]]], x: str = "drift", y: str = "accuracy") -> Figure:
    """A line for each way of doing it through its strengths: what each buys of one figure, and at which price in the other.

    A point has a `label` (its strength) and, by their names, its two figures.
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
            "textfont": {"size": 10, "color": colour_of(k)},
            "line": {"color": colour_of(k), "width": 2},
            "marker": {"size": 8 if len(points) > 1 else 13, "symbol": _SYMBOLS[k % len(_SYMBOLS)]},
            "hovertemplate": f"strength %{{text}}<br>{across} %{{x:.4f}}<br>{up} %{{y:.4f}}<extra>%{{fullData.name}}</extra>",
        }
        for k, (name, points) in enumerate(curves.items())
    ]
    title = f"{capital(up)} against {across}"
    return Figure(traces, layout(title, note="marks: strengths", x=across, y=up, height=460))


def triple(value: Any) -> tuple[float, float, float] | None:
    """(mean, low, high) of a figure; without an interval all three are the figure."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value, value, value)
    if values[0] is None or not isfinite(values[0]):
        return None
    mean, low, high = (float(values[0]) if v is None or not isfinite(v) else float(v) for v in values)
    return mean, low, high


def _front(points: Sequence[tuple[float, float]], *, lower: tuple[bool, bool]) -> set[int]:
    """Which points no other beats: at least as good in both figures and better in one."""
    turned = [tuple(-v if low else v for v, low in zip(p, lower, strict=True)) for p in points]
    return {i for i, a in enumerate(turned) if not any(b[0] >= a[0] and b[1] >= a[1] and b != a for b in turned)}


def _whiskers(value: tuple[float, float, float], colour: str) -> dict[str, Any]:
    mean, low, high = value
    return {"type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low], "color": colour,
            "thickness": 1}  # fmt: skip


def colour_of(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def radar(axes: Sequence[str], methods: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Methods over several figures at once: each axis runs from the worst of them (centre) to the best (rim).

    The scale is the range among these methods, so distances on one axis mean nothing on another; the figures
    themselves are on hover.
    """
    if len(axes) < 3:
        raise BadInput(f"a radar needs three axes or more, not {len(axes)}: use pareto or intervals")
    scaled = {axis: _scaled({m: v.get(axis) for m, v in methods.items()}, lower=lower_is_better(axis)) for axis in axes}
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
                "line": {"color": colour_of(k), "width": 2, "dash": "solid" if k < len(COLOURS) else "dash"},
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
        "All at once",
        note="every axis from the worst of these arms (centre) to the best (rim)",
        height=480,
        polar=polar,
    )
    return Figure(traces, {**shape, "margin": {"t": 90, "l": 90, "r": 90, "b": 40}, "legend": {"y": -0.1}})


def _scaled(values: Mapping[str, float | None], *, lower: bool) -> dict[str, float | None]:
    """From 0 for the worst to 1 for the best; 1 for all where they are the same."""
    known = [v for v in values.values() if v is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def place(v: float) -> float:
        share = (v - low) / (high - low)
        return 1 - share if lower else share

    return {m: None if v is None else (1.0 if high == low else place(v)) for m, v in values.items()}
