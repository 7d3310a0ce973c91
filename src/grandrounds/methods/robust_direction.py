"""Robust rules that look at the length and direction of updates: FLTrust, FoolsGold, norm clipping."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.robust_coordinate import blocks

_SAME = 1e-9
"""Cosines this near to 0 or 1 are taken to be 0 or 1: beyond it a rule would magnify rounding error into trust."""

_SHORTEST = 1e-150
_TOP = 0.99


def norms(updates: Array) -> Array:
    """||u_k|| (K,) in double precision; inf or NaN where an update is not finite or too long for a double."""
    squared = np.zeros(len(updates))
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(updates.shape):
            values = updates[:, block].astype(float)
            squared += np.einsum("kp,kp->k", values, values)
    return np.sqrt(squared)


def over(length: Array) -> Array:
    """1 / ||u_k|| (K,), with 0 for an update of no length, which has no direction."""
    long = length > _SHORTEST
    return np.where(long, 1 / np.where(long, length, 1.0), 0.0)


def cosines_to(updates: Array, root: Array) -> Array:
    """cos(u_k, root) (K,); 0 where either has no length."""
    product = np.zeros(len(updates))
    unit = root.astype(float) * over(norms(root[None, :]))
    for block in blocks(updates.shape):
        product += updates[:, block].astype(float) @ unit[block]
    return np.clip(product * over(norms(updates)), -1.0, 1.0)


def cosines(updates: Array) -> Array:
    """cos(u_i, u_j) (K, K), with zeros on the diagonal."""
    similar = np.zeros((len(updates), len(updates)))
    scale = over(norms(updates))[:, None]
    for block in blocks(updates.shape):
        units = updates[:, block] * scale
        similar += units @ units.T
    np.fill_diagonal(similar, 0.0)
    return np.clip(similar, -1.0, 1.0)


def trust_scores(cosine: Array) -> Array:
    """TS_k = ReLU(cos(u_k, root)) (K,) (Cao et al. 2021)."""
    return np.where(cosine > _SAME, cosine, 0.0)


def foolsgold_rates(similar: Array) -> Array:
    """FoolsGold's learning rates alpha (K,) in [0, 1] from cosines (K, K) (Fung et al. 2020, Algorithm 1).

    v_i = max_j cs_ij; pardoning, cs_ij * v_i / v_j where v_j > v_i, spares an honest site that resembles a sybil more
    than its own kind; alpha_i = 1 - max_j cs_ij is stretched to a largest value of 1 and through ln(a / (1 - a)) + 0.5
    (kappa = 1) to the ends of [0, 1]. As in the authors' code a largest value of 1 is taken as 0.99 and infinities
    fall on 0 or 1. Where every alpha is 0, because all sites are copies, their code divides by zero; here nobody is
    trusted. The paper's optional weighing of features is left out, as in the authors' code for deep networks.
    """
    closest = similar.max(axis=1)
    mine, theirs = closest[:, None], closest[None, :]
    pardon = np.where(mine < theirs, mine / np.where(theirs > 0, theirs, 1.0), 1.0)
    alpha = np.clip(1 - (similar * pardon).max(axis=1), 0.0, 1.0)
    largest = float(alpha.max())
    if largest <= _SAME:
        return np.zeros(len(alpha))
    stretched = np.clip(alpha / largest, _SAME, _TOP)
    rates: Array = np.clip(np.log(stretched / (1 - stretched)) + 0.5, 0.0, 1.0)
    return rates
