"""Clip vectors to a largest norm, for which the noise is calibrated."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array

MARGIN = 1 - 1e-6
"""Factor by which clipped vectors are shortened further, so that rounding cannot make one too long."""


def squared_norm(x: Array) -> Array:
    """Compute squared norms along the last axis, in double precision."""
    out: Array = np.square(x, dtype=np.float64).sum(axis=-1)
    return out


def clip_factor(length: Array, max_norm: float) -> Array:
    """Compute the factor that clips vectors of these lengths to `max_norm`; 0 for a length that is NaN."""
    factor = np.minimum(1.0, MARGIN * max_norm / np.maximum(length, 1e-300))
    out: Array = np.where(np.isfinite(length), factor, 0.0)
    return out


def clip_norm(vectors: Array, max_norm: float) -> Array:
    """Clip vectors (..., P) to `max_norm`; vectors with NaN become zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        factor = clip_factor(np.sqrt(squared_norm(vectors)), max_norm)[..., None].astype(vectors.dtype)
        out: Array = np.where(factor > 0, vectors, 0) * factor
    return out


def count_sampled_steps(rate: float, *, epochs: int, steps: int = 0) -> int:
    """Count the steps of DP-SGD in a round.

    Args:
        rate: Sampling rate.
        epochs: Epochs of a round.
        steps: Steps of a round; 0 derives them from the epochs.

    Returns:
        The number of steps.
    """
    return steps or max(1, round(epochs / rate))
