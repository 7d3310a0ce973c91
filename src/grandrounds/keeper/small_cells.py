"""Answers without counts of few patients, as they leave a site. What a site holds for a secure sum is not touched.

Nothing is made up where adding can hide it: small subgroups are counted among the others and small quantile cells with
their neighbours, so totals stay what they were. Rare categories are left out of a summary, and are `other` to the model.
A class with few patients is told as the smallest number allowed, because a model must know of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.site.stack import CLEAN, PARTS

Values = dict[str, Any]

_TALLY = ("count", "log_loss", "brier", "confusion", "reliability", "histogram")


_FIGURES = {
    "val": ("val_loss", "ece"),
    "test": ("figures.test.", "local.test_accuracy", "lent.test"),
}
_SUMS = {"val": ("losses", "sums.")}
"""Of which rows a figure or sum is; a name that ends in a dot stands for all that begin with it."""


def without_small_cells(values: Mapping[str, Any], smallest: int, rows: Mapping[str, int] | None = None) -> Values:
    """One site's answer, with no count from 1 to `smallest` - 1 in a summary, a tally or a sketch.

    `rows`: how many the site has of each part. Of a part that has too few no figure is told either (NaN, as where there are
    no rows), and its sums are 0. Without it that is known only of parts whose tally is in the answer.
    """
    out = dict(values)
    if smallest < 2:
        return out
    for part, count in (rows or {}).items():
        if 0 < count < smallest:
            out |= {n: np.full_like(np.asarray(v, float), np.nan) for n, v in out.items() if _of(n, _FIGURES.get(part, ()))}
            out |= {n: np.zeros_like(np.asarray(v)) for n, v in out.items() if _of(n, _SUMS.get(part, ()))}
    if "summary.words" in out:
        out |= _summary(out, smallest)
    if "summary.m2" in out:
        few = np.asarray(out["summary.count"]) < smallest
        out |= {n: np.where(few, 0, v).astype(np.asarray(v).dtype) for n, v in out.items() if n.startswith("summary.")}
    for part in (*PARTS, CLEAN):
        if f"{part}.count" in out:
            out |= _tally(out, part, smallest)
    rows = out.get("sketch.rows")
    if rows is not None and 0 < int(rows) < smallest:
        out |= {n: np.zeros_like(v) for n, v in out.items() if n == "sketch" or n.startswith("sketch.")}
    return out


def _of(name: str, known: Sequence[str]) -> bool:
    return any(name.startswith(word) if word.endswith(".") else name == word for word in known)


def _summary(values: Values, smallest: int) -> Values:
    words = json.loads(values["summary.words"])
    words["groups"] = {w: n for w, n in words["groups"].items() if n >= smallest}
    words["classes"] = {w: max(n, smallest) for w, n in words["classes"].items()}
    if "levels" not in words:  # of pictures, which have no columns
        return {"summary.words": json.dumps(words)}
    words["levels"] = [{w: n for w, n in of.items() if n >= smallest} for of in words["levels"]]
    column, cell, count = (np.asarray(values[f"summary.{n}"]) for n in ("cell_column", "cell", "cell_count"))
    few = np.asarray(values["summary.count"]) < smallest
    keep = ~few[column]
    out = _drawn_together(column[keep], cell[keep], count[keep], smallest)
    told = dict(zip(("summary.cell_column", "summary.cell", "summary.cell_count"), out, strict=True))
    told["summary.count"] = np.where(few, 0, values["summary.count"])
    return {**told, "summary.words": json.dumps(words)}


def _drawn_together(column: Array, cell: Array, count: Array, smallest: int) -> tuple[Array, Array, Array]:
    """Neighbouring cells of a column added up until each holds enough; the cell with the middle patient stands for them.

    Cells lie in order. What is left over at the upper end is added to the last.
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
        left = groups.pop()
        if left and groups:
            groups[-1] += left
        for group in groups:
            total = sum(n for _, n in group)
            passed = np.cumsum([n for _, n in group])
            columns.append(j)
            cells.append(group[int(np.searchsorted(passed, (total + 1) // 2))][0])
            counts.append(total)
    return np.array(columns, column.dtype), np.array(cells, cell.dtype), np.array(counts, count.dtype)


def _tally(values: Values, part: str, smallest: int) -> Values:
    """A tally by subgroup (groups, ...) with the small ones added to the last, which is that of the others."""
    count = np.atleast_1d(np.asarray(values[f"{part}.count"]))
    fields = {n: np.asarray(values[f"{part}.{n}"]) for n in _TALLY if f"{part}.{n}" in values}
    if not ((count > 0) & (count < smallest)).any():
        return {}
    if count.sum() < smallest:
        empty = {f"{part}.{n}": np.zeros_like(a) for n, a in fields.items()}
        figures = {n: np.full_like(np.asarray(v, float), np.nan) for n, v in values.items() if n.startswith(f"figures.{part}.")}
        return empty | figures
    moved = _moved(count, smallest)
    last = len(count) - 1
    out = {}
    for name, array in fields.items():
        own = array.copy()
        own[last] += array[moved].sum(axis=0)
        own[moved] = 0
        out[f"{part}.{name}"] = own
    return out


def _moved(count: Array, smallest: int) -> list[int]:
    """The subgroups to count among the others: all small ones, and as many more, smallest first, as make those enough."""
    last = len(count) - 1
    moved = [g for g in range(last) if 0 < count[g] < smallest]
    rest = sorted((g for g in range(last) if count[g] >= smallest), key=lambda g: int(count[g]))
    while count[last] + count[moved].sum() < smallest and rest:
        moved.append(rest.pop(0))
    return moved
