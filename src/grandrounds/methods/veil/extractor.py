"""A site's part of VEIL as printed: ClientUpdate of Algorithm 1, with eq. 1 and 2.

It is not private: one patient can turn the sign of a weight, which is sent without noise. With eq. 1 a weight never exceeds half
of the sensitivity, so the draw is nearly uniform. What sites send by default is in `site.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models.dense import probabilities
from grandrounds.protocol.messages import Value


@dataclass(frozen=True)
class Extractor:
    """Settings of a site's small model."""

    epochs: int
    batch: int
    lr: float
    clip: float  # bound of a batch's gradient (paper) or of a row's norm (the others)
    l2: float

    def to_values(self) -> dict[str, Value]:
        return {"epochs": self.epochs, "batch": self.batch, "lr": self.lr, "clip": self.clip, "l2": self.l2}

    @classmethod
    def from_values(cls, values: Mapping[str, Value]) -> Extractor:
        return cls(int(values["epochs"]), int(values["batch"]), float(values["lr"]), float(values["clip"]), float(values["l2"]))


def client_update(
    rule: Extractor, x: Array, y: Array, *, epsilon: float, k: int, fit: np.random.Generator, draw: np.random.Generator
) -> tuple[Array, Array]:
    """Propose k features with the signs of their weights: ClientUpdate of Algorithm 1.

    Args:
        rule: Settings of the local model.
        x: Rows (n, d).
        y: Outcomes (n,), 0 or 1.
        epsilon: The claimed epsilon of one draw, epsilon / (T k); 0: the k largest weights, without a draw.
        k: Number of proposals.
        fit: Random order of the batches.
        draw: Randomness of the selection.

    Returns:
        The features (k,), and True for each whose weight is negative (k,).
    """
    weights = printed_weights(rule, x, y, fit)  # lines 3 and 5
    quality = np.abs(weights)  # line 4
    features = draw_candidates(quality, epsilon, k, draw)  # lines 6 to 8
    return features, weights[features] < 0  # lines 9 and 10: the sign has no noise


def printed_weights(rule: Extractor, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Fit the local linear model (line 3) and divide its weights by their sensitivity (line 5)."""
    out: Array = local_weights(rule, x, y, rng) / sensitivity(rule, len(x))
    return out


def local_weights(rule: Extractor, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Fit by E epochs of batches of B rows, from zero, with mean gradients clipped to C: (d,)."""
    w = np.zeros(x.shape[1])
    batch = _batch_size(rule, len(x))
    for _ in range(rule.epochs):
        order = rng.permutation(len(x))
        for s in range(_batch_count(rule, len(x))):
            rows = order[s * batch : (s + 1) * batch]
            g = (predict(w, x[rows]) - y[rows]) @ x[rows] / len(rows)
            w -= rule.lr * g * min(1.0, rule.clip / max(float(np.linalg.norm(g)), 1e-12))
    return w


def sensitivity(rule: Extractor, rows: int) -> float:
    """Compute 2 E ceil(n / B) eta C (eq. 1). The paper has n / B; the last batch is a step too."""
    return 2 * rule.epochs * _batch_count(rule, rows) * rule.lr * rule.clip


def draw_candidates(utility: Array, epsilon: float, k: int, rng: np.random.Generator) -> Array:
    """Draw k candidates without replacement, P(j) proportional to exp(epsilon utility_j / 2) (eq. 2); epsilon 0: the k best."""
    if not epsilon:
        return np.argsort(-utility, kind="stable")[:k]
    from grandrounds.privacy.mechanisms import exponential_top_k

    return np.asarray(exponential_top_k(utility, epsilon=epsilon * k, sensitivity=1.0, k=k, rng=rng))


def predict(w: Array, x: Array) -> Array:
    """Predict the probability of the event by weights without an intercept."""
    out: Array = probabilities((x @ w)[:, None])[:, 0]
    return out


def _batch_size(rule: Extractor, rows: int) -> int:
    return min(rule.batch, rows) if rule.batch else rows


def _batch_count(rule: Extractor, rows: int) -> int:
    return -(-rows // _batch_size(rule, rows))
