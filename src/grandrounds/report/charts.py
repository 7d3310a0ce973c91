"""Line charts as inline SVG: no script, no outside host, prints well. Colours are safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite, log10

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH, HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 40

Series = Mapping[str, Sequence[float | None]]


def line_chart(x: Sequence[float], series: Series, *, x_title: str, y_title: str, last: bool = True) -> str:
    """One chart with a line for each series and a legend (with its `last` value); gaps where a value is missing."""
    values = [v for line in series.values() for v in line if v is not None and isfinite(v)]
    if not values or not x:
        return ""
    ticks = _ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]
    span = (max(x) - min(x)) or 1

    def px(v: float) -> float:
        return _LEFT + (v - min(x)) / span * (WIDTH - _LEFT - _RIGHT)

    def py(v: float) -> float:
        return HEIGHT - _BOTTOM - (v - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f"<figcaption>{escape(y_title)}</figcaption>",
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18 * len(series)}" role="img" aria-label="{escape(y_title)}">',
    ]
    for t in ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{py(t):.1f}" y2="{py(t):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{py(t) + 4:.1f}" text-anchor="end">{t:g}</text>')
    for t in _x_ticks(x):
        parts.append(f'<text x="{px(t):.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{t:g}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        parts += [_path(x, line, px, py, colour), _legend(i, name, line if last else (), colour)]
    return "".join([*parts, "</svg>"])


def _path(
    x: Sequence[float],
    line: Sequence[float | None],
    px: Callable[[float], float],
    py: Callable[[float], float],
    colour: str,
) -> str:
    commands, pen = [], "M"
    for a, b in zip(x, line, strict=True):
        if b is None or not isfinite(b):
            pen = "M"
            continue
        commands.append(f"{pen}{px(a):.1f} {py(b):.1f}")
        pen = "L"
    return f'<path d="{" ".join(commands)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _legend(i: int, name: str, line: Sequence[float | None], colour: str) -> str:
    y = HEIGHT + 8 + 18 * i
    last = next((v for v in reversed(line) if v is not None), None)
    text = escape(name) + ("" if last is None else f" ({last:.3f})")
    mark = f'<line x1="{_LEFT}" x2="{_LEFT + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
    return f'{mark}<text x="{_LEFT + 28}" y="{y}">{text}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that enclose [low, high]."""
    span = high - low
    if span < 1e-8:  # one line: ticks nearer than that could not be told apart
        span = max(abs(high), 1e-8)
    raw = span / 4
    step = 10 ** floor(log10(raw))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if m * step >= raw)
    first = floor(low / step)
    return [round(k * step, 10) for k in range(first, max(ceil(high / step), first + 1) + 1)]


def _x_ticks(x: Sequence[float]) -> list[float]:
    low, high = min(x), max(x)
    if high - low < 1e-9:
        return [low]
    if high <= 1:
        return [t for t in (0.0, 0.25, 0.5, 0.75, 1.0) if low - 1e-9 <= t <= high + 1e-9]
    step = max(1, ceil((high - low) / 6))
    return [low + k * step for k in range(int((high - low) // step) + 1)]
