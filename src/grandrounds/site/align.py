"""Attribution alignment: a site's sketch is pulled to the consortium's while it trains (NumPy kernel).

loss + w * || E(theta) - E_consensus ||_1, with the sketch as a differentiable function of theta:

    g_i = d l_i / d x_i,  U_f = sum_i | sum over inputs of feature f of x_i * g_i |,  E = U / sum U

over reference rows x_i; l_i is the cross-entropy to the class that the starting model predicts for x_i, so no labels are needed.
E_consensus is the mean of the sites' sketches after the previous round, or in the first round the start's. Every step uses all
reference rows, because a sketch of a few rows is too noisy. Below a hundredth of an equal share, 1/F, the L1 distance is
smoothed (Huber), so that equal sketches give no gradient.

The gradient needs second derivatives, mixed in inputs and weights. With a_i = dE-loss/dg_i held fixed,
d/dtheta <a_i, g_i> is the change of the weights' gradient along x_i + eps a_i: Pearlmutter's R-operator, one more
forward and backward pass. ReLUs are taken as constant where they are on or off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, Layers, probabilities
from grandrounds.site.anchor import SharedReference, distinct

EPS = 1e-12
"""Total importance below which a model has no sketch, and alignment has no gradient."""

_ROUNDED = 0.01
"""Fraction of an equal share, 1/F, below which a distance is smoothed."""

_BLOCK_BYTES = 64 * 2**20
"""Bytes of input gradients held at once while sketches are computed."""


@dataclass(frozen=True)
class Alignment:
    """Reference rows that sketches are computed on, and the sketch that each site is pulled to; sites in the plan's order."""

    reference: SharedReference
    labels: Array  # (G, R, C) class of each row by each distinct start, as a training target
    mine: Array  # (m,) number of each site's start
    towards: Array  # (m, F)
    weight: float

    @classmethod
    def build(
        cls,
        model: Dense,
        reference: SharedReference,
        start: Array,
        order: Array,
        *,
        weight: float,
        consensus: Array | None,
    ) -> Alignment:
        """Prepare the alignment of a round.

        Args:
            model: The dense model.
            reference: Rows that sketches are computed on.
            start: Models to start from, (P,) or (m, P).
            order: Position among the members of the j-th site of the plan, (m,).
            weight: Weight of the distance in the loss.
            consensus: The sketch to pull to, (F,); None: each site's is the sketch of the model it starts from.
        """
        models, mine = distinct(start, order)
        labels = _classes(model, models, reference.x)
        if consensus is None:
            towards = sketches(model, models, reference, labels)[mine]
        else:
            towards = np.broadcast_to(consensus.astype(start.dtype), (len(mine), len(consensus)))
        return cls(reference, labels, mine, towards, weight)

    def add_gradient(self, layers: Layers, grads: Layers) -> None:
        """Add the gradient of this loss to `grads`, for the sites that are still training."""
        active = len(layers[0][0])
        x = np.broadcast_to(self.reference.x, (active, *self.reference.x.shape))
        forward = _ForwardPass.run(layers, x, self.labels[self.mine[:active]])
        slope = _pull(self.reference.features, x, forward.input_gradient(layers), self.towards[:active])
        along = self.weight * slope
        for (gw, gb), (dw, db) in zip(grads, forward.tangent(layers, along), strict=True):
            gw += dw
            gb += db

    def reasons(self, model: Dense, theta: Array) -> Array:
        """Compute the sketches (m, F) of the sites' local models (m, P), with the labels of their starts."""
        return sketches(model, theta, self.reference, self.labels[self.mine])


def _classes(model: Dense, models: Array, x: Array) -> Array:
    """Predict the class of each row by each of G models, as training targets: (G, R, C)."""
    with np.errstate(over="ignore", invalid="ignore"):
        logits = np.stack([model.logits(theta, x) for theta in models])
    if model.outputs == 1:
        return (logits > 0).astype(x.dtype)
    out: Array = np.eye(model.outputs, dtype=x.dtype)[logits.argmax(axis=-1)]
    return out


def sketches(model: Dense, models: Array, reference: SharedReference, labels: Array) -> Array:
    """Compute the sketch (K, F) of each of K models on the reference rows, with labels (K, R, C)."""
    size = max(1, _BLOCK_BYTES // max(1, reference.x.nbytes))
    out = []
    for first in range(0, len(models), size):
        theta = models[first : first + size]
        x = np.broadcast_to(reference.x, (len(theta), *reference.x.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            use = _use(reference.features, x, model.input_gradient(theta, x, labels[first : first + size]))
            out.append(use / np.maximum(use.sum(axis=-1, keepdims=True), EPS))
    return np.concatenate(out)


def rounding_width(features: int) -> float:
    """Return the distance of two entries of a sketch below which the loss is quadratic."""
    return _ROUNDED / features


def _use(features: Features, x: Array, g: Array) -> Array:
    """U of inputs (K, A, d) with gradients: (K, F)."""
    out: Array = np.abs(features.sum_inputs(x * g)).sum(axis=-2)
    return out


def _pull(features: Features, x: Array, g: Array, towards: Array) -> Array:
    """Compute the gradient of the distance between E and `towards` with respect to the input gradients g: (K, A, d)."""
    signed = features.sum_inputs(x * g)
    use = np.abs(signed).sum(axis=-2)
    total = use.sum(axis=-1, keepdims=True)
    sketch = use / np.maximum(total, EPS)
    side = np.clip((sketch - towards) / rounding_width(len(features)), -1, 1)
    # the total is a constant at its floor
    by_use = (side - np.where(total > EPS, (side * sketch).sum(axis=-1, keepdims=True), 0)) / np.maximum(total, EPS)
    out: Array = (np.sign(signed) * by_use[:, None, :]).take(features.feature_index, axis=-1) * x
    return out


@dataclass(frozen=True)
class _ForwardPass:
    """One forward and backward pass of K models over their rows: the inputs of each layer and the deltas at its outputs."""

    inputs: list[Array]
    deltas: list[Array]
    p: Array

    @classmethod
    def run(cls, layers: Layers, x: Array, target: Array) -> _ForwardPass:
        inputs, z = [x], x
        for i, (w, b) in enumerate(layers):
            z = inputs[-1] @ w + b[..., None, :]
            if i < len(layers) - 1:
                inputs.append(np.maximum(z, 0))
        p = probabilities(z)
        deltas = [p - target]
        for i in reversed(range(1, len(layers))):
            deltas.insert(0, (deltas[0] @ layers[i][0].swapaxes(-1, -2)) * (inputs[i] > 0))
        return cls(inputs, deltas, p)

    def input_gradient(self, layers: Layers) -> Array:
        """Compute g, (K, A, d)."""
        out: Array = self.deltas[0] @ layers[0][0].swapaxes(-1, -2)
        return out

    def tangent(self, layers: Layers, along: Array) -> Layers:
        """Compute the change of every weight's and bias's gradient, summed over rows, as the rows move `along` (K, A, d)."""
        moved = [along]
        for i, (w, _) in enumerate(layers):
            z = moved[-1] @ w
            if i < len(layers) - 1:
                moved.append(z * (self.inputs[i + 1] > 0))
        if self.p.shape[-1] == 1:
            delta = self.p * (1 - self.p) * z
        else:
            delta = self.p * (z - (self.p * z).sum(axis=-1, keepdims=True))
        out: Layers = []
        for i in reversed(range(len(layers))):
            by_weight = moved[i].swapaxes(-1, -2) @ self.deltas[i] + self.inputs[i].swapaxes(-1, -2) @ delta
            out.insert(0, (by_weight, delta.sum(axis=-2)))
            if i:
                delta = (delta @ layers[i][0].swapaxes(-1, -2)) * (self.inputs[i] > 0)
        return out
