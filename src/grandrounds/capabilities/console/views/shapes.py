"""The shape page: the effect of each column of an additive model, one at a time, and the value under the cursor."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.console.views.run import load_record
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report import figures
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.figure import Figure
from grandrounds.report.shapes import (
    Shape,
    ShapesRecord,
    column_title,
    describe_point,
    describe_shape,
    read_shapes,
    shapes_intro,
)
from grandrounds.report.trees import exchange_facts


class ShapePoint(BaseModel):
    """A value of a column. `x`: the number, or the level; None for a missing value; `text`: a sentence on its effect."""

    x: float | str | None
    effect: float
    rows: int
    text: str


class ShapeView(BaseModel):
    """The shape of a column. `share`: its importance as a share of all columns'; `first`: the place of the reference."""

    column: str
    label: str
    kind: Literal["number", "category"]
    share: float
    edf: float | None
    monotone: str | None
    sentence: str
    points: list[ShapePoint]
    first: int


class ShapesView(BaseModel):
    """The shapes of a run, the most important column first. `facts`: label and text."""

    intro: str
    scale: str
    columns: list[ShapeView]
    unused: list[str]
    facts: list[tuple[str, str]]
    disclosure: str
    notes: list[str]


def shapes(run_index: RunIndex, name: str) -> ShapesView | None:
    """Return the shapes of a finished run; None for a run without them."""
    return run_index.get_cached(name, "shapes", lambda f: _view(run_index, f.name))


def _view(run_index: RunIndex, name: str) -> ShapesView | None:
    summary = load_record(run_index, name).summary
    record = None if summary is None else read_shapes(summary)
    if summary is None or record is None:
        return None
    total = sum(s.importance for s in record.used)
    return ShapesView(
        intro=shapes_intro(record),
        scale=record.scale,
        columns=[_column(record, s, total, ColumnLabels.of_summary(summary)) for s in record.used],
        unused=[s.name for s in record.unused],
        facts=exchange_facts(record.exchanges),
        disclosure=disclosure_sentence(record.exchanges),
        notes=list(record.notes),
    )


def _column(record: ShapesRecord, shape: Shape, total: float, labels: ColumnLabels) -> ShapeView:
    points = [
        ShapePoint(x=x, effect=effect, rows=max(0, round(rows)), text=describe_point(record, shape, k))
        for k, (x, effect, rows) in enumerate(zip(shape.values, shape.effect, shape.rows, strict=True))
    ]
    if shape.missing is not None:
        rows = max(0, round(shape.missing.rows))
        text = describe_point(record, shape, None)
        points.append(ShapePoint(x=None, effect=shape.missing.effect, rows=rows, text=text))
    return ShapeView(
        column=shape.name,
        label=column_title(shape, labels),
        kind="category" if shape.is_category else "number",
        share=shape.importance / total if total else 0.0,
        edf=shape.edf,
        monotone=shape.monotone,
        sentence=describe_shape(record, shape),
        points=points,
        first=shape.reference,
    )


def figure(run_index: RunIndex, name: str, column: str) -> Figure:
    """Draw the shape of a column."""
    summary = load_record(run_index, name).summary
    record = None if summary is None else read_shapes(summary)
    if summary is None or record is None:
        raise NotFound(f"run '{name}' has no shapes", code="unknown-figure")
    if record.find(column) is None:
        raise NotFound(f"the model of run '{name}' does not use column '{column[:80]}'", code="unknown-column")
    return figures.shape(record, column, columns=ColumnLabels.of_summary(summary))
