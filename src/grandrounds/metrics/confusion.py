"""Decisions at one threshold: counts of two classes, shares with 95% intervals, net benefit and gain over the majority class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.metrics.classification import Z_95
from grandrounds.metrics.fairness import decision_metric, is_defined
from grandrounds.metrics.statistics import share_interval


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval; the ends are None where there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

    def excludes(self, value: float) -> bool:
        """Tell whether the interval lies on one side of a value."""
        return self.low is not None and self.high is not None and (self.low > value or self.high < value)


@dataclass(frozen=True)
class Decisions:
    """Rows by outcome and decision at a threshold on the risk. Counts of merged cells may be fractions.

    Attributes:
        threshold: The risk from which on a patient is called positive.
        caught: Rows with the event that were called positive (true positives).
        missed: Rows with the event that were not (false negatives).
        false_alarms: Rows without the event that were called positive.
        spared: Rows without the event that were not (true negatives).
        hospitals: Decisions at each hospital, where these are the sum of several: each has its own best rule without a model.
    """

    threshold: float
    caught: float
    missed: float
    false_alarms: float
    spared: float
    hospitals: tuple[Decisions, ...] = ()

    @property
    def events(self) -> float:
        return self.caught + self.missed

    @property
    def others(self) -> float:
        return self.false_alarms + self.spared

    @property
    def rows(self) -> float:
        return self.events + self.others

    @property
    def alerts(self) -> float:
        return self.caught + self.false_alarms

    @property
    def sensitivity(self) -> Estimate | None:
        """Share of the rows with the event that were called positive, with Wilson's interval."""
        return _share(self.caught, self.events)

    @property
    def specificity(self) -> Estimate | None:
        """Share of the rows without the event that were not called positive, with Wilson's interval."""
        return _share(self.spared, self.others)

    @property
    def ppv(self) -> Estimate | None:
        """Share of the rows called positive that have the event, with Wilson's interval."""
        return _share(self.caught, self.alerts)

    @property
    def npv(self) -> Estimate | None:
        """Share of the rows not called positive that have no event, with Wilson's interval."""
        return _share(self.spared, self.spared + self.missed)

    @property
    def alerts_per_100(self) -> Estimate | None:
        """Rows called positive among 100 patients, with Wilson's interval."""
        found = _share(self.alerts, self.rows)
        return (
            None if found is None else Estimate(100 * found.value, 100 * (found.low or 0.0), 100 * (found.high or 0.0))
        )

    @property
    def accuracy(self) -> Estimate | None:
        """Share of the decisions that are right, with Wilson's interval."""
        return _share(self.caught + self.spared, self.rows)

    @property
    def odds(self) -> float | None:
        """Odds of the threshold: false alarms that are worth one patient found; None at a threshold of 0 or 1."""
        return self.threshold / (1 - self.threshold) if 0 < self.threshold < 1 else None

    @property
    def net_benefit(self) -> Estimate | None:
        """True positives less false positives at the odds of the threshold, per patient (Vickers and Elkin 2006)."""
        odds = self.odds
        return None if odds is None else subtract_shares(self.caught, self.false_alarms, self.rows, second_weight=odds)

    @property
    def default_benefit(self) -> float | None:
        """Net benefit of the better of two rules without a model: treat everyone, or nobody (0); by hospital where known."""
        if self.odds is None or not self.rows:
            return None
        if self.hospitals:
            return sum(each.rows * (each.default_benefit or 0.0) for each in self.hospitals) / self.rows
        return max(0.0, (self.events - self.odds * self.others) / self.rows)

    @property
    def benefit_gain(self) -> Estimate | None:
        """Net benefit less that of the better rule without a model. At a threshold of 0.5 it equals `gain`."""
        odds, default = self.odds, self.default_benefit
        if odds is None or default is None:
            return None
        if self.hospitals:
            treated = [each for each in self.hospitals if each.default_benefit]
            rest = [each for each in self.hospitals if not each.default_benefit]
            return _add_gains([(d.rows, d.benefit_gain) for d in map(_add_decisions, (treated, rest)) if d is not None])
        if default > 0:  # against treating everyone: patients who are spared count, missed ones cost
            return subtract_shares(self.spared, self.missed, self.rows, first_weight=odds)
        return self.net_benefit

    @property
    def gain(self) -> Estimate | None:
        """Accuracy of the decisions less the share of the most common class, of each hospital where they are known.

        Both are of the same rows: the model and the constant answer differ in the rows of the rarer class that the model gets
        right, and in the rows of the common class that it gets wrong.
        """
        if self.hospitals:
            events = [each for each in self.hospitals if each.events > each.others]
            others = [each for each in self.hospitals if each.events <= each.others]
            return _add_gains([(d.rows, d.gain) for d in map(_add_decisions, (events, others)) if d is not None])
        if self.others >= self.events:
            return subtract_shares(self.caught, self.false_alarms, self.rows)
        return subtract_shares(self.spared, self.missed, self.rows)


def _add_decisions(hospitals: Sequence[Decisions]) -> Decisions | None:
    """Add up the decisions of hospitals where the same rule without a model is best; None of no hospital."""
    if not hospitals:
        return None
    counts = [(d.caught, d.missed, d.false_alarms, d.spared) for d in hospitals]
    return Decisions(hospitals[0].threshold, *(sum(column) for column in zip(*counts, strict=True)))


def _add_gains(parts: Sequence[tuple[float, Estimate | None]]) -> Estimate | None:
    """Compute the mean gain by rows of patients who are in one part each, with its 95% interval (Zou and Donner 2008)."""
    known = [(rows, each) for rows, each in parts if each is not None and each.low is not None and each.high is not None]
    total = sum(rows for rows, _ in known)
    if not total:
        return None
    gap = sum(rows * each.value for rows, each in known) / total
    below = math.hypot(*(rows * (each.value - (each.low or 0.0)) for rows, each in known)) / total
    above = math.hypot(*(rows * ((each.high or 0.0) - each.value) for rows, each in known)) / total
    return Estimate(gap, gap - below, gap + above)


def _share(count: float, rows: float) -> Estimate | None:
    """Compute a share with Wilson's interval; None of no rows."""
    return Estimate(count / rows, *share_interval(count / rows, rows)) if rows > 0 else None


def subtract_shares(
    first: float, second: float, rows: float, *, first_weight: float = 1.0, second_weight: float = 1.0
) -> Estimate | None:
    """Compute the weighted difference of two shares of the same rows with its 95% interval (Zou and Donner 2008).

    No row counts for both shares, so they are negatively correlated. The interval combines Wilson's intervals of both.

    Args:
        first: Rows of the first share.
        second: Rows of the second share.
        rows: All rows.
        first_weight: Weight of the first share.
        second_weight: Weight of the second share.

    Returns:
        The difference; None without rows.
    """
    if rows <= 0:
        return None
    p, q = first / rows, second / rows
    (p_low, p_high), (q_low, q_high) = share_interval(p, rows), share_interval(q, rows)
    inside = p * q * (1 - p) * (1 - q)
    correlation = -p * q / math.sqrt(inside) if inside > 0 else 0.0

    def spread(a: float, b: float) -> float:
        a, b = first_weight * a, second_weight * b
        return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))

    gap = first_weight * p - second_weight * q
    low, high = gap - spread(p - p_low, q_high - q), gap + spread(p_high - p, q - q_low)
    return Estimate(gap, max(-second_weight, low), min(first_weight, high))


def compare_unpaired(share: float, other: float, rows: float) -> Estimate:
    """Compute the difference of two shares with Newcombe's 95% interval as if they were of different rows: it is wide."""
    low, high = share_interval(share, rows)
    other_low, other_high = share_interval(other, rows)
    gap = share - other
    below, above = math.hypot(share - low, other_high - other), math.hypot(high - share, other - other_low)
    return Estimate(gap, max(-1.0, gap - below), min(1.0, gap + above))


def read_decisions(figures: Mapping[str, Any], threshold: float) -> Decisions | None:
    """Read the counts of decisions from the scores of a site, a subgroup or all rows.

    Args:
        figures: `count`, `events`, `sensitivity` and `specificity` are read.
        threshold: The threshold of these scores.

    Returns:
        The counts; None without rows, or with three classes or more.
    """
    count, events = figures.get("count"), figures.get("events")
    if not is_defined(count) or not is_defined(events) or not count or events is None:
        return None
    others = count - events
    sensitivity, specificity = figures.get("sensitivity"), figures.get("specificity")
    if (events and not is_defined(sensitivity)) or (others and not is_defined(specificity)):
        return None
    caught = round(events * sensitivity) if events and sensitivity is not None else 0
    spared = round(others * specificity) if others and specificity is not None else 0
    return Decisions(threshold, caught, round(events) - caught, round(others) - spared, spared)


def majority_gain(figures: Mapping[str, Any], threshold: float) -> Estimate | None:
    """Compute the gain of the decisions over the majority class from the scores of a site or of all rows.

    With three classes or more the rows in which both are right are not known, and the interval is that of two samples.

    Args:
        figures: The scores.
        threshold: The threshold of these scores.

    Returns:
        Accuracy of the decisions less the share of the most common class; None where one of them is not known.
    """
    decisions = read_decisions(figures, threshold)
    if decisions is not None:
        return decisions.gain
    right, majority, count = decision_metric("accuracy", figures), figures.get("majority"), figures.get("count")
    if right is None or not is_defined(majority) or not is_defined(count) or not count:
        return None
    return compare_unpaired(right, float(majority or 0.0), float(count))


def observed_to_expected(events: float, expected: float, rows: float) -> Estimate | None:
    """Compute the ratio of observed to expected events with its 95% interval on the log scale (Debray and others 2017).

    1 is ideal; above 1 the model underestimates the risk.

    Args:
        events: Rows with the event.
        expected: Sum of the predicted risks.
        rows: All rows.

    Returns:
        The ratio; None without events, or where every row has the event: then there is no interval.
    """
    if events <= 0 or expected <= 0 or rows <= 0:
        return None
    value, error = events / expected, math.sqrt(max(0.0, 1 - events / rows) / events)
    return Estimate(value, value * math.exp(-Z_95 * error), value * math.exp(Z_95 * error))
