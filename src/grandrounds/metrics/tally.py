"""Statistics of a model's scores that add up across sites.

Every consortium-wide figure is worked out from a sum of tallies, never from pooled rows, so a
simulation and a deployed federation print the same numbers. The tally of a small group is close to
its rows (a histogram of thirty patients shows thirty scores): add tallies up under secure
aggregation before they leave a site's hands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from grandrounds.metrics.classification import (
    BINS,
    Array,
    OccupiedBins,
    RowScores,
    bin_centres,
    bin_index,
    score_several_classes,
    score_two_classes,
    swap_event,
)

RELIABILITY_BINS = 15
_TRAILING = {"count": 0, "log_loss": 0, "brier": 0, "confusion": 2, "reliability": 2, "histogram": 3}


@dataclass(frozen=True, eq=False)
class Tally:
    """Additive statistics of one model's scores; leading axes (...) are sites or subgroups, C classes.

    Of two classes, y = 1 is the event, whichever comes first in the order of classes.

    count        (...,) rows.
    log_loss     (...,) sum of log losses.
    brier        (...,) sum of (P(y=1) - y)^2; with three or more classes, summed over classes.
    confusion    (..., C, C) rows by [true, predicted]; predicted is P(y=1) >= 0.5, or the top class.
    reliability  (..., 15, 3) per equal-width bin [low, high) of confidence: rows, sum of confidence,
                 sum of hits. Confidence is P(y=1) and a hit is y = 1; with three or more classes,
                 the top class's probability and whether it is right.
    histogram    (..., H, 2, B) rows by log-odds, negatives then positives, on the grid of `classification`;
                 H = 1 for two classes (class 1), else one class against the rest for each of C.
    """

    count: Array
    log_loss: Array
    brier: Array
    confusion: Array
    reliability: Array
    histogram: Array

    def __post_init__(self) -> None:
        lead, c = self.count.shape, self.confusion.shape[-1] if self.confusion.ndim else 0
        heads = 1 if c == 2 else c
        expected = {
            "log_loss": lead,
            "brier": lead,
            "confusion": (*lead, c, c),
            "reliability": (*lead, RELIABILITY_BINS, 3),
            "histogram": (*lead, heads, 2, BINS),
        }
        for name, shape in expected.items():
            actual = getattr(self, name).shape
            if actual != shape:
                raise ValueError(f"tally of shape {lead}, {c} classes: {name} is {actual}, should be {shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the leading axes, () for a single tally."""
        return self.count.shape

    @property
    def classes(self) -> int:
        """Compute the number of classes, C."""
        return int(self.confusion.shape[-1])

    @property
    def binary(self) -> bool:
        """Return whether there are two classes, so that class 1 alone is scored."""
        return self.classes == 2

    @cached_property
    def bins(self) -> OccupiedBins:
        """Return the bins that hold rows."""
        return OccupiedBins.from_histogram(self.histogram)

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = self.arrays(), other.arrays()
        return Tally(**{name: np.asarray(mine[name] + theirs[name]) for name in mine})

    def __getitem__(self, index: Any) -> Tally:
        """Return the tallies at `index` of the leading axes: an integer, slice, mask or tuple of them."""
        lead = index if isinstance(index, tuple) else (index,)
        return Tally(
            **{
                name: np.asarray(array[(*lead, *[slice(None)] * _TRAILING[name])])
                for name, array in self.arrays().items()
            }
        )

    def sum(self, axis: int | tuple[int, ...] = 0) -> Tally:
        """Return one tally for all along `axis` (or several) of the leading axes."""
        depth = len(self.shape)
        axes = axis if isinstance(axis, tuple) else (axis,)
        if any(not -depth <= a < depth for a in axes):
            raise ValueError(f"axis {axis} is not among the leading axes of a tally of shape {self.shape}")
        along = tuple(a % depth for a in axes)
        return Tally(**{name: np.asarray(array.sum(axis=along)) for name, array in self.arrays().items()})

    def arrays(self) -> dict[str, Array]:
        """Return the statistics by name, as they travel: `Tally.from_arrays` takes them back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Tally:
        """Return a tally from what `arrays` gave; other names are ignored, missing ones and bad shapes refused."""
        missing = [name for name in _TRAILING if name not in arrays]
        if missing:
            raise ValueError(f"a tally needs {', '.join(missing)}; given: {', '.join(sorted(arrays))}")
        return cls(**{name: np.asarray(arrays[name]) for name in _TRAILING})


@dataclass(frozen=True, eq=False)
class ExactTally:
    """A tally that keeps scores instead of histograms: for exact figures of many sites, none of which is sent or added.

    `rows` are the cell, the log-odds and the kind of each row, (H * n,), and the shape over which cells are numbered.
    """

    count: Array
    log_loss: Array
    brier: Array
    confusion: Array
    reliability: Array
    rows: tuple[Array, Array, Array, tuple[int, ...]]

    @cached_property
    def bins(self) -> OccupiedBins:
        """Compute the rows grouped by their exact scores."""
        cell, log_odds, positive, lead = self.rows
        return OccupiedBins.from_rows(cell, log_odds, positive, lead=lead)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count.shape

    @property
    def binary(self) -> bool:
        return int(self.confusion.shape[-1]) == 2


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows scored once, to be tallied by one grouping or by several."""

    measured: RowScores
    y: Array
    classes: int

    @classmethod
    def from_logits(cls, logits: Array, y: Array, *, classes: int, event: int = 1) -> ScoredRows:
        """Logits (n, 1) or (n, C) against labels y (n,). Two columns are read as the one column z1 - z0.

        `event` is the class of two that counts as positive. Where it is class 0, log-odds and labels are turned round
        here, so that "class 1" of every tally is the event.

        A row with a logit that is not finite counts as a score of no information (equal logits) and makes its group's
        log loss and Brier score NaN, so that a diverged model shows and the run goes on.
        """
        if classes < 2:
            raise ValueError(f"a tally needs two classes or more, not {classes}")
        z = np.asarray(logits)
        if z.ndim != 2 or z.shape[1] not in ({1, 2} if classes == 2 else {classes}):
            raise ValueError(f"logits of shape {z.shape} do not fit {classes} classes")
        labels = _indices(y, name="y", rows=len(z), limit=classes)
        z = z.astype(np.float64)
        lost = ~np.isfinite(z).all(axis=1)
        if lost.any():
            z[lost] = 0.0
        measured = score_two_classes(z, labels) if classes == 2 else score_several_classes(z, labels)
        if lost.any():
            measured = replace(
                measured,
                log_loss=np.where(lost, np.nan, measured.log_loss),
                brier=np.where(lost, np.nan, measured.brier),
            )
        if classes == 2 and event == 0:
            return cls(swap_event(measured), 1 - labels, classes)
        return cls(measured, labels, classes)

    def decide_by_half(self, rows: Array, threshold: float) -> ScoredRows:
        """Return the rows with those of `rows` (n,) decided at one half, whatever the threshold on P(y=1) of all others.

        Their log-odds that lie between the two move to just beyond the threshold; losses keep their own risk. More than two
        classes have no threshold.
        """
        if self.classes != 2 or not rows.any() or not 0 < threshold < 1:
            return self
        z = self.measured.log_odds
        place, centres = int(bin_index(np.log(threshold / (1 - threshold)))), bin_centres()
        below, above = centres[max(place - 1, 0)], centres[min(place + 1, BINS - 1)]
        decided = np.where(z >= 0, np.maximum(z, above), np.minimum(z, below))
        return replace(self, measured=replace(self.measured, log_odds=np.where(rows, decided, z)))

    def tally(self, group: Array, lead: tuple[int, ...]) -> Tally:
        """Return the rows added up by group (n,), numbered over `lead`."""
        heads = len(self.measured.log_odds)
        cell, log_odds, positive = self._heads(group)
        key = (cell * 2 + positive) * BINS + bin_index(log_odds)
        return Tally(**self._sums(group, lead), histogram=_add(key, (*lead, heads, 2, BINS)).astype(np.int32))

    def exact_tally(self, group: Array, lead: tuple[int, ...]) -> ExactTally:
        """Return the same with the rows' own scores: their figures are exact, and they are not to be sent."""
        return ExactTally(**self._sums(group, lead), rows=(*self._heads(group), (*lead, len(self.measured.log_odds))))

    def _heads(self, group: Array) -> tuple[Array, Array, Array]:
        """Return the histogram (one a head), the log-odds and the kind of each row, (H * n,)."""
        heads = len(self.measured.log_odds)
        truth = (self.y == 1)[None] if self.classes == 2 else self.y == np.arange(self.classes)[:, None]
        cell = group * heads + np.arange(heads)[:, None]
        return cell.ravel(), self.measured.log_odds.ravel(), truth.ravel()

    def _sums(self, group: Array, lead: tuple[int, ...]) -> dict[str, Array]:
        m, y, c = self.measured, self.y, self.classes
        level = np.minimum((m.confidence * RELIABILITY_BINS).astype(np.intp), RELIABILITY_BINS - 1)
        level += group * RELIABILITY_BINS
        bins = (*lead, RELIABILITY_BINS)
        return {
            "count": _add(group, lead),
            "log_loss": _add(group, lead, m.log_loss),
            "brier": _add(group, lead, m.brier),
            "confusion": _add((group * c + y) * c + m.predicted, (*lead, c, c)),
            "reliability": np.stack([_add(level, bins, w) for w in (None, m.confidence, m.hit)], axis=-1),
        }


def _add(key: Array, shape: tuple[int, ...], weights: Array | None = None) -> Array:
    """Rows, or their weights, added up by key over an array of this shape."""
    return np.bincount(key, weights, minlength=int(np.prod(shape, dtype=np.int64))).reshape(shape)


def tally(
    logits: Array, y: Array, *, classes: int, group: Array | None = None, groups: int = 1, event: int = 1
) -> Tally:
    """Tally the logits (n, 1) or (n, C) against the labels y (n,), apart for each group.

    `group` (n,) in [0, groups) makes a leading axis (groups,), zeros for a group with no rows; without
    it there is no leading axis. See `ScoredRows` for what logits may be.
    """
    scored = ScoredRows.from_logits(logits, y, classes=classes, event=event)
    if group is None:
        if groups != 1:
            raise ValueError(f"{groups} groups, but no row says which is its own: pass group=")
        return scored.tally(np.zeros(len(scored.y), np.intp), ())
    return scored.tally(_indices(group, name="group", rows=len(scored.y), limit=groups), (groups,))


def _indices(values: Array, *, name: str, rows: int, limit: int) -> Array:
    """`values` as indices (rows,), refused when they are not whole numbers in [0, limit)."""
    array = np.asarray(values)
    if array.shape != (rows,):
        raise ValueError(f"{name} of shape {array.shape} does not fit {rows} rows of logits")
    if rows and not (array.min() >= 0 and array.max() < limit):
        raise ValueError(f"{name} runs from {array.min()} to {array.max()}: should be 0 to {limit - 1}")
    indices = array.astype(np.intp)
    if array.dtype.kind == "f" and not np.array_equal(indices, array):
        raise ValueError(f"{name} holds numbers that are not whole")
    return indices
