"""Report section on groups of patients: figures by group, gaps between groups, and a mitigation with its cost."""

from __future__ import annotations

from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.report.document import Charts, table, td, text_cell
from grandrounds.report.fairness import (
    describe_gaps,
    describe_merged,
    describe_mitigation,
    gap_table,
    group_tables,
    has_correction,
    mitigation_table,
)
from grandrounds.report.figures.groups import group_gaps

MOST_GAPS = 60
"""Gaps in the table; summary.json has all."""

CAVEAT = (
    "Decisions that differ by group are a choice that people must make: it may be unlawful or unwanted, and the groups must be "
    "recorded correctly for every patient."
)


def fairness_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on groups of patients; empty where evaluation.subgroups names no column."""
    fairness = summary.fairness
    if not fairness:
        return []
    model = "the models that sites deploy" if fairness.get("model") == "deployed" else "the final model"
    figure = group_gaps(fairness)
    return [
        "<h2>Groups of patients</h2>",
        f"<p>Test rows of all sites by group, scored by {model}, with 95% intervals. Counts below {fairness['least']} are not "
        "shown, and neither is a second count where the total would give one away.</p>",
        *[f"<p>{escape(sentence)}</p>" for sentence in describe_gaps(fairness)],
        *([] if figure is None else [charts.place(figure, wide=True)]),
        *[part for column, heads, rows in group_tables(fairness) for part in (f"<h3>{escape(column)}</h3>", _table(heads, rows))],
        *[f"<p class='quiet'>{escape(sentence)}</p>" for sentence in describe_merged(fairness)],
        *_gaps(summary),
        *_mitigation(summary),
    ]


def _gaps(summary: RunSummary) -> list[str]:
    heads, rows = gap_table(summary.fairness, MOST_GAPS)
    if not rows:
        return []
    left = summary.fairness["comparisons"] - len(rows)
    more = [f"<p class='quiet'>And {left} more in summary.json.</p>"] if left else []
    return ["<h3>Gaps, the clearest first</h3>", _table(heads, rows, text=3), *more]


def _mitigation(summary: RunSummary) -> list[str]:
    fairness = summary.fairness
    if not fairness.get("mitigation"):
        return []
    return [
        "<h3>Correction by group</h3>",
        *[f"<p>{escape(sentence)}</p>" for sentence in describe_mitigation(fairness)],
        *([_table(*mitigation_table(fairness)), f"<p class='warn'>{CAVEAT}</p>"] if has_correction(fairness) else []),
    ]


def _table(heads: list[str], rows: list[list[str]], *, text: int = 1) -> str:
    """Write a table of text; the first `text` columns are aligned left. Intervals are below their figures, to fit paper."""
    head = [f"<th class='text'>{escape(h)}</th>" if k < text else escape(h) for k, h in enumerate(heads)]
    return table(head, [[text_cell(c) if k < text else td(_two_lines(c)) for k, c in enumerate(row)] for row in rows])


def _two_lines(cell: str) -> str:
    """Break a cell before its interval, or before the value after a correction."""
    for mark in (" (", " → "):
        first, found, rest = cell.partition(mark)
        if found:
            return f"{escape(first)}<br><span class='quiet'>{escape((mark + rest).strip())}</span>"
    first, found, rest = cell.partition(" ")
    return f"{escape(first)}<br><span class='quiet'>{escape(rest)}</span>" if found and " to " in rest else escape(cell)
