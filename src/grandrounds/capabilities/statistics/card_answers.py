"""The sites' half of a risk card: products of candidate steps with weights and target, and counts by total of points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grandrounds.capabilities.statistics.models.card import meet_terms
from grandrounds.capabilities.statistics.models.columns import parse_columns, read_columns
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.capabilities.statistics.question import Answer, Blocks, Question, Rows
from grandrounds.core.arrays import Array

OUTCOMES = 0.5
"""Share of the step from the additive model to the outcomes in the target of a distilled card."""

_CHUNK = 8192  # rows whose products are added at a time


def answer_steps(question: Question, rows: Rows) -> Blocks:
    """Answer exchange 1 at a site: rows of each candidate, and its products with weights and weighted target."""
    met, weight, target = _site_half(question, rows)
    return {
        "rows": met.sum(axis=0),
        "zw": _products(met, weight),
        "zt": _products(met, target),
        "n": np.float64(len(rows)),
        "w": weight.sum(),
        "t": target.sum(),
        "y": rows.y.sum(),
    }


def answer_pairs(question: Question, rows: Rows) -> Blocks:
    """Answer exchange 2 at a site: products of candidates with each other, upper triangle by rows."""
    met, weight, target = _site_half(question, rows)
    m = met.shape[1]
    square = np.zeros((m, m))
    for part in _chunks(len(met)):
        z = met[part].astype(float)
        square += z.T @ (z * weight[part, None])
    return {"zz": square[np.triu_indices(m)], "zt": _products(met, target), "w": weight.sum(), "t": target.sum()}


def answer_newton(question: Question, rows: Rows) -> Blocks:
    """Answer a Newton step at a site: gradient and Hessian of the logistic log-likelihood on the chosen steps."""
    met, _, _ = _site_half(question, rows)
    z = np.column_stack([np.ones(len(met)), met])
    mu = _expit(z @ np.asarray(question.values["beta"], float))
    h = z.T @ (z * (mu * (1 - mu))[:, None])
    return {"u": z.T @ (rows.y - mu), "h": h[np.triu_indices(z.shape[1])]}


def answer_totals(question: Question, rows: Rows) -> Blocks:
    """Answer exchange 3 at a site: rows and events by total of points."""
    q = question.values
    (size,) = question.blocks["rows"]
    values = read_columns(rows.x, parse_columns(str(q["columns"])))
    met = meet_terms(values, *(np.asarray(q[name], float) for name in ("column", "kind", "value")))
    total = (met @ np.asarray(q["points"], float)).astype(np.int64) - int(np.asarray(q["low"]))
    return {
        "rows": np.bincount(total, minlength=size).astype(float),
        "events": np.bincount(total, rows.y, minlength=size),
    }


def _site_half(question: Question, rows: Rows) -> tuple[Array, Array, Array]:
    """Return the candidates that rows meet, (n, m) bool, with weight w and weighted target w t of each row.

    The target of a distilled card is t = eta + (y - mu) / (2 w): log-odds of the additive model, and half of the step that
    Newton's method would take from there to the outcomes, because the additive model is smoothed.
    """
    q = question.values
    columns = parse_columns(str(q["columns"]))
    met = meet_terms(
        read_columns(rows.x, columns), *(np.asarray(q[name], float) for name in ("column", "kind", "value"))
    )
    if "scores" not in q:
        return met, np.ones(len(rows)), rows.y
    model = AdditiveModel(features=rows.x.shape[1], columns=columns)
    eta = model.logits(np.asarray(q["scores"], float), rows.x)[:, 0]
    mu = _expit(eta)
    weight = mu * (1 - mu)
    return met, weight, weight * eta + OUTCOMES * (rows.y - mu)


def _products(met: Array, values: Array) -> Array:
    """Return Z'v, (m,)."""
    out = np.zeros(met.shape[1])
    for part in _chunks(len(met)):
        out += values[part] @ met[part]
    return out


def _chunks(n: int) -> Iterator[slice]:
    return (slice(first, first + _CHUNK) for first in range(0, n, _CHUNK))


def _expit(eta: Array) -> Array:
    out: Array = 0.5 * (1 + np.tanh(0.5 * eta))
    return out


CARD_ANSWERS: dict[str, Answer] = {
    "card.steps": answer_steps,
    "card.pairs": answer_pairs,
    "card.newton": answer_newton,
    "card.totals": answer_totals,
}
"""The sites' halves of the questions of a card."""
