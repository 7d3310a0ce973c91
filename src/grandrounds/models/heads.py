"""Weighted means of nets whose last layer has one head per task."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.averaging import average
from grandrounds.protocol.layout import Layout


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
