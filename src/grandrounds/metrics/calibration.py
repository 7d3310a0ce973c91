"""Calibration: expected calibration error and the calibration line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.metrics.classification import Z_95, Array, Floats, OccupiedBins, ratio, sum_by_cell

_STEPS = 100
_HALVINGS = 40
_CLOSE = 1e-9


def calibration_error(reliability: Array) -> Floats:
    """Compute the mean gap between confidence and hits over the bins, weighted by rows, (..., 15, 3) to (...)."""
    gap = np.abs(reliability[..., 1] - reliability[..., 2]).sum(axis=-1)
    return ratio(gap, reliability[..., 0].sum(axis=-1))


@dataclass(frozen=True, eq=False)
class Estimated:
    """Estimates (...) with their standard errors (...)."""

    value: Floats
    error: Floats

    @property
    def low(self) -> Floats:
        """Lower end of Wald's 95% interval."""
        return self.value - Z_95 * self.error

    @property
    def high(self) -> Floats:
        """Upper end of Wald's 95% interval."""
        return self.value + Z_95 * self.error


def calibration_in_the_large(o: OccupiedBins) -> Estimated:
    """Compute the intercept (...) of the logistic regression of y with the log-odds as offset: their slope is fixed at 1.

    0 is ideal; above 0 risks are too low on average (Van Calster and others 2019). NaN where all rows are of one class.
    """
    both = (o.negatives > 0) & (o.positives > 0)
    shape = (o.negatives.size,)

    def add(values: Floats) -> Floats:
        return sum_by_cell(o.cell, values, cells=o.negatives.size)

    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.where(both, np.log(o.positives) - np.log(o.negatives), 0.0).reshape(shape)
    lowest, highest = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(lowest, o.cell, o.scores)
    np.maximum.at(highest, o.cell, o.scores)
    low, high = (np.where(both.reshape(shape), odds - ends, 0.0) for ends in (highest, lowest))
    events, rows = add(o.positive), o.negative + o.positive
    for _ in range(_STEPS):  # the mean risk rises with the intercept
        middle = 0.5 * (low + high)
        above = add(rows * (0.5 + 0.5 * np.tanh(0.5 * (o.scores + middle[o.cell])))) > events
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    value = 0.5 * (low + high)
    p = 0.5 + 0.5 * np.tanh(0.5 * (o.scores + value[o.cell]))
    error = np.sqrt(ratio(np.ones(shape), add(rows * p * (1.0 - p))))
    return Estimated(*(np.where(both, v.reshape(both.shape), np.nan) for v in (value, error)))


def calibration_line(o: OccupiedBins) -> tuple[Estimated, Estimated]:
    """Fit the slope and intercept (...) of the logistic regression of y on the log-odds (of bins: at their centres).

    Perfect calibration is slope 1 and intercept 0; a slope below 1 is overconfidence. The two are fitted
    together. NaN where the fit does not exist: one class only, or scores that separate the classes.

    Newton's method with halved steps runs on every cell at once. The likelihood never falls from one
    step to the next, so no cell can run away; one that has not settled at the end is NaN. Log-odds are
    standardised within the cell to keep its two by two system even.
    """
    fitted = _overlap(o)
    in_fit = o.spread(fitted)
    cell = (np.cumsum(fitted.reshape(-1)) - 1)[o.cell[in_fit]]
    cells = int(fitted.sum())
    hits, rows = o.positive[in_fit], (o.negative + o.positive)[in_fit]
    x = o.scores[in_fit]

    def add(values: Floats) -> Floats:
        return sum_by_cell(cell, values, cells=cells)

    mean = add(rows * x) / add(rows)
    scale = np.sqrt(add(rows * (x - mean[cell]) ** 2) / add(rows))
    z = (x - mean[cell]) / scale[cell]
    a, b = _newton(z, rows, hits, cell, cells=cells)
    p = 0.5 + 0.5 * np.tanh(0.5 * (a[cell] + b[cell] * z))
    h00, h01, h11 = (add(rows * p * (1.0 - p) * power) for power in (np.ones_like(z), z, z * z))
    det, shift = h00 * h11 - h01 * h01, mean / scale  # in units of the log-odds the intercept is a - b * shift
    out = np.full((4, *fitted.shape), np.nan)
    out[0][fitted], out[1][fitted] = b / scale, np.sqrt(ratio(h00, det)) / scale
    out[2][fitted], out[3][fitted] = a - b * shift, np.sqrt(ratio(h11 + 2.0 * shift * h01 + shift**2 * h00, det))
    return Estimated(out[0], out[1]), Estimated(out[2], out[3])


def _overlap(o: OccupiedBins) -> Array:
    """Find the cells in which each class reaches past the other in both directions, (...).

    This is exactly when the maximum of the likelihood is finite and unique (Albert and Anderson, 1984).
    """
    lowest, highest = [], []
    for kind in (o.negative, o.positive):
        occupied = kind > 0
        low, high = np.full(o.negatives.size, np.iinfo(np.intp).max), np.full(o.negatives.size, -1)
        np.minimum.at(low, o.cell[occupied], o.column[occupied])
        np.maximum.at(high, o.cell[occupied], o.column[occupied])
        lowest.append(low)
        highest.append(high)
    overlap: Array = (lowest[1] < highest[0]) & (lowest[0] < highest[1])
    return overlap.reshape(o.negatives.shape)


def _newton(x: Floats, rows: Floats, hits: Floats, cell: Array, *, cells: int) -> tuple[Floats, Floats]:
    """Compute the intercept and slope (cells,) of each cell's logistic regression of hits out of rows on x, all (m,)."""

    def add(values: Floats) -> Floats:
        return sum_by_cell(cell, values, cells=cells)

    def likelihood(a: Floats, b: Floats) -> Floats:
        eta = a[cell] + b[cell] * x
        return add(hits * eta - rows * np.logaddexp(0.0, eta))

    a, b = np.log(add(hits) / add(rows - hits)), np.zeros(cells)
    height = likelihood(a, b)
    settled = np.zeros(cells, bool)
    for _ in range(_STEPS):
        p = 0.5 + 0.5 * np.tanh(0.5 * (a[cell] + b[cell] * x))
        pull, weight = hits - rows * p, rows * p * (1.0 - p)
        g0, g1 = add(pull), add(pull * x)
        h00, h01, h11 = add(weight), add(weight * x), add(weight * x * x)
        det = h00 * h11 - h01 * h01
        da, db = np.nan_to_num(ratio(np.stack([h11 * g0 - h01 * g1, h00 * g1 - h01 * g0]), det))
        settled = (det > 0) & (np.abs(da) + np.abs(db) <= _CLOSE * (1.0 + np.abs(a) + np.abs(b)))
        if settled.all():
            break
        size = np.where(settled, 0.0, 1.0)
        for _ in range(_HALVINGS):
            reached = likelihood(a + size * da, b + size * db)
            fell = ~(reached >= height - 1e-12 * np.abs(height))
            if not fell.any():
                break
            size[fell] *= 0.5
        size[fell] = 0.0
        a, b, height = a + size * da, b + size * db, np.where(fell, height, reached)
    return np.where(settled, a, np.nan), np.where(settled, b, np.nan)
