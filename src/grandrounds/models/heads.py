"""Averaging a net whose last layer holds one head for each task: a head is averaged over the sites that trained it."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models.combine import average
from grandrounds.protocol.layout import Layout


def average_heads(models: Array, weights: Array, *, before: Array, layout: Layout, last: str, trained: Array) -> Array:
    """The weighted mean of models (K, P), in which each output of layer `last` counts only the sites that trained it.

    `trained` (K, C) says which; an output that nobody trained stays as it was `before` (P,). Without this a head would
    move only by its task's share of the weight.
    """
    out = average(models, weights)
    outputs = trained.shape[1]
    for name, at, shape in layout.slices:
        if name.rpartition(".")[0] != last:
            continue
        axis = 0 if shape[0] == outputs else len(shape) - 1
        block = np.moveaxis(models[:, at].reshape(len(models), *shape), axis + 1, 1)  # (K, C, ...)
        share = weights[:, None] * trained
        total = share.sum(axis=0)
        mean = np.einsum("kc,kc...->c...", share / np.where(total > 0, total, 1), block)
        old = np.moveaxis(before[at].reshape(shape), axis, 0)
        known = (total > 0).reshape(-1, *[1] * (mean.ndim - 1))
        out[at] = np.moveaxis(np.where(known, mean, old), 0, axis).ravel()
    return out
