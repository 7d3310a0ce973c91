"""Checks of rows that were read: tiny sites, repeated ids, columns that give the label away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.data.table import missing_mask, to_text

RARE = 5  # a category with fewer rows says nothing of its own
SMOOTHING = 5.0  # rows of the base rate added to each category
ENOUGH = 10  # rows of the smaller class, over all sites, below which a perfect column may be chance

_VALUE, _MISSING, _PAIRS, _SMALLER, _ALL_SMALLER = range(5)  # the rows of a site's scores
_BLOCK = 16  # columns ranked at a time, to bound memory


def check_sites(rows_by_site: Mapping[str, Array], *, min_rows: int, reference: int = 0) -> None:
    """Refuse sites too small to be split and learnt from; `reference` rows were taken from the table before."""
    small = [(name, len(rows)) for name, rows in rows_by_site.items() if len(rows) < min_rows]
    if small:
        shown = ", ".join(f"'{name}' ({n} {'row' if n == 1 else 'rows'})" for name, n in small[:10])
        more = f" and {len(small) - 10} more" if len(small) > 10 else ""
        least = max(1, min(n for _, n in small))
        taken = f", after {reference} reference rows were taken from all sites" if reference else ""
        raise BadInput(
            f"{len(small)} of {len(rows_by_site)} sites {'has' if len(small) == 1 else 'have'} fewer than "
            f"{min_rows} rows: {shown}{more}{taken}; set split.min_rows or merge sites (--set split.min_rows={least})",
            code="too-few-rows",
        )


def check_unique(dataset: Dataset, column: str) -> None:
    """Refuse a repeated or absent value in the column that should name each row."""
    values = dataset.table.column(column, flag="data.id")
    gaps = missing_mask(values)
    where = f"id column '{column}' of {dataset.table.source}"
    if gaps.any():
        first = dataset.table.where(int(gaps.argmax()))
        rows = "1 row" if gaps.sum() == 1 else f"{gaps.sum()} rows"
        raise BadInput(f"{where} has {rows} without a value, first {first}; fill them in", code="missing-values")
    words = to_text(values).tolist()
    repeated = {word: n for word, n in Counter(words).items() if n > 1}
    if repeated:
        word = next(word for word in words if word in repeated)
        again = [dataset.table.where(i) for i, other in enumerate(words) if other == word][1]
        raise BadInput(
            f"{where} has {len(repeated)} repeated {'value' if len(repeated) == 1 else 'values'}, "
            f"first '{word[:20]}' in {again}; remove the duplicate rows, or name the column data.patient "
            "if patients may return",
            code="repeated-ids",
        )


@dataclass(frozen=True)
class Leak:
    """A column that alone tells the label almost perfectly, by its value or by being missing."""

    column: str
    auroc: float
    how: Literal["value", "missing"] = "value"


def find_leaks(
    numeric: Array,
    codes: Array,
    y: Array,
    site_index: Array,
    *,
    names: Sequence[str],
    threshold: float = 0.99,
) -> list[Leak]:
    """Find columns that give the label away, from all rows of all sites: the sites' own scores, merged."""
    classes = max(2, int(y.max(initial=0)) + 1)
    parts = [
        site_leak_scores(numeric[rows], codes[rows], y[rows], classes=classes)
        for rows in (site_index == site for site in np.unique(site_index))
    ]
    return merge_leaks(parts, names, threshold=threshold)


def site_leak_scores(numeric: Array, codes: Array, y: Array, *, classes: int | None = None) -> tuple[Array, float]:
    """Score how well each column of one site alone tells the class.

    With two classes the AUROCs of numbers keep their direction (0 is as telling as 1), so that a column which points up at one
    hospital and down at another does not add up to a leak. With more, they are the best of one class against the rest and
    have no direction.

    Args:
        numeric: Numbers (n, p), NaN missing.
        codes: Category codes (n, q), -1 missing.
        y: Class numbers (n,).
        classes: How many classes there are, at a site that may lack one.

    Returns:
        Scores (5, p + q), numeric columns first: the AUROC of the value, the AUROC of being missing, the pairs of rows with
        a value, the rows with a value of the smaller class, and all rows of the smaller class; and the pairs of rows of
        different classes. Everything is finite, also at a site with one class or no rows, whose pairs are 0.
    """
    n, columns = len(y), numeric.shape[1] + codes.shape[1]
    n_classes = max(2, int(y.max(initial=0)) + 1) if classes is None else classes
    present = np.concatenate([~np.isnan(numeric), codes >= 0], axis=1)
    targets = [y == 1] if n_classes == 2 else [y == k for k in range(n_classes)]
    least = 1 if n_classes == 2 else RARE
    scores = [_score_columns(numeric, codes, present, t) for t in targets if least <= t.sum() <= n - least]
    if not scores:
        best = np.repeat([[0.5], [0.5], [0.0], [0.0], [0.0]], columns, axis=1)
    elif n_classes == 2:
        best = scores[0]
    else:
        each = np.stack(scores)
        each[:, :_PAIRS] = _fold(each[:, :_PAIRS])
        best = each[each[:, _VALUE].argmax(axis=0), :, np.arange(columns)].T
        best[_MISSING] = each[:, _MISSING].max(axis=0)
    counts = np.bincount(y, minlength=1).astype(np.float64) if n else np.zeros(1)
    return best, float((n * n - (counts**2).sum()) / 2)


def score_column(values: Array, target: Array) -> tuple[float, float]:
    """Score how well one raw column tells two classes apart.

    Args:
        values: The column (n,), numbers or words.
        target: True for rows of the event (n,).

    Returns:
        The AUROC of the value and of being missing, each from 0.5 to 1.
    """
    numeric, codes = np.empty((len(values), 0)), np.empty((len(values), 0), np.int64)
    if values.dtype == np.float64:
        numeric = values[:, None]
    else:
        number: dict[object, int] = {None: -1}
        for word in values.tolist():
            number.setdefault(word, len(number) - 1)
        codes = np.fromiter(map(number.__getitem__, values.tolist()), np.int64, len(values))[:, None]
    scores, _ = site_leak_scores(numeric, codes, target.astype(np.int64), classes=2)
    return float(_fold(scores[_VALUE, 0])), float(_fold(scores[_MISSING, 0]))


def merge_leaks(
    parts: Sequence[tuple[Array, float]], names: Sequence[str], *, threshold: float = 0.99, directed: bool = True
) -> list[Leak]:
    """Find columns whose AUROC, averaged over the sites' pairs of rows, is at the threshold; the worst first.

    Args:
        parts: `site_leak_scores` of each site.
        names: The columns, numeric ones first.
        threshold: The AUROC of a leak.
        directed: True with two classes. Where there are more, a site that has only two of them still scores with a
            direction, but of classes of its own: then every site's score is folded first.
    """
    if not parts:
        return []
    scores = np.stack([np.asarray(part, dtype=np.float64) for part, _ in parts])
    if not directed:
        scores[:, :_PAIRS] = _fold(scores[:, :_PAIRS])
    weight = np.array([weight for _, weight in parts], dtype=np.float64)
    weights = np.broadcast_to(weight[:, None], scores[:, _MISSING].shape)
    enough = scores.sum(axis=0) >= ENOUGH
    value = np.where(enough[_SMALLER], _average(scores[:, _VALUE], scores[:, _PAIRS]), 0.5)
    absent = np.where(enough[_ALL_SMALLER], _average(scores[:, _MISSING], weights), 0.5)
    leaks_found = []
    for name, by_value, by_gap in zip(names, value.tolist(), absent.tolist(), strict=True):
        auroc = max(by_value, by_gap)
        if auroc >= threshold:
            leaks_found.append(Leak(name, auroc, "value" if by_value >= by_gap else "missing"))
    return sorted(leaks_found, key=lambda leak: -leak.auroc)


def _average(auroc: Array, weight: Array) -> Array:
    """Average over sites by weight, then fold: 0.5 is no information, 1 is all."""
    total = weight.sum(axis=0)
    mean = (auroc * weight).sum(axis=0) / np.where(total > 0, total, 1.0)
    return _fold(np.where(total > 0, mean, 0.5))


def _fold(auroc: Array) -> Array:
    return np.abs(auroc - 0.5) + 0.5


def _score_columns(numeric: Array, codes: Array, present: Array, target: Array) -> Array:
    """Score one class against the rest, which both occur."""
    gap = ~present
    positives, negatives = present[target].sum(axis=0), present[~target].sum(axis=0)
    missing = 0.5 + (gap[target].mean(axis=0) - gap[~target].mean(axis=0)) / 2
    by_number = [
        _rank_auroc(numeric[:, start : start + _BLOCK], target) for start in range(0, numeric.shape[1], _BLOCK)
    ]
    by_category = [_category_auroc(codes[:, j], target) for j in range(codes.shape[1])]
    value = np.concatenate([*by_number, by_category])
    smaller = np.full(len(value), min(target.sum(), (~target).sum()))
    rows = [value, missing, positives * negatives, np.minimum(positives, negatives), smaller]
    return np.stack(rows).astype(np.float64)


def _rank_auroc(x: Array, target: Array) -> Array:
    """Compute the AUROC of each column over its rows that have a value; ties count half; 0.5 without both classes."""
    columns = np.ascontiguousarray(x.T)
    order = np.argsort(columns, axis=1, kind="stable")  # NaN last, so it takes no rank from the others
    values = np.take_along_axis(columns, order, axis=1)
    ones, n = int(target.sum()), len(target)
    if 0 < ones < n and not np.isnan(values[:, -1]).any() and not (values[:, 1:] == values[:, :-1]).any():
        places = target[order] @ np.arange(1, n + 1)  # no gaps and no ties: a place is a rank
        return np.asarray((places - ones * (ones + 1) / 2) / (ones * (n - ones)))
    positive = target[order] & ~np.isnan(values)
    n_pos = positive.sum(axis=1)
    n_neg = (~np.isnan(values)).sum(axis=1) - n_pos
    place = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    new = np.ones(values.shape, dtype=bool)
    new[:, 1:] = values[:, 1:] != values[:, :-1]
    last = np.ones(values.shape, dtype=bool)
    last[:, :-1] = new[:, 1:]
    low = np.maximum.accumulate(np.where(new, place, 0), axis=1)
    high = np.minimum.accumulate(np.where(last, place, values.shape[1])[:, ::-1], axis=1)[:, ::-1]
    ranks = np.where(positive, (low + high) / 2 + 1, 0.0).sum(axis=1)
    pairs = n_pos * n_neg
    return np.where(pairs > 0, (ranks - n_pos * (n_pos + 1) / 2) / np.maximum(pairs, 1), 0.5)


def _category_auroc(codes: Array, target: Array) -> float:
    """Compute the AUROC of a category's class rate, each pair judged by the rates without its two rows.

    Leaving out only the row that is scored would betray it: positives lower their own category's
    rate, so that even a constant column would separate the classes, upside down. Without both
    rows, two rows of one category tie, as they should. Never below 0.5: a rate has its direction.
    """
    present = codes >= 0
    pos = np.bincount(codes[present & target]).astype(np.float64)
    neg = np.bincount(codes[present & ~target]).astype(np.float64)
    width = max(len(pos), len(neg))
    pos, neg = np.pad(pos, (0, width - len(pos))), np.pad(neg, (0, width - len(neg)))
    total_pos, total_neg = pos.sum(), neg.sum()
    if total_pos == 0 or total_neg == 0:
        return 0.5
    base = total_pos / (total_pos + total_neg)
    rows, rare = pos + neg, pos + neg < RARE
    weight = np.maximum(rows - 1, 0) + SMOOTHING
    as_pos = np.where(rare, base, (np.maximum(pos - 1, 0) + SMOOTHING * base) / weight)
    as_neg = np.where(rare, base, (pos + SMOOTHING * base) / weight)
    wins = _weighted_wins(as_pos, pos, as_neg, neg)
    same_category_wins = np.where(as_pos > as_neg, 1.0, np.where(as_pos == as_neg, 0.5, 0.0)) * pos * neg
    wins += float((0.5 * pos * neg - same_category_wins).sum())
    return max(0.5, wins / float(total_pos * total_neg))


def _weighted_wins(high: Array, high_weight: Array, low: Array, low_weight: Array) -> float:
    """Add up the weight of all pairs in which `high` exceeds `low`, ties half, by sorting."""
    order = np.argsort(low)
    below = np.concatenate([[0.0], np.cumsum(low_weight[order])])
    less = below[np.searchsorted(low[order], high, side="left")]
    less_or_equal = below[np.searchsorted(low[order], high, side="right")]
    return float((high_weight * (less + less_or_equal) / 2).sum())
