"""Sums over patients that a watch keeps, by blocks of patients: figures before and after a change come from them.

No patient's values are kept. A block has the sums of at most `BLOCK` patients while it is new; old blocks are merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from grandrounds.capabilities.watch.at_sites.patients import Patients, WatchedColumn
from grandrounds.core.arrays import Array
from grandrounds.metrics.gaps import hanley_mcneil_error
from grandrounds.metrics.statistics import share_interval

BLOCK = 5
"""Patients of a new block."""
MOST_BLOCKS = 600
"""Blocks that are kept; beyond it, neighbours of the older half are merged."""

_NUMBER = ("present", "sum", "squares", "positive", "log", "log squares", "below", "above", "upper")
_BINS = 64
_WIDEST = 8.0  # log-odds at the ends of the histogram of scores
Z_95 = 1.959964


@dataclass(frozen=True)
class NumberFigures:
    """A numeric column among some patients: share missing, mean, deviation, the same of logarithms, shares below and above the
    range, and share above the median of the reference."""

    rows: float
    missing: float
    mean: float
    sd: float
    log_mean: float
    log_sd: float
    below: float
    above: float
    upper: float = math.nan


@dataclass(frozen=True)
class CategoryFigures:
    """A categorical column among some patients: share missing, share not seen in training, share of each level."""

    rows: float
    missing: float
    unseen: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class OutcomeFigures:
    """The model's figures among labelled patients, each with its 95% interval.

    Attributes:
        rows: Labelled patients.
        events: Those with the event.
        observed: Share with the event, low, high.
        predicted: Mean risk.
        auroc: Discrimination, low, high; NaN without both outcomes.
        benefit: Net benefit at the threshold, low, high; NaN where there is no threshold.
    """

    rows: float
    events: float
    observed: tuple[float, float, float]
    predicted: float
    auroc: tuple[float, float, float]
    benefit: tuple[float, float, float]


@dataclass(frozen=True)
class SumLayout:
    """The places of sums in a row of a block.

    Attributes:
        columns: The watched columns.
        features: The columns that attributions are for.
    """

    columns: tuple[WatchedColumn, ...]
    features: tuple[str, ...]

    @cached_property
    def places(self) -> dict[str, slice]:
        """Column -> its sums; "" are those of the score and of attributions."""
        out, start = {}, 0
        for column in self.columns:
            width = len(column.levels) + 2 if column.is_category else len(_NUMBER)
            out[column.name] = slice(start, start + width)
            start += width
        return {**out, "": slice(start, start + 2 + len(self.features))}

    @property
    def width(self) -> int:
        return int(self.places[""].stop)

    def rows(self, patients: Patients) -> Array:
        """Return the contribution (n, width) of each patient."""
        out = np.zeros((len(patients), self.width))
        for column in self.columns:
            part = out[:, self.places[column.name]]
            if column.is_category:
                place = patients.categories[column.name]
                part[np.arange(len(place)), np.where(place < 0, len(column.levels) + 1, place)] = 1
                continue
            x = patients.numbers[column.name]
            here = ~np.isnan(x)
            value, plus = np.where(here, x, 0.0), here & (np.nan_to_num(x) > 0)
            log = np.log(np.where(plus, value, 1.0))
            below, above = here & (value < column.low), here & (value > column.high)
            upper = here & (value > column.middle)
            part[:] = np.stack([here, value, value**2, plus, log, log**2, below, above, upper], axis=1)
        score = patients.score
        out[:, self.places[""]] = np.column_stack([score, score**2, patients.explanations])
        return out

    def numbers(self, sums: Array, rows: float, column: str) -> NumberFigures:
        """Compute the figures of a numeric column from sums (width,) over so many patients."""
        n, total, squares, positive, log, log_squares, below, above, upper = sums[self.places[column]].tolist()
        mean, sd = _moments(n, total, squares)
        log_mean, log_sd = _moments(positive, log, log_squares) if positive == n else (math.nan, math.nan)
        shares = (_share(count, n) for count in (below, above, upper))
        return NumberFigures(rows, _share(rows - n, rows), mean, sd, log_mean, log_sd, *shares)

    def categories(self, sums: Array, rows: float, column: WatchedColumn) -> CategoryFigures:
        """Compute the figures of a categorical column from sums (width,) over so many patients."""
        *levels, unseen, missing = sums[self.places[column.name]].tolist()
        here = rows - missing
        shares = {name: _share(count, here) for name, count in zip(column.levels, levels, strict=True)}
        return CategoryFigures(rows, _share(missing, rows), _share(unseen, here), shares)

    def score(self, sums: Array, rows: float) -> tuple[float, float]:
        """Compute mean and deviation of the score."""
        total, squares = sums[self.places[""]][:2].tolist()
        return _moments(rows, total, squares)

    def attribution(self, sums: Array, rows: float, feature: str) -> float:
        """Compute the mean absolute attribution of a column."""
        return _share(float(sums[self.places[""]][2 + self.features.index(feature)]), rows)


def outcome_rows(score: Array, outcome: Array, threshold: float) -> Array:
    """Return the contribution (n, 4 + 2 bins) of labelled patients to the sums of `outcome_figures`."""
    p = np.clip(score, 1e-9, 1 - 1e-9)
    place = np.clip(((np.log(p) - np.log1p(-p)) + _WIDEST) * _BINS / (2 * _WIDEST), 0, _BINS - 1).astype(np.int64)
    treated = score >= threshold
    out = np.zeros((len(score), 4 + 2 * _BINS))
    out[:, :4] = np.stack([score, score**2, treated * outcome, treated * (1 - outcome)], axis=1)
    out[np.arange(len(score)), 4 + place + _BINS * (outcome == 1)] = 1
    return out


def outcome_figures(sums: Array, threshold: float | None) -> OutcomeFigures:
    """Compute the model's figures from sums of `outcome_rows`; a threshold of None leaves net benefit out."""
    negative, positive = sums[4 : 4 + _BINS], sums[4 + _BINS :]
    events, others = float(positive.sum()), float(negative.sum())
    rows = events + others
    if not rows:
        none = (math.nan, math.nan, math.nan)
        return OutcomeFigures(0, 0, none, math.nan, none, none)
    observed = events / rows
    auroc = benefit = (math.nan, math.nan, math.nan)
    if events and others:
        below = np.cumsum(negative) - negative
        area = float((positive * (below + negative / 2)).sum() / (events * others))
        half = Z_95 * float(hanley_mcneil_error(area, events, others))
        auroc = (area, max(0.0, area - half), min(1.0, area + half))
    if threshold is not None:
        odds = threshold / (1 - threshold)
        true, false = float(sums[2]), float(sums[3])
        mean = (true - odds * false) / rows
        spread = math.sqrt(max(0.0, (true + odds**2 * false) / rows - mean**2) / rows)
        benefit = (mean, mean - Z_95 * spread, mean + Z_95 * spread)
    share = (observed, *share_interval(observed, rows))
    return OutcomeFigures(rows, events, share, float(sums[0]) / rows, auroc, benefit)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums of blocks of patients in their order.

    Attributes:
        start: (B,) number of the first patient of each block, from 1.
        rows: (B,) patients.
        time: (B,) time of the first patient in seconds since 1970, NaN where it is not known.
        sums: (B, width).
    """

    start: Array
    rows: Array
    time: Array
    sums: Array

    @classmethod
    def empty(cls, width: int) -> Blocks:
        """Make blocks of no patients."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty((0, width)))

    @property
    def patients(self) -> int:
        return int(self.rows.sum())

    def add(self, rows: Array, times: Array) -> Blocks:
        """Add patients.

        Args:
            rows: (n, width) the contribution of each patient.
            times: (n,) seconds since 1970, NaN where not known.
        """
        if not len(rows):
            return self
        done = self.patients
        open_rows = int(self.rows[-1]) if len(self.rows) and self.rows[-1] < BLOCK else 0
        first = done - open_rows  # patients before the block that is still open
        edges = np.arange(BLOCK - open_rows if open_rows else 0, len(rows), BLOCK)
        edges = edges if len(edges) and edges[0] == 0 else np.concatenate([[0], edges])
        sums = np.add.reduceat(rows, edges, axis=0)
        counts = np.diff(np.append(edges, len(rows)))
        start, time = first + 1 + np.arange(len(edges)) * BLOCK, times[edges]
        kept = self
        if open_rows:
            sums[0] += self.sums[-1]
            counts[0] += open_rows
            time[0] = self.time[-1] if np.isfinite(self.time[-1]) else time[0]
            kept = self._first(len(self.rows) - 1)
        joined = Blocks(
            np.concatenate([kept.start, start]),
            np.concatenate([kept.rows, counts]),
            np.concatenate([kept.time, time]),
            np.concatenate([kept.sums, sums]),
        )
        while len(joined.rows) > MOST_BLOCKS:
            joined = joined._merge_older()
        return joined

    def add_at(self, numbers: Array, rows: Array) -> Blocks:
        """Add to the last sums of blocks that have these patients, such as outcomes that came later.

        Args:
            numbers: (n,) number of each patient.
            rows: (n, w) contributions to the last w sums.
        """
        sums = self.sums.copy()
        place = np.searchsorted(self.start, numbers, side="right") - 1
        np.add.at(sums[:, sums.shape[1] - rows.shape[1] :], place, rows)
        return replace(self, sums=sums)

    def since(self, patient: int) -> tuple[Array, int, float]:
        """Return the sums (width,) from a patient on, the number of patients, and the time of the first.

        A change inside a block counts from the next block on, unless it is the last one.
        """
        if not len(self.start):
            return np.zeros(self.sums.shape[1]), 0, math.nan
        k = min(int(np.searchsorted(self.start, patient)), len(self.start) - 1)
        return self.sums[k:].sum(axis=0), int(self.rows[k:].sum()), float(self.time[k])

    def time_of(self, patient: int) -> float:
        """Return the time of the block that a patient is in, NaN where it is not known."""
        k = int(np.searchsorted(self.start, patient, side="right")) - 1
        return float(self.time[k]) if 0 <= k < len(self.time) else math.nan

    def to_arrays(self, prefix: str) -> dict[str, Array]:
        """Return the blocks as named arrays."""
        return {f"{prefix}.{name}": getattr(self, name) for name in ("start", "rows", "time", "sums")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str) -> Blocks:
        """Read blocks from named arrays."""
        return cls(*(arrays[f"{prefix}.{name}"] for name in ("start", "rows", "time", "sums")))

    def _first(self, count: int) -> Blocks:
        return replace(
            self, start=self.start[:count], rows=self.rows[:count], time=self.time[:count], sums=self.sums[:count]
        )

    def _merge_older(self) -> Blocks:
        half = MOST_BLOCKS // 2
        pairs: Sequence[int] = range(0, half, 2)
        keep = np.array([*pairs, *range(half, len(self.rows))])
        return Blocks(
            self.start[keep],
            np.add.reduceat(self.rows, keep),
            self.time[keep],
            np.add.reduceat(self.sums, keep, axis=0),
        )


def _moments(n: float, total: float, squares: float) -> tuple[float, float]:
    """Compute mean and deviation from sums; NaN of no values."""
    if not n:
        return math.nan, math.nan
    mean = total / n
    return mean, math.sqrt(max(0.0, squares / n - mean**2))


def _share(count: float, rows: float) -> float:
    return count / rows if rows else math.nan
