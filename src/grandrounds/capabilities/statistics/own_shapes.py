"""A hospital's own shapes over the common ones of an additive model, where its rows ask for them.

The hospital computes this from its own rows after the fit, and nothing of it leaves. The common score is an offset. Two steps:

1. Which columns differ? Rao's score test of each column's coefficients at the common model, with the hospital's own intercept as
   nuisance, and of the intercept itself. Columns are kept by Holm's rule, so a hospital without any difference keeps a shape with
   a probability of `FALSE_ALARMS` at most. The common model was fitted to these rows too, which makes the tests a little
   conservative.
2. How much? Deviations of the kept columns with penalties on their curvature and, apart, on their line, chosen from the
   hospital's own marginal likelihood (Fellner-Schall). They shrink towards the common shape.

Columns with a monotone constraint keep the common shape: a deviation could break it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.families import Family, find_family
from grandrounds.capabilities.statistics.intercepts import is_silent, solve_intercept
from grandrounds.capabilities.statistics.models.column_basis import Basis, Span, contrasts
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.arrays import Array

FALSE_ALARMS = 0.05
"""Largest probability that a hospital without differences keeps a shape of its own."""

LEAST = 10
"""Fewest rows of a level or of missing values, and fewest events and rows without (of classes), for a test."""

INTERCEPT = "(intercept)"
"""Name of the hospital's own intercept among the kept parts."""

_SOFTEST, _HARDEST = 1e-3, 1e7  # penalties
_STEPS = 100
_TINY = 1e-9  # relative variance of a direction in which the hospital's rows say nothing


@dataclass(frozen=True, eq=False)
class OwnShapes:
    """Additions of one hospital to the common additive model.

    Attributes:
        intercept: Added to the intercept.
        curve: (C, splines) added to the coefficients of curves.
        levels: (C, L) added to the effects of levels.
        gaps: (C,) added to the effects of missing values.
        kept: Names of the columns with a shape of their own; `INTERCEPT` for the intercept.
        p_values: Of each tested column, by name.
        edf: Effective degrees of freedom of the deviations.
    """

    intercept: float
    curve: Array
    levels: Array
    gaps: Array
    kept: tuple[str, ...]
    p_values: Mapping[str, float]
    edf: float

    def pack(self) -> Array:
        """Return what is added as one vector: intercept, curves, levels, gaps."""
        return np.concatenate([[self.intercept], self.curve.ravel(), self.levels.ravel(), self.gaps])


def fit_own_shapes(
    arrays: Mapping[str, Array],
    columns: tuple[Column, ...],
    values: Array,
    y: Array,
    score: Array,
    *,
    family: str,
    common: Collection[str] = (),
) -> OwnShapes:
    """Fit a hospital's own shapes to its rows.

    Args:
        arrays: The arrays of the common additive model (`models.gam.AdditiveModel`).
        columns: Its columns.
        values: (n, C) the hospital's rows, as `read_columns` returns them.
        y: (n,) outcomes: 0 or 1, a number in the units of the score, a count.
        score: (n,) scores of the common model.
        family: "logistic", "linear" or "poisson".
        common: Columns that keep the common shape.

    Returns:
        The shapes; zeros where the common model is kept.
    """
    model, none = find_family(family), _nothing(arrays)
    if len(y) < 2 * LEAST or is_silent(model, y, np.ones(len(y))) or _has_few_events(model, y):
        return none
    basis = _own_basis(arrays, columns, values, common)
    design = basis.design(values)
    start = solve_intercept(model, y, score, np.ones(len(y)))
    p_values = _test_columns(model, basis, design, y, score, start)
    kept = _holm(p_values)
    if not kept:
        return OwnShapes(0.0, none.curve, none.levels, none.gaps, (), p_values, 0.0)
    spans = [s for s in basis.spans if columns[s.column].name in kept]
    places = np.concatenate([np.arange(s.first, s.first + s.size) for s in spans]) if spans else np.empty(0, np.int64)
    beta, edf = _fit_deviations(model, design[:, places], _penalties(spans, basis.splines), y, score)
    full = np.zeros(basis.size)
    full[places] = beta[1:]
    return _as_arrays(basis, full, float(beta[0]), values, none, kept, p_values, edf)


def _nothing(arrays: Mapping[str, Array]) -> OwnShapes:
    zeros = {name: np.zeros_like(arrays[name]) for name in ("curve", "levels", "gaps")}
    return OwnShapes(0.0, zeros["curve"], zeros["levels"], zeros["gaps"], (), {}, 0.0)


def _has_few_events(family: Family, y: Array) -> bool:
    events = y.sum() if family.name == "logistic" else (y > 0).sum() if family.name == "poisson" else len(y)
    rest = len(y) - events if family.name == "logistic" else len(y)
    return bool(min(events, rest) < LEAST)


def _own_basis(
    arrays: Mapping[str, Array], columns: tuple[Column, ...], values: Array, common: Collection[str]
) -> Basis:
    """Build the inputs of deviations: the common basis, without levels and gaps of few rows of this hospital."""
    sizes, gaps, levels = np.asarray(arrays["sizes"]).copy(), np.zeros(len(columns), bool), []
    for c, column in enumerate(columns):
        v = values[:, c]
        missing, free = np.isnan(v), column.name not in common
        used = column.is_category or sizes[c] > 0
        gaps[c] = free and used and LEAST <= missing.sum() <= len(v) - LEAST
        counts = [int((v == k).sum()) for k in range(len(column.words))]
        levels.append(tuple(k for k, n in enumerate(counts) if free and n >= LEAST))
        if not free or (~missing).sum() < LEAST:
            sizes[c] = 0
    splines = arrays["curve"].shape[1]
    return Basis(columns, splines, arrays["knots"], arrays["ranks"], sizes, tuple(levels), gaps)


def _test_columns(
    family: Family, basis: Basis, design: Array, y: Array, score: Array, start: float
) -> dict[str, float]:
    """Return the p-value of each column's difference, and of the intercept's, by Rao's score test."""
    from scipy import special

    mu, weight = family.predict(score + start)
    dispersion = float(np.mean((y - mu) ** 2)) if family.is_scaled else 1.0
    residual = (y - mu) / dispersion
    weight = weight / dispersion
    mean = weight @ design / weight.sum()
    centred = design - mean
    first_mu, first_weight = family.predict(score)
    u0 = float((y - first_mu).sum()) / dispersion
    out = {INTERCEPT: float(special.chdtrc(1, u0**2 / (first_weight.sum() / dispersion)))}
    for c, column in enumerate(basis.columns):
        places = [k for s in basis.spans if s.column == c for k in range(s.first, s.first + s.size)]
        if not places:
            continue
        block = centred[:, places]
        u, v = block.T @ residual, (block * weight[:, None]).T @ block
        values, vectors = np.linalg.eigh(v)
        sound = values > max(float(values[-1]), 1e-12) * _TINY
        statistic = float((((vectors.T @ u)[sound]) ** 2 / values[sound]).sum())
        if sound.any():
            out[column.name] = float(special.chdtrc(int(sound.sum()), statistic))
    return out


def _holm(p_values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names that Holm's rule keeps at `FALSE_ALARMS`, in their order."""
    kept = set()
    for k, name in enumerate(sorted(p_values, key=lambda n: (p_values[n], n))):
        if p_values[name] > FALSE_ALARMS / (len(p_values) - k):
            break
        kept.add(name)
    return tuple(name for name in p_values if name in kept)


def _penalties(spans: list[Span], splines: int) -> list[tuple[slice, Array, int]]:
    """Return place, matrix and rank of each penalty, after the intercept's: curvature and line of curves, ridge of others."""
    out, first = [(slice(0, 1), np.eye(1), 1)], 1
    turn = contrasts(splines)
    bend = np.diff(np.eye(splines), n=2, axis=0) @ turn
    values, vectors = np.linalg.eigh(bend.T @ bend)
    line = vectors[:, values < values[-1] * _TINY]
    for span in spans:
        place = slice(first, first + span.size)
        if span.part == "curve":
            out += [(place, bend.T @ bend, splines - 2), (place, line @ line.T, line.shape[1])]
        else:
            out.append((place, np.eye(span.size), span.size))
        first += span.size
    return out


def _fit_deviations(
    family: Family, design: Array, penalties: list[tuple[slice, Array, int]], y: Array, score: Array
) -> tuple[Array, float]:
    """Fit penalised deviations and their penalties in turn; return the coefficients, intercept first, and their edf."""
    x = np.column_stack([np.ones(len(y)), design])
    beta, weights, dispersion, edf = np.zeros(x.shape[1]), np.ones(len(penalties)), 1.0, 0.0
    for _ in range(_STEPS):
        mu, v = family.predict(score + x @ beta)
        if family.is_scaled:
            dispersion = float(((y - mu) ** 2).sum() / max(1.0, len(y) - edf))
        h = (x * (v / dispersion)[:, None]).T @ x
        r = h @ beta + x.T @ (y - mu) / dispersion
        penalty = np.zeros_like(h)
        for (place, matrix, _rank), weight in zip(penalties, weights, strict=True):
            penalty[place, place] += weight * matrix
        inverse = np.linalg.inv(h + penalty)
        new, edf = inverse @ r, float(np.trace(inverse @ h))
        before = weights.copy()
        for g, (place, matrix, rank) in enumerate(penalties):
            size = float(new[place] @ matrix @ new[place])
            left = rank - weights[g] * float(np.trace(inverse[place, place] @ matrix))
            weights[g] = np.clip(max(left, 1e-12) / max(size, 1e-12), _SOFTEST, _HARDEST)
        moved = float(np.sqrt((new - beta) @ h @ (new - beta) / len(beta)))
        beta = new
        if moved < 1e-8 and np.abs(np.log(weights / before)).max() < 1e-3:
            break
    return beta, edf


def _as_arrays(
    basis: Basis,
    beta: Array,
    intercept: float,
    values: Array,
    none: OwnShapes,
    kept: tuple[str, ...],
    p_values: Mapping[str, float],
    edf: float,
) -> OwnShapes:
    """Write deviations as additions to the model's arrays; the mean effect of each column over the rows goes to the intercept."""
    curve, levels, gaps, turn = none.curve.copy(), none.levels.copy(), none.gaps.copy(), contrasts(basis.splines)
    effect = basis.design(values) * beta
    for span in basis.spans:
        b, c = beta[span.places], span.column
        if span.part == "curve":
            curve[c] = turn @ b
        elif span.part == "step":
            curve[c, :2] = [-0.5 * b[0], 0.5 * b[0]]
        elif span.part == "missing":
            gaps[c] = b[0]
        else:
            chosen = list(basis.levels[c])
            levels[c, chosen] = b[: len(chosen)]
            gaps[c] = b[-1] if basis.gaps[c] else 0.0
    for c, column in enumerate(basis.columns):
        if column.name in kept:
            places = [k for s in basis.spans if s.column == c for k in range(s.first, s.first + s.size)]
            mean = float(effect[:, places].sum(axis=1).mean())
            curve[c], levels[c], gaps[c] = curve[c] - mean, levels[c] - mean, gaps[c] - mean
            intercept += mean
    return OwnShapes(intercept, curve, levels, gaps, kept, p_values, edf)
