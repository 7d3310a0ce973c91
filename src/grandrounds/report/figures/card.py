"""Drawings of a risk card as SVG, without a script: nomogram, calibration, decision curve, and the whole sheet.

They are text, so that a card prints on any machine; Plotly is not needed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from math import floor, log10

from grandrounds.core.errors import visible
from grandrounds.models.risk_card import Card, show_risk
from grandrounds.report.document import document
from grandrounds.report.risk_card import (
    NOT_MEASURED,
    Band,
    CalibrationPoint,
    CardPerformance,
    CardRecord,
    escape_text,
    interval_text,
    list_bands,
    total_text,
)
from grandrounds.report.style import COLOURS, FAINT, INK, QUIET

WIDTH = 700
"""Width of the sheet; A4 paper between its margins."""

_FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_MARGIN = 8
_ROW = 17.0
_LEFT = 150.0  # of the axes of a nomogram
_LABEL = 5.4  # width of a character of 10 px


class _Drawing:
    """Parts of an SVG image."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = QUIET, width: float = 1, dash: str = ""
    ) -> None:
        dashes = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' stroke-width='{width}'{dashes}/>"
        )

    def text(
        self,
        x: float,
        y: float,
        words: object,
        *,
        size: float = 11,
        anchor: str = "start",
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        weight = " font-weight='600'" if bold else ""
        self.parts.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{colour}'{weight}>"
            f"{escape_text(words)}</text>"
        )

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        self.parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}' fill='{colour}'/>")

    def box(self, x: float, y: float, width: float, height: float) -> None:
        self.parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='none' stroke='{QUIET}'/>"
        )

    def path(self, points: Sequence[tuple[float, float]], colour: str, width: float = 2, dash: str = "") -> None:
        dashes = f" stroke-dasharray='{dash}'" if dash else ""
        told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f"<polyline points='{told}' fill='none' stroke='{colour}' stroke-width='{width}'{dashes}/>")

    def place(self, other: _Drawing, x: float, y: float) -> None:
        self.parts.append(f"<g transform='translate({x:.1f},{y:.1f})'>{''.join(other.parts)}</g>")

    def svg(self) -> str:
        width, height = self.width + 2 * _MARGIN, self.height + 2 * _MARGIN
        size = f"width='{width:.0f}' height='{height:.0f}' viewBox='{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}'"
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' font-family=\"{_FONT}\">"
            f"<title>{escape_text(self.title)}</title>{''.join(self.parts)}</svg>"
        )


def nomogram(card: Card) -> str:
    """Draw a nomogram: the points of every column on one axis, and the risk below the total.

    Args:
        card: The card.

    Returns:
        SVG.
    """
    return _nomogram(card).svg()


def card_calibration(points: Sequence[CalibrationPoint]) -> str:
    """Draw printed risk against observed share, with 95% intervals.

    Args:
        points: Points of `CardPerformance`.

    Returns:
        SVG.
    """
    return _calibration(points).svg()


def card_decision_curve(curve: Mapping[str, Sequence[float | None]]) -> str:
    """Draw the net benefit of acting on the card, against treating everyone and nobody.

    Args:
        curve: `thresholds`, `model` and `treat_all`.

    Returns:
        SVG.
    """
    return _decision(curve).svg()


def card_sheet(record: CardRecord, performance: CardPerformance | None = None) -> str:
    """Draw the whole card on one sheet: terms, totals with risks, nomogram, and how it does at one place.

    Args:
        record: The card.
        performance: Calibration and net benefit at one place; None leaves them out.

    Returns:
        SVG.
    """
    card = record.card
    tables = _tables(card)
    scale = _nomogram(card)
    notes = _wrap([record.source, NOT_MEASURED, *record.notes, *(performance.notes if performance else ())])
    charts = performance is not None and bool(performance.calibration)
    height = 64 + tables.height + 18 + scale.height + (262 if charts else 0) + 14 * len(notes) + 20
    sheet = _Drawing(WIDTH, height, record.title)
    sheet.text(0, 24, record.title, size=20, bold=True)
    sheet.text(
        0, 44, "Add the points of every line that applies, then read the risk of the total.", size=12, colour=QUIET
    )
    y = 62.0
    sheet.place(tables, 0, y)
    y += tables.height + 18
    sheet.place(scale, 0, y)
    y += scale.height
    if performance is not None and charts:
        sheet.text(0, y + 16, performance.line, size=12, bold=True)
        sheet.place(_calibration(performance.calibration), 0, y + 22)
        sheet.place(_decision(performance.decision), 355, y + 22)
        y += 262
    for note in notes:
        y += 14
        sheet.text(0, y, note, size=10, colour=QUIET)
    return sheet.svg()


def _wrap(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, 125)]


def _tables(card: Card) -> _Drawing:
    """Draw the two tables: lines with points, and totals with risks."""
    rows = max(len(card.terms) + 1, len(card.totals))
    out = _Drawing(WIDTH, 22 + _ROW * rows + 6, "Points and risks")
    split = 360.0
    for x, words, anchor in (
        *((0.0, "line", "start"), (255.0, "points", "end"), (split - 40, "yours", "middle")),
        *((split + 20, "total", "start"), (split + 150, "risk", "end"), (split + 255, "95% interval", "end")),
        (WIDTH - 0.0, "patients", "end"),
    ):
        out.text(x, 12, words, size=11, anchor=anchor, colour=QUIET, bold=True)
    out.line(0, 17, split - 15, 17)
    out.line(split + 20, 17, WIDTH, 17)
    y = 17.0
    for term in card.terms:
        y += _ROW
        out.text(0, y - 4, _cut(term.text, 40), size=12)
        out.text(255, y - 4, f"{term.points:+d}", size=12, anchor="end", bold=True)
        out.box(split - 58, y - 14, 36, 13)
        out.line(0, y, split - 15, y, FAINT)
    y += _ROW
    out.text(0, y - 4, "total", size=12, bold=True)
    out.box(split - 58, y - 14, 36, 13)
    y = 17.0
    for total in card.totals:
        y += _ROW
        out.text(split + 20, y - 4, total_text(total, card), size=12)
        out.text(split + 150, y - 4, show_risk(total.risk), size=12, anchor="end", bold=True)
        out.text(split + 255, y - 4, interval_text(total), size=11, anchor="end", colour=QUIET)
        out.text(WIDTH, y - 4, f"{total.rows:,}", size=11, anchor="end", colour=QUIET)
        out.line(split + 20, y, WIDTH, y, FAINT)
    return out


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _nomogram(card: Card) -> _Drawing:
    columns = list_bands(card)
    step = 27.0
    height = 34 + step * len(columns) + 74
    out = _Drawing(WIDTH, height, "Nomogram")
    points = [b.points for c in columns for b in c.bands] or [0]
    low, high = min(0, *points), max(1, *points)
    right = WIDTH - 30.0

    def across(value: float, start: float, end: float) -> float:
        return _LEFT + (right - _LEFT) * (value - start) / max(1e-9, end - start)

    out.text(0, 24, "points", size=11, bold=True)
    out.line(_LEFT, 28, right, 28)
    for p in range(low, high + 1):
        out.line(across(p, low, high), 24, across(p, low, high), 28)
        out.text(across(p, low, high), 20, p, size=10, anchor="middle", colour=QUIET)
    y = 34.0
    for column in columns:
        y += step
        out.text(0, y - 2, _cut(column.column, 24), size=11)
        ends = [across(b.points, low, high) for b in column.bands]
        out.line(min(ends), y - 6, max(ends), y - 6, INK, 1.2)
        taken = {True: -1e9, False: -1e9}
        for p, words in _join_labels(column.bands):
            x = across(p, low, high)
            half = _LABEL * len(words) / 2
            above = x - half > taken[True] or taken[True] <= taken[False]
            start = min(max(x - half, _LEFT - 4), WIDTH - 2 * half)
            taken[above] = start + 2 * half + 6
            out.dot(x, y - 6, 2.6, COLOURS[0])
            out.text(start, y - 10 if above else y + 5, words, size=10, colour=QUIET)
    y += 34
    first, last = card.totals[0].first, card.totals[-1].last
    out.text(0, y, "total", size=11, bold=True)
    out.line(_LEFT, y, right, y, INK, 1.2)
    every = max(1, (last - first) // 20 + 1)
    for total in range(first, last + 1):
        x = across(total, first, last)
        out.line(x, y - 4, x, y, QUIET)
        if (total - first) % every == 0:
            out.text(x, y - 7, total, size=10, anchor="middle", colour=QUIET)
    out.text(0, y + 24, "risk", size=11, bold=True)
    out.line(_LEFT, y + 24, right, y + 24, INK, 1.2)
    end = -1e9
    for total_range in card.totals:
        edge = across(max(first, total_range.first - 0.5), first, last)
        out.line(edge, y + 20, edge, y + 28, QUIET)
        middle = across((total_range.first + total_range.last) / 2, first, last)
        words = show_risk(total_range.risk)
        if middle - _LABEL * len(words) / 2 > end:
            out.text(middle, y + 38, words, size=10, anchor="middle")
            end = middle + _LABEL * len(words) / 2 + 5
    return out


def _join_labels(bands: Sequence[Band]) -> list[tuple[int, str]]:
    """Return the labels of a column by points; bands with the same points share one."""
    found: dict[int, list[str]] = {}
    for band in bands:
        found.setdefault(band.points, []).append(band.text)
    return sorted((p, _cut(", ".join(words), 44)) for p, words in found.items())


def _calibration(points: Sequence[CalibrationPoint]) -> _Drawing:
    out, plot = _axes("Calibration", "printed risk", "share with the event")
    most = min(
        1.0,
        max([0.05, *(v for p in points for v in (p.predicted, p.observed, min(p.high, 2 * p.observed + 0.1)))]) * 1.05,
    )
    to_x, to_y = _scales(plot, (0, most), (0, most))
    _ticks(out, plot, (0, most), (0, most))
    out.path([(to_x(0), to_y(0)), (to_x(most), to_y(most))], QUIET, 1, "3 3")
    largest = max((p.rows for p in points), default=1)
    for p in points:
        out.line(to_x(p.predicted), to_y(p.low), to_x(p.predicted), to_y(min(p.high, most)), "#8aa9bf", 1.2)
    out.path([(to_x(p.predicted), to_y(p.observed)) for p in points], COLOURS[0], 1.5)
    for p in points:
        out.dot(to_x(p.predicted), to_y(p.observed), 2 + 3 * (p.rows / largest) ** 0.5, COLOURS[0])
    return out


def _decision(curve: Mapping[str, Sequence[float | None]]) -> _Drawing:
    out, plot = _axes("Decision curve", "threshold of risk", "net benefit per patient")
    thresholds = [float(t or 0) for t in curve.get("thresholds", ())]
    lines = {
        name: [None if v is None or v != v else float(v) for v in curve.get(name, ())]
        for name in ("model", "treat_all")
    }
    useful = [t for t, v in zip(thresholds, lines["model"], strict=True) if v is not None and abs(v) > 1e-9]
    right = max([0.1, *useful])
    top = max([0.01, *(v for values in lines.values() for v in values if v is not None)]) * 1.1
    low = -0.15 * top
    to_x, to_y = _scales(plot, (0, right), (low, top))
    _ticks(out, plot, (0, right), (low, top))
    out.path([(to_x(0), to_y(0)), (to_x(right), to_y(0))], INK, 1, "2 2")
    for name, colour, dash in (("treat_all", COLOURS[1], "5 3"), ("model", COLOURS[0], "")):
        kept = [
            (to_x(t), to_y(v))
            for t, v in zip(thresholds, lines[name], strict=True)
            if v is not None and t <= right and v >= low
        ]
        out.path(kept, colour, 2, dash)
    for k, (words, colour) in enumerate((("card", COLOURS[0]), ("treat everyone", COLOURS[1]), ("treat nobody", INK))):
        x = plot[2] - 92
        out.line(x, plot[1] + 8 + 13 * k, x + 14, plot[1] + 8 + 13 * k, colour, 2)
        out.text(x + 18, plot[1] + 12 + 13 * k, words, size=10, colour=QUIET)
    return out


Plot = tuple[float, float, float, float]


def _axes(title: str, x: str, y: str) -> tuple[_Drawing, Plot]:
    """Begin a chart of 345 by 235: left, top, right and bottom of its field."""
    out, plot = _Drawing(345, 235, title), (52.0, 22.0, 335.0, 195.0)
    out.text(plot[0], 14, title, size=12, bold=True)
    out.line(plot[0], plot[3], plot[2], plot[3])
    out.line(plot[0], plot[1], plot[0], plot[3])
    out.text((plot[0] + plot[2]) / 2, 228, x, size=10, anchor="middle", colour=QUIET)
    middle = (plot[1] + plot[3]) / 2
    out.parts.append(
        f"<text transform='translate(10,{middle:.1f}) rotate(-90)' font-size='10' text-anchor='middle' fill='{QUIET}'>"
        f"{escape_text(y)}</text>"
    )
    return out, plot


def _scales(plot: Plot, x: tuple[float, float], y: tuple[float, float]) -> tuple[_Scale, _Scale]:
    return _Scale(x, (plot[0], plot[2])), _Scale(y, (plot[3], plot[1]))


class _Scale:
    """A straight line from values to pixels."""

    def __init__(self, values: tuple[float, float], pixels: tuple[float, float]) -> None:
        self.values, self.pixels = values, pixels

    def __call__(self, value: float) -> float:
        share = (value - self.values[0]) / max(1e-12, self.values[1] - self.values[0])
        return self.pixels[0] + share * (self.pixels[1] - self.pixels[0])


def _ticks(out: _Drawing, plot: Plot, x: tuple[float, float], y: tuple[float, float]) -> None:
    to_x, to_y = _scales(plot, x, y)
    for value in _round_values(*x):
        out.line(to_x(value), plot[3], to_x(value), plot[3] + 4)
        out.text(to_x(value), plot[3] + 15, f"{value:.3g}", size=10, anchor="middle", colour=QUIET)
    for value in _round_values(*y):
        out.line(plot[0] - 4, to_y(value), plot[0], to_y(value))
        out.text(plot[0] - 6, to_y(value) + 3.5, f"{value:.3g}", size=10, anchor="end", colour=QUIET)


def _round_values(low: float, high: float) -> list[float]:
    """Choose three to six round values of a range."""
    span = max(high - low, 1e-9)
    unit = 10.0 ** floor(log10(span))
    step = next(s * unit for s in (0.1, 0.2, 0.5, 1.0, 2.0) if span / (s * unit) <= 6)
    first = -floor(-low / step)
    return [k * step for k in range(first, floor(high / step + 1e-9) + 1)]


def risk_card_page(record: CardRecord, performance: CardPerformance | None, provenance: str = "") -> str:
    """Write the card as one HTML page for a sheet of paper.

    Args:
        record: The card.
        performance: How it does at one place; None leaves the two charts out.
        provenance: HTML for the page's head.

    Returns:
        HTML. The page holds one drawing and no script.
    """
    sheet = card_sheet(record, performance)
    style = (
        "body{max-width:820px;margin:1rem auto}svg{width:100%;height:auto}"
        "@media print{svg{max-height:270mm}body{margin:0}}"
    )
    return document(visible(record.title), [f"<main>{sheet}</main>"], None, style=style, head=provenance)
