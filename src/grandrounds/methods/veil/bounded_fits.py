"""Two local fits with a proven sensitivity to one patient, which feature and sign are drawn by (for research: weak).

Each returns the weights in units of their sensitivity, as the exponential mechanism needs.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.veil.extractor import Extractor, predict


def convex_weights(rule: Extractor, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Return the minimum of mean loss + l2 / 2 ||w||^2 on rows of norm at most R, with sensitivity 2 R / (n l2) to one patient.
    Chaudhuri, Monteleoni and Sarwate 2011. The number of rows is taken as public.
    """
    z = _clip_rows(x, rule.clip)
    n, w = len(z), np.zeros(x.shape[1])
    for _ in range(50):
        p = predict(w, z)
        step = np.linalg.solve(
            (z * (p * (1 - p))[:, None]).T @ z / n + rule.l2 * np.eye(len(w)), (p - y) @ z / n + rule.l2 * w
        )
        w -= step
        if np.abs(step).max() < 1e-10:
            break
    out: Array = w * n * rule.l2 / (2 * rule.clip)
    return out


def gradient_descent_weights(rule: Extractor, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Take E full steps of gradient descent on rows of norm at most R, each non-expansive: sensitivity 2 E eta R / n to one
    patient.

    A step is non-expansive while eta <= 8 / R^2 (the loss is R^2 / 4 smooth). The number of rows is taken as public.
    """
    z = _clip_rows(x, rule.clip)
    lr = min(rule.lr, 8 / rule.clip**2)
    w = np.zeros(x.shape[1])
    for _ in range(rule.epochs):
        w -= lr * (predict(w, z) - y) @ z / len(z)
    out: Array = w * len(z) / (2 * rule.epochs * lr * rule.clip)
    return out


def _clip_rows(x: Array, longest: float) -> Array:
    out: Array = x * np.minimum(1.0, longest / np.maximum(np.linalg.norm(x, axis=1), 1e-12))[:, None]
    return out
