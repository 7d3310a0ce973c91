"""Cox regression stratified by hospital: each site answers with its own partial likelihood, and no time leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.cox_steps import CoxPath
from grandrounds.capabilities.statistics.cox_terms import CoxTerms, check_events, not_converged, note_roster
from grandrounds.capabilities.statistics.estimates import PATIENTS_APART, Estimates
from grandrounds.capabilities.statistics.newton import count_upper, invert, pack_upper, unpack_upper
from grandrounds.capabilities.statistics.partial_likelihood import (
    PlacedRows,
    compute_hazard,
    compute_score,
    place_by_own_times,
)
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows, Total
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import Value

STRATA = "cox.strata"
STRATA_ERRORS = "cox.strata.errors"


def answer_strata(question: Question, rows: Rows) -> Blocks:
    """Answer with gradient, information and value of the site's own partial likelihood; zeros without events.

    Args:
        question: Coefficients `beta` and `ties`.
        rows: The site's rows.

    Returns:
        U, H (upper triangle), l, events, n, and 1 in `used` if the site has events.
    """
    placed = place_by_own_times(rows)
    score = compute_score(placed, np.asarray(question.values["beta"]), str(question.values["ties"]))
    events = float(placed.event.sum())
    return {
        "U": score.u,
        "H": pack_upper(score.h),
        "l": np.array(score.value, float),
        "events": np.array(events, float),
        "n": np.array(len(rows), float),
        "used": np.array(events > 0, float),
    }


def answer_strata_errors(question: Question, rows: Rows) -> Blocks:
    """Answer with the sum of squared scores for robust standard errors.

    Args:
        question: Coefficients `beta`, `ties` and `errors`: "rows", "patients" or "hospitals".
        rows: The site's rows.

    Returns:
        M (upper triangle) and the number of clusters.
    """
    placed = place_by_own_times(rows)
    eta, _ = placed.weigh(np.asarray(question.values["beta"]))
    weight = np.exp(eta - eta.max()) if len(eta) else eta
    hazard = compute_hazard(placed.add_up(weight), str(question.values["ties"]))
    scores = placed.score_rows(weight, hazard.compute_moments())
    matrix, clusters = square_scores(scores, placed, rows, str(question.values["errors"]))
    return {"M": pack_upper(matrix), "clusters": np.array(clusters, float)}


def square_scores(scores: Array, placed: PlacedRows, rows: Rows, errors: str) -> tuple[Array, int]:
    """Add up squared scores over rows, patients or the hospital.

    Args:
        scores: (n, p) score residuals in the order of the placed rows.
        placed: The placed rows.
        rows: The site's rows.
        errors: "rows", "patients" or "hospitals".

    Returns:
        (p, p) sum of s s', and the number of clusters.

    Raises:
        BadInput: Errors by patient were asked for, and the table has no patient column.
    """
    if errors == "hospitals":
        scores = scores.sum(0, keepdims=True)
    elif errors == "patients":
        if rows.patient is None:
            raise BadInput(
                "robust errors by patient need a patient column; name it (data.patient) or use errors by row",
                code="no-patient",
            )
        _, cluster = np.unique(rows.patient[placed.order], return_inverse=True)
        scores = np.stack([np.bincount(cluster, s) for s in scores.T], axis=1) if len(scores) else scores
    return scores.T @ scores, len(scores) if len(rows) else 0


def fit_strata(terms: CoxTerms, ridge: float) -> Fit[Estimates]:
    """Fit a Cox regression stratified by hospital.

    Args:
        terms: The terms.
        ridge: The penalty.

    Returns:
        The estimates.

    Raises:
        BadInput: Fewer than 5 events, separation, or no convergence.
    """
    p = len(terms.names)
    blocks: dict[str, tuple[int, ...]] = {
        "U": (p,), "H": (count_upper(p),), "l": (), "events": (), "n": (), "used": (),
    }  # fmt: skip
    path = CoxPath(terms.names, ridge, terms.start)
    notes: list[str] = []
    exchange, meat, clusters = 0, None, 0
    while True:
        is_done = False
        while not is_done:
            if exchange >= terms.exchanges:
                raise not_converged(terms)
            exchange += 1
            values: dict[str, Value] = {"beta": path.beta, "ties": terms.ties}
            total = yield Question(STRATA, values, blocks, f"Newton step {exchange}")
            check_events(total)
            notes += note_roster(total)
            h, events = unpack_upper(total["H"], p), float(total["events"])
            is_done = path.read(total["U"], h, float(total["l"]), events, is_new_roster=total.is_new_roster)
        if terms.errors == "model":
            break
        asked: dict[str, Value] = {"beta": path.beta, "ties": terms.ties, "errors": terms.errors}
        answer = yield Question(STRATA_ERRORS, asked, {"M": (count_upper(p),), "clusters": ()}, "robust errors")
        exchange += 1
        meat, clusters = unpack_upper(answer["M"], p), round(float(answer["clusters"]))
        if not answer.is_new_roster:
            break
        notes += note_roster(answer)
        path.forget()
    facts = {
        "baseline": "strata",
        "strata": round(float(total["used"])),
        "sites_without_events": len(total.sites) - round(float(total["used"])),
    }
    return build_estimates(
        terms, path, total, meat=meat, clusters=clusters, facts={**facts, "exchanges": exchange}, notes=notes
    )


def build_estimates(
    terms: CoxTerms,
    path: CoxPath,
    total: Total,
    *,
    meat: Array | None,
    clusters: int,
    facts: Mapping[str, Any],
    notes: list[str],
) -> Estimates:
    """Make the estimates from a finished Newton path.

    Args:
        terms: The terms.
        path: The path.
        total: The last total, with `events` and `n`.
        meat: (p, p) sum of squared scores for robust errors; None: errors of the model.
        clusters: Number of clusters of robust errors.
        facts: Further facts.
        notes: Sentences so far.

    Returns:
        The estimates.
    """
    kept, ridge = path.kept, path.ridge
    events, n = round(float(total["events"])), round(float(total["n"]))
    inverse = invert(path.information + ridge * np.eye(len(kept)))
    errors = terms.errors
    if meat is not None:
        covariance = inverse @ meat[np.ix_(kept, kept)] @ inverse
    elif ridge:
        covariance, errors = inverse @ path.information @ inverse, "penalised"
    else:
        covariance = inverse
    if events < 10 * len(kept):
        notes.append(
            f"There are {events} events for {len(kept)} inputs; fewer than 10 events an input make estimates unstable."
        )
    if terms.errors == "hospitals" and clusters < 20:
        notes.append(f"Errors by hospital rest on {clusters} hospitals; below 20 the intervals are too short.")
    if terms.errors == "patients":
        notes.append(PATIENTS_APART)
    if path.left_out:
        notes.append("Left out: " + "; ".join(f"{name} ({why})" for name, why in path.left_out.items()) + ".")
    full: dict[str, Any] = {
        "n": n, "events": events, "ties": terms.ties, "ridge": ridge, "log_likelihood": path.value,
        "aic": None if ridge else -2 * path.value + 2 * len(kept), **facts,
    }  # fmt: skip
    if path.null is not None:
        full["log_likelihood_null"] = path.null
    if meat is not None:
        full["clusters"] = clusters
    return Estimates.build(
        "cox", terms.names, path.beta[kept], (covariance + covariance.T) / 2, left_out=path.left_out, errors=errors,
        tests=not ridge, facts=full, notes=notes,
    )  # fmt: skip
