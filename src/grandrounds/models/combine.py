"""The weighted mean of models."""

from __future__ import annotations

import numpy as np

from grandrounds.arrays import Array

_BLOCK = 64


def average(models: Array, weights: Array) -> Array:
    """sum_k w_k * model_k over models (K, P), in double precision and in site order.

    Sites are added in fixed blocks, so the bits do not depend on how an engine chunked them and memory stays small.
    """
    total = np.zeros(models.shape[1])
    for at in range(0, len(models), _BLOCK):
        block = weights[at : at + _BLOCK, None] * models[at : at + _BLOCK]
        total += np.add.reduce(block, axis=0)
    return total
