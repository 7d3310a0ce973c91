"""Figures of groups of patients with 95% intervals, from tallies that add up across sites, and the rule for small groups.

Shares (sensitivity, specificity, PPV, alert rate) have Wilson's interval, the AUROC has DeLong's, and means over rows
(calibration, Brier score, log loss) have a normal interval. Variances come from the histogram of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from grandrounds.metrics.classification import Z_95, Array, Floats, OccupiedBins, ratio, roc_area, roc_interval
from grandrounds.metrics.outcomes import OutcomeTally
from grandrounds.metrics.statistics import share_interval
from grandrounds.metrics.tally import Tally

Figures = dict[str, float]

MOST_MERGED = 0.02
"""Most rows of small groups, as a share of the largest group, that are counted with it."""

SHARES = ("sensitivity", "specificity", "ppv", "alert_rate")
"""Figures that are shares of rows."""


@dataclass(frozen=True, eq=False)
class GroupScores:
    """Scores of G groups against one class: its histograms, and the rows that were called positive.

    Attributes:
        bins: Histograms of the groups, (G,).
        caught: Rows of the class that were called positive, (G,).
        false_alarms: Other rows that were called positive, (G,).
        exact: Sums over rows (G,) that the tally knows exactly: `expected` events, `brier`, `log_loss`; empty if it does not.
    """

    bins: OccupiedBins
    caught: Floats
    false_alarms: Floats
    exact: dict[str, Floats]

    @property
    def events(self) -> Floats:
        return self.bins.positives

    @property
    def rows(self) -> Floats:
        return self.bins.positives + self.bins.negatives

    @property
    def alerts(self) -> Floats:
        return self.caught + self.false_alarms

    def share_of(self, name: str) -> tuple[Floats, Floats]:
        """Return the rows that a share counts and the rows that it is taken of, (G,) each."""
        return {
            "sensitivity": (self.caught, self.events),
            "specificity": (self.bins.negatives - self.false_alarms, self.bins.negatives),
            "ppv": (self.caught, self.alerts),
            "alert_rate": (self.alerts, self.rows),
        }[name]

    @cached_property
    def auroc_error(self) -> Floats:
        """Compute DeLong's standard error of the AUROC, (G,); NaN with fewer than two rows of a kind."""
        low, high = _open_interval(self.bins)
        return (high - low) / (2 * Z_95)

    def mean_of(self, name: str) -> tuple[Floats, Floats]:
        """Return a mean over rows and its standard error, (G,) each: `calibration`, `brier` or `log_loss`.

        `calibration` is the observed less the expected share of events.
        """
        z = self.bins.scores
        p = 0.5 + 0.5 * np.tanh(0.5 * z)
        if name == "calibration":
            of_event, of_other = 1 - p, -p
        elif name == "brier":
            of_event, of_other = (1 - p) ** 2, p**2
        else:
            of_event, of_other = np.logaddexp(0, -z), np.logaddexp(0, z)
        total = self.bins.add(self.bins.positive * of_event + self.bins.negative * of_other)
        square = self.bins.add(self.bins.positive * of_event**2 + self.bins.negative * of_other**2)
        spread = np.maximum(square - ratio(total**2, self.rows), 0.0)
        error = np.sqrt(ratio(spread, self.rows * np.maximum(self.rows - 1, 0)))
        known = self.exact.get("expected" if name == "calibration" else name)
        if known is not None:
            total = self.events - known if name == "calibration" else known
        return ratio(total, self.rows), error

    def expected(self) -> Floats:
        """Compute the expected number of events, (G,)."""
        calibration, _ = self.mean_of("calibration")
        return np.where(self.rows > 0, self.events - calibration * self.rows, 0.0)


def _open_interval(bins: OccupiedBins) -> tuple[Floats, Floats]:
    """Return DeLong's interval before it is kept within [0, 1]: twice the distance to the end that is not cut."""
    area = roc_area(bins)
    low, high = roc_interval(bins)
    half = np.maximum(area - low, high - area)
    return area - half, area + half


def group_scores(tally: Tally, threshold: float, class_index: int | None = None) -> GroupScores:
    """Read the scores of groups from their tallies.

    Args:
        tally: Tallies of G groups, (G,).
        threshold: The decision threshold of two classes.
        class_index: With three classes or more, the class that is set against the rest; its decisions are those of the
            largest probability.

    Returns:
        The scores of the groups.
    """
    if tally.binary:
        bins = OccupiedBins.from_histogram(tally.histogram[:, 0])
        false_alarms, caught = bins.count_at_least(threshold)
        exact = {
            "expected": tally.reliability[..., 1].sum(axis=-1),
            "brier": np.asarray(tally.brier, float),
            "log_loss": np.asarray(tally.log_loss, float),
        }
        return GroupScores(bins, caught, false_alarms, exact)
    c = int(class_index or 0)
    caught = tally.confusion[:, c, c].astype(float)
    called = tally.confusion[:, :, c].sum(axis=-1)
    return GroupScores(OccupiedBins.from_histogram(tally.histogram[:, c]), caught, called - caught, {})


def worst_class(tally: Tally) -> int:
    """Choose the class with the lowest AUROC against the rest over all groups, of three classes or more."""
    areas = roc_area(tally.sum(axis=0).bins)
    return int(np.nanargmin(np.where(np.isnan(areas), np.inf, areas)))


def group_figures(scores: GroupScores) -> list[Figures]:
    """Compute the figures of each group with the ends of their 95% intervals (`auroc_low`, `auroc_high`).

    Args:
        scores: The scores of G groups.

    Returns:
        One mapping for each group; NaN for a figure that its rows do not define.
    """
    columns: dict[str, Array] = {"count": scores.rows, "events": scores.events, "alerts": scores.alerts}
    for name in SHARES:
        counted, of = scores.share_of(name)
        columns[name] = ratio(counted, of)
        ends = [share_interval(c / n, n) if n >= 1 else (np.nan, np.nan) for c, n in zip(counted, of, strict=True)]
        columns[f"{name}_low"], columns[f"{name}_high"] = np.array(ends).reshape(-1, 2).T
    columns["auroc"] = roc_area(scores.bins)
    columns["auroc_low"], columns["auroc_high"] = roc_interval(scores.bins)
    for name in ("calibration", "brier", "log_loss"):
        value, error = scores.mean_of(name)
        columns |= {name: value, f"{name}_low": value - Z_95 * error, f"{name}_high": value + Z_95 * error}
    for name in ("brier", "log_loss"):
        columns[f"{name}_low"] = np.maximum(columns[f"{name}_low"], 0.0)
    columns |= _observed_to_expected(scores)
    names = list(columns)
    return [{name: float(columns[name][g]) for name in names} for g in range(len(scores.rows))]


def _observed_to_expected(scores: GroupScores) -> dict[str, Floats]:
    """Compute observed over expected events with an interval on the log scale (delta method over rows)."""
    observed, expected, n = scores.events, scores.expected(), scores.rows
    value = ratio(observed, expected)
    p = 0.5 + 0.5 * np.tanh(0.5 * scores.bins.scores)
    rate, mean = scores.bins.spread(ratio(observed, n)), scores.bins.spread(ratio(expected, n))
    of_event, of_other = ratio(np.ones(len(p)), rate) - ratio(p, mean), -ratio(p, mean)
    square = scores.bins.add(
        scores.bins.positive * np.where(scores.bins.positive > 0, of_event, 0.0) ** 2 + scores.bins.negative * of_other**2
    )
    error = np.sqrt(ratio(square, n * np.maximum(n - 1, 0)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low, high = (np.where(observed > 0, value * np.exp(sign * Z_95 * error), np.nan) for sign in (-1, 1))
    return {"observed_expected": value, "observed_expected_low": low, "observed_expected_high": high}


def outcome_figures(tally: OutcomeTally) -> list[Figures]:
    """Compute mean error with its 95% interval, root mean squared and mean absolute error of groups, in units of the table.

    Args:
        tally: Tallies of G groups of predicted numbers or counts, (G,).

    Returns:
        One mapping for each group.
    """
    n = np.asarray(tally.count, float)
    value, error = mean_error(tally)
    columns = {
        "count": n,
        "mean_error": value,
        "mean_error_low": value - Z_95 * error,
        "mean_error_high": value + Z_95 * error,
        "rmse": np.sqrt(ratio(tally.of("squared_error"), n)) * tally.scale,
        "mae": ratio(tally.of("absolute_error"), n) * tally.scale,
    }
    return [{name: float(column[g]) for name, column in columns.items()} for g in range(len(n))]


def mean_error(tally: OutcomeTally) -> tuple[Floats, Floats]:
    """Return the mean of prediction minus outcome and its standard error, (G,) each, in units of the table."""
    n, total = np.asarray(tally.count, float), tally.of("error")
    spread = np.maximum(tally.of("squared_error") - ratio(total**2, n), 0.0)
    error = np.sqrt(ratio(spread, n * np.maximum(n - 1, 0)))
    return ratio(total, n) * tally.scale, error * tally.scale


@dataclass(frozen=True)
class Hidden:
    """Counts of one group that are not shown. `small`: the group itself is small; else it is hidden for another's sake."""

    rows: bool = False
    events: bool = False
    small: bool = False


def hide_small_groups(rows: Sequence[float], events: Sequence[float] | None, least: int) -> list[Hidden]:
    """Choose the groups of a column whose counts and figures are hidden.

    Counts from 1 to `least` - 1 of rows, events or rows without the event are hidden. A single hidden count would follow from
    the total of the column, so the next smallest is hidden with it, until the hidden ones add up to `least`.

    Args:
        rows: Rows of each group.
        events: Rows with the event of each group; None for outcomes that are not classes.
        least: The smallest count that is shown.

    Returns:
        The hidden counts of each group. A group whose rows are hidden has no other figure; one whose events are hidden shows
        its rows only.
    """
    small_rows = {g for g, n in enumerate(rows) if 0 < n < least}
    few = set(small_rows)
    kinds = [rows]
    if events is not None:
        others = [n - e for n, e in zip(rows, events, strict=True)]
        few |= {g for g in range(len(rows)) if 0 < events[g] < least or 0 < others[g] < least}
        kinds = [events, others]
    hidden_rows = _with_company(small_rows, [rows], rows, least)
    hidden_events = _with_company(few | hidden_rows, kinds, [min(k[g] for k in kinds) for g in range(len(rows))], least)
    return [Hidden(g in hidden_rows, g in hidden_events, g in few) for g in range(len(rows))]


Groups = TypeVar("Groups", bound="Tally | OutcomeTally")


def merge_small_groups(tally: Groups, least: int) -> tuple[Groups, list[int], int]:
    """Count groups of fewer than `least` rows with the largest group, if they are at most `MOST_MERGED` of it.

    A single patient of unknown sex would otherwise hide a whole sex, because the total would tell the patient's outcome.

    Args:
        tally: Tallies of G groups, (G,).
        least: The smallest count that is shown.

    Returns:
        The tallies, the groups that were moved, and the largest group; nothing is moved where the small groups are many.
    """
    rows = np.asarray(tally.count, float)
    largest = int(np.argmax(rows))
    moved = np.flatnonzero((rows > 0) & (rows < least)).tolist()
    if not moved or rows[moved].sum() > MOST_MERGED * rows[largest]:
        return tally, [], largest
    arrays: dict[str, Any] = {}
    for name, array in tally.arrays().items():
        merged = np.array(array)
        merged[largest] += array[moved].sum(axis=0)
        merged[moved] = 0
        arrays[name] = merged
    return replace(tally, **arrays), moved, largest


def _with_company(hidden: set[int], kinds: Sequence[Sequence[float]], size: Sequence[float], least: int) -> set[int]:
    """Add groups, smallest first, until no hidden count follows from a total and the hidden ones add up to `least`."""
    out = set(hidden)
    rest = sorted((g for g in range(len(size)) if g not in out and kinds[0][g] + sum(k[g] for k in kinds[1:]) > 0),
                  key=lambda g: size[g])
    while out and rest and (len(out) < 2 or any(sum(k[g] for g in out) < least for k in kinds)):
        out.add(rest.pop(0))
    return out
