"""Brier score with censoring weights, and calibration at a horizon, from sums.

- `fit_baseline` (kind `hazard.time`): cumulative baseline hazard of given scores, constant within intervals of at least `least`
  events. Each site sends w = exp(score), summed over the share of each interval that its rows were at risk.
- `CensoringCurve`: Kaplan-Meier curve of censoring, G, from counts that add, on intervals of at least 10 censored rows. The
  server sends it to sites.
- `fit_brier` (kind `brier`): each site sends two numbers for each horizon t: the sum of
  [event by t] S^2 / G(T-) + [alive at t] (1 - S)^2 / G(t) (Graf et al. 1999), for the model's S(t | x) and for one S(t) for all.
- `fit_calibration` (kind `calibration.time`): predicted risk against the Kaplan-Meier estimate, by tenth of predicted risk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.concordance import ScoreHistogram, compute_scores
from grandrounds.capabilities.statistics.kaplan_meier import log_log_interval, product_limit
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows
from grandrounds.capabilities.statistics.time_counts import (
    LEAST,
    Grid,
    TimeCounts,
    count_times,
    merge_cells,
    survival_outcome,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

LEAST_CENSORED = 10
"""Least number of censored rows in an interval of the censoring curve."""

_CALIBRATION_CELLS = 16


@dataclass(frozen=True)
class Baseline:
    """Cumulative baseline hazard of a risk score: S(t | x) = exp(-hazard(t) exp(score)).

    Attributes:
        times: Ends of intervals; straight lines in between, from 0 at time 0.
        hazard: Cumulative hazard at these times.
    """

    times: tuple[float, ...]
    hazard: tuple[float, ...]

    def at(self, times: Array) -> Array:
        """Return the cumulative hazard at times, none of which is later than the last interval."""
        return np.asarray(np.interp(times, [0.0, *self.times], [0.0, *self.hazard]))

    def to_dict(self) -> dict[str, Any]:
        """Return the baseline as JSON values."""
        return {"times": list(self.times), "hazard": list(self.hazard)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Baseline:
        """Read what `to_dict` wrote."""
        return cls(tuple(values["times"]), tuple(values["hazard"]))


@dataclass(frozen=True, eq=False)
class CensoringCurve:
    """Probability G(t) of not being censored by a time.

    Attributes:
        grid: "bins": straight lines between ends of intervals. "days": a step after each day.
        times: (m,).
        values: (m,) G at each time.
        last: Latest time at which G is known.
    """

    grid: Grid
    times: Array
    values: Array
    last: float

    @classmethod
    def estimate(
        cls, counts: TimeCounts, *, grid: Grid, least: int = LEAST_CENSORED, horizons: Sequence[float] = ()
    ) -> CensoringCurve:
        """Estimate the curve from counts of one group; events of a day leave before those censored on it.

        Args:
            counts: By cell, or by day.
            grid: "bins" or "days".
            least: Least number of censored rows in an interval of "bins".
            horizons: Further times at which "bins" has a point.

        Returns:
            The curve; 1 throughout where fewer than `least` rows are censored.
        """
        at_risk, died, left = counts.at_risk[0], counts.events[0], counts.censored[0]
        exposed = at_risk - (died / 2 if grid == "bins" else died)
        curve = np.cumprod(1 - np.divide(left, exposed, out=np.zeros_like(left), where=exposed > 0))
        if grid == "days":
            return cls(grid, counts.ends, curve, float(counts.ends[-1]))
        ends = merge_cells(counts, least, of="censored").ends
        if not len(ends):
            return cls(grid, counts.ends[-1:], np.ones(1), float(counts.ends[-1]))
        # an interval falls from the start of its first cell with a censored row on
        starts = np.append(0.0, counts.ends[:-1])[left > 0]
        falls = starts[np.searchsorted(starts, np.append(0.0, ends[:-1]))]
        inner = np.asarray(horizons, np.float64)
        times = np.unique(np.concatenate([falls[falls > 0], ends, inner[inner < ends[-1]]]))
        values = np.interp(times, np.append(0.0, counts.ends), np.append(1.0, curve))
        return cls(grid, times, values, float(ends[-1]))

    def at(self, times: Array, *, before: bool = False) -> Array:
        """Return G at times, or just before them."""
        if self.grid == "bins":
            return np.asarray(np.interp(times, np.append(0.0, self.times), np.append(1.0, self.values)))
        place = np.searchsorted(self.times, times, side="left" if before else "right")
        return np.asarray(np.append(1.0, self.values)[place])


@dataclass(frozen=True)
class BrierScores:
    """Brier scores by horizon.

    Attributes:
        horizons: Times.
        model: Score of the model at each.
        null: Score of one survival curve for all rows at each.
        integrated: Integrated Brier score of the model: the mean over the range of horizons; None with one horizon.
        integrated_null: The same of one survival curve for all rows.
    """

    horizons: tuple[float, ...]
    model: tuple[float, ...]
    null: tuple[float, ...]
    integrated: float | None
    integrated_null: float | None


@dataclass(frozen=True)
class CalibrationGroup:
    """Rows of neighbouring predicted risk.

    Attributes:
        rows: Number of rows.
        predicted: Mean predicted risk of the event by the horizon.
        observed: Observed risk by then (1 - Kaplan-Meier).
        low: Lower end of its 95% interval.
        high: Upper end.
    """

    rows: int
    predicted: float
    observed: float
    low: float
    high: float


def answer_hazard(question: Question, rows: Rows) -> Blocks:
    """Count a site's events by interval, and sum the weights of its rows over the share of each interval at risk."""
    time, event = survival_outcome(rows)
    ends = np.asarray(question.values["ends"], np.float64)
    starts = np.append(0.0, ends[:-1])
    share = np.clip((time[:, None] - starts) / (ends - starts), 0.0, 1.0)
    counts = count_times(time, event, np.zeros(len(time), int), ends, 1)
    return {"events": counts["events"][0, :-1], "exposure": np.exp(compute_scores(question, rows)) @ share}


def answer_brier(question: Question, rows: Rows) -> Blocks:
    """Sum a site's weighted squared errors at each horizon, for the model and for one curve for all rows."""
    time, event = survival_outcome(rows)
    values = question.values
    horizons = np.asarray(values["horizons"], np.float64)
    censoring = CensoringCurve(
        "days" if values["grid"] == "days" else "bins",
        np.asarray(values["times"], np.float64),
        np.asarray(values["weights"], np.float64),
        float(horizons[-1]),
    )
    survival = _predict(compute_scores(question, rows), np.asarray(values["hazard"], np.float64))
    died = (event[:, None] == 1) & (time[:, None] <= horizons)
    alive = time[:, None] > horizons
    at_death = np.where(died, censoring.at(time, before=True)[:, None], 1.0)

    def add_up(s: Array) -> Array:
        total: Array = (died * s**2 / at_death + alive * (1 - s) ** 2 / censoring.at(horizons)).sum(0)
        return total

    null = np.broadcast_to(np.asarray(values["null"], np.float64), survival.shape)
    return {"model": add_up(survival), "null": add_up(null), "rows": np.asarray(len(time))}


def answer_calibration(question: Question, rows: Rows) -> Blocks:
    """Count a site's events and censored rows by group of predicted risk, and sum the predicted risks of each group."""
    time, event = survival_outcome(rows)
    cuts, ends = (np.asarray(question.values[k], np.float64) for k in ("cuts", "ends"))
    score = compute_scores(question, rows)
    group = np.searchsorted(cuts, score, side="right")
    risk = 1 - _predict(score, np.asarray([question.values["hazard"]], np.float64))[:, 0]
    groups = len(cuts) + 1
    return count_times(time, event, group, ends, groups) | {
        "predicted": np.bincount(group, weights=risk, minlength=groups)
    }


def fit_baseline(beta: Array, counts: TimeCounts, *, least: int = LEAST) -> Fit[Baseline]:
    """Estimate the cumulative baseline hazard of a risk score over all sites. One exchange.

    Args:
        beta: (p,) coefficients of the score.
        counts: Counts of one group by cell (`count_by_cell`).
        least: Least number of events in an interval.

    Returns:
        The baseline hazard, constant within intervals.

    Raises:
        BadInput: No interval has enough events.
    """
    ends = merge_cells(counts, least).ends
    if not len(ends):
        raise BadInput(
            f"fewer than {least} events with {least} rows at risk after them: a baseline hazard needs more rows",
            code="too-few-events",
        )
    total = yield Question(
        "hazard.time",
        {"beta": np.asarray(beta, np.float64), "ends": ends},
        {"events": (len(ends),), "exposure": (len(ends),)},
        step="baseline hazard",
        cells=("events",),
    )
    hazard = np.cumsum(np.rint(total["events"]) / total["exposure"])
    return Baseline(tuple(map(float, ends)), tuple(map(float, hazard)))


def fit_brier(
    beta: Array, baseline: Baseline, censoring: CensoringCurve, horizons: Sequence[float], null: Sequence[float]
) -> Fit[BrierScores]:
    """Compute Brier scores at horizons and the integrated Brier score. One exchange.

    Args:
        beta: (p,) coefficients of the score.
        baseline: Cumulative baseline hazard.
        censoring: Censoring curve.
        horizons: Times, ascending.
        null: Survival of all rows at these times, without the model (Kaplan-Meier).

    Returns:
        The scores. The integral is the trapezoid rule over the horizons, divided by their range.

    Raises:
        BadInput: A horizon lies where survival or censoring is not known.
    """
    times = np.asarray(horizons, np.float64)
    check_horizons(times, baseline, censoring)
    total = yield Question(
        "brier",
        {
            "beta": np.asarray(beta, np.float64),
            "horizons": times,
            "hazard": baseline.at(times),
            "null": np.asarray(null, np.float64),
            "times": censoring.times,
            "weights": censoring.values,
            "grid": censoring.grid,
        },
        {"model": (len(times),), "null": (len(times),), "rows": ()},
        step="Brier scores",
    )
    model, flat = (total[k] / float(total["rows"]) for k in ("model", "null"))
    return BrierScores(
        tuple(map(float, times)),
        tuple(map(float, model)),
        tuple(map(float, flat)),
        _mean_over(times, model),
        _mean_over(times, flat),
    )


def fit_calibration(
    beta: Array,
    baseline: Baseline,
    counts: TimeCounts,
    histogram: ScoreHistogram,
    *,
    horizon: float,
    groups: int = 10,
    least: int = LEAST,
) -> Fit[tuple[CalibrationGroup, ...]]:
    """Compare predicted with observed risk at a horizon, in groups of predicted risk. One exchange.

    Args:
        beta: (p,) coefficients of the score.
        baseline: Cumulative baseline hazard.
        counts: Counts of one group by cell or day; they place the cells up to the horizon.
        histogram: Histogram of scores; it places the groups.
        horizon: Time at which risks are compared.
        groups: Number of groups, with about as many rows each.
        least: Least number of events of a group by the horizon, and of rows left then; neighbours are joined until they have
            so many.

    Returns:
        The groups, by rising predicted risk. The observed risk is the actuarial estimate on at most 16 cells.
    """
    cuts = histogram.cuts(groups)
    ends = _cells_up_to(counts, horizon)
    shape = (groups, len(ends) + 1)
    total = yield Question(
        "calibration.time",
        {
            "beta": np.asarray(beta, np.float64),
            "cuts": cuts,
            "ends": ends,
            "hazard": float(baseline.at(np.array([horizon]))[0]),
        },
        {"events": shape, "censored": shape, "predicted": (groups,)},
        step="calibration at the horizon",
        cells=("events", "censored"),
    )
    events, censored = np.rint(total["events"]), np.rint(total["censored"])
    found = TimeCounts(ends, events[:, :-1], censored[:, :-1], events[:, -1] + censored[:, -1])
    return tuple(_describe(found, total["predicted"], members) for members in _join(found, least))


def check_horizons(times: Array, baseline: Baseline, censoring: CensoringCurve) -> None:
    """Check that horizons ascend and lie where survival and censoring are known.

    Raises:
        BadInput: A horizon does not.
    """
    last = min(baseline.times[-1], censoring.last)
    if not len(times) or times[0] <= 0 or times[-1] > last or (np.diff(times) <= 0).any():
        raise BadInput(
            f"horizons must ascend from above 0 to at most {last:g}, after which survival or censoring is not known",
            code="bad-horizon",
        )


def _mean_over(times: Array, values: Array) -> float | None:
    """Return the mean of a curve over its range of times, by the trapezoid rule; None for one time."""
    if len(times) < 2:
        return None
    return float((np.diff(times) * (values[1:] + values[:-1])).sum() / 2 / (times[-1] - times[0]))


def _predict(score: Array, hazard: Array) -> Array:
    """Return survival of each row at each horizon, (n, horizons)."""
    return np.asarray(np.exp(-np.exp(score)[:, None] * hazard))


def _cells_up_to(counts: TimeCounts, horizon: float) -> Array:
    """Return at most 16 cells up to a horizon, with about as many events each; the last one ends there."""
    before = counts.cut(horizon)
    inner = before.ends[before.ends < horizon]
    events = before.events.sum(0)[: len(inner)].cumsum()
    if not len(inner):
        return np.array([horizon])
    marks = events[-1] * np.arange(1, _CALIBRATION_CELLS) / _CALIBRATION_CELLS
    places = np.unique(np.minimum(np.searchsorted(events, marks), len(inner) - 1))
    return np.append(inner[places], horizon)


def _join(counts: TimeCounts, least: int) -> list[list[int]]:
    """Join neighbouring groups until each has `least` events and `least` rows beyond the horizon."""
    joined: list[list[int]] = []
    current: list[int] = []

    def is_enough(members: list[int]) -> bool:
        return bool(counts.events[members].sum() >= least and counts.beyond[members].sum() >= least)

    for group in range(len(counts.beyond)):
        current = [*current, group]
        if is_enough(current):
            joined.append(current)
            current = []
    if current:
        joined = [*joined[:-1], [*joined[-1], *current]] if joined else ([current] if is_enough(current) else [])
    return joined


def _describe(counts: TimeCounts, predicted: Array, members: list[int]) -> CalibrationGroup:
    one = TimeCounts(counts.ends, counts.events[members], counts.censored[members], counts.beyond[members]).add_groups()
    survival, variance = product_limit(one, grid="bins")
    low, high = log_log_interval(survival[-1:], variance.sum()[None])
    rows = int(one.rows[0])
    return CalibrationGroup(
        rows, float(predicted[members].sum() / rows), 1 - float(survival[-1]), 1 - float(high[0]), 1 - float(low[0])
    )
