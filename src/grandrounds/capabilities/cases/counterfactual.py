"""Single values that would change a patient's decision: "Not flagged if lactate were at most 2.1 mmol/l".

A counterfactual describes the model. It is not advice: values that change together in patients change here one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.cases.case_page import decision_of, value_with_unit
from grandrounds.capabilities.cases.table import Attribution, CaseExplanation
from grandrounds.capabilities.cases.values import column_kind, short
from grandrounds.core.arrays import Array
from grandrounds.data.table import Table, missing_mask

NONE = "No moderate change of a single clinical value would change this decision."
FARTHEST = 0.5
"""Largest change of a number that is shown, as a share of the column's range."""
COMMON = 0.25
"""Smallest share of a missing column's range that has to give the other decision: a rare value says little."""
_CATEGORY = 0.5  # distance of another category, as a share of a number's range
_FIXED = re.compile(r"(^|[^a-z])age([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Counterfactual:
    """A single change that gives the other decision.

    Attributes:
        column: The column that changes.
        value: The nearest value with the other decision; its category, of a category.
        sentence: The change as a sentence.
        distance: The size of the change as a share of the column's range; the smallest comes first.
    """

    column: str
    value: float | str
    sentence: str
    distance: float


def find_counterfactuals(
    case: CaseExplanation,
    row: Table,
    candidates: Mapping[str, Sequence[float] | Sequence[str]],
    decide: Callable[[Table], Sequence[str]],
) -> list[Counterfactual]:
    """Find the columns that change the decision on their own.

    Age, protected and administrative columns are left out: a patient's age or group cannot change.

    Args:
        case: The explanation of the patient.
        row: The patient's row.
        candidates: The values to try by column: numbers in ascending order, or categories.
        decide: Gives the model's decisions on rows.

    Returns:
        One change for each such column, the smallest first; empty with three classes or more.
    """
    if len(case.classes) != 2:
        return []
    tried = {c: v for c, v in candidates.items() if len(v) and not _is_fixed(c) and c in row.columns}
    if not tried:
        return []
    decisions = list(decide(_vary(row, tried)))
    by_column = {a.column: a for a in case.attributions}
    found, start = [], 0
    for column, values in tried.items():
        flips = np.array([d != case.decision for d in decisions[start : start + len(values)]])
        start += len(values)
        change = _nearest(by_column[column], values, flips, case)
        found += [change] if change is not None else []
    return sorted(found, key=lambda change: (change.distance, change.column))


def _vary(row: Table, candidates: Mapping[str, Sequence[float] | Sequence[str]]) -> Table:
    """Repeat a row once for each candidate value, with that value in its column."""
    total, columns, start = sum(map(len, candidates.values())), {}, 0
    for name, values in candidates.items():
        own = row.columns[name][0]
        is_empty = bool(missing_mask(row.columns[name])[0])
        filled: list[object] = [None if is_empty else own] * total
        filled[start : start + len(values)] = values
        columns[name] = filled
        start += len(values)
    return row.take([0] * total).with_columns(columns)


def _nearest(
    own: Attribution, values: Sequence[float] | Sequence[str], flips: Array, case: CaseExplanation
) -> Counterfactual | None:
    """Choose the smallest change of one column that gives the other decision."""
    label = case.labels.find(own.column)
    now = "missing" if own.value is None else f"now {value_with_unit(own, case.labels)}"
    start = f"{_other_decision(case)} if {label.name} ({now}) were"
    if isinstance(values[0], str):
        words = [str(v) for v, flip in zip(values, flips, strict=True) if flip and v != own.value]
        if not words:
            return None
        return Counterfactual(own.column, words[0], f"{start} {' or '.join(words)}.", _CATEGORY)
    grid = np.asarray(values, float)
    width = float(grid[-1] - grid[0]) or 1.0
    place = float(own.value) if isinstance(own.value, float) else None
    options = []
    for side, run in (("at most", _leading(flips)), ("at least", _leading(flips[::-1]))):
        if not 0 < run < len(grid) or (place is None and run < COMMON * len(grid)):
            continue
        value = float(grid[run - 1] if side == "at most" else grid[len(grid) - run])
        is_beyond = place is None or (value < place if side == "at most" else value > place)
        if is_beyond:
            distance = _CATEGORY if place is None else abs(value - place) / width
            options += [(distance, side, value)] if distance <= FARTHEST else []
    if not options:
        return None
    distance, side, value = min(options)
    return Counterfactual(own.column, value, f"{start} {side} {label.with_unit(short(value))}.", distance)


def _is_fixed(column: str) -> bool:
    return column_kind(column) is not None or _FIXED.search(column) is not None


def _leading(flips: Array) -> int:
    """Count the values from the start on that all give the other decision."""
    return len(flips) if flips.all() else int(np.argmin(flips))


def _other_decision(case: CaseExplanation) -> str:
    other = next(c for c in case.classes if c != case.decision)
    text = decision_of(case, other)
    return text[:1].upper() + text[1:]
