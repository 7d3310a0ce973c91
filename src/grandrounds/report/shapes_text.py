"""Shapes of columns, facts of boosted trees and risk cards as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grandrounds.core.errors import visible
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.risk_card import CardRecord, interval_text, read_card, risk_text, total_text
from grandrounds.report.shapes import MONOTONE, Shape, ShapesRecord, format_rows, read_shapes
from grandrounds.report.trees import TreesRecord, exchange_facts, read_trees, trees_facts

_LONGEST_NAME = 32
_HEADS = ("column", "at 10%", "at the median", "at 90%", "missing", "edf")


def shapes_text(record: ShapesRecord, *, width: int = 120, cost: bool = True) -> str:
    """Write the shapes as a compact table: effects of a number at three percentiles, those of levels, and the columns not used.

    Args:
        record: The shapes of a run.
        width: Width of the terminal.
        cost: Add the cost of the fit, where nothing else tells it.

    Returns:
        Lines for a terminal, without an end of line.
    """
    numbers = [s for s in record.used if not s.is_category]
    categories = [s for s in record.used if s.is_category]
    behind = " in the additive model behind the card" if record.is_behind_card else ""
    lines = [f"Effects on the {record.scale}{behind}, the most important columns first"]
    lines += _table([_HEADS, *(_number_row(s) for s in numbers)]) if numbers else []
    if categories:
        lines += [*([""] if numbers else []), *(line for s in categories for line in _level_lines(s, width))]
    lines += [""] if record.used else ["No column has an effect in the model."]
    if record.unused:
        lines += _wrap(f"not used: {', '.join(visible(s.name) for s in record.unused)}", width)
    rules = [f"{visible(s.name)} {MONOTONE[s.monotone]}" for s in record.used if s.monotone in MONOTONE]
    lines += _wrap(f"constraints: {', '.join(rules)}", width) if rules else []
    lines += [f"intercept: {record.intercept:+.4f}"] if record.intercept is not None else []
    lines += [f"{name}: {text}" for name, text in exchange_facts(record.exchanges) if cost]
    lines += [f"note: {visible(note)}" for note in record.notes]
    sentence = disclosure_sentence(record.exchanges) if cost else ""
    return "\n".join([*lines, *([f"disclosure: {sentence}"] if sentence else [])])


def model_texts(summary: Mapping[str, Any], *, width: int = 120) -> list[str]:
    """Write the model of a run where people can read it: its risk card, its shapes, the facts of its trees.

    Args:
        summary: The summary of a finished run.
        width: Width of the terminal.

    Returns:
        Texts for a terminal; empty for other models.
    """
    card, shapes, trees = read_card(summary), read_shapes(summary), read_trees(summary)
    texts = [] if card is None else [card_text(card)]
    if shapes is not None:
        texts.append(shapes_text(shapes, width=width, cost=trees is None and card is None))
    return texts if trees is None else [*texts, trees_text(trees)]


def trees_text(record: TreesRecord) -> str:
    """Write the facts of boosted trees.

    Args:
        record: The facts of a run.

    Returns:
        Lines for a terminal, without an end of line.
    """
    lines = ["Boosted trees", *(f"{name}: {text}" for name, text in trees_facts(record))]
    lines += [f"note: {visible(note)}" for note in record.notes]
    sentence = disclosure_sentence(record.exchanges)
    return "\n".join([*lines, *([f"disclosure: {sentence}"] if sentence else [])])


def card_text(record: CardRecord) -> str:
    """Write a risk card: points, then the risk of each total.

    Args:
        record: The card of a run.

    Returns:
        Lines for a terminal, without an end of line.
    """
    lines = [visible(record.title), visible(record.source), ""]
    lines += _table([("applies to the patient", "points"), *((visible(t.text), f"{t.points:+d}") for t in record.card.terms)])
    rows = [
        (total_text(t, record.card), risk_text(t), interval_text(t), f"{t.rows:,}", f"{t.events:,}")
        for t in record.card.totals
    ]
    lines += ["", *_table([("total", "risk", "95% CI", "patients", "events"), *rows])]
    lines += [f"note: {visible(note)}" for note in record.remarks]
    sentence = disclosure_sentence(record.exchanges)
    return "\n".join([*lines, *([f"disclosure: {sentence}"] if sentence else [])])


def _number_row(shape: Shape) -> tuple[str, ...]:
    places = [shape.quantile(0.1), shape.reference, shape.quantile(0.9)]
    bare = replace(shape, unit="")
    at = [f"{bare.describe_value(k)}: {shape.effect[k]:+.2f}" for k in places]
    missing = "" if shape.missing is None else f"{shape.missing.effect:+.2f}"
    unit = f" ({shape.unit})" if shape.unit else ""
    return (f"{_shorten(shape.name)}{unit}", *at, missing, "" if shape.edf is None else f"{shape.edf:.1f}")


def _level_lines(shape: Shape, width: int) -> list[str]:
    """Write the levels of a category with their effects and patients, wrapped below its name."""
    order = sorted(range(len(shape.values)), key=lambda k: (-shape.effect[k], k))
    counts = ["hidden" if k in shape.hidden else format_rows(n) for k, n in enumerate(shape.rows)]
    parts = [f"{visible(str(shape.values[k]))} {shape.effect[k]:+.2f} ({counts[k]})" for k in order]
    if shape.missing is not None:
        few = "hidden" if shape.missing.is_hidden else format_rows(shape.missing.rows)
        parts.append(f"missing {shape.missing.effect:+.2f} ({few})")
    edf = "" if shape.edf is None else f"; edf {shape.edf:.1f}"
    return _wrap(f"{_shorten(shape.name)}: {', '.join(parts)} patients{edf}", width)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(40, width), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _shorten(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 3]}..."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
