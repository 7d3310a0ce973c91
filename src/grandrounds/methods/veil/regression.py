"""Sparse regression at VEIL's server, from noisy sums: selection of features, least squares from moments, logistic steps.

It is not in the paper. All of it is post-processing of noisy releases, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

_RIDGE = 2.0
"""Ridge penalty in units of the noise's spectral norm, about 2 sqrt(m) of its deviation."""


def unpack_moments(packed: Array, size: int, *, outcome: float) -> tuple[Array, Array]:
    """Unpack the symmetric matrix (size, size) and the vector (size,) from the report of `veil.moments`."""
    upper = np.triu_indices(size)
    cut = len(upper[0])
    gram = np.zeros((size, size))
    gram[upper] = packed[:cut] / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return gram + np.triu(gram, 1).T, packed[cut:] / outcome


def fit_moments(gram: Array, towards: Array, *, prior: float, features: int, noise: float) -> tuple[Array, Array]:
    """Select features by forward selection, each explaining most of the residual; return them and the model (d + 1,).

    Least squares of (y - prior) on them and the intercept; `noise` is the deviation of an entry of `gram`, and the ridge is as
    large as the norm of noise alone in a matrix of that size. A slope of a probability is prior (1 - prior)
    times that of log-odds. All features where `features` is 0.
    """
    d = len(towards) - 1
    diagonal = np.maximum(np.diag(gram), max(noise, 1.0))
    selected: list[int] = [d]  # the intercept
    weights = _solve_ridge(gram, towards, selected, noise)
    for _ in range(min(features, d) if features else 0):
        residual = np.abs(towards - gram[:, selected] @ weights) / np.sqrt(diagonal)
        residual[selected] = -1.0
        selected.append(int(residual.argmax()))
        weights = _solve_ridge(gram, towards, selected, noise)
    if not features:
        selected = list(range(d + 1))
        weights = _solve_ridge(gram, towards, selected, noise)
    slope = prior * (1 - prior)
    model = np.zeros(d + 1)
    model[selected] = weights / slope
    model[-1] += np.log(prior / (1 - prior))
    return np.array([j for j in selected if j < d], np.int64), model


def strongest_features(scores: Array, count: int, *, exclude: Sequence[int] | Array = ()) -> Array:
    """Return the `count` features with the largest entries of either sign, those in `exclude` left out."""
    size, excluded = np.abs(scores), np.asarray(exclude, np.int64)
    size[excluded] = -1.0
    return np.sort(np.argsort(-size, kind="stable")[: min(count, len(scores) - len(excluded))])


def keep_features(model: Array, chosen: Array) -> Array:
    """Return the model with all weights but those selected, and the intercept, set to 0."""
    out = np.zeros_like(model)
    index = np.append(chosen, len(model) - 1)
    out[index] = model[index]
    return out


@dataclass(frozen=True)
class Curvature:
    """Curvature of the log-likelihood: prior (1 - prior) times second moments, whose entries have noise of this deviation."""

    gram: Array
    prior: float
    noise: float

    def step(self, scores: Array, index: list[int]) -> Array:
        towards = np.zeros(len(self.gram))
        towards[index] = scores
        out: Array = _solve_ridge(self.gram, towards, index, self.noise) / (self.prior * (1 - self.prior))
        return out


def fit_step(
    model: Array,
    scores: Array,
    chosen: Array,
    *,
    rows: float,
    lr: float,
    curve: Curvature | None,
    centre: Array | None = None,
) -> Array:
    """Return one step up the summed scores (len(chosen) + 1, the intercept last): a Newton step if the curvature is known.

    Scores of values relative to a `centre` (d,) belong to a model with its intercept there; the result's is at 0 again.
    """
    index = [*chosen.tolist(), len(model) - 1]
    step = lr * scores / max(rows, 1.0) if curve is None else curve.step(scores, index)
    out = model.copy()
    out[index] += step
    if centre is not None:
        out[-1] -= float(step[:-1] @ centre[chosen])
    return out


def _solve_ridge(gram: Array, towards: Array, entries: list[int], noise: float) -> Array:
    """Ridge regression on these entries."""
    ridge = _RIDGE * 2 * noise * np.sqrt(len(entries)) + 1e-9 * max(1.0, float(np.trace(gram)))
    square = gram[np.ix_(entries, entries)] + ridge * np.eye(len(entries))
    values, vectors = np.linalg.eigh(square)
    out: Array = vectors @ ((vectors.T @ towards[entries]) / np.maximum(values, ridge))
    return out
