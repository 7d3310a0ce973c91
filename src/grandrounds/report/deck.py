"""Five slides for a governance board, from the overview of a run: verdict, hospitals, explanations, privacy and record, decision.

Text, tables and the chart are native, so that people can edit them; the forest plot is drawn from shapes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, install_extra, visible
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report.card import BoardFile, decision_asked
from grandrounds.report.hospitals import Hospital, HospitalComparison, compare_hospitals
from grandrounds.report.overview import BETTER, MIXED, WORSE, Overview

_WIDE, _HIGH = 13.333, 7.5
"""Size of a slide in inches."""
_INK, _QUIET, _BLUE, _LINE = "1B1F24", "57606A", "0072B2", "B6BEC6"
_COLOURS = {BETTER: "00674B", MIXED: "A04000", WORSE: "A04000"}
_MOST_ROWS = 16
"""Hospitals of the forest plot."""
_MOST_FEATURES = 10
_LONGEST = 700
"""Characters of a paragraph; the report has the whole text."""


def write_deck(
    view: Overview, board: BoardFile, summary: RunSummary, rounds: Sequence[RoundRecord], path: Path
) -> None:
    """Write the slides.

    Args:
        view: The overview of a finished run.
        board: Signatures and the state in the register.
        summary: The summary of the run.
        rounds: Its rounds.
        path: The .pptx file.

    Raises:
        BadInput: python-pptx is missing, the file has another ending, or cannot be written.
    """
    if path.suffix.lower() != ".pptx":
        raise BadInput(f"{path} is no name of a slide deck: give --deck a file that ends in .pptx", code="unknown-format")
    deck = _Deck(view)
    deck.add_verdict()
    deck.add_hospitals(compare_hospitals(summary, rounds))
    deck.add_explanations(summary)
    deck.add_record()
    deck.add_decision(board)
    try:
        write_atomic(path, deck.to_bytes(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None


class _Deck:
    """A presentation of one run."""

    def __init__(self, view: Overview) -> None:
        self._view, self._pptx = view, _Pptx.load()
        self._deck = self._pptx.new(_WIDE, _HIGH)
        self._count = 0

    def to_bytes(self) -> bytes:
        """Return the .pptx file."""
        out = io.BytesIO()
        self._deck.save(out)
        return out.getvalue()

    def add_verdict(self) -> None:
        """Slide 1: the verdict, the main figures and the intended use; first the fault of a run whose files were changed."""
        view = self._view
        slide = self._slide(view.verdict_title, colour=_COLOURS.get(view.verdict, _INK))
        if view.ledger.fails:
            self._box(slide, view.ledger.sentence, 0.6, 0.05, _WIDE - 1.2, 0.4, size=14, colour=_COLOURS[WORSE], bold=True)
        facts = [
            ("Predicts", view.prediction or view.outcome or view.data),
            ("Intended use", view.use),
            ("Tested on", view.tested_text or "no test rows"),
            ("Hospitals", view.sites_text),
            *([("Headline", view.headline.text)] if view.headline else []),
            *([("Models", view.basis_line)] if view.basis_line else []),
            *[("At the threshold", s.text) for s in view.scores if s.key in ("sensitivity", "specificity")],
            *([("Decision rule", view.threshold_text)] if view.threshold_text else []),
        ]
        self._table(slide, facts, top=1.75)
        self._paragraphs(slide, [*view.findings.overall[:1], *view.findings.calibration, *view.warnings[:2]], top=5.75, size=14)

    def add_hospitals(self, compared: HospitalComparison | None) -> None:
        """Slide 2: a forest plot of hospitals, and for whom the model is worse."""
        view = self._view
        slide = self._slide("Hospitals" if compared is None else f"Hospitals: {compared.label} with 95% intervals")
        drawn = compared is not None and self._forest(slide, compared)
        lines = [*view.findings.harm[:1], *view.findings.majority, *view.findings.sites[:2], *view.subgroups]
        lines = lines or ["No hospital has test patients of its own."]
        self._paragraphs(slide, lines, left=8.6 if drawn else 0.6, width=4.2 if drawn else 12.1, top=1.75, size=13)

    def add_explanations(self, summary: RunSummary) -> None:
        """Slide 3: the features that the model relies on most."""
        view = self._view
        slide = self._slide("Features that the model relies on")
        top = [t for t in ((summary.explanation or {}).get("top") or ())[:_MOST_FEATURES] if t.get("share") is not None]
        if top:
            labels = ColumnLabels.of_summary(summary)
            self._bars(slide, [(labels.find(str(t["feature"])).name, float(t["share"])) for t in top])
        lines = [*view.relies_on, "An explanation shows which inputs the model relies on, not the cause of an outcome."]
        self._paragraphs(slide, lines, left=8.6 if top else 0.6, width=4.2 if top else 12.1, top=1.75, size=14)

    def add_record(self) -> None:
        """Slide 4: privacy, the record and the cost."""
        view = self._view
        slide = self._slide("Privacy and record")
        facts = [
            ("Privacy", view.privacy),
            ("Epsilon", f"{view.epsilon:g}" if view.epsilon is not None else "none: no differential privacy"),
            ("Record", view.ledger.sentence),
            ("Model file, SHA-256", view.model_hash or "none"),
            ("Training", f"{view.method}; {view.model}"),
            ("Cost", view.cost or "not known"),
        ]
        self._table(slide, facts, top=1.75)

    def add_decision(self, board: BoardFile) -> None:
        """Slide 5: the decision that is asked for, and the sign-off block."""
        slide = self._slide("Decision asked")
        lines = [decision_asked(self._view), *([board.register] if board.register else [])]
        self._paragraphs(slide, lines, top=1.75, size=16)
        rows = [("Role", "Name", "Date", "Signature"), *((s.role, s.name, s.date, "") for s in board.signatures)]
        self._grid(slide, rows, top=3.6, height=0.6)
        for k in range(1, len(rows) + 1):
            self._pptx.line(slide, 0.6, 3.6 + 0.6 * k, _WIDE - 0.6, 3.6 + 0.6 * k, _LINE)

    def _slide(self, title: str, *, colour: str = _INK) -> Any:
        self._count += 1
        slide = self._deck.slides.add_slide(self._deck.slide_layouts[5])  # title only
        shape = slide.shapes.title
        self._pptx.place(shape, 0.6, 0.45, _WIDE - 1.2, 1.1)
        shape.text_frame.word_wrap = True
        self._pptx.write(shape.text_frame.paragraphs[0], title, size=28 if len(title) < 70 else 22, colour=colour, bold=True)
        left, right = self._view.page_header
        self._box(slide, f"{left}    {right}    {self._count} of 5", 0.6, 7.0, _WIDE - 1.2, 0.35, size=9, colour=_QUIET)
        return slide

    def _box(self, slide: Any, text: str, left: float, top: float, width: float, height: float, **style: Any) -> Any:
        box = slide.shapes.add_textbox(*self._pptx.inches(left, top, width, height))
        box.text_frame.word_wrap = True
        self._pptx.write(box.text_frame.paragraphs[0], text, **style)
        return box

    def _paragraphs(
        self, slide: Any, lines: Sequence[str], *, top: float, size: int, left: float = 0.6, width: float = _WIDE - 1.2
    ) -> None:
        if not lines:
            return
        box = self._box(slide, lines[0], left, top, width, 0.5, size=size)
        for line in lines[1:]:
            paragraph = box.text_frame.add_paragraph()
            paragraph.space_before = self._pptx.points(6)
            self._pptx.write(paragraph, line, size=size)

    def _table(self, slide: Any, facts: Sequence[tuple[str, str]], *, top: float) -> None:
        self._grid(slide, [(name, text) for name, text in facts], top=top, height=0.42, first=2.4, heads=False)

    def _grid(
        self,
        slide: Any,
        rows: Sequence[Sequence[str]],
        *,
        top: float,
        height: float,
        first: float | None = None,
        heads: bool = True,
    ) -> None:
        """Add a table; `first`: the width of its first column."""
        width, columns = _WIDE - 1.2, len(rows[0])
        shape = slide.shapes.add_table(len(rows), columns, *self._pptx.inches(0.6, top, width, height * len(rows)))
        table = shape.table
        table.first_row, table.horz_banding = heads, False
        first = width / columns if first is None else first
        for k, column in enumerate(table.columns):
            column.width = self._pptx.inches(first if k == 0 else (width - first) / (columns - 1))[0]
        for i, row in enumerate(rows):
            for k, text in enumerate(row):
                cell = table.cell(i, k)
                head = heads and i == 0
                self._pptx.fill(cell, "F3F5F7" if head or (k == 0 and not heads) else "FFFFFF")
                strong = head or (k == 0 and not heads)
                self._pptx.write(cell.text_frame.paragraphs[0], text, size=14, colour=_QUIET if strong else _INK, bold=strong)

    def _bars(self, slide: Any, shares: Sequence[tuple[str, float]]) -> None:
        """Add a native bar chart of features, the most important first."""
        self._pptx.add_bars(slide, shares, self._pptx.inches(0.6, 1.7, 7.7, 5.1))

    def _forest(self, slide: Any, compared: HospitalComparison) -> bool:
        """Draw hospitals with their intervals, the lowest first, and all together last; False where none has a score."""
        ranked = [h for h in compared.order() if h.score is not None and h.ranked]
        if not ranked:
            return False
        shown = [*ranked[:_MOST_ROWS], *([compared.overall] if compared.overall.score is not None else [])]
        scale = _Scale.make(shown, left=3.6, width=3.5)
        step = min(0.36, 4.6 / (len(shown) + 1))
        for k, hospital in enumerate(shown):
            self._forest_row(slide, hospital, scale, top=1.75 + k * step, bold=hospital is compared.overall)
        bottom = 1.75 + len(shown) * step + 0.05
        self._pptx.line(slide, scale.left, bottom, scale.left + scale.width, bottom, _LINE)
        for value in scale.ticks:
            self._box(slide, f"{value:.2f}", scale.place(value) - 0.3, bottom, 0.7, 0.3, size=10, colour=_QUIET)
        notes = [f"Figures of {compared.model_text}."]
        notes += [f"The {_MOST_ROWS} lowest of {len(ranked)} hospitals; the report has all."] if len(ranked) > _MOST_ROWS else []
        few = len(compared.tested) - len(ranked)
        notes += [f"{few} with too few test rows to be ranked {'is' if few == 1 else 'are'} left out."] if few else []
        self._box(slide, " ".join(notes), 0.6, bottom + 0.3, 7.6, 0.3, size=10, colour=_QUIET)
        return True

    def _forest_row(self, slide: Any, hospital: Hospital, scale: _Scale, *, top: float, bold: bool) -> None:
        assert hospital.score is not None
        score, middle = hospital.score, top + 0.17
        events = f", {hospital.events:,} events" if hospital.events is not None else ""
        name = f"{hospital.name} ({hospital.test_rows:,} rows{events})"
        self._box(slide, name, 0.55, top - 0.04, 3.1, 0.3, size=9, colour=_INK, bold=bold)
        if score.low is not None and score.high is not None:
            self._pptx.line(slide, scale.place(score.low), middle, scale.place(score.high), middle, _INK if bold else _BLUE)
        self._pptx.dot(slide, scale.place(score.value), middle, _INK if bold else _BLUE)
        self._box(slide, f"{score.value:.3f}", 7.15, top - 0.04, 0.9, 0.3, size=10, colour=_INK, bold=bold)


@dataclass(frozen=True)
class _Scale:
    """The axis of a forest plot, in inches."""

    low: float
    high: float
    left: float
    width: float

    @classmethod
    def make(cls, hospitals: Sequence[Hospital], *, left: float, width: float) -> _Scale:
        ends = [v for h in hospitals if h.score is not None for v in (h.score.low, h.score.value, h.score.high) if v is not None]
        low, high = min(ends), max(ends)
        return cls(low, high if high > low else low + 0.1, left, width)

    def place(self, value: float) -> float:
        return self.left + self.width * (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> tuple[float, ...]:
        return tuple(self.low + (self.high - self.low) * k / 4 for k in range(5))


class _Pptx:
    """The part of python-pptx that the slides use; the package is optional."""

    def __init__(self, package: Any, modules: dict[str, Any]) -> None:
        self._package, self._modules = package, modules

    @classmethod
    def load(cls) -> _Pptx:
        """Import python-pptx.

        Raises:
            BadInput: It is not installed.
        """
        try:
            names = ("util", "dml.color", "enum.shapes", "enum.chart", "chart.data")
            return cls(import_module("pptx"), {name: import_module(f"pptx.{name}") for name in names})
        except ImportError:
            raise BadInput(
                f"slides need python-pptx; {install_extra('slides')}, or use --pdf", code="missing-package"
            ) from None

    def new(self, width: float, height: float) -> Any:
        deck = self._package.Presentation()
        deck.slide_width, deck.slide_height = self.inches(width, height)
        return deck

    def inches(self, *values: float) -> tuple[Any, ...]:
        return tuple(self._modules["util"].Inches(value) for value in values)

    def points(self, value: float) -> Any:
        return self._modules["util"].Pt(value)

    def colour(self, value: str) -> Any:
        return self._modules["dml.color"].RGBColor.from_string(value)

    def place(self, shape: Any, left: float, top: float, width: float, height: float) -> None:
        shape.left, shape.top, shape.width, shape.height = self.inches(left, top, width, height)

    def write(self, paragraph: Any, text: str, *, size: float, colour: str = _INK, bold: bool = False) -> None:
        """Write a paragraph; control characters of names are shown as escapes, and long text is cut with a mark."""
        shown = visible(text).replace("\n", " ").replace("\t", " ")
        run = paragraph.add_run()
        run.text = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST].rstrip()} … (see the report)"
        paragraph.alignment = 1  # left
        run.font.size, run.font.bold = self.points(size), bold
        run.font.color.rgb = self.colour(colour)

    def fill(self, cell: Any, colour: str) -> None:
        cell.fill.solid()
        cell.fill.fore_color.rgb = self.colour(colour)

    def line(self, slide: Any, x: float, y: float, to_x: float, to_y: float, colour: str) -> None:
        kind = self._modules["enum.shapes"].MSO_CONNECTOR.STRAIGHT
        drawn = slide.shapes.add_connector(kind, *self.inches(x, y, to_x, to_y))
        drawn.line.color.rgb = self.colour(colour)
        drawn.line.width = self.points(1.5)

    def dot(self, slide: Any, x: float, y: float, colour: str) -> None:
        kind = self._modules["enum.shapes"].MSO_SHAPE.OVAL
        drawn = slide.shapes.add_shape(kind, *self.inches(x - 0.06, y - 0.06, 0.12, 0.12))
        drawn.fill.solid()
        drawn.fill.fore_color.rgb = self.colour(colour)
        drawn.line.fill.background()

    def add_bars(self, slide: Any, shares: Sequence[tuple[str, float]], place: Sequence[Any]) -> None:
        data = self._modules["chart.data"].CategoryChartData(number_format="0%")
        data.categories = [visible(name) for name, _ in shares]
        data.add_series("share of the attributions", [share for _, share in shares])
        kind = self._modules["enum.chart"].XL_CHART_TYPE.BAR_CLUSTERED
        chart = slide.shapes.add_chart(kind, *place, data).chart
        chart.has_legend, chart.has_title = False, False
        chart.category_axis.reverse_order = True
        chart.value_axis.visible = False
        chart.value_axis.has_major_gridlines = False
        chart.category_axis.tick_labels.font.size = self.points(12)
        plot = chart.plots[0]
        plot.gap_width, plot.has_data_labels = 40, True
        plot.data_labels.font.size = self.points(11)
        fill = plot.series[0].format.fill
        fill.solid()
        fill.fore_color.rgb = self.colour(_BLUE)
