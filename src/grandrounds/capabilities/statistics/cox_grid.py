"""Cox regression with one baseline hazard for all hospitals, on a common grid of times.

On intervals with several events ("grid") all rows of an interval leave its risk set evenly between its events: the l-th of d
events has S(t) - (l/d) (S(t) - S(t')), t' the start of the next interval. Unlike Efron's own sums over the events of an
interval, this needs no further sum over few rows, and it moves estimates less than events at the start of their interval would
(Breslow's ties do that). On single days ("days") ties are exact.

One exchange a step. Sites answer at the coefficients beta with sums over risk sets (part A), and with the rows' second moments
weighted by the hazard of the step before (part B). The server computes gradient and value from part A, and mends part B: with
v the weights of the step before, G = sum v x x', m0 = sum v, m1 = sum v x, the true matrix has m0 = events and m1 = sum of E,
so it takes G <- D (C + r r') with C the covariance under v, D the events and r = (sum of E) / D. The last exchange has the
right weights, for the errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.brier import Baseline
from grandrounds.capabilities.statistics.cox_intervals import Grid, choose_grid, merge_cells
from grandrounds.capabilities.statistics.cox_steps import CoxPath
from grandrounds.capabilities.statistics.cox_strata import build_estimates, square_scores
from grandrounds.capabilities.statistics.cox_terms import CoxTerms, check_events, not_converged, note_roster
from grandrounds.capabilities.statistics.estimates import Estimates
from grandrounds.capabilities.statistics.newton import count_upper, pack_upper, unpack_upper
from grandrounds.capabilities.statistics.partial_likelihood import (
    Hazard,
    HazardMoments,
    RiskSums,
    compute_hazard,
    place_on_grid,
)
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows, Total
from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Value

GRID = "cox.grid"
GRID_ERRORS = "cox.grid.errors"


def answer_grid(question: Question, rows: Rows) -> Blocks:
    """Answer with sums over risk sets at beta, and with second moments under the hazard of the step before.

    Args:
        question: `beta`, the grid's `edges`, `is_exact` for single days, and the hazard's increments `a`, `b`.
        rows: The site's rows.

    Returns:
        S0, S1, on single days D0, D1; counts of events d by interval; sums over events of x and eta; G, m0, m1; n.
    """
    values = question.values
    placed = place_on_grid(rows, np.asarray(values["edges"]), is_exact=bool(values["is_exact"]))
    eta, weight = placed.weigh(np.asarray(values["beta"]))
    sums = placed.add_up(weight)
    spread = placed.spread(weight, np.asarray(values["a"]), np.asarray(values["b"]))
    blocks = {
        "S0": sums.s0,
        "S1": sums.s1,
        "d": sums.events,
        "sx": placed.x[placed.event].sum(0),
        "seta": np.array(eta[placed.event].sum()),
        "G": pack_upper((placed.x * spread[:, None]).T @ placed.x),
        "m0": np.array(spread.sum()),
        "m1": spread @ placed.x,
        "events": np.array(float(placed.event.sum())),
        "n": np.array(float(len(rows))),
    }
    return blocks | ({"D0": sums.d0, "D1": sums.d1} if "D0" in question.blocks else {})


def answer_grid_errors(question: Question, rows: Rows) -> Blocks:
    """Answer with second moments under the final hazard and, for robust errors, the sum of squared scores.

    Args:
        question: `beta`, the grid, `errors`, the final hazard's `a`, `b`; for robust errors `ae`, `be`, `mean` too.
        rows: The site's rows.

    Returns:
        G; for robust errors M and the number of clusters.
    """
    values = question.values
    placed = place_on_grid(rows, np.asarray(values["edges"]), is_exact=bool(values["is_exact"]))
    _, weight = placed.weigh(np.asarray(values["beta"]))
    a, b = np.asarray(values["a"]), np.asarray(values["b"])
    spread = placed.spread(weight, a, b)
    blocks = {"G": pack_upper((placed.x * spread[:, None]).T @ placed.x)}
    if values["errors"] == "model":
        return blocks
    hazard = HazardMoments(a, b, *(np.asarray(values[name]) for name in ("ae", "be", "mean")))
    matrix, clusters = square_scores(placed.score_rows(weight, hazard), placed, rows, str(values["errors"]))
    return blocks | {"M": pack_upper(matrix), "clusters": np.array(float(clusters))}


def fit_grid(terms: CoxTerms, ridge: float) -> Fit[Estimates]:
    """Fit a Cox regression with a common baseline hazard.

    Args:
        terms: The terms; the baseline is "grid" or "days".
        ridge: The penalty.

    Returns:
        The estimates. The fact `baseline_hazard` (`Baseline.from_dict`) is the cumulative hazard of a row with all inputs 0 in
        the units of the fit, at the ends of intervals or on days with events.

    Raises:
        BadInput: Too few events, cells below `least`, separation, or no convergence.
    """
    grid = yield from choose_grid(terms)
    exchange, notes = 2, [*_describe(terms, grid), *grid.notes]
    path = CoxPath(terms.names, ridge, terms.start)
    hazard = _start_hazard(terms, grid)
    has_left = is_other_grid = False
    p = len(terms.names)
    while True:
        is_done = False
        while not is_done:
            if exchange + 1 >= terms.exchanges:  # the last one is for the errors
                raise not_converged(terms)
            exchange += 1
            total = yield _ask_step(terms, path.beta, grid, hazard, exchange)
            check_events(total)
            notes += note_roster(total)
            sums = _read_sums(total)
            has_left |= total.is_new_roster
            is_stale, is_other_grid = has_left or is_other_grid, False
            if has_left:
                grid, sums, is_other_grid = _check_cells(terms, grid, sums)
                has_left = False
            hazard = compute_hazard(sums, terms.ties)
            value = float(total["seta"]) - hazard.log
            u = total["sx"] - hazard.e
            is_done = path.read(u, _mend(total, hazard, p), value, float(total["events"]), is_new_roster=is_stale)
            if is_other_grid:
                is_done = False
                notes.append("Intervals were merged after a site left, to keep the least number of events in each.")
        # At the estimate, with the hazard of the last step (1e-8 standard errors away): no coefficients are asked for twice, so
        # that a site that leaves now cannot be computed from two sums at the same coefficients.
        answer = yield _ask_errors(terms, path.beta, grid, hazard)
        exchange += 1
        if not answer.is_new_roster:
            break
        notes += note_roster(answer)
        has_left = True
    h = unpack_upper(answer["G"], p) - hazard.ee
    path.information = h[np.ix_(path.kept, path.kept)]
    is_robust = terms.errors != "model"
    ends = grid.edges if terms.baseline == "days" else np.append(grid.edges[1:], grid.end)
    facts: dict[str, Any] = {
        "baseline": terms.baseline,
        "intervals": len(grid.edges),
        "exchanges": exchange,
        "baseline_hazard": Baseline(tuple(ends.tolist()), tuple(np.cumsum(hazard.a).tolist())).to_dict(),
    }
    return build_estimates(
        terms, path, total, meat=unpack_upper(answer["M"], p) if is_robust else None,
        clusters=round(float(answer["clusters"])) if is_robust else 0, facts=facts, notes=notes,
    )  # fmt: skip


def _describe(terms: CoxTerms, grid: Grid) -> list[str]:
    """Return the notes about the grid."""
    if terms.baseline == "days":
        return ["The baseline is on single days: rows of single patients can be read from the sums."]
    return [
        f"The common baseline has {len(grid.edges)} intervals with at least {terms.least} events each; the "
        "order of events within an interval is not used, so estimates differ from those of exact times by a fraction of their "
        "standard errors."
    ]


def _start_hazard(terms: CoxTerms, grid: Grid) -> Hazard:
    """Return the hazard at zero coefficients, which follows from counts."""
    p = len(terms.names)
    none = np.zeros((len(grid.edges), p))
    if terms.baseline == "days":
        return compute_hazard(RiskSums(grid.at_risk, none, grid.events, none, grid.events), terms.ties)
    return compute_hazard(_leave_evenly(grid.at_risk, none, grid.events), terms.ties)


def _values(terms: CoxTerms, beta: Array, grid: Grid, hazard: Hazard) -> dict[str, Value]:
    is_exact = terms.baseline == "days"
    return {"beta": beta, "edges": grid.edges, "is_exact": is_exact, "a": hazard.a, "b": hazard.b}


def _ask_step(terms: CoxTerms, beta: Array, grid: Grid, hazard: Hazard, exchange: int) -> Question:
    p, m = len(terms.names), len(grid.edges)
    blocks: dict[str, tuple[int, ...]] = {"S0": (m,), "S1": (m, p)}
    if terms.baseline == "days" and terms.ties == "efron":
        blocks |= {"D0": (m,), "D1": (m, p)}
    blocks |= {
        "d": (m,), "sx": (p,), "seta": (), "G": (count_upper(p),), "m0": (), "m1": (p,), "events": (), "n": (),
    }  # fmt: skip
    counts = () if terms.baseline == "days" else ("d",)
    return Question(GRID, _values(terms, beta, grid, hazard), blocks, f"Newton step {exchange - 2}", cells=counts)


def _ask_errors(terms: CoxTerms, beta: Array, grid: Grid, hazard: Hazard) -> Question:
    size = count_upper(len(terms.names))
    values = _values(terms, beta, grid, hazard) | {"errors": terms.errors}
    blocks: dict[str, tuple[int, ...]] = {"G": (size,)}
    if terms.errors != "model":
        moments = hazard.compute_moments()
        values |= {"ae": moments.ae, "be": moments.be, "mean": moments.mean}
        blocks |= {"M": (size,), "clusters": ()}
    return Question(GRID_ERRORS, values, blocks, "standard errors")


def _read_sums(total: Total) -> RiskSums:
    s0, s1 = total["S0"], total["S1"]
    if "D0" in total.values:
        return RiskSums(s0, s1, total["D0"], total["D1"], np.rint(total["d"]))
    return _leave_evenly(s0, s1, np.rint(total["d"]))


def _leave_evenly(s0: Array, s1: Array, events: Array) -> RiskSums:
    """Return the sums on intervals whose rows all leave between their events."""
    return RiskSums(s0, s1, -np.diff(s0, append=0.0), -np.diff(s1, axis=0, append=np.zeros((1, s1.shape[1]))), events)


def _mend(total: Total, hazard: Hazard, p: int) -> Array:
    """Return the information matrix from moments under the hazard of the step before."""
    events, m0, m1 = float(total["events"]), float(total["m0"]), total["m1"]
    centred = events * (unpack_upper(total["G"], p) / m0 - np.outer(m1, m1) / m0**2)
    h = centred + np.outer(hazard.e, hazard.e) / events - hazard.ee
    lowest = float(np.linalg.eigvalsh(h).min()) if p else 0.0
    return np.asarray(h if lowest > -1e-9 * np.abs(h).max() else centred)  # centred is never below the true matrix


def _check_cells(terms: CoxTerms, grid: Grid, sums: RiskSums) -> tuple[Grid, RiskSums, bool]:
    """Merge intervals that fell below the least number of events when a site left.

    Args:
        terms: The terms.
        grid: The grid so far.
        sums: Sums over the sites that remain.

    Returns:
        The grid, the sums on it, and True if the likelihood is another one than before.
    """
    if terms.baseline == "days":
        first = np.flatnonzero(sums.events)
        new = Grid(grid.edges[first], grid.end, sums.events[first], grid.leavers[first])
        days = RiskSums(*(v[first] for v in (sums.s0, sums.s1, sums.d0, sums.d1, sums.events)))
        return new, days, False  # days without events are in no likelihood
    new = merge_cells(grid.edges, grid.end, sums.events, grid.leavers, least=terms.least, intervals=terms.intervals)
    first = np.searchsorted(grid.edges, new.edges)
    return new, _leave_evenly(sums.s0[first], sums.s1[first], new.events), len(first) < len(grid.edges)
