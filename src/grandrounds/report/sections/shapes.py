"""Report sections on additive models and boosted trees: shapes of columns, and the facts of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report import figures
from grandrounds.report.document import Charts, table, td, text_cell
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.shapes import (
    SHOWN,
    Shape,
    ShapesRecord,
    column_title,
    describe_shape,
    read_shapes,
    shapes_intro,
)
from grandrounds.report.trees import TreesRecord, exchange_facts, read_trees, trees_facts, trees_sentences


def shapes_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on the shapes of columns; empty for a run without them."""
    record = read_shapes(summary)
    if record is None:
        return []
    first, rest = record.used[:SHOWN], record.used[SHOWN:]
    return [
        "<h2>Shapes of the additive model behind the card</h2>" if record.is_behind_card else "<h2>Shapes</h2>",
        f"<p>{escape(shapes_intro(record))}</p>",
        *[f"<p>{escape(note)}</p>" for note in record.notes],
        *_shapes(record, first, charts, ColumnLabels.of_summary(summary)),
        *_folded(record, rest, charts, ColumnLabels.of_summary(summary)),
        *_unused(record),
        *_fit(record, has_cost=not summary.get("trees") and not record.is_behind_card),
    ]


def _shapes(record: ShapesRecord, shapes: Sequence[Shape], charts: Charts, labels: ColumnLabels) -> list[str]:
    """Write each shape: its figure with a sentence below; the sentences alone where nothing can be drawn."""
    sentences = [describe_shape(record, shape) for shape in shapes]
    drawn = charts.place(*(figures.shape(record, s.name, columns=labels) for s in shapes), captions=sentences)
    if drawn or not shapes:
        return [drawn]
    items = (f"<li>{escape(column_title(s, labels))}: {escape(line)}</li>" for s, line in zip(shapes, sentences, strict=True))
    return [f"<ul>{''.join(items)}</ul>"]


def _folded(record: ShapesRecord, shapes: Sequence[Shape], charts: Charts, labels: ColumnLabels) -> list[str]:
    """Write the less important shapes behind a fold."""
    if not shapes:
        return []
    count = f"{len(shapes)} less important {'shape' if len(shapes) == 1 else 'shapes'}"
    return [f"<details><summary>{count}</summary>", *_shapes(record, shapes, charts, labels), "</details>"]


def _unused(record: ShapesRecord) -> list[str]:
    names = ", ".join(s.name for s in record.unused)
    return [f"<p>Columns that the model does not use: {escape(names)}.</p>"] if names else []


def _fit(record: ShapesRecord, *, has_cost: bool) -> list[str]:
    """Write the cost of the fit; of trees and of a risk card their own section has it."""
    if not has_cost:
        return []
    rows = [("rows", f"{record.rows:,}")] if record.rows else []
    rows += [("hospitals", str(len(record.sites)))] if record.sites else []
    smooth = [s.edf for s in record.used if s.edf is not None]
    rows += [("effective degrees of freedom", f"{sum(smooth):.1f}")] if smooth else []
    rows += exchange_facts(record.exchanges)
    sentence = disclosure_sentence(record.exchanges)
    return ["<h3>The fit</h3>", _facts(rows), *([f"<p>{escape(sentence)}</p>"] if sentence else [])] if rows else []


def trees_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on boosted trees; empty for a run without them."""
    record = read_trees(summary)
    if record is None:
        return []
    return [
        "<h2>Boosted trees</h2>",
        *[f"<p>{escape(line)}</p>" for line in trees_sentences(record)],
        *[f"<p class='warn'>{escape(note)}</p>" for note in record.notes],
        _facts(trees_facts(record)),
        charts.place(figures.validation_curve(record.validation), wide=True) if has_validation(record) else "",
    ]


def has_validation(record: TreesRecord) -> bool:
    """Tell whether a validation loss was recorded for two rounds or more."""
    return len(record.validation) > 1


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    return table(["", "<th class='text'></th>"], [[td(escape(k)), text_cell(v)] for k, v in rows])
