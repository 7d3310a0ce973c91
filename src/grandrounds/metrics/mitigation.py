"""Correct a finished model by group of patients, from summed histograms: a threshold or a recalibration for each group.

Rules are fitted to the validation rows of all sites and their cost is measured on test rows. No row, and no score of a patient,
is needed for either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from grandrounds.metrics.classification import (
    BINS,
    Floats,
    OccupiedBins,
    bin_centres,
    edge_probability,
    grid_position,
    roc_area,
    sum_by_cell,
)
from grandrounds.metrics.gaps import MIN_CASES
from grandrounds.metrics.groups import Hidden
from grandrounds.metrics.tally import Tally

THRESHOLDS, RECALIBRATION = "thresholds", "recalibration"

MIN_FIT = 20
"""Events, and rows without the event, that a group needs among validation rows for a rule of its own."""


@dataclass(frozen=True)
class GroupRule:
    """The rule of one group: the event is predicted where sigma(slope * log-odds + intercept) reaches the threshold.

    Attributes:
        threshold: The decision threshold.
        slope: Slope of the recalibration.
        intercept: Intercept of the recalibration.
        changed: The group has a rule of its own.
    """

    threshold: float
    slope: float = 1.0
    intercept: float = 0.0
    changed: bool = False

    def recalibrate(self, log_odds: Floats) -> Floats:
        """Return recalibrated log-odds."""
        return self.slope * log_odds + self.intercept

    @property
    def original_threshold(self) -> float:
        """The threshold on the probability before recalibration that gives the same decisions."""
        if self.slope == 1.0 and self.intercept == 0.0:
            return self.threshold
        z = (np.log(self.threshold) - np.log1p(-self.threshold) - self.intercept) / self.slope
        return float(0.5 + 0.5 * np.tanh(0.5 * z))

    def to_dict(self, kind: str) -> dict[str, float | bool]:
        own: dict[str, float | bool] = {"threshold": self.threshold}
        if kind == RECALIBRATION:
            own = {"slope": self.slope, "intercept": self.intercept}
        return {**own, "changed": self.changed}


def fit_rules(tally: Tally, kind: str, threshold: float) -> list[GroupRule]:
    """Fit the rule of each group to the validation rows of all sites.

    `thresholds` equalises sensitivity: each group's threshold finds the share of events which the common threshold finds over
    all groups. `recalibration` fits a logistic regression on the log-odds: one slope, and an
    intercept for each group. Both are shrunk towards the common rule as far as sampling error explains the differences.

    Args:
        tally: Tallies of G groups on validation rows, (G,), of two classes.
        kind: "thresholds" or "recalibration".
        threshold: The common threshold.

    Returns:
        One rule for each group; a group with fewer than `MIN_FIT` events, or rows without, has the common one. Nothing is
        changed where fewer than two groups have enough: one group alone cannot be made equal to another.
    """
    negatives, positives = np.moveaxis(np.asarray(tally.histogram[:, 0], float), 1, 0)
    able = [g for g in range(len(negatives)) if min(negatives[g].sum(), positives[g].sum()) >= MIN_FIT]
    if len(able) < 2:
        return [GroupRule(threshold) for _ in negatives]
    if kind == RECALIBRATION:
        return _shrunken_lines(negatives, positives, able, threshold)
    _, caught = OccupiedBins.from_histogram(tally.histogram[:, 0]).count_at_least(threshold)
    target = float(np.clip(caught.sum() / positives.sum(), 0.01, 0.99))
    common = _log_odds(threshold)
    shift = np.array([_log_odds(threshold_for_sensitivity(positives[g], target)) - common for g in able])
    error = np.array([_threshold_error(positives[g], target) for g in able])
    own = dict(zip(able, (common + _shrink(shift, error)).tolist(), strict=True))
    return [
        GroupRule(_on_grid(own[g]), changed=True) if g in own else GroupRule(threshold) for g in range(len(negatives))
    ]


def _log_odds(probability: float) -> float:
    return float(np.log(probability) - np.log1p(-probability))


def _on_grid(log_odds: float) -> float:
    """Return the probability at the edge of the grid nearest to these log-odds, at which counts are exact."""
    edge = round(grid_position(float(0.5 + 0.5 * np.tanh(0.5 * log_odds))))
    return edge_probability(min(max(edge, 1), BINS - 1))


def _threshold_error(positive: Floats, target: float) -> float:
    """Return the standard error of a threshold for this sensitivity: that of a quantile of the events' log-odds."""
    z, n = bin_centres(), positive.sum()
    mean = float((positive * z).sum() / n)
    deviation = float(np.sqrt((positive * (z - mean) ** 2).sum() / n))
    normal = NormalDist()
    density = normal.pdf(normal.inv_cdf(target)) / max(deviation, 1e-6)
    return float(np.sqrt(target * (1 - target) / n)) / density


def _shrink(shift: Floats, error: Floats) -> Floats:
    """Shrink the groups' differences from the common rule by DerSimonian and Laird's variance between groups."""
    weight = 1 / error**2
    mean = float((weight * shift).sum() / weight.sum())
    q = float((weight * (shift - mean) ** 2).sum())
    spread = max(0.0, (q - len(shift) + 1) / float(weight.sum() - (weight**2).sum() / weight.sum()))
    shrunk: Floats = shift * spread / (spread + error**2)
    return shrunk


def threshold_for_sensitivity(positive: Floats, target: float) -> float:
    """Choose the threshold that finds at least this share of the events, counted by bin (BINS,).

    Among the thresholds that find as few events as allowed, the middle one is chosen: the ends lie at single patients.
    """
    found = np.concatenate([np.cumsum(positive[::-1])[::-1], [0.0]])  # events at or above each edge
    needed = target * positive.sum() - 1e-9
    least = found[found >= needed].min()
    edges = np.flatnonzero(found == least)
    middle = int(edges[len(edges) // 2])
    return edge_probability(min(max(middle, 1), BINS - 1))


def _shrunken_lines(negatives: Floats, positives: Floats, able: Sequence[int], threshold: float) -> list[GroupRule]:
    """Fit one slope to all groups and an intercept to each, shrunk towards the common one by its sampling error."""
    slope, common, _ = fit_line(negatives.sum(axis=0), positives.sum(axis=0))
    if not slope > 0:
        return [GroupRule(threshold) for _ in negatives]
    fits = [fit_line(negatives[g], positives[g], slope) for g in able]
    shift, error = np.array([b - common for _, b, _ in fits]), np.array([e for *_, e in fits])
    own = dict(zip(able, _shrink(shift, error).tolist(), strict=True))
    return [GroupRule(threshold, slope, common + own.get(g, 0.0), changed=g in own) for g in range(len(negatives))]


def fit_line(negative: Floats, positive: Floats, slope: float | None = None) -> tuple[float, float, float]:
    """Fit a logistic regression of the event on the log-odds, rows counted by bin (BINS,).

    Args:
        negative: Rows without the event.
        positive: Rows with it.
        slope: A slope that is given; the intercept alone is fitted.

    Returns:
        Slope, intercept and the standard error of the intercept at this slope; a slope of 0 where there is no fit.
    """
    used = (negative + positive) > 0
    z, events, rows = bin_centres()[used], positive[used], (negative + positive)[used]
    a, b, free = 1.0 if slope is None else slope, 0.0, slope is None
    for _ in range(100):
        p = 0.5 + 0.5 * np.tanh(0.5 * (a * z + b))
        left, v = events - rows * p, rows * p * (1 - p)
        if free:
            matrix = np.array([[(v * z * z).sum(), (v * z).sum()], [(v * z).sum(), v.sum()]])
            step = np.linalg.solve(matrix + 1e-9 * np.eye(2), [(left * z).sum(), left.sum()])
        else:
            step = np.array([0.0, left.sum() / max(v.sum(), 1e-9)])
        step = np.clip(step, -2.0, 2.0)
        a, b = a + float(step[0]), b + float(step[1])
        if np.abs(step).max() < 1e-9 and a > 0:
            return a, b, float(1 / np.sqrt(v.sum()))
    return 0.0, 0.0, float("inf")


def measure(tally: Tally, rules: Sequence[GroupRule], threshold: float) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Measure the decisions and probabilities that rules give, on test rows.

    Args:
        tally: Tallies of G groups, (G,), of two classes.
        rules: The rule of each group.
        threshold: The common threshold, whose odds weigh false alarms in the net benefit.

    Returns:
        Figures of each group, and of all rows together.
    """
    bins = OccupiedBins.from_histogram(tally.histogram[:, 0])
    sums = np.zeros((len(rules), 7))  # rows, events, caught, false alarms, expected, squared errors, log losses
    scores = np.empty(len(bins.cell))
    for g, rule in enumerate(rules):
        mine = bins.cell == g
        z = scores[mine] = rule.recalibrate(bins.scores[mine])
        p, positive, negative = 0.5 + 0.5 * np.tanh(0.5 * z), bins.positive[mine], bins.negative[mine]
        false_alarms, caught = (side[g] for side in bins.count_at_least(rule.original_threshold))
        brier = (positive * (1 - p) ** 2 + negative * p**2).sum()
        loss = (positive * np.logaddexp(0, -z) + negative * np.logaddexp(0, z)).sum()
        events, rows = positive.sum(), positive.sum() + negative.sum()
        sums[g] = rows, events, caught, false_alarms, ((positive + negative) * p).sum(), brier, loss
    each = [_figures(line, threshold) for line in sums]
    overall = _figures(sums.sum(axis=0), threshold)
    overall["auroc"] = _area(bins, scores) if len(scores) else float("nan")
    return each, overall


def _area(bins: OccupiedBins, scores: Floats) -> float:
    """Compute the AUROC of all rows by recalibrated scores (m,) of their bins."""
    order = np.argsort(scores, kind="stable")
    column = np.cumsum(np.concatenate([[0], np.diff(scores[order]) > 0]))
    cells = int(column[-1]) + 1
    kinds = [sum_by_cell(column, kind[order], cells=cells) for kind in (bins.negative, bins.positive)]
    one = OccupiedBins(
        np.zeros(len(kinds[0]), np.int64), np.arange(len(kinds[0])), kinds[0], kinds[1],
        np.array([kinds[0].sum()]), np.array([kinds[1].sum()]),
    )  # fmt: skip
    return float(roc_area(one)[0])


def _figures(sums: Floats, threshold: float) -> dict[str, float]:
    """Compute figures from the sums over rows of `measure`."""
    rows, events, caught, false_alarms, expected, brier, loss = (float(v) for v in sums)
    others, alerts = rows - events, caught + false_alarms
    odds = threshold / (1 - threshold)
    pairs = {
        "sensitivity": (caught, events),
        "specificity": (others - false_alarms, others),
        "ppv": (caught, alerts),
        "alert_rate": (alerts, rows),
        "accuracy": (caught + others - false_alarms, rows),
        "calibration": (events - expected, rows),
        "brier": (brier, rows),
        "log_loss": (loss, rows),
        "net_benefit": (caught - odds * false_alarms, rows),
    }
    return {name: top / bottom if bottom else float("nan") for name, (top, bottom) in pairs.items()}


def mitigate(
    kind: str,
    column: str,
    names: Sequence[str],
    val: Tally,
    test: Tally,
    hidden: Sequence[Hidden],
    *,
    threshold: float,
    least: int,
) -> tuple[dict[str, Any], list[GroupRule]]:
    """Fit a mitigation to validation rows and measure its cost on test rows.

    Args:
        kind: "thresholds" or "recalibration".
        column: The column of the groups.
        names: The names of its G groups.
        val: Their tallies on validation rows.
        test: Their tallies on test rows.
        hidden: The groups that are hidden on test rows.
        threshold: The common threshold.
        least: The smallest count that is shown.

    Returns:
        The part `mitigation` of `fairness` in summary.json, and the rule of each group.
    """
    rules = fit_rules(val, kind, threshold)
    common = [GroupRule(threshold)] * len(rules)
    (before, all_before), (after, all_after) = (measure(test, r, threshold) for r in (common, rules))
    groups: dict[str, Any] = {}
    rows = test.count
    for g, (name, rule) in enumerate(zip(names, rules, strict=True)):
        if not rows[g]:
            continue
        if hidden[g].rows or hidden[g].events:
            groups[name] = {**rule.to_dict(kind), "hidden": f"<{least}" if hidden[g].small else "hidden"}
        else:
            groups[name] = {**rule.to_dict(kind), "before": before[g], "after": after[g]}
    measured = "sensitivity" if kind == THRESHOLDS else "calibration"
    events = test.histogram[:, 0, 1].sum(axis=-1)
    judged = [g for g in range(len(names)) if min(events[g], rows[g] - events[g]) >= MIN_CASES]
    shown = [g for g in judged if "before" in groups.get(names[g], ())]
    gaps = [float(np.ptp([figures[g][measured] for g in shown])) if shown else float("nan") for figures in (before, after)]
    record = {
        "kind": kind,
        "column": column,
        "threshold": threshold,
        "groups": groups,
        "overall": {"before": all_before, "after": all_after},
        "largest_gap": {"metric": measured, "before": gaps[0], "after": gaps[1]},
    }
    return record, rules
