"""Relations between columns: rank correlations that hospitals share.

They show faults that leave a column's own distribution nearly as it was: sex coded the other way round, two enzymes
exchanged, a column that was sorted by itself. Words count as numbers where two levels have nearly all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.table import to_text

FEWEST = 100
"""Rows with both values below which a relation is not agreed on."""

_WEAKEST = 0.3
_MOST = 3  # relations of one column that are written
_ROWS = 20_000  # rows that are looked at in a large table
_TWO = 0.9  # share of two levels that makes a category a yes or no


def as_numbers(values: Array, levels: Sequence[str] = (), shares: Sequence[float] = ()) -> Array | None:
    """Convert a column to numbers (n,): a number as it is, ordered levels by their place, two main levels as 0 and 1.

    Args:
        values: The column.
        levels: The agreed levels of a category; empty for numbers.
        shares: Their agreed shares; empty: levels are ordered.

    Returns:
        The numbers, NaN where missing or none of the levels; None where words have no such order.
    """
    if not levels:
        return values if values.dtype == np.float64 else None
    if shares and len(levels) > 2:
        main = sorted(np.argsort(shares, kind="stable")[::-1][:2].tolist())
        if sum(shares[i] for i in main) < _TWO or min(shares[i] for i in main) < 0.05:
            return None
        levels = [levels[i] for i in main]
    place: dict[object, float] = {word: float(i) for i, word in enumerate(levels)}
    return np.array([place.get(word, np.nan) for word in to_text(values).tolist()])


def rank_correlation(x: Array, y: Array) -> tuple[float, int]:
    """Compute Spearman's correlation of the rows with both values, and their number; 0 where one does not vary."""
    both = ~np.isnan(x) & ~np.isnan(y)
    a, b = rank_values(x[both]), rank_values(y[both])
    n = len(a)
    if n < 3 or a.std() == 0 or b.std() == 0:
        return 0.0, n
    return float(np.corrcoef(a, b)[0, 1]), n


def correlation_score(rho: float, agreed: float, n: int) -> float:
    """Compute the difference of two correlations in standard errors of one of n rows (Fisher's transformation)."""
    here, there = (np.arctanh(np.clip(r, -0.95, 0.95)) for r in (rho, agreed))
    return float(abs(here - there) * np.sqrt(max(n - 3, 1)))


def rank_values(x: Array) -> Array:
    """Rank values (n,) from 1 on, ties by their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def draft_relations(columns: Mapping[str, Array]) -> dict[str, tuple[tuple[str, float], ...]]:
    """Find the strongest rank correlations of each column, rounded to 0.1.

    Args:
        columns: Numbers (n,) of each column, NaN where missing.
    """
    names = list(columns)
    if not names:
        return {}
    step = max(1, len(columns[names[0]]) // _ROWS)
    thin = {name: values[::step] for name, values in columns.items()}
    strength: dict[str, list[tuple[float, str]]] = {name: [] for name in names}
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            rho, n = rank_correlation(thin[first], thin[second])
            if n >= FEWEST and abs(rho) >= _WEAKEST:
                strength[first].append((rho, second))
                strength[second].append((rho, first))
    return {
        name: tuple((other, round(rho, 1)) for rho, other in sorted(pairs, key=lambda p: -abs(p[0]))[:_MOST])
        for name, pairs in strength.items()
    }
