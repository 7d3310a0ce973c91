"""Small cells of published tables: counts below a least number are hidden, and further cells that would give them away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.core.arrays import Array

LEAST = 5
"""Fewest patients of a count that is shown."""


def hide_cells(counts: Array, lines: Sequence[Array], *, least: int = LEAST) -> Array:
    """Choose the cells of a table that are not shown.

    Counts from 1 to `least` - 1 are hidden. Then, in each line whose total readers know, hidden cells must not follow by
    subtraction: while they do, the smallest shown count above 0 of that line is hidden as well. Zeros are shown. The rule
    looks at one line at a time; it does not solve systems of several lines.

    Args:
        counts: (cells,) the counts.
        lines: Places of cells, for each line whose total is known: a column of a table, or a row with its sum. A sum in a row
            counts as a cell of it.
        least: Fewest patients of a count that is shown.

    Returns:
        (cells,) True where a cell is hidden.
    """
    counts = np.asarray(counts)
    small = (counts > 0) & (counts < least)
    hidden = small.copy()
    while True:
        chosen = next((place for line in lines if (place := _choose(counts, small, hidden, line, least)) >= 0), -1)
        if chosen < 0:
            return hidden
        hidden[chosen] = True


def _choose(counts: Array, small: Array, hidden: Array, line: Array, least: int) -> int:
    """Return the next cell of a line to hide; -1 if its hidden cells do not follow from the others."""
    out = line[hidden[line]]
    if len(out) == 0 or not _follows(counts[out], small[out], least):
        return -1
    shown = line[~hidden[line] & (counts[line] > 0)]
    return -1 if len(shown) == 0 else int(shown[np.argmin(counts[shown])])


def _follows(counts: Array, small: Array, least: int) -> bool:
    """Tell whether hidden cells of one line follow from their sum: a single one, or small ones that are all 1 or all largest."""
    if len(counts) == 1:
        return True
    return bool(small.all()) and int(counts.sum()) in (len(counts), len(counts) * (least - 1))


def hide_groups(n: Array, *, least: int = LEAST) -> Array:
    """Choose groups whose means are not shown beside an overall mean.

    Args:
        n: (groups,) rows with a value.
        least: Fewest rows of a mean that is shown.

    Returns:
        (groups,) True for groups with 1 to `least` - 1 rows, and for the smallest other group where only one is hidden.
    """
    n = np.asarray(n)
    hidden = (n > 0) & (n < least)
    shown = np.flatnonzero(~hidden & (n > 0))
    if hidden.sum() == 1 and len(shown):
        hidden[shown[np.argmin(n[shown])]] = True
    return hidden
