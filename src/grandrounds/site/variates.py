"""SCAFFOLD at a site (Karimireddy et al. 2020, Algorithm 1, option II): what a site remembers of its own drift.

Every local gradient gets c - c_k added. After the round c_k becomes c_k - c + (x - y_k) / (S * lr): the mean gradient
the site saw, which is why option II holds for plain SGD alone.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array


def correction(shared: Array, own: Array) -> Array:
    """c - c_k for each site: (m, P)."""
    out: Array = shared - own
    return out


def renewed(
    own: Array, shared: Array, *, start: Array, theta: Array, steps: Array, lr: float, rate: Array | None = None
) -> Array:
    """The sites' new variates (m, P); a site that took no step keeps its own. `rate` (m,): how far each goes to the new."""
    taken = np.maximum(steps, 1)[:, None] * lr
    fresh = own - shared + (start - theta) / taken
    if rate is not None:
        fresh = own + rate[:, None] * (fresh - own)
    return np.where(steps[:, None] > 0, fresh, own).astype(theta.dtype, copy=False)


def steady_rate(counts: Array, batch: int) -> Array:
    """min(1, n_k / batch): a site with fewer rows than a batch has taken the same few many times, and what it saw of its
    own gradient answers to its own correction; followed in full, that swings wider every round."""
    out: Array = np.minimum(1.0, counts / batch) if batch else np.ones(len(counts))
    return out
