"""Generalised linear models at the site: score, information and log-likelihood of a hospital's own rows.

A site has one answer for each point (beta, tau2) that is asked for; common and free intercepts have one point. With free or
shrunk intercepts the site first solves its own intercept given beta. Its answer is then gradient and Hessian of the profile
likelihood (Schur complement), so that their sums lead to the joint estimate of slopes and all intercepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.families import Family, find_family
from grandrounds.capabilities.statistics.intercepts import OWN, RANDOM, is_silent, solve_intercept
from grandrounds.capabilities.statistics.newton import pack_upper, unpack_upper
from grandrounds.capabilities.statistics.question import BOUND, Answer, Blocks, Question, Rows
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_BY_POINT = ("score", "information", "log_likelihood")


def answer_mean(question: Question, rows: Rows) -> Blocks:
    """Answer "glm.mean": rows, their summed outcome, and the number of rows that cannot be used."""
    return _count(question, _Design.read(question, rows))


def answer_start(question: Question, rows: Rows) -> Blocks:
    """Answer "glm.start": one weighted least-squares problem at the start of iteratively reweighted least squares.

    The working response z takes the place of the residual, so that (sum H)^-1 (sum U) is the first beta. Poisson regression
    also has the log-likelihood without inputs, to which a first step that is too long can be shortened. A question with a
    "start" is of the rows at these coefficients, in place of a start that follows from the outcome alone.
    """
    design = _Design.read(question, rows)
    blocks = _zeros(question) | _count(question, design)
    if blocks["wrong"]:
        return blocks
    family, x, weight = design.family, design.x, design.weight
    if "log_likelihood" in blocks and not (design.intercept == OWN and design.is_silent):
        for i, point in enumerate(_points(np.asarray(question.values["null"]), design)):
            blocks["log_likelihood"][i] = _value(design, point)
    if "start" in question.values:
        eta = x @ np.asarray(question.values["start"], float) + design.offset
        mu, slope = family.predict(eta)
    else:
        mu, eta = family.start(design.y, float(np.asarray(question.values["mean"])))
        _, slope = family.predict(eta)
    response = eta + (design.y - mu) / slope - design.offset
    w = weight * slope
    for i, tau2 in enumerate(design.tau2):
        moments, squares = w @ x, (x * w[:, None]).T @ x
        if "squares" in blocks:
            blocks["squares"] = np.diag(squares).copy()
        score = (w * response) @ x
        if design.intercept == RANDOM or (design.intercept == OWN and not design.is_silent):
            share = moments / (w.sum() + _pull(tau2))
            squares, score = squares - np.outer(share, moments), score - share * (w @ response)
        elif design.intercept == OWN:
            squares, score = np.zeros_like(squares), np.zeros_like(score)
        blocks["score"][i], blocks["information"][i] = score, pack_upper(squares)
    if "used" in blocks:
        blocks["used"] = np.array(float(not design.is_silent))
    if "sums" in blocks:
        blocks["sums"] = weight @ x
    return blocks


def answer_glm(question: Question, rows: Rows) -> Blocks:
    """Answer "glm": score, information and log-likelihood at each point (beta, tau2); for counts Pearson's statistic as well.

    With Firth's correction and an inverse information, the score has h (1/2 - mu) added for each row, h its leverage.
    """
    design = _Design.read(question, rows)
    blocks = _zeros(question)
    if design.intercept == OWN and design.is_silent:
        return blocks
    blocks["n"] = design.weight.sum()
    for i, point in enumerate(_points(np.asarray(question.values["beta"]), design)):
        x, w = design.x, point.w
        information = (x * w[:, None]).T @ x
        if design.intercept != "common":
            moments = w @ x
            information = information - np.outer(moments, moments) / (w.sum() + _pull(point.tau2))
        residual = point.residual
        if "inverse" in question.values:
            inverse = unpack_upper(np.asarray(question.values["inverse"]), x.shape[1])
            residual = residual + w * np.einsum("ij,ij->i", x @ inverse, x) * (0.5 - point.mu)
        blocks["information"][i] = pack_upper(information)
        if "score" in blocks:
            blocks["score"][i] = residual @ x
        blocks["log_likelihood"][i] = _value(design, point)
        if design.intercept == RANDOM:
            blocks["log_det"][i] = 0.5 * np.log1p(point.tau2 * w.sum())
        if "pearson" in blocks:
            spread = float(design.weight @ ((design.y - point.mu) ** 2 / np.maximum(point.mu, 1e-300)))
            blocks["pearson"][i] = min(spread, BOUND)  # a point on the way may be far off
        if "far" in blocks and max(_largest(blocks[k][i]) for k in _BY_POINT) > BOUND:
            for k in _BY_POINT:
                blocks[k][i] = 0.0
            blocks["far"][i] = 1.0
        elif "intercept" in blocks:
            blocks["intercept_weight"], blocks["intercept"] = w.sum(), w.sum() * point.d
    if "used" in blocks:
        blocks["used"] = np.ones(())
    if "saturated" in blocks:
        y = design.y
        at_best = design.family.log_likelihood(y, np.log(np.maximum(y, 1e-300)))
        blocks["saturated"] = design.weight @ at_best
    return blocks


def answer_sandwich(question: Question, rows: Rows) -> Blocks:
    """Answer "glm.sandwich": the sum of s s' over rows, patients or the hospital, s its summed score.

    With free or shrunk intercepts, s is the efficient score of the slopes: columns less their share in the intercept's.
    """
    design = _Design.read(question, rows)
    blocks = _zeros(question)
    if not len(rows) or (design.intercept == OWN and design.is_silent):
        return blocks
    (point,) = _points(np.asarray(question.values["beta"]), design)
    by = question.values["errors"]
    x, w = design.x, point.w
    if by == "hospitals":
        total = point.residual @ x  # the score of the profile likelihood
        scores = total[None]
    else:
        if design.intercept != "common":
            x = x - (w @ x) / (w.sum() + _pull(point.tau2))
        scores = x * point.residual[:, None]
        if by == "patients":
            scores = add_by_patient(scores, rows)
    return {"meat": pack_upper(scores.T @ scores), "clusters": np.array(float(len(scores)))}


def add_by_patient(scores: Array, rows: Rows) -> Array:
    """Add up the scores (n, q) of each patient's rows.

    Args:
        scores: Scores of the rows.
        rows: The site's rows.

    Returns:
        One row for each patient.

    Raises:
        BadInput: The site's table has no patient column.
    """
    if rows.patient is None:
        raise BadInput(
            "errors by patient need a patient column, and this site's table has none; name it in data.patient "
            "or ask for errors by row",
            code="no-patients",
        )
    _, place = np.unique(rows.patient, return_inverse=True)
    summed = np.zeros((place.max(initial=-1) + 1, scores.shape[1]))
    np.add.at(summed, place, scores)
    return summed


def _pull(tau2: float) -> float:
    """Return 1 / tau2; 0 for a free intercept, which is sent as tau2 = 0."""
    return 1.0 / tau2 if tau2 else 0.0


@dataclass(frozen=True, eq=False)
class _Design:
    """A site's rows as a question asks for them.

    Attributes:
        family: The family.
        x: (n, q), with a column of ones first unless each hospital has a free intercept.
        y: (n,) outcome in agreed units.
        weight: (n,).
        offset: (n,).
        intercept: Kind of intercept.
        tau2: Variance of the intercepts, one for each point.
    """

    family: Family
    x: Array
    y: Array
    weight: Array
    offset: Array
    intercept: str
    tau2: tuple[float, ...]

    @classmethod
    def read(cls, question: Question, rows: Rows) -> _Design:
        values = question.values
        n = len(rows)
        if values["offset"] and rows.offset is None:
            raise BadInput(
                "the model has an offset, and this site's rows have none; name the offset's column",
                code="no-offset",
            )
        x = rows.x[:, np.asarray(values["columns"], int)]
        intercept = str(values["intercept"])
        return cls(
            family=find_family(str(values["family"])),
            x=x if intercept == OWN else np.column_stack([np.ones(n), x]),
            y=(rows.y - float(np.asarray(values["centre"]))) / float(np.asarray(values["unit"])),
            weight=np.ones(n) if rows.weight is None else rows.weight,
            offset=rows.offset if values["offset"] and rows.offset is not None else np.zeros(n),
            intercept=intercept,
            tau2=tuple(float(t) for t in np.atleast_1d(np.asarray(values["tau2"], float))),
        )

    @property
    def is_silent(self) -> bool:
        return is_silent(self.family, self.y, self.weight)


@dataclass(frozen=True, eq=False)
class _Point:
    """Predictions at one point: with the hospital's own intercept d in eta, weights w and weighted residuals."""

    tau2: float
    d: float
    eta: Array
    mu: Array
    w: Array
    residual: Array


def _points(betas: Array, design: _Design) -> Iterator[_Point]:
    """Predict the site's rows at each beta (points, q), after solving the site's own intercept."""
    family, d = design.family, 0.0
    for beta, tau2 in zip(betas, design.tau2, strict=True):
        eta = design.x @ beta + design.offset
        if design.intercept != "common" and len(eta):
            bound = tau2 if design.intercept == RANDOM else None
            d = solve_intercept(family, design.y, eta, design.weight, tau2=bound, start=d)
        eta = eta + d
        mu, slope = family.predict(eta)
        yield _Point(tau2, d, eta, mu, design.weight * slope, design.weight * (design.y - mu))


def _value(design: _Design, point: _Point) -> float:
    """Compute the log-likelihood that Newton's method raises: with shrunk intercepts the joint one of rows and intercept."""
    value = float(design.weight @ design.family.log_likelihood(design.y, point.eta))
    return value - point.d**2 / (2 * point.tau2) if design.intercept == RANDOM else value


def _largest(values: Array) -> float:
    """Return the largest absolute entry."""
    return float(np.abs(values).max(initial=0.0))


def _zeros(question: Question) -> dict[str, Array]:
    """Make an answer of zeros."""
    return {name: np.zeros(shape) for name, shape in question.blocks.items()}


def _count(question: Question, design: _Design) -> dict[str, Array]:
    """Count rows, outcomes, and rows that the model cannot use. Only their sums over all sites are looked at."""
    bad = design.family.find_bad_rows(design.y)
    bad = bad | ~(np.isfinite(design.x).all(1) & np.isfinite(design.offset) & np.isfinite(design.weight))
    y, weight = design.y[~bad], design.weight[~bad]
    counts = {"n": weight.sum(), "y": weight @ y, "wrong": np.asarray(bad.sum(), float)}
    if "fractional" in question.blocks:
        counts["fractional"] = np.asarray((y != np.floor(y)).sum(), float)
    return counts


GLM_ANSWERS: Mapping[str, Answer] = {
    "glm": answer_glm,
    "glm.mean": answer_mean,
    "glm.sandwich": answer_sandwich,
    "glm.start": answer_start,
}
"""The site's half of generalised linear models, by kind of question."""
