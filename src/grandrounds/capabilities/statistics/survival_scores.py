"""Scores of a survival model over all sites: C-index, Brier score, integrated Brier score, calibration at a horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.brier import (
    LEAST_CENSORED,
    Baseline,
    BrierScores,
    CalibrationGroup,
    CensoringCurve,
    check_horizons,
    fit_brier,
    fit_calibration,
)
from grandrounds.capabilities.statistics.concordance import (
    Concordance,
    find_score_histogram,
    fit_concordance,
    fit_concordance_across,
)
from grandrounds.capabilities.statistics.kaplan_meier import product_limit
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.capabilities.statistics.time_counts import LEAST, Grid, TimeCounts, count_by_cell, count_by_day
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_HORIZONS = 19
"""Horizons by default: near the times by which 5%, 10%, ..., 95% of the events were observed."""


@dataclass(frozen=True)
class SurvivalScores:
    """Scores of a survival model.

    Attributes:
        rows: Rows that were scored.
        within: Pairs of patients of the same site, and their C-index.
        across: All pairs, from a table of scores by time; None where it was not asked for.
        brier: Brier scores by horizon; None without a baseline hazard.
        calibration: Predicted and observed risk at `horizon`, in groups of predicted risk.
        horizon: Horizon of the calibration; None without one.
        facts: Further numbers, such as `grid`, `small_cells`. Plain JSON values.
        notes: Sentences for people.
    """

    rows: int
    within: Concordance
    across: Concordance | None = None
    brier: BrierScores | None = None
    calibration: tuple[CalibrationGroup, ...] = ()
    horizon: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def c_index(self) -> float | None:
        """The C-index within sites; None without a comparable pair."""
        return self.within.index

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values."""
        brier = self.brier
        return {
            "rows": self.rows,
            "c_index": self.c_index,
            "within": self.within.to_dict(),
            "across": None if self.across is None else self.across.to_dict(),
            "brier": None
            if brier is None
            else {k: list(v) if isinstance(v, tuple) else v for k, v in vars(brier).items()},
            "calibration": [vars(group) | {} for group in self.calibration],
            "horizon": self.horizon,
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SurvivalScores:
        """Read what `to_dict` wrote."""

        def pairs(counts: Mapping[str, float]) -> Concordance:
            return Concordance(counts["concordant"], counts["tied"], counts["comparable"])

        across, brier = values["across"], values["brier"]
        scores: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in (brier or {}).items()}
        return cls(
            values["rows"],
            pairs(values["within"]),
            None if across is None else pairs(across),
            BrierScores(**scores) if brier else None,
            tuple(CalibrationGroup(**group) for group in values["calibration"]),
            values["horizon"],
            dict(values["facts"]),
            tuple(values["notes"]),
        )


def fit_survival_scores(
    beta: Array,
    baseline: Baseline | None = None,
    *,
    horizons: Sequence[float] = (),
    horizon: float | None = None,
    grid: Grid = "bins",
    across: bool = False,
    least: int = LEAST,
    groups: int = 10,
    unit: float = 1.0,
) -> Fit[SurvivalScores]:
    """Score a survival model on all sites' rows.

    Args:
        beta: (p,) coefficients of the risk score; a row's offset is added, so scores of another model can come as offsets.
        baseline: Cumulative baseline hazard, from training rows; None: the C-index alone.
        horizons: Times of the Brier scores, ascending; by default near the times of 5%, 10%, ..., 95% of the events.
        horizon: Time of the calibration; by default the horizon in the middle.
        grid: Grid of the censoring curve: "bins" (at least 10 censored rows each) or "days", where policy allows.
        across: Also compare patients of different sites; the server then sees small cells, so policy must allow it.
        least: Least number of events in a group of the calibration.
        groups: Groups of predicted risk.
        unit: Unit in which times are recorded.

    Returns:
        The scores. The C-index within sites takes one exchange; pairs across sites take four more, Brier scores and
        calibration six more.

    Raises:
        BadInput: No rows, or a horizon at which survival or censoring is not known.
    """
    within, spread = yield from fit_concordance(beta)
    notes, facts = [], {"grid": grid, "least": least}
    if within.comparable == 0:
        notes.append("No two patients of one site are comparable: the C-index within sites is not defined.")
    histogram = (yield from find_score_histogram(beta, spread)) if across or baseline else None
    pairs: Concordance | None = None
    if across and histogram is not None:
        pairs, small = yield from fit_concordance_across(beta, histogram, unit=unit)
        facts["small_cells"] = small
        notes.append(
            f"Disclosed to the server: a table of counts by score bin and time bin, summed over sites; {small} cells have "
            f"1 to {LEAST - 1} rows."
        )
    if baseline is None or histogram is None:
        return SurvivalScores(spread.rows, within, pairs, facts=facts, notes=tuple(notes))
    if grid == "days":
        counts = yield from count_by_day(unit=unit)
    else:
        counts = yield from count_by_cell(unit=unit, least=least, least_censored=LEAST_CENSORED)
    named = [*horizons, *([] if horizon is None else [horizon])]
    censoring = CensoringCurve.estimate(counts, grid=grid, horizons=named)
    if grid == "bins" and counts.censored.sum() < LEAST_CENSORED:
        notes.append(f"Fewer than {LEAST_CENSORED} rows are censored: the Brier score has no censoring weights.")
    last = min(baseline.times[-1], censoring.last)
    times = np.asarray(horizons, float) if len(horizons) else _choose_horizons(counts, censoring, last)
    check_horizons(times, baseline, censoring)
    when = float(times[len(times) // 2]) if horizon is None else float(horizon)
    check_horizons(np.array([when]), baseline, censoring)
    brier = yield from fit_brier(beta, baseline, censoring, times.tolist(), _survival_at(counts, times, grid))
    calibration = yield from fit_calibration(
        beta, baseline, counts, histogram, horizon=when, groups=groups, least=least
    )
    return SurvivalScores(spread.rows, within, pairs, brier, calibration, when, facts, tuple(notes))


def _choose_horizons(counts: TimeCounts, censoring: CensoringCurve, last: float) -> Array:
    """Return times near those by which 5%, 10%, ... of the events were observed; on bins, points of the censoring curve."""
    events = counts.events[0].cumsum()
    marks = events[-1] * np.arange(1, _HORIZONS + 1) / (_HORIZONS + 1)
    wanted = counts.ends[np.searchsorted(events, marks)]
    known = counts.ends if len(censoring.times) == 1 else censoring.times
    known = known[(known > 0) & (known <= last)]
    if not len(known):
        raise BadInput(
            "too few events or censored rows to choose horizons of the Brier score: name them", code="bad-horizon"
        )
    return np.unique(known[np.abs(known[None, :] - wanted[:, None]).argmin(1)])


def _survival_at(counts: TimeCounts, times: Array, grid: Grid) -> list[float]:
    """Return the survival of all rows at times."""
    survival, _ = product_limit(counts, grid=grid)
    if grid == "bins":
        return [float(v) for v in np.interp(times, np.append(0.0, counts.ends), np.append(1.0, survival))]
    return [float(v) for v in np.append(1.0, survival)[np.searchsorted(counts.ends, times, side="right")]]
