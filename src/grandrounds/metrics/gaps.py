"""Gaps between groups of patients: each group against the largest, with 95% intervals and Holm's correction.

Shares are compared as Agresti and Caffo do (one hit and one miss are added to each group). AUROCs of two groups are independent,
so DeLong's variances add. Means over rows are compared by their standard errors. All use Student's t with Welch's degrees of
freedom, counted by the rarer kind of row: normal intervals of few events are too short, and the correction for many comparisons
looks at their tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from grandrounds.metrics.classification import Z_95, roc_area
from grandrounds.metrics.groups import GroupScores, Hidden, mean_error
from grandrounds.metrics.outcomes import OutcomeTally
from grandrounds.metrics.statistics import holm

GAP_METRICS = ("sensitivity", "ppv", "calibration", "auroc")
"""Figures in which groups are compared; of predicted numbers and counts it is the mean error."""

MIN_CASES = 10
"""Rows that a figure must rest on in both groups: events for sensitivity, alerts for PPV, events and others for AUROC."""

FEW_CASES = 100
"""Events (or others) below which DeLong's error of an AUROC is at least Hanley and McNeil's at the common AUROC of both groups:
a group of few events that is ranked well by chance has too small an error of its own."""

LEVEL = 0.05


@dataclass(frozen=True)
class Gap:
    """One group against the largest group of the same column, in one figure.

    Attributes:
        column: The column.
        group: The group.
        reference: The largest group of the column.
        metric: The figure.
        difference: Its value in the group less that in the reference group.
        low: Lower end of the 95% interval.
        high: Upper end.
        p: Two-sided p-value of this one comparison.
        p_holm: The p-value corrected for all comparisons of the run.
        excludes_zero: The 95% interval excludes zero.
        flagged: The gap is clear after the correction.
    """

    column: str
    group: str
    reference: str
    metric: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float = 1.0
    excludes_zero: bool = False
    flagged: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_gaps(
    column: str, names: Sequence[str], scores: GroupScores | OutcomeTally, hidden: Sequence[Hidden], *, skip: Sequence[str] = ()
) -> tuple[list[Gap], str, int]:
    """Compare every group of a column with the largest one.

    Args:
        column: The column.
        names: The names of its G groups.
        scores: Their scores, or their tallies of numbers or counts.
        hidden: The groups that are hidden, which are not compared.
        skip: Groups that are no group of patients, such as "missing".

    Returns:
        The gaps before correction, the reference group ("" if no group can be one), and the number of comparisons for which the
        groups have too few rows.
    """
    rows = np.asarray(scores.rows if isinstance(scores, GroupScores) else scores.count, float)
    able = [g for g, n in enumerate(rows) if n > 0 and not hidden[g].events and not hidden[g].rows and names[g] not in skip]
    if not able:
        return [], "", 0
    r = max(able, key=lambda g: (rows[g], -g))
    metrics = GAP_METRICS if isinstance(scores, GroupScores) else ("mean_error",)
    gaps, few = [], 0
    for g in (g for g in able if g != r):
        for metric in metrics:
            found = _difference(scores, metric, g, r)
            if found is None:
                few += 1
                continue
            shown, centre, error, freedom = found
            p = two_sided_p(centre / error, freedom) if error > 0 else 1.0
            half = t_quantile(freedom) * error
            clear = error > 0 and abs(centre) > half
            gaps.append(Gap(column, names[g], names[r], metric, shown, centre - half, centre + half, p, excludes_zero=clear))
    return gaps, names[r], few


def correct_by_holm(gaps: Sequence[Gap]) -> list[Gap]:
    """Correct the p-values of all comparisons by Holm's method, and flag the gaps that are still below 5%.

    Args:
        gaps: All gaps of a run.

    Returns:
        The same gaps in the same order, with `p_holm` and `flagged`.
    """
    corrected = holm([gap.p for gap in gaps])
    return [
        replace(gap, p_holm=p, flagged=p < LEVEL and gap.excludes_zero) for gap, p in zip(gaps, corrected, strict=True)
    ]


def hanley_mcneil_error(area: float, positives: Any, negatives: Any) -> Any:
    """Return the standard error of an AUROC of this value (Hanley and McNeil 1982), for each group."""
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (positives - 1) * (first - area**2) + (negatives - 1) * (second - area**2)
    return np.sqrt(np.maximum(spread, 0.0) / np.maximum(positives * negatives, 1.0))


def two_sided_p(t: float, freedom: float) -> float:
    """Return the two-sided p-value of Student's t, by Wallace's approximation (1959), which is within 0.001 from 3 degrees on."""
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return math.erfc(z / math.sqrt(2))


def t_quantile(freedom: float) -> float:
    """Return the 97.5% quantile of Student's t, the inverse of `two_sided_p` at 5%."""
    if math.isinf(freedom):
        return Z_95
    z = Z_95 * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


Difference = tuple[float, float, float, float]
"""The difference of two groups, the centre of its interval, its standard error and degrees of freedom."""


def _difference(scores: GroupScores | OutcomeTally, metric: str, g: int, r: int) -> Difference | None:
    """Compare two groups in one figure; None with too few rows."""
    pair = [g, r]
    if not isinstance(scores, GroupScores):
        count = np.asarray(scores.count, float)
        return _of_means(*mean_error(scores), count, g, r) if count[pair].min() >= MIN_CASES else None
    rarer = np.minimum(scores.bins.positives, scores.bins.negatives)
    if metric in ("sensitivity", "ppv"):
        counted, of = scores.share_of(metric)
        if of[pair].min() < MIN_CASES:
            return None
        shares = (counted + 1) / (of + 2)
        found = _of_means(shares, np.sqrt(shares * (1 - shares) / (of + 2)), of + 2, g, r)
        return None if found is None else (float(counted[g] / of[g] - counted[r] / of[r]), *found[1:])
    if rarer[pair].min() < MIN_CASES:
        return None
    if metric == "auroc":
        area, common = roc_area(scores.bins), float(np.average(roc_area(scores.bins)[pair], weights=rarer[pair]))
        floor = hanley_mcneil_error(common, scores.bins.positives, scores.bins.negatives)
        errors = np.where(rarer < FEW_CASES, np.maximum(scores.auroc_error, floor), scores.auroc_error)
        return _of_means(area, errors, rarer, g, r)
    return _of_means(*scores.mean_of(metric), rarer, g, r)


def _of_means(value: Any, error: Any, cases: Any, g: int, r: int) -> Difference | None:
    """Compare two independent figures; None where one is not defined."""
    difference, spread = float(value[g] - value[r]), float(np.hypot(error[g], error[r]))
    if not np.isfinite([difference, spread]).all():
        return None
    parts = [(float(error[k]) ** 4, float(cases[k]) - 1) for k in (g, r)]
    freedom = spread**4 / sum(a / n for a, n in parts) if spread > 0 else math.inf
    return difference, difference, spread, freedom
