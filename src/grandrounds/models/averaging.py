"""Weighted means of models, and of nets whose last layer has one head per task."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.layout import Layout

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


def average_heads(models: Array, weights: Array, *, before: Array, layout: Layout, last: str, trained: Array) -> Array:
    """Average models (K, P), where each output of layer `last` counts only the sites that trained it.

    `trained` (K, C) marks them; an output that no site trained keeps its value `before` (P,). Otherwise a head would change only
    by its task's share of the weight.
    """
    out = average(models, weights)
    outputs = trained.shape[1]
    for name, span, shape in layout.slices:
        if name.rpartition(".")[0] != last:
            continue
        axis = 0 if shape[0] == outputs else len(shape) - 1
        block = np.moveaxis(models[:, span].reshape(len(models), *shape), axis + 1, 1)  # (K, C, ...)
        share = weights[:, None] * trained
        total = share.sum(axis=0)
        mean = np.einsum("kc,kc...->c...", share / np.where(total > 0, total, 1), block)
        old = np.moveaxis(before[span].reshape(shape), axis, 0)
        trained_by_some = (total > 0).reshape(-1, *[1] * (mean.ndim - 1))
        out[span] = np.moveaxis(np.where(trained_by_some, mean, old), 0, axis).ravel()
    return out
