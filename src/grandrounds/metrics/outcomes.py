"""Statistics of predicted numbers, counts and hazards that add up across sites, and the metrics that follow from them.

As a `Tally` for classes, an `OutcomeTally` is computed at each site and added. Numbers and counts are in units of training (the
agreed standard deviation, or mean), so that one bound fits every outcome in a secure sum; metrics are in the units of the table.

Pairs for the C-index and risk sets of the Cox loss are formed within a site (and subgroup) only: no time and no score leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import COUNT, REGRESSION, SURVIVAL
from grandrounds.metrics.classification import ratio

SUMS: Mapping[str, tuple[str, ...]] = {
    REGRESSION: ("sum", "square", "error", "squared_error", "absolute_error"),
    COUNT: ("sum", "log", "error", "squared_error", "absolute_error", "deviance"),
    SURVIVAL: ("events", "comparable", "concordant", "tied", "loss"),
}
"""Sums over rows, by task. `sum`, `square` and `log` are of y, y^2 and y log y; `error` of prediction minus y; `comparable`,
`concordant` and `tied` count pairs; `loss` is the negative log partial likelihood (Breslow)."""

_BLOCK = 1024
"""Rows whose pairs are counted at once."""


@dataclass(frozen=True, eq=False)
class OutcomeTally:
    """Additive statistics of one model's predictions; leading axes (...) are sites or subgroups.

    Attributes:
        task: "regression", "count" or "survival".
        count: (...,) rows.
        sums: (..., m) in the order of `SUMS[task]`, in units of training.
        scale: One unit of training in units of the table.
    """

    task: str
    count: Array
    sums: Array
    scale: float = 1.0

    def __post_init__(self) -> None:
        expected = (*self.count.shape, len(SUMS[self.task]))
        if self.sums.shape != expected:
            raise ValueError(f"a tally of {self.task} has sums of shape {self.sums.shape}, should be {expected}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the leading axes, () for a single tally."""
        return tuple(self.count.shape)

    def of(self, name: str) -> Array:
        """Return one of the sums, (...,)."""
        return np.asarray(self.sums[..., SUMS[self.task].index(name)])

    def __add__(self, other: OutcomeTally) -> OutcomeTally:
        return replace(self, count=self.count + other.count, sums=self.sums + other.sums)

    def __getitem__(self, index: Any) -> OutcomeTally:
        """Return the tallies at `index` of the leading axes."""
        lead = index if isinstance(index, tuple) else (index,)
        return replace(self, count=np.asarray(self.count[lead]), sums=np.asarray(self.sums[(*lead, ..., slice(None))]))

    def sum(self, axis: int | tuple[int, ...] = 0) -> OutcomeTally:
        """Return one tally for all along `axis` (or several) of the leading axes."""
        axes = axis if isinstance(axis, tuple) else (axis,)
        depth = len(self.shape)
        if any(not -depth <= a < depth for a in axes):
            raise ValueError(f"axis {axis} is not among the leading axes of a tally of shape {self.shape}")
        along = tuple(a % depth for a in axes)
        return replace(self, count=np.asarray(self.count.sum(axis=along)), sums=np.asarray(self.sums.sum(axis=along)))

    def arrays(self) -> dict[str, Array]:
        """Return the statistics by name, as they travel."""
        return {"count": self.count, "sums": self.sums}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], *, task: str, scale: float) -> OutcomeTally:
        """Read what `arrays` gave."""
        missing = [name for name in ("count", "sums") if name not in arrays]
        if missing:
            raise ValueError(f"a tally needs {', '.join(missing)}; given: {', '.join(sorted(arrays))}")
        return cls(task, np.asarray(arrays["count"]), np.asarray(arrays["sums"]), scale)


def tally_outcome(
    task: str, scores: Array, y: Array, group: Array, lead: tuple[int, ...], *, time: Array | None = None, scale: float = 1.0
) -> OutcomeTally:
    """Tally a model's outputs.

    Args:
        task: "regression", "count" or "survival".
        scores: Outputs (n,): standardised numbers, logs of relative counts, or log hazards.
        y: Outcomes (n,) in units of training; of survival 1 where the event was observed.
        group: Group of each row (n,), numbered over `lead`.
        lead: Leading axes of the tally.
        time: Follow-up times (n,), for survival.
        scale: One unit of training in units of the table.

    Returns:
        The tally; sums of a group with an output that is not finite are NaN.
    """
    z, y = np.asarray(scores, np.float64), np.asarray(y, np.float64)
    size = int(np.prod(lead, dtype=np.int64))
    count = np.bincount(group, minlength=size)
    if task == SURVIVAL:
        assert time is not None
        order = np.argsort(group, kind="stable")
        ends = np.concatenate([[0], np.cumsum(count)])
        sums = np.zeros((size, len(SUMS[task])))
        for g in np.flatnonzero(count).tolist():
            rows = order[ends[g] : ends[g + 1]]
            sums[g] = _survival_sums(z[rows], y[rows], time[rows])
    else:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            columns = _number_sums(z, y) if task == REGRESSION else _count_sums(z, y)
        sums = np.stack([np.bincount(group, weights=c, minlength=size) for c in columns], axis=-1)
    return OutcomeTally(task, count.reshape(lead), sums.reshape(*lead, len(SUMS[task])), scale)


def _number_sums(z: Array, y: Array) -> tuple[Array, ...]:
    error = z - y
    return y, y**2, error, error**2, np.abs(error)


def _count_sums(z: Array, y: Array) -> tuple[Array, ...]:
    mean = np.exp(z)
    error, y_log_y = mean - y, y * np.log(np.where(y > 0, y, 1.0))
    return y, y_log_y, error, error**2, np.abs(error), 2 * (y_log_y - y * z + error)


def _survival_sums(z: Array, event: Array, time: Array) -> tuple[float, ...]:
    if not np.isfinite(z).all():
        return (float(event.sum()), *(np.nan,) * 4)
    comparable, concordant, tied = count_pairs(z, event, time)
    return float(event.sum()), comparable, concordant, tied, partial_likelihood_loss(z, event, time)


def partial_likelihood_loss(z: Array, event: Array, time: Array) -> float:
    """Compute the negative log partial likelihood of log hazards (n,), with Breslow's rule for ties, summed over events."""
    if not len(z):
        return 0.0
    order = np.argsort(-time, kind="stable")
    at_risk = np.logaddexp.accumulate(z[order])
    later = np.searchsorted(-time[order], -time, side="right") - 1  # the last row of those with as long a time or longer
    return float((event * (at_risk[later] - z)).sum())


def count_pairs(z: Array, event: Array, time: Array) -> tuple[float, float, float]:
    """Count the pairs of Harrell's C-index.

    A pair is comparable if the row with the shorter time has the event, or one of two rows of equal time has it. It is
    concordant if that row has the higher score, and tied if scores are equal.

    Args:
        z: Scores (n,), higher where the event is expected earlier.
        event: 1 where the event was observed, (n,).
        time: Follow-up times (n,).

    Returns:
        Numbers of comparable, concordant and tied pairs.
    """
    order = np.lexsort((event, -time))  # the longest time first; of equal times the censored rows first
    z, event, time = z[order], event[order] > 0, time[order]
    lasting: Array = np.empty(0)  # sorted scores of the rows before the block
    comparable = concordant = tied = 0
    for start in range(0, len(z), _BLOCK):
        block = slice(start, start + _BLOCK)
        s, e, t = z[block], event[block], time[block]
        own = e[:, None] & ((t[:, None] < t) | ((t[:, None] == t) & ~e))  # row: the one with the event
        higher, equal = s[:, None] > s, s[:, None] == s
        comparable += int(own.sum())
        concordant += int((own & higher).sum())
        tied += int((own & equal).sum())
        chosen, ties = s[e], t[e]
        if len(lasting) and len(chosen):
            below, up_to = (np.searchsorted(lasting, chosen, side=side) for side in ("left", "right"))
            comparable += len(chosen) * len(lasting)
            concordant += int(below.sum())
            tied += int((up_to - below).sum())
            for value in np.unique(ties[ties == time[start - 1]]):  # events of equal time before the block are no pairs
                same = np.sort(z[:start][(time[:start] == value) & event[:start]])
                mine = chosen[ties == value]
                left, right = (np.searchsorted(same, mine, side=side) for side in ("left", "right"))
                comparable -= len(mine) * len(same)
                concordant -= int(left.sum())
                tied -= int((right - left).sum())
        lasting = np.sort(np.concatenate([lasting, s]))
    return float(comparable), float(concordant), float(tied)


def _mean(tally: OutcomeTally, name: str, power: int = 1) -> Array:
    return np.asarray(ratio(tally.of(name), tally.count) * tally.scale**power)


def mean_squared_error(tally: OutcomeTally) -> Array:
    """Compute the mean squared error in units of the table, squared."""
    return _mean(tally, "squared_error", 2)


def root_mean_squared_error(tally: OutcomeTally) -> Array:
    """Compute the root of the mean squared error."""
    return np.asarray(np.sqrt(mean_squared_error(tally)))


def mean_absolute_error(tally: OutcomeTally) -> Array:
    """Compute the mean absolute error."""
    return _mean(tally, "absolute_error")


def mean_error(tally: OutcomeTally) -> Array:
    """Compute the mean of prediction minus outcome."""
    return _mean(tally, "error")


def explained_variance(tally: OutcomeTally) -> Array:
    """Compute R^2: 1 minus the squared errors over the squared deviations from these rows' mean."""
    spread = tally.of("square") - tally.of("sum") ** 2 / np.maximum(tally.count, 1)
    return np.asarray(1 - ratio(tally.of("squared_error"), np.where(spread > 1e-12 * np.maximum(tally.count, 1), spread, 0.0)))


def poisson_deviance(tally: OutcomeTally) -> Array:
    """Compute the mean Poisson deviance of a row."""
    return _mean(tally, "deviance")


def explained_deviance(tally: OutcomeTally) -> Array:
    """Compute D^2: 1 minus the Poisson deviance over that of these rows' mean."""
    total = tally.of("sum")
    mean = total / np.maximum(tally.count, 1)
    null = 2 * (tally.of("log") - total * np.log(np.where(mean > 0, mean, 1.0)))
    return np.asarray(1 - ratio(tally.of("deviance"), np.where(null > 1e-12 * np.maximum(tally.count, 1), null, 0.0)))


def events(tally: OutcomeTally) -> Array:
    """Return the number of events; NaN without rows."""
    return np.where(tally.count > 0, tally.of("events"), np.nan)


def c_index(tally: OutcomeTally) -> Array:
    """Compute Harrell's C-index over the pairs within sites: concordant pairs, ties half, over comparable pairs."""
    return np.asarray(ratio(tally.of("concordant") + tally.of("tied") / 2, tally.of("comparable")))


def cox_loss(tally: OutcomeTally) -> Array:
    """Compute the negative log partial likelihood for each event, with risk sets within sites."""
    return np.asarray(ratio(tally.of("loss"), tally.of("events")))
