"""Small linear models by which VEIL's printed mechanism and two of its research variants select features.

Each returns the weights in units of their sensitivity to one patient, as the exponential mechanism needs. With the printed bound
(eq. 1) a weight never exceeds half of the sensitivity, so the draw is nearly uniform.
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


def printed_weights(rule: Extractor, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Fit Algorithm 1: batches with clipped mean gradients from zero, divided by 2 E ceil(n / B) eta C (eq. 1)."""
    w = np.zeros(x.shape[1])
    batch = min(rule.batch, len(x)) if rule.batch else len(x)
    steps = -(-len(x) // batch)
    for _ in range(rule.epochs):
        order = rng.permutation(len(x))
        for s in range(steps):
            rows = order[s * batch : (s + 1) * batch]
            g = (_predict(w, x[rows]) - y[rows]) @ x[rows] / len(rows)
            w -= rule.lr * g * min(1.0, rule.clip / max(float(np.linalg.norm(g)), 1e-12))
    out: Array = w / (2 * rule.epochs * steps * rule.lr * rule.clip)
    return out


def convex_weights(rule: Extractor, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Return the minimum of mean loss + l2 / 2 ||w||^2 on rows of norm at most R, with sensitivity 2 R / (n l2) to one patient.
    Chaudhuri, Monteleoni and Sarwate 2011. The number of rows is taken as public.
    """
    z = _clip_rows(x, rule.clip)
    n, w = len(z), np.zeros(x.shape[1])
    for _ in range(50):
        p = _predict(w, z)
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
        w -= lr * (_predict(w, z) - y) @ z / len(z)
    out: Array = w * len(z) / (2 * rule.epochs * lr * rule.clip)
    return out


def _clip_rows(x: Array, longest: float) -> Array:
    out: Array = x * np.minimum(1.0, longest / np.maximum(np.linalg.norm(x, axis=1), 1e-12))[:, None]
    return out


def _predict(w: Array, x: Array) -> Array:
    out: Array = probabilities((x @ w)[:, None])[:, 0]
    return out
