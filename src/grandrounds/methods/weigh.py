"""How answers are weighed: signals on the simplex."""

from __future__ import annotations

import numpy as np

from grandrounds.arrays import Array

RULES = {"data_size": "by training rows (FedAvg)", "uniform": "every site alike"}


def data_size(counts: Array) -> Array:
    """n_k / n: the weight FedAvg gives (McMahan et al. 2017)."""
    rows: Array = np.asarray(counts, float)
    shares: Array = rows / rows.sum()
    return shares


def uniform(sites: int) -> Array:
    """1 / K for each of K sites."""
    return np.full(sites, 1 / sites)
