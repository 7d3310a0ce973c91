"""Forest plot: one coefficient at each hospital, in the common fit and in the meta-analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput, nearest
from grandrounds.report.estimates import RATIOS, describe_p, to_ratio
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, INK, MAX_SITES, QUIET, category, labels, layout, safe

if TYPE_CHECKING:  # importing it takes scipy, which most reports do not need
    from grandrounds.capabilities.statistics.estimates import Coefficient
    from grandrounds.capabilities.statistics.meta import MetaAnalysis, SiteEstimate
    from grandrounds.metrics.meta_analysis import MetaCoefficient

_COMMON, _FIXED, _RANDOM, _NEW = (
    "all rows (common fit)",
    "meta-analysis, fixed effect",
    "meta-analysis, random effects",
    "a new hospital (prediction)",
)
_HOVER = "%{y}: %{x:.3g} (%{customdata[0]:.3g} to %{customdata[1]:.3g})"


@dataclass(frozen=True)
class _Row:
    """An estimate with its interval, and its weight in the meta-analysis."""

    name: str
    value: float
    low: float
    high: float
    share: float = 0.0


def forest(analysis: MetaAnalysis, name: str, common: Coefficient | None = None) -> Figure:
    """Draw the estimates of one coefficient with 95% intervals: hospitals, the common fit and the meta-analysis.

    Ratios are on a logarithmic axis. Squares of hospitals grow with their weight. Of many hospitals those with the largest
    weights are shown.

    Args:
        analysis: The meta-analysis.
        name: The coefficient.
        common: Its estimate in the fit to all rows, in the same units.

    Raises:
        BadInput: There is no such coefficient, or no estimate of it.
    """
    found = next((c for c in analysis.coefficients if c.name == name), None)
    if found is None:
        raise BadInput(
            f"the meta-analysis has no coefficient '{name}'; {nearest(name, [c.name for c in analysis.coefficients])}",
            code="unknown-column",
        )
    own = {site: estimates[name] for site, estimates in analysis.by_site.items() if name in estimates}
    shown = _hospitals(own, found.tau2 or 0.0)
    summaries = _summaries(found, common)
    if not shown and not summaries:
        raise BadInput(f"no hospital could fit '{name}': there is nothing to draw", code="nothing-to-draw")
    ratio = RATIOS.get(analysis.model)
    sites, others = labels([r.name for r in shown], width=30), [r.name for r in summaries]
    order = [*sites, *others]
    neutral = 1.0 if ratio else 0.0
    traces = [_points(shown, sites, is_ratio=bool(ratio))] if shown else []
    traces += [_summary(row, is_ratio=bool(ratio)) for row in summaries]
    line = {"type": "line", "x0": neutral, "x1": neutral, "yref": "paper", "y0": 0, "y1": 1}
    axis = {"type": "log", "title": {"text": f"{ratio} (logarithmic)"}} if ratio else {"title": {"text": "coefficient"}}
    return Figure(
        traces,
        layout(
            f"Forest plot of {safe(name)}",
            note=_caption(found, len(own), len(shown)),
            height=170 + 24 * max(4, len(order)),
            xaxis=axis,
            yaxis=category(order, autorange="reversed"),
            shapes=[{**line, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}],
        ),
    )


def _hospitals(own: dict[str, SiteEstimate], tau2: float) -> list[_Row]:
    """Return the rows of hospitals in order of their names; the heaviest of many."""
    weight = {site: 1 / (e.error**2 + tau2) for site, e in own.items()}
    total = sum(weight.values())
    chosen = sorted(sorted(own, key=lambda s: (-weight[s], s))[:MAX_SITES])
    return [_Row(s, own[s].estimate, own[s].low, own[s].high, weight[s] / total) for s in chosen]


def _summaries(found: MetaCoefficient, common: Coefficient | None) -> list[_Row]:
    """Return the rows below the hospitals."""
    rows = []
    if common is not None:
        rows.append((_COMMON, common.estimate, common.low, common.high))
    rows.append((_FIXED, found.fixed, found.fixed_low, found.fixed_high))
    rows.append((_RANDOM, found.estimate, found.low, found.high))
    rows.append((_NEW, found.estimate, found.prediction_low, found.prediction_high))
    return [
        _Row(name, value, low, high)
        for name, value, low, high in rows
        if value is not None and low is not None and high is not None
    ]


def _points(rows: Sequence[_Row], names: Sequence[str], *, is_ratio: bool) -> Trace:
    top = max(r.share for r in rows)
    ends = [_ends(r, is_ratio=is_ratio) for r in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "hospitals",
        "x": [value for value, _, _ in ends],
        "y": list(names),
        "customdata": [[low, high, 100 * r.share] for r, (_, low, high) in zip(rows, ends, strict=True)],
        "marker": {"symbol": "square", "color": COLOURS[0], "size": [6 + 8 * (r.share / top) ** 0.5 for r in rows]},
        "error_x": _bars(ends, QUIET),
        "hovertemplate": f"{_HOVER}<br>weight %{{customdata[2]:.1f}}%<extra></extra>",
        "showlegend": False,
    }


def _summary(row: _Row, *, is_ratio: bool) -> Trace:
    colour = {_COMMON: COLOURS[1], _NEW: QUIET}.get(row.name, INK)
    end = _ends(row, is_ratio=is_ratio)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": row.name,
        "x": [end[0]],
        "y": [row.name],
        "customdata": [[end[1], end[2]]],
        "marker": {"symbol": "line-ns-open" if row.name == _NEW else "diamond", "color": colour, "size": 11},
        "error_x": _bars([end], colour),
        "hovertemplate": f"{_HOVER}<extra></extra>",
        "showlegend": False,
    }


def _ends(row: _Row, *, is_ratio: bool) -> tuple[float, float, float]:
    """Return value and interval; of a ratio e^ them, with ends that overflow cut at a millionth and a million."""
    if not is_ratio:
        return row.value, row.low, row.high
    value, low, high = (min(max(to_ratio(x) or 1e6, 1e-6), 1e6) for x in (row.value, row.low, row.high))
    return value, low, high


def _bars(ends: Sequence[tuple[float, float, float]], colour: str) -> Trace:
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in ends],
        "arrayminus": [value - low for value, low, _ in ends],
        "color": colour,
        "thickness": 1.5,
    }


def _caption(found: MetaCoefficient, sites: int, shown: int) -> str:
    """State heterogeneity: I-squared, Cochran's Q with its p, and the prediction interval's meaning."""
    parts = ["95% intervals"]
    if found.q is not None and found.q_p is not None and found.i2 is not None:
        differ = "differs between hospitals" if found.q_p < 0.05 else "no clear difference between hospitals"
        parts.append(
            f"I-squared {100 * found.i2:.0f}%; Cochran's Q {found.q:.2f}, {describe_p(found.q_p)} "
            f"({found.sites} hospitals): {differ}"
        )
    else:
        parts.append(f"{found.sites} hospitals could fit it: too few for a meta-analysis")
    if shown < sites:
        parts.append(f"the {shown} heaviest of {sites} hospitals")
    return "; ".join(parts)
