"""Remove counts of few patients from answers before they leave. Reports withheld for a secure sum are not changed.

Small subgroups are counted with the others and small quantile cells with their neighbours, so totals stay the same. Rare
categories are left out of a summary, and become `other` for the model. A class with few patients is reported with the
smallest allowed count, because a model must know about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.task_spec import FIGURE, SKETCH_CELLS, SUMMARY_CELLS, TALLY_CELLS
from grandrounds.protocol.tasks import spec_of

_TALLY = ("count", "log_loss", "brier", "confusion", "reliability", "histogram", "sums")


def without_small_cells(task: str, values: Payload, smallest: int, rows: Mapping[str, int] | None = None) -> Payload:
    """Remove counts of few patients from one site's answer, by the rule of each report in the table of tasks.

    Args:
        task: The task that is answered.
        values: The columns of the answer.
        smallest: Smallest count that may leave; counts from 1 to `smallest` - 1 are removed.
        rows: Number of the site's rows in each split. For a split with too few rows metrics are NaN and sums 0. Without it
            this is known only for splits whose counts are in the answer.

    Returns:
        The columns as they may leave.
    """
    out = dict(values)
    if smallest < 2:
        return out
    few = {part for part, count in (rows or {}).items() if 0 < count < smallest}
    for report in spec_of(task).reports.values():
        for column in (column for part, column in report.hidden if part in few):
            names = [n for n in out if (n.startswith(column) if column.endswith(".") else n == column)]
            out |= {n: _nan(out[n]) if report.kind == FIGURE else np.zeros_like(np.asarray(out[n])) for n in names}
        if report.cells == SUMMARY_CELLS:
            out |= _summary(out, smallest)
        elif report.cells == TALLY_CELLS:
            for part in [n.removesuffix(".count") for n in out if n.split(".")[0] == report.name and n.endswith(".count")]:
                out |= _tally(out, part, smallest)
        elif report.cells == SKETCH_CELLS and 0 < int(out.get(f"{report.name}.rows", 0)) < smallest:
            out |= {n: np.zeros_like(v) for n, v in out.items() if n.split(".")[0] == report.name}
    return out


def without_figures(values: Payload, report: str) -> Payload:
    """Return an answer in which every column of a report of metrics is NaN."""
    return {n: _nan(v) if n.split(".")[0] == report else v for n, v in values.items()}


def _nan(value: Any) -> Array:
    return np.full_like(np.asarray(value, float), np.nan)


def _summary(values: Payload, smallest: int) -> Payload:
    """Remove rare categories and small quantile cells from a summary, or means of few values from its second half."""
    out = dict(_categories(values, smallest)) if "summary.words" in values else {}
    if "summary.m2" in values:
        few = np.asarray({**values, **out}["summary.count"]) < smallest
        moments = {n: v for n, v in {**values, **out}.items() if n.startswith("summary.")}
        out |= {n: np.where(few, 0, v).astype(np.asarray(v).dtype) for n, v in moments.items()}
    return out


def _categories(values: Payload, smallest: int) -> Payload:
    words = json.loads(str(values["summary.words"]))
    words["groups"] = {w: n for w, n in words["groups"].items() if n >= smallest}
    if "subgroups" in words:
        words["subgroups"] = {c: _frequent(counts, smallest) for c, counts in words["subgroups"].items()}
    words["classes"] = {w: max(n, smallest) for w, n in words["classes"].items()}
    if "levels" not in words:  # summaries of images have no columns
        return {"summary.words": json.dumps(words)}
    words["levels"] = [{w: n for w, n in levels.items() if n >= smallest} for levels in words["levels"]]
    column, cell, count = (np.asarray(values[f"summary.{n}"]) for n in ("cell_column", "cell", "cell_count"))
    few = np.asarray(values["summary.count"]) < smallest
    keep = ~few[column]
    out = _merge_cells(column[keep], cell[keep], count[keep], smallest)
    kept_cells = dict(zip(("summary.cell_column", "summary.cell", "summary.cell_count"), out, strict=True))
    kept_cells["summary.count"] = np.where(few, 0, values["summary.count"])
    if "summary.outcome" in values and np.asarray(values["summary.outcome"])[0] < smallest:
        kept_cells["summary.outcome"] = np.zeros(3)
    return {**kept_cells, "summary.words": json.dumps(words)}


def _frequent(counts: Mapping[str, int] | None, smallest: int) -> dict[str, int] | None:
    """Leave rare groups out of the counts of a column; None where it has too many to name."""
    return None if counts is None else {w: n for w, n in counts.items() if n >= smallest}


def _merge_cells(column: Array, cell: Array, count: Array, smallest: int) -> tuple[Array, Array, Array]:
    """Merge neighbouring cells of a column until each has enough patients; the cell with the median patient represents
    them.

    Cells are in order. The remainder at the upper end is added to the last.
    """
    columns: list[int] = []
    cells: list[int] = []
    counts: list[int] = []
    for j in np.unique(column).tolist():
        mine = column == j
        own_cell, own_count = cell[mine].tolist(), count[mine].tolist()
        groups: list[list[tuple[int, int]]] = [[]]
        for c, n in zip(own_cell, own_count, strict=True):
            groups[-1].append((c, n))
            if sum(k for _, k in groups[-1]) >= smallest:
                groups.append([])
        rest = groups.pop()
        if rest and groups:
            groups[-1] += rest
        for group in groups:
            total = sum(n for _, n in group)
            passed = np.cumsum([n for _, n in group])
            columns.append(j)
            cells.append(group[int(np.searchsorted(passed, (total + 1) // 2))][0])
            counts.append(total)
    return np.array(columns, column.dtype), np.array(cells, cell.dtype), np.array(counts, count.dtype)


def _tally(values: Payload, part: str, smallest: int) -> Payload:
    """Add small subgroups of counts (groups, ...) to the last group, which is that of the others."""
    count = np.atleast_1d(np.asarray(values[f"{part}.count"]))
    fields = {n: np.asarray(values[f"{part}.{n}"]) for n in _TALLY if f"{part}.{n}" in values}
    if not ((count > 0) & (count < smallest)).any():
        return {}
    if count.sum() < smallest:
        empty = {f"{part}.{n}": np.zeros_like(a) for n, a in fields.items()}
        figures = {n: _nan(v) for n, v in values.items() if n.startswith(f"figures.{part}.")}
        return empty | figures
    moved = _groups_to_merge(count, smallest)
    last = len(count) - 1
    out = {}
    for name, array in fields.items():
        merged = array.copy()
        merged[last] += array[moved].sum(axis=0)
        merged[moved] = 0
        out[f"{part}.{name}"] = merged
    return out


def _groups_to_merge(count: Array, smallest: int) -> list[int]:
    """Choose the subgroups to count with the others: all small ones, and more, smallest first, until they are enough."""
    last = len(count) - 1
    moved = [g for g in range(last) if 0 < count[g] < smallest]
    rest = sorted((g for g in range(last) if count[g] >= smallest), key=lambda g: int(count[g]))
    while count[last] + count[moved].sum() < smallest and rest:
        moved.append(rest.pop(0))
    return moved
