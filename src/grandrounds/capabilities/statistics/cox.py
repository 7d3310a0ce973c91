"""Cox regression from sums over hospitals: hazard ratios equal to those of the pooled rows.

    fit = fit_cox(CoxTerms(("age", "sex")))

is a generator over questions and totals (`grandrounds.capabilities.statistics.question`). The default is stratified by hospital.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grandrounds.capabilities.statistics.brier import Baseline
from grandrounds.capabilities.statistics.cox_grid import GRID, GRID_ERRORS, answer_grid, answer_grid_errors, fit_grid
from grandrounds.capabilities.statistics.cox_intervals import TIMES, answer_times
from grandrounds.capabilities.statistics.cox_penalty import FOLDS, answer_folds, choose_penalty
from grandrounds.capabilities.statistics.cox_strata import (
    STRATA,
    STRATA_ERRORS,
    answer_strata,
    answer_strata_errors,
    fit_strata,
)
from grandrounds.capabilities.statistics.cox_terms import CoxTerms
from grandrounds.capabilities.statistics.estimates import Estimates
from grandrounds.capabilities.statistics.partial_likelihood import compute_hazard, place_by_own_times
from grandrounds.capabilities.statistics.question import Answer, Fit, Rows, fit_in_memory
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, GrandRoundsError

__all__ = ["COX_ANSWERS", "CoxTerms", "compute_own_baseline", "fit_cox", "fit_rows"]

COX_ANSWERS: dict[str, Answer] = {
    STRATA: answer_strata,
    STRATA_ERRORS: answer_strata_errors,
    FOLDS: answer_folds,
    TIMES: answer_times,
    GRID: answer_grid,
    GRID_ERRORS: answer_grid_errors,
}
"""The sites' halves of Cox regression, by kind of question."""


def fit_cox(terms: CoxTerms) -> Fit[Estimates]:
    """Fit a Cox regression over all sites.

    Args:
        terms: The terms.

    Returns:
        The estimates: log hazard ratios for one unit of each input.

    Raises:
        BadInput: Fewer than 5 events, separation, or no convergence.
    """
    fit = fit_strata if terms.baseline == "strata" else fit_grid
    if not isinstance(terms.ridge, str):
        return (yield from fit(terms, float(terms.ridge)))
    choice = yield from choose_penalty(terms)
    left = replace(terms, start=tuple(choice.start.tolist()), exchanges=max(terms.exchanges - choice.exchanges, 1))
    estimates = yield from fit(left, choice.ridge)
    notes = list(choice.notes)
    if terms.baseline != "strata":
        notes.append(
            "The penalty was chosen by the likelihood stratified by hospital: folds on common intervals would have fewer events "
            "than the least number."
        )
    facts = {
        **estimates.facts,
        "exchanges": choice.exchanges + estimates.facts["exchanges"],
        "cross_validation": {
            "penalties": sorted(terms.penalties), "values": list(choice.values), "folds": terms.folds,
            "exchanges": choice.exchanges,
        },
    }  # fmt: skip
    return replace(estimates, facts=facts, notes=(*notes, *estimates.notes))


def fit_rows(terms: CoxTerms, rows: Rows) -> tuple[Array, Array] | None:
    """Fit a Cox regression to the rows of one site.

    Args:
        terms: The terms; the baseline is the site's own.
        rows: The site's rows.

    Returns:
        (p,) estimates and (p, p) covariance; None where the rows do not allow a fit of all inputs: too few events,
        separation, a constant column.
    """
    if isinstance(terms.ridge, str):
        raise BadInput("one site's own fit needs a ridge penalty that is a number, not 'cv'", code="bad-setting")
    try:
        estimates = fit_in_memory(fit_strata(terms, terms.ridge), {"site": rows}, COX_ANSWERS)
    except GrandRoundsError as problem:
        if problem.code in ("few-events", "outcome-separated", "fit-diverged", "constant-inputs", "not-converged"):
            return None
        raise
    if len(estimates.names) < len(terms.names):
        return None
    return estimates.beta, np.asarray(estimates.covariance)


def compute_own_baseline(rows: Rows, beta: Array, ties: str = "efron") -> Baseline:
    """Compute a site's own baseline hazard under a common model. It stays at the site, which predicts survival with it.

    Args:
        rows: The site's rows.
        beta: (p,) coefficients of the common model.
        ties: "efron" or "breslow".

    Returns:
        The cumulative hazard at the site's event times; without events there are none.
    """
    placed = place_by_own_times(rows)
    _, weight = placed.weigh(beta)
    hazard = compute_hazard(placed.add_up(weight), ties)
    assert rows.time is not None
    times = np.unique(rows.time[rows.y > 0])
    return Baseline(tuple(times.tolist()), tuple(np.cumsum(hazard.a).tolist()))
