"""SCAFFOLD at a site (Karimireddy et al. 2020, Algorithm 1, option II): what a site remembers of its own drift.

Every local gradient gets c - c_k added. After the round c_k becomes c_k - c + (x - y_k) / (S * lr): the mean gradient
the site saw, which is why option II holds for plain SGD alone.
"""

from __future__ import annotations

import numpy as np

from grandrounds.arrays import Array


def correction(shared: Array, own: Array) -> Array:
    """c - c_k for each site: (m, P)."""
    out: Array = shared - own
    return out


def renewed(own: Array, shared: Array, *, start: Array, theta: Array, steps: Array, lr: float) -> Array:
    """The sites' new variates (m, P); a site that took no step keeps its own."""
    taken = np.maximum(steps, 1)[:, None] * lr
    fresh = own - shared + (start - theta) / taken
    return np.where(steps[:, None] > 0, fresh, own).astype(theta.dtype, copy=False)
