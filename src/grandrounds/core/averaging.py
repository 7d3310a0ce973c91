"""Weighted means of models: the same bits however sites were chunked."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array

_BLOCK = 64
_STRETCH = 1 << 16
"""Number of coordinates that are averaged at a time for long models."""


def average(models: Array, weights: Array) -> Array:
    """Compute sum_k w_k * model_k over models (K, P), in double precision and in site order.

    Sites are added in fixed blocks, so the bits do not depend on how an engine chunked them and memory stays small.
    """
    if models.shape[1] > _STRETCH:
        return _average_stretches(models, weights)
    total = np.zeros(models.shape[1])
    for start in range(0, len(models), _BLOCK):
        block = weights[start : start + _BLOCK, None] * models[start : start + _BLOCK]
        total += np.add.reduce(block, axis=0)
    return total


def _average_stretches(models: Array, weights: Array) -> Array:
    """Compute the same bits in blocks of coordinates: models may be in a file larger than memory."""
    total = np.zeros(models.shape[1])
    for start in range(0, models.shape[1], _STRETCH):
        span = slice(start, start + _STRETCH)
        for first in range(0, len(models), _BLOCK):
            block = weights[first : first + 1] * models[first, span]
            for k in range(first + 1, min(first + _BLOCK, len(models))):
                block += weights[k : k + 1] * models[k, span]
            total[span] += block
    return total
