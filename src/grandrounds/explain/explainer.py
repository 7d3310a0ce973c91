"""Feature importances in the training loop: of each feature for each row, by one model or by many.

The importance of a feature is the mean over rows; the spread over rows gives the sampling error. One implementation serves two
uses: many sites' models on the same reference rows (*training drift*), and one
model on each site's own rows (*deployed divergence*).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.features import Features

_BYTES = 64 * 2**20
"""Bytes of row importances held at once."""


class Explainer(Protocol):
    """Measure how much a model relies on each of its features."""

    @property
    def features(self) -> Features: ...

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        """Return the importance of each feature for each row: (n, F) by one model (P,), (K, n, F) by models (K, P) of one size.

        x (n, d) or images (n, C, H, W); target (n, outputs) as in training. Rows offsets[k]:offsets[k + 1] belong to one site:
        an explainer that mixes rows (a permutation) mixes them within a site only.
        """
        ...


@dataclass(frozen=True)
class Importances:
    """Mean importance of each feature for K models or sites, (K, F), with the standard error of that mean, (K, F).

    `halves` (2, K, F) are sums over every other row, if sites have their own rows: their difference shows the effect of sampling.
    """

    values: Array
    error: Array
    halves: Array | None = None


def split_rows(edges: Array, size: int) -> Iterator[slice]:
    """Yield blocks of at most `size` rows, none across an edge between sites."""
    for a, b in pairwise(edges.tolist()):
        yield from (slice(start, min(start + size, b)) for start in range(a, b, size))


def measure(
    explainer: Explainer, model: Any, theta: Any, x: Array, target: Array, offsets: Array | None = None
) -> Importances:
    """Measure importances of features: by models (K, P) on the same rows, or by sites with rows of their own (`offsets`).

    With offsets of m sites, `theta` is one model for all (P,) or each site's own: (m, P) or a list of m vectors.

    Args:
        explainer: Measures importances row by row.
        model: Describes the models.
        theta: Models (K, P); with offsets of m sites one for all (P,), (m, P), or a list of m vectors.
        x: Rows (n, d) or images (n, C, H, W).
        target: Target probabilities (n, outputs), as in training.
        offsets: Edges (m + 1,) of the sites' rows; None where all models read the same rows.

    Returns:
        Mean importances and their standard errors.
    """
    target = _expand_target(target, model)
    if offsets is None:
        edges = np.array([0, len(x)])
        size = max(1, _BYTES // max(1, 8 * len(x) * len(explainer.features)))
        blocks = [theta[start : start + size] for start in range(0, len(theta), size)]
        parts = [_measure_models(explainer, model, block, x, target, edges) for block in blocks]
    elif isinstance(theta, np.ndarray) and theta.ndim == 1:
        parts = [_measure_sites(explainer, model, theta, x, target, offsets)]
    else:
        spans = [slice(a, b) for a, b in pairwise(offsets)]
        parts = [
            _measure_sites(explainer, model, vector, x[cut], target[cut], np.array([0, cut.stop - cut.start]))
            for vector, cut in zip(theta, spans, strict=True)
        ]
    halves = [p.halves for p in parts if p.halves is not None]
    return Importances(
        np.concatenate([p.values for p in parts]),
        np.concatenate([p.error for p in parts]),
        np.concatenate(halves, axis=1) if halves else None,
    )


def _measure_models(explainer: Explainer, model: Any, theta: Any, x: Array, target: Array, edges: Array) -> Importances:
    if isinstance(theta, np.ndarray):
        importances = explainer.rows(model, theta, x, target, edges)
    else:  # forests differ in size
        importances = np.stack([explainer.rows(model, vector, x, target, edges) for vector in theta])
    exact = importances.astype(float)
    return Importances(exact.mean(axis=1), exact.std(axis=1) / np.sqrt(len(x)))


def _measure_sites(
    explainer: Explainer, model: Any, theta: Array, x: Array, target: Array, offsets: Array
) -> Importances:
    importances = explainer.rows(model, theta, x, target, offsets).astype(float)
    rows = np.diff(offsets)
    counts = np.maximum(rows, 1)[:, None]
    mean = _sum_by_site(importances, offsets) / counts
    spread = _sum_by_site((importances - np.repeat(mean, rows, axis=0)) ** 2, offsets) / counts
    return Importances(
        mean, np.sqrt(spread / counts), _sum_halves(explainer, model, theta, x, target, offsets, importances)
    )


def _sum_halves(
    explainer: Explainer, model: Any, theta: Array, x: Array, target: Array, offsets: Array, importances: Array
) -> Array:
    """Sum over every other row of each site, (2, m, F).

    An explainer that mixes rows is run again on each half, so that no row of one half gets values from the other.
    """
    rows = np.diff(offsets)
    odd = (np.arange(len(x)) - np.repeat(offsets[:-1], rows)) % 2
    order = np.lexsort((np.arange(len(x)), odd, np.repeat(np.arange(len(rows)), rows)))
    edges = np.concatenate([[0], np.cumsum(np.stack([rows - rows // 2, rows // 2], axis=1).ravel())])
    if getattr(explainer, "mixes_rows", False):
        importances = explainer.rows(model, theta, x[order], target[order], edges).astype(float)
    else:
        importances = importances[order]
    return _sum_by_site(importances, edges).reshape(len(rows), 2, -1).swapaxes(0, 1)


def _expand_target(target: Array, model: Any) -> Array:
    """Return target probabilities with a column for each output: a forest of two classes has two, other models one."""
    if target.shape[-1] == 1 and getattr(model, "outputs", 1) == 2:
        return np.concatenate([1 - target, target], axis=-1)
    return target


def _sum_by_site(values: Array, offsets: Array) -> Array:
    """Sum rows (n, F) within each site, (m, F); zero for a site without rows."""
    out = np.zeros((len(offsets) - 1, values.shape[1]))
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        out[filled] = np.add.reduceat(values[: offsets[-1]], offsets[filled], axis=0)
    return out
