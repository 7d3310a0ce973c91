"""Figures of hospitals: a forest plot of all, and one hospital beside the consortium (explanations, weight over rounds)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord
from grandrounds.metrics.confusion import Estimate
from grandrounds.report.explanations import Explanations, newest_block
from grandrounds.report.figure import Figure, Layout, Trace
from grandrounds.report.hospitals import BETTER, WORSE, Hospital, HospitalComparison
from grandrounds.report.style import COLOURS, MAX_SITES, QUIET, category, labels, layout, safe

_ALL, _UNSEEN = "all hospitals", "an unseen hospital"
_COLOURS = {BETTER: COLOURS[2], WORSE: COLOURS[1]}
_TOP = 12


def hospital_forest(found: HospitalComparison) -> Figure | None:
    """Draw the AUROC and the gain in net benefit of hospitals with 95% intervals, and the AUROC of an unseen hospital.

    Of many hospitals those at both ends of the order by AUROC are shown, and those with the most test patients in between.

    Args:
        found: The comparison.

    Returns:
        The figure; None where no hospital has a score.
    """
    scored = [h for h in found.order() if h.score is not None]
    if not scored:
        return None
    shown = choose_hospitals(scored)
    names = dict(zip(shown, labels([_label(h) for h in shown], width=44), strict=True))
    has_gain = any(h.benefit_gain is not None for h in shown)
    order = [*names.values(), _ALL]
    traces = [_points(shown, names, lambda h: h.score, "x", lambda h: COLOURS[0], found.label)]
    overall = [(_ALL, found.overall.score, "diamond", COLOURS[4])]
    unseen = found.unseen
    if unseen is not None and unseen.estimate is not None and unseen.prediction_low is not None:
        expected = Estimate(unseen.estimate, unseen.prediction_low, unseen.prediction_high)
        overall.append((_UNSEEN, expected, "line-ns-open", QUIET))
        order.append(_UNSEEN)
    traces += [_summary(name, e, symbol, colour, "x") for name, e, symbol, colour in overall if e is not None]
    if has_gain:
        traces.append(
            _points(
                shown, names, lambda h: h.benefit_gain, "x2", lambda h: _COLOURS.get(h.verdict, QUIET), "net benefit"
            )
        )
        if found.overall.benefit_gain is not None:
            traces.append(_summary(_ALL, found.overall.benefit_gain, "diamond", COLOURS[4], "x2"))
    neutral = [("x", 0.5)] if found.metric == "auroc" else []
    lines = [_line(axis, at) for axis, at in [*neutral, *([("x2", 0.0)] if has_gain else [])]]
    axes: Layout = {"xaxis": {"title": {"text": found.label}, "domain": [0, 0.58 if has_gain else 1]}}
    if has_gain:
        axes["xaxis2"] = {"title": {"text": "net benefit over no model"}, "domain": [0.64, 1]}
    return Figure(
        traces,
        layout(
            "Hospitals compared",
            note=_caption(found, len(shown), len(scored)),
            height=190 + 22 * max(4, len(order)),
            **axes,
            yaxis=category(order, autorange="reversed"),
            shapes=lines,
        ),
    )


def choose_hospitals(ordered: Sequence[Hospital], most: int = MAX_SITES) -> list[Hospital]:
    """Choose hospitals for a figure: a third from each end of those that are ranked, then the largest; in their order."""
    if len(ordered) <= most:
        return list(ordered)
    ranked = [h for h in ordered if h.ranked]
    ends = [*ranked[: most // 3], *ranked[max(most // 3, len(ranked) - most // 3) :]]
    rest = sorted((h for h in ordered if h not in ends), key=lambda h: (not h.ranked, -h.test_rows, h.name))
    chosen = {h.name for h in (*ends, *rest[: most - len(ends)])}
    return [h for h in ordered if h.name in chosen]


def _label(hospital: Hospital) -> str:
    counts = f"{hospital.events}/{hospital.test_rows}" if hospital.events is not None else f"{hospital.test_rows}"
    return f"{hospital.name} ({counts})"


def _caption(found: HospitalComparison, shown: int, scored: int) -> str:
    parts = [
        "95% intervals; in brackets events/test patients"
        if found.overall.events is not None
        else "in brackets test patients"
    ]
    if found.pooled_text:
        parts.append(f"all hospitals: the mean within hospitals ({found.pooled_text})")
    unseen = found.unseen
    if unseen is not None and unseen.i2 is not None:
        parts.append(f"I-squared {100 * unseen.i2:.0f}% over {len(unseen.sites)} hospitals")
    if shown < scored:
        parts.append(f"{shown} of {scored} hospitals: the lowest, the highest and the largest")
    return "; ".join(parts)


def _points(
    shown: Sequence[Hospital],
    names: dict[Hospital, str],
    read: Callable[[Hospital], Estimate | None],
    axis: str,
    colour: Callable[[Hospital], str],
    name: str,
) -> Trace:
    """Draw one square a hospital; those that cannot be ranked are open."""
    points = [(h, e) for h in shown if (e := read(h)) is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [e.value for _, e in points],
        "y": [names[h] for h, _ in points],
        "xaxis": axis,
        "customdata": [[e.low, e.high] for _, e in points],
        "marker": {
            "symbol": ["square" if h.ranked else "square-open" for h, _ in points],
            "color": [colour(h) for h, _ in points],
            "size": 8,
        },
        "error_x": _bars([e for _, e in points], QUIET),
        "hovertemplate": "%{y}: %{x:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
        "showlegend": False,
    }


def _summary(name: str, found: Estimate, symbol: str, colour: str, axis: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [found.value],
        "y": [name],
        "xaxis": axis,
        "customdata": [[found.low, found.high]],
        "marker": {"symbol": symbol, "color": colour, "size": 12},
        "error_x": _bars([found], colour),
        "hovertemplate": "%{y}: %{x:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
        "showlegend": False,
    }


def _bars(points: Sequence[Estimate], colour: str) -> Trace:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if e.high is None else e.high - e.value for e in points],
        "arrayminus": [0.0 if e.low is None else e.value - e.low for e in points],
        "color": colour,
        "thickness": 1.5,
    }


def _line(axis: str, at: float) -> Layout:
    line = {"color": QUIET, "dash": "dot", "width": 1.5}
    return {"type": "line", "xref": axis, "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def hospital_importances(explanations: Explanations, site: str) -> Figure | None:
    """Draw what the common model relies on for one hospital's patients beside the consensus of all.

    Args:
        explanations: explanations.json.
        site: The hospital.

    Returns:
        The figure; None where the hospital's patients were not explained.
    """
    try:
        block = newest_block(explanations, "deployed")
    except (ValueError, BadInput):
        return None
    sketch = (block.get("sketches") or {}).get(site)
    features = explanations.get("features")
    if sketch is None or features is None:
        return None
    consensus = block["consensus"]
    top = sorted(range(len(features)), key=lambda k: -max(sketch[k], consensus[k]))[:_TOP]
    names = labels([features[k] for k in top], width=32)
    bars = ((safe(site), sketch, COLOURS[0]), ("consensus of all hospitals", consensus, "#9aa5b1"))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [values[k] for k in top],
            "y": names,
            "marker": {"color": colour},
            "hovertemplate": "%{y}: %{x:.1%}<extra>%{fullData.name}</extra>",
        }
        for name, values, colour in bars
    ]
    return Figure(
        traces,
        layout(
            "Features that the model relies on",
            note="share of the attribution, for this hospital's patients and on average",
            height=180 + 30 * len(top),
            barmode="group",
            xaxis={"title": {"text": "share"}, "tickformat": ".0%"},
            yaxis=category(names, autorange="reversed"),
            legend={"y": 1.02, "yanchor": "bottom"},
            margin={"t": 92},
        ),
    )


def hospital_weight(rounds: Sequence[RoundRecord], site: str) -> Figure | None:
    """Draw one hospital's weight in the common model over rounds, beside the median of all hospitals that were weighed.

    Args:
        rounds: The record of each round.
        site: The hospital.

    Returns:
        The figure; None where the hospital was never weighed.
    """
    weighed = [r for r in rounds if r.decision.weights]
    if not any(r.decision.weights.get(site) is not None for r in weighed):
        return None
    x = [r.round for r in weighed]
    middle = [median([w for w in r.decision.weights.values() if w is not None] or [0.0]) for r in weighed]
    lines = (
        (safe(site), [r.decision.weights.get(site) for r in weighed], COLOURS[0], "solid"),
        ("median hospital", middle, QUIET, "dot"),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(x) < 30 else "lines",
            "name": name,
            "x": x,
            "y": y,
            "line": {"color": colour, "dash": dash, "width": 2},
            "hovertemplate": "round %{x}: %{y:.1%}<extra>%{fullData.name}</extra>",
        }
        for name, y, colour, dash in lines
    ]
    shape = layout("Weight in the common model", x="round", y="weight", height=360, legend={"y": -0.22})
    shape["xaxis"] |= {"tickformat": "d"}
    shape["yaxis"] |= {"tickformat": ".1%", "rangemode": "tozero"}
    return Figure(traces, shape)
