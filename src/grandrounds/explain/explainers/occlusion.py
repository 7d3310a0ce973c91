"""Explain images by the tiles of a grid: each hidden in turn (SSE-AGG's sketch of images), or a heat map's mass in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.explain.explainer import split_rows
from grandrounds.explain.explainers.heat import Smoothing, heats
from grandrounds.explain.features import Features

if TYPE_CHECKING:
    from torch import Tensor

    from grandrounds.explain.explainers.layers import Pass
    from grandrounds.explain.rule import SketchRule

SCORES = {
    "log_loss": "log loss with the tile hidden minus log loss without",
    "accuracy": "right (1) or wrong (0) without, minus right or wrong with the tile hidden",
    "self": "change of the prediction, KL(p(x) || p(x with the tile hidden)); needs no labels",
}

_BYTES = 64 * 2**20
"""Bytes of images with a hidden tile held at once, for models that are called through NumPy."""


@dataclass(frozen=True)
class Occlusion:
    """Loss of a model's score on an image when a tile of it is hidden: zero in encoded space, the mean colour."""

    features: Features
    score: str = "log_loss"

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> Occlusion:
        """Make the explainer that a rule describes."""
        return cls(features, score=rule.score)

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise BadInput(
                f"occlusion has no score '{self.score}'; {nearest(str(self.score), SCORES)}", code="unknown-score"
            )

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        """Return the cost of hiding each tile on each image: (n, F) by one model (P,), (K, n, F) by models (K, P)."""
        _check_tiles(self.features, x)
        height, width = x.shape[2:]
        hidden = self.features.feature_index == np.arange(len(self.features))[:, None]
        keep = np.concatenate([np.ones((1, height * width), bool), ~hidden]).reshape(-1, 1, height, width)
        stack = theta if theta.ndim == 2 else theta[None]
        ask = _torch_logits if getattr(model, "kernel", "") == "torch" else _numpy_logits
        out = np.empty((len(stack), len(x), len(self.features)), float)
        for models, images, logits in ask(model, stack, x, keep, offsets):
            out[models, images] = score_drop(
                self.score, logits[..., :1, :], logits[..., 1:, :], target[images][:, None]
            )
        return out if theta.ndim == 2 else out[0]


@dataclass(frozen=True)
class Tiles:
    """Explainer made of any heat map (`heat.HEATS`): its mass, |heat|, in each tile."""

    features: Features
    name: str
    steps: int = 5
    samples: int = 5
    sigma: float = 0.5
    seed: int = 0

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> Tiles:
        """Make the explainer that a rule describes."""
        return cls(features, rule.name, steps=rule.steps, seed=rule.seed)

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        """Heat of each image's true class by tile: (n, F) by one model (P,), (K, n, F) by models (K, P)."""
        _check_tiles(self.features, x)
        smoothing = Smoothing(self.steps, self.samples, self.sigma, self.seed)
        stack = theta if theta.ndim == 2 else theta[None]
        out = np.empty((len(stack), len(x), len(self.features)))
        for models, images, block in heats(
            self.name, model, stack, x, _predict_classes(target, 0.5), smoothing, offsets=offsets
        ):
            out[models, images] = self.features.sum_inputs(np.abs(block).reshape(*block.shape[:2], -1))
        return out if theta.ndim == 2 else out[0]


def _check_tiles(features: Features, x: Array) -> None:
    """Refuse rows that are not images, or not of the size that the tiles divide."""
    if x.ndim != 4:
        raise BadInput(
            f"tiles are of images (n, channels, height, width), not of data of shape {x.shape}", code="needs-images"
        )
    if features.size != x.shape[2:]:
        tiled = "no images" if features.size is None else "images of {}x{} pixels".format(*features.size)
        raise BadInput(
            f"the features divide {tiled}, these have {x.shape[2]}x{x.shape[3]}: use Features.from_tiles",
            code="mismatched-shapes",
        )


def _torch_logits(
    model: Any, theta: Array, x: Array, keep: Array, offsets: Array
) -> Iterator[tuple[slice, slice, Array]]:
    """(models, images, logits (k, b, 1 + F, C)): of the whole image, then with each tile hidden."""
    import torch

    from grandrounds.explain.explainers.layers import passes

    shown = model.tensor(keep)

    def rule(context: Pass, images: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad():
            parts = shown.split(max(1, context.rows // len(images)))
            logits = [context.logits((images[:, None] * part).flatten(0, 1)) for part in parts]
            return torch.cat([f.reshape(len(images), -1, f.shape[-1]) for f in logits], 1)

    return passes(model, theta, x, np.zeros(len(x), np.int64), rule, width=len(keep), offsets=offsets)


def _numpy_logits(
    model: Any, theta: Array, x: Array, keep: Array, offsets: Array
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield the same through `model.logits`."""
    size = max(1, _BYTES // (len(keep) * max(1, x[:1].nbytes)))
    for k, vector in enumerate(theta):
        for cut in split_rows(offsets, size):
            variants = (x[cut][:, None] * keep).reshape(-1, *x.shape[1:])
            logits = np.asarray(model.logits(vector, variants))
            yield slice(k, k + 1), cut, logits.reshape(1, cut.stop - cut.start, len(keep), -1)


def score_drop(score: str, before: Array, after: Array, target: Array) -> Array:
    """Return by how much logits `after` (..., C) are worse than `before` for these targets (..., C): (...)."""
    if score == "accuracy":
        right = _predict_classes(target, 0.5)
        lost: Array = np.subtract(
            _predict_classes(before, 0.0) == right, _predict_classes(after, 0.0) == right, dtype=float
        )
        return lost
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged
        now, then = _log_probabilities(before), _log_probabilities(after)
        weight = np.exp(now) if score == "self" else _two_classes(target)
        out: Array = (weight * (now - then)).sum(axis=-1)
    return np.maximum(out, 0) if score == "self" else out  # a divergence is below zero only by rounding


def _predict_classes(values: Array, middle: float) -> Array:
    """Return the most likely class; with one value, 1 if it is above the middle."""
    classes: Array = values[..., 0] > middle if values.shape[-1] == 1 else values.argmax(axis=-1)
    return classes


def _two_classes(p: Array) -> Array:
    """Expand one probability to those of two classes."""
    return np.concatenate([1 - p, p], axis=-1) if p.shape[-1] == 1 else p


def _log_probabilities(logits: Array) -> Array:
    if logits.shape[-1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    below = logits - logits.max(axis=-1, keepdims=True)
    out: Array = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return out
