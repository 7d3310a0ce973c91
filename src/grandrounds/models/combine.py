"""The weighted mean of models."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array

_BLOCK = 64
_STRETCH = 1 << 16
"""Coordinates that are averaged at a time where models are longer."""


def average(models: Array, weights: Array) -> Array:
    """sum_k w_k * model_k over models (K, P), in double precision and in site order.

    Sites are added in fixed blocks, so the bits do not depend on how an engine chunked them and memory stays small.
    """
    if models.shape[1] > _STRETCH:
        return _in_stretches(models, weights)
    total = np.zeros(models.shape[1])
    for at in range(0, len(models), _BLOCK):
        block = weights[at : at + _BLOCK, None] * models[at : at + _BLOCK]
        total += np.add.reduce(block, axis=0)
    return total


def _in_stretches(models: Array, weights: Array) -> Array:
    """The same to the bit, one site's stretch of coordinates at a time: models may lie in a file larger than memory."""
    total = np.zeros(models.shape[1])
    for start in range(0, models.shape[1], _STRETCH):
        here = slice(start, start + _STRETCH)
        for at in range(0, len(models), _BLOCK):
            block = weights[at : at + 1] * models[at, here]
            for k in range(at + 1, min(at + _BLOCK, len(models))):
                block += weights[k : k + 1] * models[k, here]
            total[here] += block
    return total
