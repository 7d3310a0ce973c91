"""Calibration of a model on labelled patients, with intervals that count patients, and its decisions at the threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.watch.recalibration.line_fit import NONE, apply_line, choose_update, fit_line_freely
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.methods.guard.candidates import score_rows
from grandrounds.metrics.calibration import calibration_error
from grandrounds.metrics.classification import Z_95
from grandrounds.metrics.tally import RELIABILITY_BINS
from grandrounds.models.dense import class_probabilities, targets
from grandrounds.models.losses import CROSS_ENTROPY

FOLDS = 5
"""Folds of the cross-validation, by patient."""

RESAMPLES = 500
"""Resamples of patients for the interval of the expected calibration error."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_error(cls, value: float, error: float) -> Estimate:
        """Build an interval of the normal distribution."""
        return cls(value, value - Z_95 * error, value + Z_95 * error)

    @property
    def text(self) -> str:
        """The figure for readers."""
        value, low, high = (f"{round(v, 2) + 0.0:.2f}" for v in (self.value, self.low, self.high))  # no minus before a zero
        return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class CalibrationFigures:
    """Calibration of a model on labelled rows.

    Attributes:
        observed: Share of the event, or of each class.
        expected: Mean probability of the event, or of each class.
        intercept: Calibration in the large: intercept of the log-odds with slope 1 (0 is perfect); None for several classes.
        slope: Calibration slope, fitted together with an intercept (1 is perfect); None where no finite one fits best.
        log_loss: Mean log loss of a row.
        ece: Expected calibration error over 15 bins; its interval is of resampled patients, less their bias.
    """

    observed: tuple[float, ...]
    expected: tuple[float, ...]
    intercept: Estimate | None
    slope: Estimate | None
    log_loss: Estimate
    ece: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Decisions:
    """Decisions of a model of two classes at its threshold.

    Attributes:
        threshold: Risk from which on a row is flagged.
        flagged: Flagged rows.
        sensitivity: Share of the events that are flagged.
        specificity: Share of the other rows that are not flagged.
        net_benefit: True positives less false positives weighted by the odds of the threshold, by row.
    """

    threshold: float
    flagged: int
    sensitivity: float
    specificity: float
    net_benefit: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)


def measure_calibration(scores: Array, y: Array, units: Array, *, seed: int, site: str) -> CalibrationFigures:
    """Measure the calibration of scores.

    Args:
        scores: (n, C) log-odds of the event (C = 1), or scores of the classes.
        y: (n,) 1 for the event, or the number of the class.
        units: (n,) number of each row's patient, from 0.
        seed: The run's seed, for the resamples.
        site: The hospital.

    Returns:
        The figures.
    """
    z = np.asarray(scores, np.float64)
    target = targets(y, z.shape[1], np.float64)
    p = class_probabilities(z)
    shown = slice(1, 2) if p.shape[1] == 2 else slice(None)
    truth = np.eye(p.shape[1])[np.asarray(y, np.int64)]
    large = None
    if z.shape[1] == 1 and 0 < target.sum() < len(target):
        fit = fit_line_freely(z, target, units, slope=False)
        large = Estimate.from_error(float(fit.line.intercept[0]), float(fit.intercept_error or 0.0))
    try:
        line = fit_line_freely(z, target, units, slope=True)
        slope = Estimate.from_error(line.line.slope, float(line.slope_error or 0.0))
    except BadInput:
        slope = None
    losses = score_rows(CROSS_ENTROPY, z, target)
    return CalibrationFigures(
        tuple(truth.mean(axis=0)[shown].tolist()),
        tuple(p.mean(axis=0)[shown].tolist()),
        large,
        slope,
        average_by_patient(losses, units),
        _calibration_error(p, y, units, seed=seed, site=site),
    )


def average_by_patient(values: Array, units: Array) -> Estimate:
    """Return the mean of values (n,) with an interval that counts patients (n,), not rows."""
    mean, patients = float(values.mean()), int(units.max()) + 1
    sums = np.bincount(units, weights=values - mean, minlength=patients)
    error = np.sqrt(patients / max(1, patients - 1) * float(sums @ sums)) / len(values)
    return Estimate.from_error(mean, float(error))


def _calibration_error(p: Array, y: Array, units: Array, *, seed: int, site: str) -> Estimate:
    """Compute the expected calibration error, and its interval over resampled patients."""
    if p.shape[1] == 2:
        confidence, hit = p[:, 1], np.asarray(y, np.float64)
    else:
        confidence, hit = p.max(axis=1), (p.argmax(axis=1) == y).astype(np.float64)
    level = np.minimum((confidence * RELIABILITY_BINS).astype(np.intp), RELIABILITY_BINS - 1)

    def error(weight: Array) -> float:
        sums = [np.bincount(level, weight * v, minlength=RELIABILITY_BINS) for v in (np.ones(len(p)), confidence, hit)]
        return float(calibration_error(np.stack(sums, axis=-1)))

    patients, rng = int(units.max()) + 1, generator(seed, purpose="resampled patients of a recalibration", site=site)
    drawn = [
        error(np.bincount(rng.integers(patients, size=patients), minlength=patients)[units].astype(np.float64))
        for _ in range(RESAMPLES)
    ]
    value = error(np.ones(len(p)))
    low, high = np.quantile(drawn, [0.025, 0.975]) - (np.mean(drawn) - value)  # a resample has more error than its rows
    return Estimate(value, max(0.0, float(low)), float(high))


def cross_validate(
    scores: Array, y: Array, units: Array, *, intercept_only: bool, seed: int, site: str
) -> tuple[Array, tuple[str, ...]]:
    """Recalibrate each fold of patients by the patients of the other folds, with the closed test repeated in each.

    Args:
        scores: (n, C) log-odds of the event, or scores of the classes.
        y: (n,) 1 for the event, or the number of the class.
        units: (n,) number of each row's patient, from 0.
        intercept_only: As in `choose_update`.
        seed: The run's seed, which deals patients into folds.
        site: The hospital.

    Returns:
        (n, C) scores after the line of the other folds, and the update that each fold had.
    """
    z = np.asarray(scores, np.float64)
    target, out, kinds = targets(y, z.shape[1], np.float64), z.copy(), []
    order = generator(seed, purpose="folds of a recalibration", site=site).permutation(int(units.max()) + 1)
    fold = (order % FOLDS)[units]
    for f in range(FOLDS):
        inner, outer = fold != f, fold == f
        try:
            others = np.unique(units[inner], return_inverse=True)[1].ravel()
            update = choose_update(z[inner], target[inner], others, intercept_only=intercept_only)
        except BadInput:
            kinds.append(NONE)
            continue
        kinds.append(update.kind)
        out[outer] = apply_line(update.fit.line, z[outer])
    return out, tuple(kinds)


def decide(scores: Array, y: Array, threshold: float) -> Decisions:
    """Compute the decisions of log-odds (n, 1) at a threshold of the risk."""
    flagged = flag(scores, threshold)
    events = np.asarray(y) == 1
    positive, negative = int(events.sum()), int((~events).sum())
    hits, false = int((flagged & events).sum()), int((flagged & ~events).sum())
    odds = threshold / (1 - threshold) if threshold < 1 else np.inf
    return Decisions(
        threshold,
        int(flagged.sum()),
        hits / positive if positive else float("nan"),
        1 - false / negative if negative else float("nan"),
        (hits - false * odds) / len(flagged),
    )


def flag(scores: Array, threshold: float) -> Array:
    """Return True for each row (n,) whose risk reaches the threshold."""
    out: Array = class_probabilities(np.asarray(scores, np.float64))[:, 1] >= threshold
    return out


Row = tuple[str, str, str, str]


def figure_rows(before: CalibrationFigures, after: CalibrationFigures, classes: Sequence[str]) -> list[Row]:
    """Return the lines of a table: name of the figure, its perfect value, its value before and after."""

    def line(name: str, perfect: str, read: Callable[[CalibrationFigures], Estimate | None]) -> Row:
        shown = [("not defined" if (e := read(f)) is None else e.text) for f in (before, after)]
        return (name, perfect, shown[0], shown[1])

    rows: list[Row] = []
    for k, word in enumerate(classes):
        share, *means = (f"{v:.1%}" for v in (before.observed[k], before.expected[k], after.expected[k]))
        rows.append((f"mean risk {word}" if len(classes) > 1 else "mean risk", share, means[0], means[1]))
    if before.intercept is not None:
        rows.append(line("in the large", "0", lambda f: f.intercept))
    rows.append(line("slope", "1", lambda f: f.slope))
    rows.append(line("log loss", "", lambda f: f.log_loss))
    rows.append(line("expected error", "0", lambda f: f.ece))
    return rows
