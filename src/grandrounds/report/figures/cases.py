"""Explanations of single patients: a waterfall, a swarm of many, and one patient under several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, INK, QUIET, SIGNED, category, labels, layout, safe

_VALUES = [[0, "#0072B2"], [0.5, "#c9c9c9"], [1, "#D55E00"]]
"""From a feature's low values to its high ones."""
_ROWS = 300
_LANES = 60
_EXACT = 1e-6
_DOTTED = {"color": INK, "width": 1, "dash": "dot"}


def waterfall(
    names: Sequence[str],
    contributions: Sequence[float],
    base: float,
    prediction: float,
    values: Sequence[object] | None = None,
    *,
    top: int = 10,
) -> Figure:
    """Draw a waterfall from the base log-odds to one case's, feature by feature; the probability of each step is on hover.

    Args:
        names: The features.
        contributions: The contribution of each, in log-odds.
        base: The log-odds of the typical case.
        prediction: The log-odds of this case. The part of `prediction` - `base` that contributions do not explain has a
            bar of its own: an explainer that samples does not add up exactly.
        values: The value of each feature, where it is shown.
        top: Features that are shown; the rest is one bar.

    Raises:
        BadInput: Names, contributions and values differ in length.
    """
    if len(names) != len(contributions) or (values is not None and len(values) != len(names)):
        raise BadInput(
            f"{len(names)} names, {len(contributions)} contributions: give one of each (and of values) per feature",
            code="length-mismatch",
        )
    order = sorted(range(len(names)), key=lambda f: (-abs(contributions[f]), f))
    if len(order) > top + 1:
        order, rest = order[:top], order[top:]
    else:
        rest = []
    names_shown = [f"{names[f]} = {_value(values[f])}" if values is not None else str(names[f]) for f in order]
    steps = [float(contributions[f]) for f in order]
    if rest:
        names_shown.append(f"{len(rest)} others")
        steps.append(float(sum(contributions[f] for f in rest)))
    residual = prediction - base - sum(steps)
    if abs(residual) > _EXACT * (1 + abs(prediction - base)):
        names_shown.append("not explained")
        steps.append(residual)
    reached = [base, *(base + np.cumsum(steps)).tolist()]
    shown = labels([*names_shown, "prediction"], width=40)
    chances = [_probability(z) for z in reached]
    trace = {
        "type": "waterfall",
        "orientation": "h",
        "base": base,
        "measure": [*["relative"] * len(steps), "total"],
        "y": shown,
        "x": [*steps, prediction - base],
        "text": [*[f"{s:+.2f}" for s in steps], f"{prediction:.2f}"],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [[z, p] for z, p in zip([*reached[1:], prediction], [*chances[1:], chances[-1]], strict=True)],
        "hovertemplate": "%{y}: %{text}<br>log-odds so far %{customdata[0]:.3f}, "
        "probability %{customdata[1]:.1%}<extra></extra>",
        "increasing": {"marker": {"color": COLOURS[1]}},
        "decreasing": {"marker": {"color": COLOURS[0]}},
        "totals": {"marker": {"color": QUIET}},
        "connector": {"line": {"color": "#b6bec6", "width": 1}},
    }
    low, high = min(reached), max(reached)
    room = 0.2 * (high - low or 1.0)
    start = {"type": "line", "x0": base, "x1": base, "yref": "paper", "y0": 0, "y1": 1, "line": _DOTTED}
    return Figure(
        [trace],
        layout(
            "Why this case",
            note=f"from {chances[0]:.1%} for the typical case (dotted) to {chances[-1]:.1%} for this one",
            x="log-odds",
            height=150 + 26 * len(shown),
            showlegend=False,
            shapes=[start],
            xaxis={"range": [low - room, high + room]},
            yaxis=category(shown, autorange="reversed", showgrid=False),
        ),
    )


def _probability(z: float) -> float:
    return 1 / (1 + exp(-z)) if z >= 0 else exp(z) / (1 + exp(z))


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)


def beeswarm(names: Sequence[str], attributions: Array, values: Array, *, top: int = 15) -> Figure:
    """Draw every case's attribution of each feature, coloured by the feature's value, low to high; a missing value is grey.

    Args:
        names: The features.
        attributions: Attributions (n, F); of many cases evenly chosen ones are shown.
        values: Values of the features (n, F).
        top: Features that are shown, by mean absolute attribution.

    Raises:
        BadInput: The shapes do not fit.
    """
    a, v = np.asarray(attributions, float), np.asarray(values, float)
    if a.ndim != 2 or a.shape != v.shape or a.shape[1] != len(names) or not len(a):
        raise BadInput(
            f"attributions {a.shape} and values {v.shape} must both be (cases, {len(names)} features)",
            code="mismatched-shapes",
        )
    order = np.argsort(-np.abs(a).mean(axis=0), kind="stable")[:top]
    rows = np.unique(np.linspace(0, len(a) - 1, min(len(a), _ROWS)).round().astype(int))
    a, v = a[np.ix_(rows, order)], v[np.ix_(rows, order)]
    low, high = float(a.min()), float(a.max())
    shown = labels([names[f] for f in order], width=30)
    heights = np.stack([_swarm(a[:, f], low, high) for f in range(len(order))], axis=1)
    middle = np.arange(len(order))
    level = _level(v)
    missing_mask = np.isnan(v)
    # one trace for all features: the browser draws thousands of points as one path
    feature = np.broadcast_to(middle, a.shape)
    points = _points(
        a[~missing_mask], (feature + heights)[~missing_mask], feature[~missing_mask], v[~missing_mask], shown
    )
    points["marker"] |= {"color": level[~missing_mask], "colorscale": _VALUES, "cmin": 0, "cmax": 1, "showscale": True}
    bar = {"title": {"text": "feature's value", "side": "right"}, "tickvals": [0, 1], "ticktext": ["low", "high"]}
    points["marker"]["colorbar"] = {**bar, "thickness": 12}
    traces = [points]
    if missing_mask.any():
        missing = _points(
            a[missing_mask],
            (feature + heights)[missing_mask],
            feature[missing_mask],
            np.full(int(missing_mask.sum()), np.nan),
            shown,
        )
        missing["marker"]["color"] = "#9aa1a8"
        missing["hovertemplate"] = "%{text}: %{x:.3f} (value missing)<extra></extra>"
        traces.append(missing)
    rest = len(names) - len(order)
    notes = [f"{len(rows)} of {len(attributions)} cases"] if len(rows) < len(attributions) else []
    notes += [f"{rest} less important features are not shown"] if rest else []
    return Figure(
        traces,
        layout(
            "Contributions, case by case",
            note="; ".join(notes),
            x="contribution to the log-odds",
            height=130 + 34 * max(3, len(order)),
            showlegend=False,
            shapes=[
                {
                    "type": "line",
                    "x0": 0,
                    "x1": 0,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": INK, "width": 1},
                }
            ],
            yaxis={"tickvals": middle, "ticktext": shown, "range": [len(order) - 0.5, -0.5], "showgrid": False},
        ),
    )


def _points(x: Array, y: Array, feature: Array, value: Array, names: Sequence[str]) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.round(x, 4),
        "y": np.round(y, 3),
        "text": [names[int(f)] for f in feature],
        "customdata": [_value(float(one)) for one in value],
        "marker": {"size": 5, "opacity": 0.8},
        "hovertemplate": "%{text} = %{customdata}: %{x:.3f}<extra></extra>",
    }


def _swarm(x: Array, low: float, high: float) -> Array:
    """Compute heights (n,) within half a lane either way, so that points of similar x do not overlap."""
    lane = np.floor((x - low) / ((high - low) or 1.0) * (_LANES - 1)).astype(int)
    order = np.argsort(lane, kind="stable")
    starts = np.searchsorted(lane[order], lane[order], side="left")
    place = np.empty(len(x), int)
    place[order] = np.arange(len(x)) - starts
    tall = int(place.max()) + 1
    out: Array = np.where(place % 2, 1, -1) * ((place + 1) // 2) / max(tall, 12) * 0.8
    return out


def _level(values: Array) -> Array:
    """Rank each value within its feature, from 0 to 1, so that one outlier does not grey the rest."""
    out = np.full(values.shape, 0.5)
    for f in range(values.shape[1]):
        present = ~np.isnan(values[:, f])
        column = values[present, f]
        steps = np.unique(column)
        if len(steps) > 1:
            below, upto = (np.searchsorted(np.sort(column), column, side=side) for side in ("left", "right"))
            middle = (below + upto - 1) / 2
            out[present, f] = (middle - middle.min()) / (middle.max() - middle.min())
    return out


def attributions_by_model(
    columns: Sequence[str], models: Sequence[str], contributions: Sequence[Sequence[float]], *, unit: str
) -> Figure:
    """Draw the contribution of each column to one patient's score, one row per model.

    Args:
        columns: The columns.
        models: The models.
        contributions: The contributions, one row per model.
        unit: The unit of the contributions.
    """
    across, down = labels(columns, width=22), labels(models, width=26)
    far = max((abs(v) for row in contributions for v in row), default=0.0) or 1.0
    trace = {
        "type": "heatmap",
        "x": across,
        "y": down,
        "z": [list(row) for row in contributions],
        "text": [[f"{v:+.2f}" for v in row] for row in contributions],
        "texttemplate": "%{text}",
        "textfont": {"color": "#1b1f24", "size": 11},
        "colorscale": SIGNED,
        "zmin": -far,
        "zmax": far,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}, %{x}: %{z:+.3f}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    return Figure(
        [trace],
        layout(
            "The same patient by each site's own model",
            note="contribution of each column: orange raises the risk, blue lowers it",
            height=190 + 30 * max(3, len(models)),
            xaxis=category(across, showgrid=False, tickangle=-30),
            yaxis=category(down, autorange="reversed", showgrid=False),
        ),
    )


def attribution_shares(
    columns: Sequence[str],
    patient: Sequence[float],
    at_site: Sequence[float] | None,
    elsewhere: Mapping[str, Sequence[float]],
    *,
    site: str,
    title: str,
    note: str,
) -> Figure:
    """Draw the share of each column in one patient's attributions, in those of this site, and in those of each other site.

    Args:
        columns: The columns.
        patient: The shares for this patient.
        at_site: The shares at this site; None where they are not known.
        elsewhere: Other site -> shares there.
        site: The name of this site.
        title: The title.
        note: The note under it.
    """
    names = labels(columns, width=30)
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "other sites",
        "x": [v for shares in elsewhere.values() for v in shares],
        "y": [name for _ in elsewhere for name in names],
        "customdata": [safe(other) for other in elsewhere for _ in names],
        "marker": {"color": QUIET, "size": 7, "opacity": 0.45},
        "hovertemplate": "%{customdata}, %{y}: %{x:.1%}<extra></extra>",
    }
    site_marks = {
        "type": "scatter",
        "mode": "markers",
        "name": f"at {safe(site)}",
        "x": list(at_site or ()),
        "y": names if at_site is not None else [],
        "marker": {"color": COLOURS[0], "size": 13, "symbol": "line-ns-open", "line": {"width": 3}},
        "hovertemplate": "%{y}: %{x:.1%}<extra>this site</extra>",
    }
    patients = {
        "type": "scatter",
        "mode": "markers",
        "name": "for this patient",
        "x": list(patient),
        "y": names,
        "marker": {"color": COLOURS[1], "size": 10, "symbol": "diamond"},
        "hovertemplate": "%{y}: %{x:.1%}<extra>this patient</extra>",
    }
    return Figure(
        [dots, *([site_marks] if at_site is not None else []), patients],
        layout(
            title,
            note=note,
            x="share of the attributions",
            height=190 + 28 * max(3, len(names)),
            xaxis={"tickformat": ".0%", "rangemode": "tozero"},
            yaxis=category(names, autorange="reversed"),
            legend={"y": -0.2},
        ),
    )
