"""Summaries of a site's training rows, from which all sites agree on one preparation of the data.

Two exchanges: first counts, quantile cells and category counts; then, once the consortium has agreed on the range of
each column, mean and deviation of the values clipped to that range. So one wild cell reaches neither. Everything
merges by adding. Never a row. Only training rows are summarised, so nothing of the test set leaks into the preparation.

Quantiles come from a sketch that adds up: counts on a fixed logarithmic grid (DDSketch, Masson et al. 2019). The grid does not
depend on the data, so sketches of different sites merge by adding counts, and a quantile is right to a relative error of
ACCURACY. A small site's cells are nearly its values: they hide who has them, not that somebody has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.checks import merge_leaks, site_leak_scores
from grandrounds.data.dataset import Dataset
from grandrounds.data.subgroups import WordCounts, add_words
from grandrounds.protocol.messages import Payload, Value

ACCURACY = 0.001
_LOG_GAMMA = float(np.log((1 + ACCURACY) / (1 - ACCURACY)))
_MIDDLE = float(np.log(2 / (1 + np.exp(_LOG_GAMMA))))  # from the upper end of a cell to the value that stands for it
_LARGEST = float(np.log(np.finfo(np.float64).max))
_TINY = 1e-9
_OFFSET = int(np.ceil(-np.log(_TINY) / _LOG_GAMMA)) + 1
"""Added to a log index so that every index of a non-zero value is positive; the sign is put back after."""

_SPAN = 2**24  # more cells than a double can reach on this grid


def grid_index(x: Array) -> Array:
    """Find the cell of each value: 0 for |x| under 1e-9, positive and negative cells by magnitude."""
    size = np.abs(x)
    small = size < _TINY
    cell = np.log(np.maximum(size, _TINY, out=size), out=size)
    cell /= _LOG_GAMMA
    np.ceil(cell, out=cell)
    cell += _OFFSET
    np.copysign(cell, x, out=cell)
    cell[small] = 0
    return cell.astype(np.int64)


def grid_value(cell: Array) -> Array:
    """Find the value that stands for a cell: within ACCURACY of everything that fell in it."""
    power = np.exp(np.minimum((np.abs(cell) - _OFFSET) * _LOG_GAMMA + _MIDDLE, _LARGEST))
    return np.where(cell == 0, 0.0, np.sign(cell) * power)


def _key(column: Array, cell: Array) -> Array:
    """Make one sortable number for a cell of a column."""
    return column.astype(np.int64) * _SPAN + (cell.astype(np.int64) + _SPAN // 2)


def _parts(key: Array) -> tuple[Array, Array]:
    return (key // _SPAN).astype(np.int32), (key % _SPAN - _SPAN // 2).astype(np.int32)


@dataclass(frozen=True)
class Cells:
    """Sketches of several columns at once, sparse: `count[i]` values of column `column[i]` fell in cell `cell[i]`."""

    column: Array
    cell: Array
    count: Array

    @classmethod
    def from_values(cls, x: Array) -> Cells:
        """Sketch the columns of x (n, p); NaN is left out."""
        if np.isnan(x).any():
            row, column = np.nonzero(~np.isnan(x))
            key, count = np.unique(_key(column, grid_index(x[row, column])), return_counts=True)
            return cls(*_parts(key), count.astype(np.int64))
        n, p = x.shape
        cell = grid_index(np.ascontiguousarray(x.T)).astype(np.int32)
        cell.sort(axis=1)  # small sorts, one a column
        new = np.ones((p, n), bool)
        np.not_equal(cell[:, 1:], cell[:, :-1], out=new[:, 1:])
        starts = np.flatnonzero(new)
        count = np.diff(starts, append=n * p)
        return cls((starts // max(n, 1)).astype(np.int32), cell.ravel()[starts], count)

    @classmethod
    def merge(cls, parts: list[Cells]) -> Cells:
        """Merge the sketches of all parts."""
        column, cell, amount = (np.concatenate([getattr(p, n) for p in parts]) for n in ("column", "cell", "count"))
        low, high = (int(cell.min(initial=0)), int(cell.max(initial=0)))
        span = high - low + 1
        if (int(column.max(initial=0)) + 1) * span <= 4 * len(
            cell
        ):  # the cells fill the grid well: add up without sorting
            total = np.bincount(column.astype(np.int64) * span + (cell - low), weights=amount)
            occupied = np.flatnonzero(total)
            return cls(
                (occupied // span).astype(np.int32),
                (occupied % span + low).astype(np.int32),
                total[occupied].astype(np.int64),
            )
        keys = np.concatenate([_key(p.column, p.cell) for p in parts])
        key, place = np.unique(keys, return_inverse=True)
        count = np.bincount(place, weights=np.concatenate([p.count for p in parts]), minlength=len(key))
        return cls(*_parts(key), count.astype(np.int64))

    def distinct(self, columns: int) -> Array:
        """Count the cells that each column fills: a lower bound on its distinct values."""
        return np.bincount(self.column, minlength=columns)

    def of_column(self, column: int) -> tuple[Array, Array]:
        """List the values that stand for the cells of one column, in order, and how many rows each holds."""
        mine = slice(*np.searchsorted(self.column, [column, column + 1]))
        return grid_value(self.cell[mine]), self.count[mine]

    def quantiles(self, q: Array, *, columns: int) -> Array:
        """Quantiles (len(q), columns) by the nearest-rank rule; NaN for a column without values."""
        out = np.full((len(q), columns), np.nan)
        for j in range(columns):
            values, count = self.of_column(j)  # columns lie in order, cells in order within each
            if len(values):
                rank = np.cumsum(count)
                place = np.searchsorted(rank, q * (rank[-1] - 1) + 1 - 1e-9)
                out[:, j] = values[np.minimum(place, len(values) - 1)]
        return out


@dataclass(frozen=True)
class Summary:
    """Mergeable facts about p numeric and q categorical columns."""

    rows: int
    count: Array  # (p,) values that are not missing
    cells: Cells
    levels: tuple[Mapping[str, int], ...]  # per categorical column: level -> rows
    classes: Mapping[str, int]
    groups: Mapping[str, int]  # levels of the subgroup column, where one is named
    leaks: tuple[tuple[Array, float], ...]  # per site: how well each column alone tells the label, and its weight
    outcome: Array | None = None  # (3,) rows, mean and squared deviations of a label that is a number
    subgroups: Mapping[str, WordCounts] = field(default_factory=dict)  # rows by group of each column of evaluation.subgroups

    @classmethod
    def from_dataset(
        cls, data: Dataset, *, groups: Sequence[str] = (), subgroups: Mapping[str, WordCounts] | None = None
    ) -> Summary:
        """Summarise one site's rows."""
        x = data.numeric
        classes = Counter(data.label.tolist() if data.outcome is None else ())
        names = sorted(classes)
        if data.outcome is None:
            y = np.searchsorted(np.array(names, object), data.label)
        else:  # high numbers against low ones
            y = (data.outcome > np.median(data.outcome)).astype(np.int64) if len(data) else np.zeros(0, np.int64)
        leak = site_leak_scores(data.numeric, data.codes, y)
        return cls(
            rows=len(data),
            count=(~np.isnan(x)).sum(axis=0),
            cells=Cells.from_values(x),
            levels=tuple(_level_counts(data.codes[:, j], words) for j, words in enumerate(data.vocabulary)),
            classes=classes,
            groups=Counter(groups),
            leaks=(leak,),
            outcome=None if data.outcome is None else _outcome_moments(data.outcome),
            subgroups=subgroups or {},
        )

    @classmethod
    def merge(cls, parts: Sequence[Summary]) -> Summary:
        """Merge the summaries of all sites, in any grouping."""
        return cls(
            rows=sum(s.rows for s in parts),
            count=np.sum([s.count for s in parts], axis=0),
            cells=Cells.merge([s.cells for s in parts]),
            levels=tuple(add_counts(column) for column in zip(*(s.levels for s in parts), strict=True)),
            classes=add_counts([s.classes for s in parts]),
            groups=add_counts([s.groups for s in parts]),
            leaks=tuple(leak for s in parts for leak in s.leaks),
            outcome=_merge_outcomes([s.outcome for s in parts if s.outcome is not None]),
            subgroups=add_words([s.subgroups for s in parts]),
        )

    def leak_warnings(self, names: Sequence[str]) -> list[str]:
        """Warn of each column that alone separates the classes almost perfectly."""
        return [
            f"column '{leak.column}' alone tells the label almost perfectly (AUROC {leak.auroc:.3f}): "
            f"is it known before the outcome? If not, leave it out with --drop {leak.column}"
            for leak in merge_leaks(list(self.leaks), list(names), directed=len(self.classes) <= 2)
        ]

    def to_payload(self) -> dict[str, Value]:
        """Pack into arrays and short strings, as an Answer carries them."""
        scores, weight = self.leaks[0]
        words: dict[str, object] = {"levels": self.levels, "classes": self.classes, "groups": self.groups}
        if self.subgroups:
            words["subgroups"] = self.subgroups
        return {
            "rows": self.rows,
            "count": self.count,
            "cell_column": self.cells.column,
            "cell": self.cells.cell,
            "cell_count": self.cells.count,
            "words": json.dumps(words),
            "leak": scores,
            "leak_weight": weight,
            **({} if self.outcome is None else {"outcome": self.outcome}),
        }

    @classmethod
    def from_payload(cls, values: Payload) -> Summary:
        words = json.loads(str(values["words"]))
        return cls(
            rows=int(values["rows"]),
            count=np.asarray(values["count"]),
            cells=Cells(*(np.asarray(values[name]) for name in ("cell_column", "cell", "cell_count"))),
            levels=tuple(words["levels"]),
            classes=words["classes"],
            groups=words["groups"],
            leaks=((np.asarray(values["leak"]), float(values["leak_weight"])),),
            outcome=np.asarray(values["outcome"], np.float64) if "outcome" in values else None,
            subgroups=words.get("subgroups", {}),
        )


@dataclass(frozen=True)
class Moments:
    """Mean and squared deviations of p numeric columns, their values clipped to agreed ranges."""

    count: Array  # (p,) values that are not missing
    mean: Array  # (p,)
    m2: Array  # (p,) sum of squared deviations from the mean

    @classmethod
    def from_dataset(cls, data: Dataset, low: Array, high: Array, *, smallest: int = 0) -> Moments:
        """Compute the moments of one site's rows, with each column clipped to [low, high].

        A column with fewer than `smallest` values inside is as one without values: its mean would count the values on
        either side of a range that somebody chose for it.
        """
        present = ~np.isnan(data.numeric)
        present &= ((data.numeric >= low) & (data.numeric <= high)).sum(axis=0) >= smallest
        count = present.sum(axis=0)
        x = np.where(present, np.clip(data.numeric, low, high), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.sum(axis=0) / np.maximum(count, 1)
            m2 = (np.where(present, x - mean, 0.0) ** 2).sum(axis=0)
        if not np.isfinite(m2).all():
            place = int(np.argmin(np.isfinite(m2)))
            worst = x[np.abs(x[:, place]).argmax(), place]
            raise BadInput(
                f"column '{data.numeric_names[place]}' of {data.name} has values such as {worst:g}, which are too large for sums "
                "of squares; correct them, or leave the column out (use --drop)",
                code="out-of-range",
            )
        return cls(count, mean, m2)

    @classmethod
    def merge(cls, parts: Sequence[Moments]) -> Moments:
        """Merge the moments of all sites (Chan et al. 1979), in any grouping."""
        count = np.sum([s.count for s in parts], axis=0)
        mean = np.sum([s.count * s.mean for s in parts], axis=0) / np.maximum(count, 1)
        return cls(count, mean, np.sum([s.m2 + s.count * (s.mean - mean) ** 2 for s in parts], axis=0))

    @property
    def deviation(self) -> Array:
        """The standard deviation (p,)."""
        return np.sqrt(self.m2 / np.maximum(self.count, 1))

    def to_payload(self) -> dict[str, Value]:
        """Pack into arrays, as an Answer carries them."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    @classmethod
    def from_payload(cls, values: Payload) -> Moments:
        return cls(*(np.asarray(values[name]) for name in ("count", "mean", "m2")))


def _outcome_moments(y: Array) -> Array:
    """Compute rows, mean and squared deviations (3,) of an outcome."""
    mean = float(y.mean()) if len(y) else 0.0
    return np.array([len(y), mean, float(((y - mean) ** 2).sum())])


def _merge_outcomes(parts: Sequence[Array]) -> Array | None:
    """Merge the moments (3,) of all sites' outcomes; None where the label is no number."""
    if not parts:
        return None
    count, mean, m2 = (np.array(column) for column in zip(*parts, strict=True))
    total = Moments.merge([Moments(*(np.array([v]) for v in part)) for part in zip(count, mean, m2, strict=True)])
    return np.array([total.count[0], total.mean[0], total.m2[0]])


def _level_counts(codes: Array, words: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    return {word: int(n) for word, n in zip(words, counts, strict=True) if n}


def add_counts(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))
