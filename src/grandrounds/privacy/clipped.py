"""Vectors that are never longer than agreed: what noise is sized for."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array

SHY = 1 - 1e-6
"""A clipped vector is this much shorter than it may be, so that rounding makes none longer."""


def squared_length(x: Array) -> Array:
    """Squared lengths along the last axis, in double precision whatever x is in."""
    out: Array = np.square(x, dtype=np.float64).sum(axis=-1)
    return out


def shrinking(length: Array, longest: float) -> Array:
    """What to multiply vectors of these lengths by so that none is longer than `longest`; 0 where a length is no number."""
    factor = np.minimum(1.0, SHY * longest / np.maximum(length, 1e-300))
    out: Array = np.where(np.isfinite(length), factor, 0.0)
    return out


def clip_norm(vectors: Array, longest: float) -> Array:
    """Vectors (..., P), each no longer than `longest`; one that is no number is nothing."""
    with np.errstate(over="ignore", invalid="ignore"):
        factor = shrinking(np.sqrt(squared_length(vectors)), longest)[..., None].astype(vectors.dtype)
        out: Array = np.where(factor > 0, vectors, 0) * factor
    return out


def sampled_steps(rate: float, *, epochs: int, steps: int = 0) -> int:
    """Steps of DP-SGD in a round: as many as named, or as make up the epochs where each row is in a step by `rate`."""
    return steps or max(1, round(epochs / rate))
