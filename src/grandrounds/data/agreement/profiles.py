"""Profiles of levels: the mean rank of other columns among the rows with a level, from 0 to 1.

Shares alone do not show that two words changed places: hospitals differ in them. A profile does: planned admissions have fewer
emergency visits everywhere, so a word with the profile of another one has its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.relations import rank_values

FEWEST = 40
"""Rows of a level below which it has no profile."""

NEUTRAL = 0.5
"""Mean rank that is written for a level without a profile."""

_MOST = 3  # columns of one profile
_LEAST = 5e-4  # variance of mean ranks between levels that makes a column telling
_ROWS = 20_000


def mean_ranks(words: Array, levels: Sequence[str], numbers: Array) -> tuple[Array, Array]:
    """Compute the mean rank (k,) of a column among the rows of each level, and the number of rows (k,).

    Args:
        words: The level of each row (n,), None where missing.
        levels: The levels.
        numbers: Another column (n,), NaN where missing.

    Returns:
        Mean ranks from 0 to 1, NaN for a level without rows; rows of each level with a value.
    """
    place: dict[object, int] = {word: i for i, word in enumerate(levels)}
    code = np.fromiter((place.get(word, -1) for word in words.tolist()), np.int64, len(words))
    both = (code >= 0) & ~np.isnan(numbers)
    count = np.bincount(code[both], minlength=len(levels))
    if not both.any():
        return np.full(len(levels), np.nan), count
    rank = (rank_values(numbers[both]) - 0.5) / both.sum()
    total = np.bincount(code[both], weights=rank, minlength=len(levels))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), count


def draft_profile(
    words: Array, levels: Sequence[str], columns: Mapping[str, Array], *, name: str
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Draft the profile of a category's levels: the columns that tell them apart best, with the mean rank of each level.

    Args:
        words: The category (n,).
        levels: Its agreed levels.
        columns: Numbers (n,) of other columns.
        name: The category's own column, which is left out.
    """
    step = max(1, len(words) // _ROWS)
    found: list[tuple[float, str, tuple[float, ...]]] = []
    for other, numbers in columns.items():
        if other == name:
            continue
        means, count = mean_ranks(words[::step], levels, numbers[::step])
        enough = count >= FEWEST
        if enough.sum() < 2:
            continue
        weight = count[enough] / count[enough].sum()
        middle = float((weight * means[enough]).sum())
        telling = float((weight * (means[enough] - middle) ** 2).sum())
        if telling >= _LEAST:
            written = tuple(round(float(m), 2) if ok else NEUTRAL for m, ok in zip(means, enough, strict=True))
            found.append((-telling, other, written))
    return tuple((other, ranks) for _, other, ranks in sorted(found)[:_MOST])
