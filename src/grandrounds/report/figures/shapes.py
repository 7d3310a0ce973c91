"""Shapes of an additive model: the effect of one column with its 95% band, and the number of patients behind each value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import NO_LABELS, ColumnLabels
from grandrounds.report.estimates import to_ratio
from grandrounds.report.figure import Figure, Layout, Trace
from grandrounds.report.shapes import (
    MONOTONE,
    Shape,
    ShapesRecord,
    Z,
    column_title,
    describe_rows,
    format_ratio,
    reference_text,
)
from grandrounds.report.style import COLOURS, INK, MAX_SITES, QUIET, SITE_COLOURS, category, labels, layout, safe

SELECTED = "selected value"
"""Name of the trace that a page moves along the shape."""
PATIENT = "this patient"
_BAND = "rgba(0, 114, 178, 0.18)"
_BAR = "#8aa9bf"
_MISSING = "missing"
_LEVEL = 30
"""Height of a level, in pixels."""
_UNNAMED = 0.2
"""Share of the height of a curve's figure that the number of patients has."""


def shape(
    record: ShapesRecord,
    name: str,
    *,
    columns: ColumnLabels = NO_LABELS,
    patient: float | str | None = None,
    has_patient: bool = False,
) -> Figure:
    """Draw the effect of a column: a curve with its band for a number, bars for levels, missing values apart, patients beside.

    Args:
        record: The shapes of a run.
        name: The column.
        columns: Names and units of the columns.
        patient: The value of one patient, who is marked; None for a missing value.
        has_patient: Mark a patient.

    Raises:
        BadInput: The model does not use the column.
    """
    found = record.find(name)
    if found is None:
        raise BadInput(f"the model does not use column '{name[:80]}': it has no shape", code="nothing-to-draw")
    if found.is_category:
        return _levels(record, found, column_title(found, columns), patient, has_patient)
    return _curve(record, found, column_title(found, columns), patient, has_patient)


def _curve(record: ShapesRecord, found: Shape, title: str, patient: float | str | None, has_patient: bool) -> Figure:
    x = [float(v) for v in found.values]
    base = found.effect[found.reference]
    traces: list[Trace] = []
    if found.error is not None:
        ends = [found.ends(k) or (0.0, 0.0) for k in range(len(x))]
        around = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        low, high = (_points(found, [e[side] for e in ends]) for side in (0, 1))
        traces += [
            {**around, "name": "upper end", **high},
            {**around, "name": "lower end", **low, "fill": "tonexty", "fillcolor": _BAND},
        ]
    line = {"color": COLOURS[0], "width": 3}
    if found.is_step:
        steps = {"type": "scatter", "mode": "lines", "name": "steps", "line": line, "hoverinfo": "skip", "showlegend": False}
        traces.append({**steps, **_points(found, found.effect)})
    traces += _site_curves(record, found)
    traces.append(
        {
            "type": "scatter",
            "mode": "markers" if found.is_step else "lines",
            "name": "effect",
            "x": x,
            "y": list(found.effect),
            "customdata": [_hover(record, found, k, base) for k in range(len(x))],
            "line": line,
            "marker": {"size": 6, "color": COLOURS[0]},
            "text": [safe(found.describe_value(k)) for k in range(len(x))],
            "hovertemplate": f"%{{text}}: {safe(record.scale)} %{{y:+.2f}}%{{customdata}}<extra></extra>",
            "showlegend": False,
        }
    )
    traces += _patients_below(found)
    traces += _missing_mark(record, found, base)
    if has_patient:
        traces.append(_patient_mark(found, patient))
    shown = layout(
        safe(title),
        note=_note(found, below=True),
        x=safe(found.unit) or "value",
        y=safe(record.scale),
        height=400,
    )
    with_missing = found.missing is not None
    shown["xaxis"] |= {"anchor": "y2", "domain": [0, 0.82 if with_missing else 1]}
    shown["yaxis"] |= {"domain": [_UNNAMED + 0.07, 1], "zeroline": False}
    shown["yaxis2"] = {"title": {"text": "patients"}, "domain": [0, _UNNAMED], "nticks": 3, "rangemode": "tozero"}
    shown["shapes"] = [_zero(found.bounds[0], found.bounds[-1])]
    if with_missing:
        shown["xaxis2"] = category([_MISSING], anchor="y2", domain=[0.88, 1])
    shown["legend"] = {"y": -0.2}
    return Figure(traces, shown)


def _hover(record: ShapesRecord, found: Shape, k: int, base: float) -> str:
    """Write the rest of the text under the cursor: the interval, the ratio and the patients."""
    ends = found.ends(k)
    interval = "" if ends is None else f" (95% CI {ends[0]:+.2f} to {ends[1]:+.2f})"
    ratio = "" if k == found.reference else _ratio(record, found, found.effect[k], base)
    return f"{interval}{ratio}<br>{describe_rows(found.rows[k], is_hidden=k in found.hidden)}"


def _ratio(record: ShapesRecord, found: Shape, effect: float, base: float) -> str:
    """Write the ratio of an effect against the reference as a line of its own; empty for a linear model."""
    if not record.ratio:
        return ""
    return f"<br>{record.ratio} {format_ratio(to_ratio(effect - base))} against {safe(reference_text(found))}"


def _points(found: Shape, y: Sequence[float]) -> dict[str, list[float]]:
    """Return the points of a line through the values of a shape; of steps both ends of every bin."""
    if not found.is_step:
        return {"x": [float(v) for v in found.values], "y": list(y)}
    pairs = list(zip(pairwise(found.bounds), y, strict=True))
    return {"x": [x for ends, _ in pairs for x in ends], "y": [v for _, v in pairs for _ in range(2)]}


def _patients_below(found: Shape) -> list[Trace]:
    """Draw the number of patients behind each point, as wide as the part of the axis that it stands for."""
    if not found.patients:
        return []
    edges = found.bounds
    return [
        {
            "type": "bar",
            "name": "patients",
            "x": [(a + b) / 2 for a, b in pairwise(edges)],
            "y": [max(0.0, n) for n in found.rows],
            "width": [b - a for a, b in pairwise(edges)],
            "marker": {"color": _BAR, "line": {"width": 0}},
            "yaxis": "y2",
            "showlegend": False,
            "hovertemplate": "%{y:,.0f} patients<extra></extra>",
        }
    ]


def _missing_mark(record: ShapesRecord, found: Shape, base: float) -> list[Trace]:
    """Draw the effect of a missing value as a mark of its own, beside the curve."""
    if found.missing is None:
        return []
    effect, error = found.missing.effect, found.missing.error
    ratio = _ratio(record, found, effect, base)
    mark = {
        "type": "scatter",
        "mode": "markers",
        "name": _MISSING,
        "x": [_MISSING],
        "y": [effect],
        "xaxis": "x2",
        "marker": {"symbol": "diamond", "size": 10, "color": COLOURS[1]},
        "hovertemplate": f"missing: {safe(record.scale)} %{{y:+.2f}}{ratio}<extra></extra>",
        "showlegend": False,
    }
    if error is not None:
        mark["error_y"] = {"type": "data", "array": [Z * error], "color": COLOURS[1], "thickness": 1.5}
    bar = {
        "type": "bar",
        "name": "patients without a value",
        "x": [_MISSING],
        "y": [max(0.0, found.missing.rows)],
        "width": [0.6],
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": {"color": COLOURS[1]},
        "showlegend": False,
        "hovertemplate": "%{y:,.0f} patients without a value<extra></extra>",
    }
    return [mark, bar]


def _site_curves(record: ShapesRecord, found: Shape) -> list[Trace]:
    """Draw hospitals' own shapes as thin lines under the common one, where they are known."""
    own = [(site, effects[found.name]) for site, effects in record.by_site.items() if found.name in effects]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": safe(site),
            **_points(found, effect),
            "line": {"color": SITE_COLOURS[(k + 1) % len(SITE_COLOURS)], "width": 1},
            "hovertemplate": f"{safe(site)}: %{{y:+.2f}} at %{{x}}<extra></extra>",
        }
        for k, (site, effect) in enumerate(own[:MAX_SITES])
    ]


def _patient_mark(found: Shape, value: float | str | None) -> Trace:
    """Mark the value of one patient on the curve, or beside it where it is missing."""
    mark = {
        "type": "scatter",
        "mode": "markers",
        "name": PATIENT,
        "marker": {"symbol": "circle", "size": 13, "color": INK, "line": {"color": "#ffffff", "width": 2}},
        "hovertemplate": f"{PATIENT}: %{{y:+.2f}} at %{{x}}<extra></extra>",
        "showlegend": True,
    }
    if value is None or isinstance(value, str):
        effect = found.missing.effect if found.missing is not None else found.effect[found.reference]
        place = {"x": [_MISSING], "xaxis": "x2"} if found.missing is not None else {"x": [found.values[found.reference]]}
        return {**mark, **place, "y": [effect]}
    return {**mark, "x": [value], "y": [interpolate(found, value)]}


def interpolate(found: Shape, value: float) -> float:
    """Return the effect of a number between the points of a curve (of steps: in its bin); beyond its ends that of the end.

    Args:
        found: The shape of a number.
        value: The number.
    """
    if found.is_step:
        return found.effect[sum(edge < value for edge in found.edges)]
    x = [float(v) for v in found.values]
    if value <= x[0]:
        return found.effect[0]
    for (a, low), (b, high) in pairwise(zip(x, found.effect, strict=True)):
        if value <= b:
            return high if b == a else low + (high - low) * (value - a) / (b - a)
    return found.effect[-1]


def _levels(record: ShapesRecord, found: Shape, title: str, patient: float | str | None, has_patient: bool) -> Figure:
    """Draw the effects of levels as bars, with their patients at the right."""
    names = [str(v) for v in found.values]
    texts = labels(names, width=30)
    effects, errors, rows = list(found.effect), list(found.error or ()), list(found.rows)
    hidden = [k in found.hidden for k in range(len(names))]
    colours = [COLOURS[0]] * len(names)
    if found.missing is not None:
        texts.append(_MISSING)
        effects.append(found.missing.effect)
        rows.append(found.missing.rows)
        hidden.append(found.missing.is_hidden)
        colours.append(COLOURS[1])
        errors += [] if found.error is None else [found.missing.error or 0.0]
    base = found.effect[found.reference]
    ratios = [_ratio(record, found, e, base) for e in effects]
    bars = {
        "type": "bar",
        "orientation": "h",
        "name": "effect",
        "x": effects,
        "y": texts,
        "customdata": ratios,
        "marker": {"color": colours},
        "hovertemplate": f"%{{y}}: {safe(record.scale)} %{{x:+.2f}}%{{customdata}}<extra></extra>",
        "showlegend": False,
    }
    if errors:
        bars["error_x"] = {"type": "data", "array": [Z * e for e in errors], "color": INK, "thickness": 1.5}
    traces: list[Trace] = [bars]
    for k, (site, own) in enumerate([(s, e[found.name]) for s, e in record.by_site.items() if found.name in e][:MAX_SITES]):
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(site),
                "x": list(own),
                "y": texts[: len(own)],
                "marker": {"symbol": "line-ns-open", "size": 12, "color": SITE_COLOURS[(k + 1) % len(SITE_COLOURS)]},
            }
        )
    if found.patients:
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "patients",
                "x": [max(0.0, n) for n in rows],
                "y": texts,
                "xaxis": "x2",
                "text": ["hidden" if h else "" for h in hidden],
                "textposition": "outside",
                "marker": {"color": _BAR},
                "showlegend": False,
                "hovertemplate": "%{y}: %{x:,.0f} patients %{text}<extra></extra>",
            }
        )
    if has_patient:
        own_level = texts[names.index(patient)] if isinstance(patient, str) and patient in names else None
        own_level = _MISSING if own_level is None and found.missing is not None and patient is None else own_level
        if own_level is not None:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": PATIENT,
                    "x": [effects[texts.index(own_level)]],
                    "y": [own_level],
                    "marker": {"size": 13, "color": INK, "line": {"color": "#ffffff", "width": 2}},
                }
            )
    shown = layout(
        safe(title),
        note=_note(found, below=False),
        x=safe(record.scale),
        height=150 + _LEVEL * max(4, len(texts)),
        yaxis=category(texts, autorange="reversed"),
    )
    shown["xaxis"] |= {"domain": [0, 0.7]}
    shown["xaxis2"] = {"title": {"text": "patients"}, "domain": [0.76, 1], "nticks": 3, "tickangle": 0, "rangemode": "tozero"}
    line = {"color": QUIET, "dash": "dot", "width": 1.5}
    shown["legend"] = {"y": -0.4}
    shown["shapes"] = [{"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": line}]
    return Figure(traces, shown)


def _note(found: Shape, *, below: bool) -> str:
    """Write the note under a figure's title."""
    parts = []
    if found.error is not None:
        parts.append("95% band" if below else "95% intervals")
    parts.append(f"{'below' if below else 'right'}: patients")
    if found.monotone in MONOTONE:
        parts.append(MONOTONE[found.monotone])
    return "; ".join(parts)


def _zero(low: float, high: float) -> Layout:
    return {"type": "line", "x0": low, "x1": high, "y0": 0, "y1": 0, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}
