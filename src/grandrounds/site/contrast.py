"""MOON's contrastive loss (Li et al. 2021, eq. 3): pulls a site's features to the global model's and away from its previous ones.

l = -log(exp(s_g / T) / (exp(s_g / T) + exp(s_p / T))), s the cosine of a row's features under the model in training with
those under the global model (s_g) and under the site's previous local model (s_p). Both are fixed for a round, so
they are computed once for all rows. A site without a previous model uses the global one: then l is constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.site.stack import Part

EPS = 1e-8


@dataclass(frozen=True)
class Contrast:
    """The fixed features of all rows (N, width), as unit vectors, and the weight of the loss."""

    towards: Array
    away: Array
    mu: float
    temperature: float

    @classmethod
    def build(
        cls,
        model: Any,
        x: Array,
        part: Part,
        members: Array,
        *,
        start: Array,
        previous: Array,
        mu: float,
        temperature: float,
    ) -> Contrast:
        """Compute the fixed features under the global model (P,) or (m, P) and the sites' previous ones (m, P).

        Rows of sites that are not members stay zero.
        """

        def fixed(models: Array) -> Array:
            parts = [slice(part.offsets[k], part.offsets[k + 1]) for k in members]
            units = [unit(model.features(theta, x[rows])) for theta, rows in zip(models, parts, strict=True)]
            out = np.zeros((len(x), units[0].shape[1]), units[0].dtype)
            for rows, features in zip(parts, units, strict=True):
                out[rows] = features
            return out

        shared = np.broadcast_to(start, (len(members), start.shape[-1]))
        return cls(fixed(shared), fixed(previous.astype(start.dtype)), mu, temperature)

    def pull(self, rows: Array, weight: Array) -> Callable[[Array], Array]:
        """Make the gradient of sum_i weight_i * mu * l_i with respect to features (K, B, width) of these rows."""

        def gradient(h: Array) -> Array:
            norm = np.maximum(np.linalg.norm(h, axis=-1, keepdims=True), EPS)
            direction = h / norm
            apart = self.away[rows] - self.towards[rows]
            gap = (direction * apart).sum(axis=-1, keepdims=True)  # s_p - s_g
            share = self.mu / self.temperature * weight[..., None] / (1 + np.exp(-gap / self.temperature))
            out: Array = share * (apart - gap * direction) / norm
            return out.astype(h.dtype, copy=False)

        return gradient


def unit(features: Array) -> Array:
    """Scale rows to length 1; a row of zeros stays."""
    out: Array = features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), EPS)
    return out
