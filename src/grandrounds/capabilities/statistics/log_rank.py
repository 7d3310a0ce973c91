"""Log-rank test of any number of groups, stratified by site (kind `logrank.sites`).

Each site sends observed less expected events of each group and their covariance. No time leaves the site,
and hospitals with different survival do not disturb the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows
from grandrounds.capabilities.statistics.small_cells import hide_groups
from grandrounds.capabilities.statistics.time_counts import TimeCounts, count_times, survival_outcome
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput


@dataclass(frozen=True)
class LogRank:
    """Result of a log-rank test.

    Attributes:
        groups: Names of the groups.
        observed: Events of each group; None where they are too few to be shown, and for a second group beside a single one.
        expected: Events that each group would have if all groups had the same survival.
        statistic: Chi-squared statistic.
        degrees: Degrees of freedom: groups with rows at risk, less one.
        p: p-value.
    """

    groups: tuple[str, ...]
    observed: tuple[float | None, ...]
    expected: tuple[float, ...]
    statistic: float
    degrees: int
    p: float

    def to_dict(self) -> dict[str, Any]:
        """Return the test as JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LogRank:
        """Read what `to_dict` wrote."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**fields)


def answer_log_rank(question: Question, rows: Rows) -> Blocks:
    """Compare groups within one site: observed and expected events, and the covariance of their difference."""
    time, event = survival_outcome(rows)
    groups = int(str(question.values["groups"]))
    if rows.group is None:
        raise BadInput("the log-rank test compares groups, and the rows have none: name --group", code="missing-group")
    ends = np.unique(time)
    found = count_times(time, event, np.asarray(rows.group, int), ends, groups)
    empty = np.zeros(groups)
    counts = TimeCounts(ends, found["events"][:, :-1], found["censored"][:, :-1], empty)
    observed, expected, covariance = score_groups(counts)
    return {"observed": observed, "expected": expected, "covariance": covariance}


def compare_within_sites(groups: Sequence[str], *, least: int = 1) -> Fit[LogRank]:
    """Test that groups have the same survival, stratified by site. One exchange.

    Args:
        groups: Names of the groups of `Rows.group`, in order of their numbers.
        least: Fewest events of a group that are shown.

    Returns:
        The test.

    Raises:
        BadInput: Fewer than two groups.
    """
    _check_groups(groups)
    g = len(groups)
    total = yield Question(
        "logrank.sites",
        {"groups": g},
        {"observed": (g,), "expected": (g,), "covariance": (g, g)},
        step="log-rank test within sites",
    )
    return _test(groups, total["observed"], total["expected"], total["covariance"], least=least)


def score_groups(counts: TimeCounts) -> tuple[Array, Array, Array]:
    """Return observed events, expected events and the covariance of their difference: (g,), (g,), (g, g).

    At each time d events fall on n rows at risk, n_g of them in group g: expected d n_g / n, covariance
    d (n - d) / (n - 1) (n_g / n) (1[g = h] - n_h / n).
    """
    at_risk = counts.at_risk
    n, died = at_risk.sum(0), counts.events.sum(0)
    used = (died > 0) & (n > 0)
    share = at_risk[:, used] / n[used]
    expected = (share * died[used]).sum(1)
    factor = died[used] * (n[used] - died[used]) / np.maximum(n[used] - 1, 1)
    covariance = np.diag((share * factor).sum(1)) - (share * factor) @ share.T
    return counts.events.sum(1), expected, covariance


def _test(
    groups: Sequence[str],
    observed: Array,
    expected: Array,
    covariance: Array,
    *,
    least: int,
) -> LogRank:
    from scipy import special

    used = np.flatnonzero(expected > 0)
    degrees = max(len(used) - 1, 0)
    difference, v = (observed - expected)[used[:-1]], covariance[np.ix_(used[:-1], used[:-1])]
    statistic = float(difference @ np.linalg.pinv(v, hermitian=True) @ difference) if degrees else 0.0
    p = float(special.chdtrc(degrees, statistic)) if degrees else 1.0
    events = np.rint(observed)
    hidden = hide_groups(events, least=least)
    return LogRank(
        tuple(groups),
        tuple(None if out else float(d) for d, out in zip(events, hidden, strict=True)),
        tuple(map(float, expected)),
        statistic,
        degrees,
        p,
    )


def _check_groups(groups: Sequence[str]) -> None:
    if len(groups) < 2:
        raise BadInput(f"the log-rank test compares two or more groups, not {len(groups)}", code="missing-group")
