"""How answers are weighed: signals on the simplex, and the weighted mean of models."""

from __future__ import annotations

import numpy as np

from grandrounds.arrays import Array

RULES = {"data_size": "by training rows (FedAvg)", "uniform": "every site alike"}
_BLOCK = 64


def data_size(counts: Array) -> Array:
    """n_k / n: the weight FedAvg gives (McMahan et al. 2017)."""
    rows: Array = np.asarray(counts, float)
    shares: Array = rows / rows.sum()
    return shares


def uniform(sites: int) -> Array:
    """1 / K for each of K sites."""
    return np.full(sites, 1 / sites)


def average(models: Array, weights: Array) -> Array:
    """sum_k w_k * model_k over models (K, P), in double precision and in site order.

    Sites are added in fixed blocks, so the bits do not depend on how an engine chunked them and memory stays small.
    """
    total = np.zeros(models.shape[1])
    for at in range(0, len(models), _BLOCK):
        block = weights[at : at + _BLOCK, None] * models[at : at + _BLOCK]
        total += np.add.reduce(block, axis=0)
    return total
