"""Coefficients of a regression with their 95% intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput
from grandrounds.report.estimates import RATIOS, effect, format_effect, format_p, slopes
from grandrounds.report.figure import Figure
from grandrounds.report.style import COLOURS, QUIET, category, labels, layout, safe

if TYPE_CHECKING:
    from grandrounds.capabilities.statistics.estimates import Coefficient, Estimates

_TOP = 40


def coefficients(fitted: Estimates, original: Estimates | None = None, *, top: int = _TOP) -> Figure:
    """Draw each coefficient with its 95% interval: a ratio on a logarithmic axis, of a linear model the coefficient itself.

    Numbers are drawn per standard deviation, so that effects can be compared; the hover text has original units. A filled
    marker has an interval without the value of no effect.

    Args:
        fitted: Estimates in the units in which they were fitted.
        original: Estimates in original units, for the hover text.
        top: Coefficients that are shown, the strongest of more.

    Raises:
        BadInput: No coefficient besides the intercept was estimated.
    """
    every = slopes(fitted)
    drawn = [c for c in every if None not in effect(c, fitted.model)]
    if not drawn:
        raise BadInput("no coefficient was estimated: there is nothing to draw", code="nothing-to-draw")
    if len(drawn) > top:
        kept = {c.name for c in sorted(drawn, key=lambda c: -abs(_z(c)))[:top]}
        drawn = [c for c in drawn if c.name in kept]
    ratio = RATIOS.get(fitted.model)
    neutral = 1.0 if ratio else 0.0
    names = labels([c.name for c in drawn], width=34)
    ends = [effect(c, fitted.model) for c in drawn]
    values, lows, highs = ([float(e[k] or 0.0) for e in ends] for k in range(3))
    clear = [low > neutral or high < neutral for low, high in zip(lows, highs, strict=True)]
    exact = {} if original is None else {c.name: c for c in original.coefficients}
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": names,
        "customdata": [[_hover(exact.get(c.name, c), fitted.model), format_p(c.p)] for c in drawn],
        "marker": {
            "size": 9,
            "symbol": ["circle" if c else "circle-open" for c in clear],
            "color": [COLOURS[0] if c else QUIET for c in clear],
            "line": {"width": 2},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [h - v for v, h in zip(values, highs, strict=True)],
            "arrayminus": [v - low for v, low in zip(values, lows, strict=True)],
            "color": QUIET,
            "thickness": 1.5,
        },
        "hovertemplate": "%{y}: %{x:.3g}<br>in original units %{customdata[0]}<br>p %{customdata[1]}<extra></extra>",
        "showlegend": False,
    }
    note = "95% intervals; numbers per standard deviation, levels against the reference; filled: clearly an effect"
    left = len(every) - len(drawn)
    axis = {"type": "log", "title": {"text": f"{ratio} (logarithmic)"}} if ratio else {"title": {"text": "coefficient"}}
    line = {"type": "line", "x0": neutral, "x1": neutral, "yref": "paper", "y0": 0, "y1": 1}
    return Figure(
        [points],
        layout(
            f"{(ratio or 'coefficient').capitalize()}s with 95% intervals",
            note=f"{note}; {left} weaker ones are not shown" if left else note,
            height=150 + 26 * max(3, len(drawn)),
            xaxis=axis,
            yaxis=category(names, autorange="reversed"),
            shapes=[{**line, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}],
        ),
    )


def _z(c: Coefficient) -> float:
    assert c.estimate is not None
    return c.estimate / c.error if c.error else 0.0


def _hover(c: Coefficient, model: str) -> str:
    return safe(format_effect(c, model))
