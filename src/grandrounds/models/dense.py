"""Linear models and MLPs over a stack of sites, with gradients written out by hand in NumPy.

No autograd and no torch: for small clinical models, dispatch dominates, and one batched matmul for all sites is 13 times as fast
per round as a loop over sites. A binary model has one logit
(so its coefficients read as log-odds ratios), a model of C > 2 classes has C.

Batched `matmul` runs the same BLAS call for each site for any K, so a site's numbers do not depend on the other sites of its
stack. `einsum` does not guarantee that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from grandrounds.core import sources
from grandrounds.core.arrays import Array, load
from grandrounds.core.averaging import average
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.models.losses import CROSS_ENTROPY, loss_gradient
from grandrounds.protocol.layout import Layout

Layers = list[tuple[Array, Array]]
Slope = Callable[[Array, Array, Any], Array]
"""Derivative of a row's loss with respect to its logits, given logits, targets and the module `numpy`."""


@dataclass(frozen=True)
class Dense:
    """A feed-forward net of the given widths: (d, C) is a linear model, such as logistic regression, (d, h, C) an MLP with ReLU.

    `loss` is what training minimises (`models.losses`): cross-entropy for classes, another for other tasks.
    `weights` is a .safetensors file with starting parameters, such as the model of an earlier run.
    """

    widths: tuple[int, ...]
    loss: str = CROSS_ENTROPY
    weights: str | None = None
    layout: Layout = field(init=False)
    kernel: ClassVar[str] = "numpy"

    def __post_init__(self) -> None:
        shapes = [
            item
            for i, (a, b) in enumerate(pairwise(self.widths))
            for item in ((f"layer{i}.weight", (a, b)), (f"layer{i}.bias", (b,)))
        ]
        object.__setattr__(self, "layout", Layout(tuple(shapes)))

    @property
    def outputs(self) -> int:
        return self.widths[-1]

    @property
    def site_bytes(self) -> int:
        """Bytes of parameters, gradient and two slots."""
        return 16 * self.layout.size

    def site_entries(self, kind: str) -> Array:
        """Return the entries of the vector that stay at a site: the "intercept" of a linear model, or the "head" of a net, which
        is its last layer; else none."""
        if kind == "intercept" and len(self.widths) == 2:
            return np.array([self.layout.size - 1])
        size = (self.widths[-2] + 1) * self.widths[-1] if kind == "head" and len(self.widths) > 2 else 0
        return np.arange(self.layout.size - size, self.layout.size)

    def init(self, seed: int, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """Draw starting parameters (P,): zeros for a linear model, uniform in +-1/sqrt(fan_in) for an MLP; or read `weights`."""
        theta = np.zeros(self.layout.size, dtype)
        if self.weights:
            _read_start(self.layout.views(theta), Path(self.weights))
            return theta
        if len(self.widths) > 2:
            rng = generator(seed, purpose="init")
            for name, array in self.layout.views(theta).items():
                layer = int(name.removeprefix("layer").split(".")[0])
                bound = 1 / np.sqrt(self.widths[layer])
                array[...] = rng.uniform(-bound, bound, array.shape)
        return theta

    def logits(self, theta: Array, x: Array) -> Array:
        """Compute scores before the link: theta (..., P) and x (..., n, d) give (..., n, C)."""
        layers = self.layers(theta)
        for i, (w, b) in enumerate(layers):
            x = x @ w + b[..., None, :]
            if i < len(layers) - 1:
                np.maximum(x, 0, out=x)
        return x

    def combine(self, models: Array | Sequence[Array], weights: Array) -> Array:
        """Average models by weight."""
        return average(np.asarray(models), weights)

    def with_temperature(self, theta: Array, temperature: float) -> Array:
        """Return the model whose logits are divided by T: its last layer divided by T."""
        out = theta.copy()
        views = self.layout.views(out)
        for part in ("weight", "bias"):
            views[f"layer{len(self.widths) - 2}.{part}"] /= temperature
        return out

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array:
        """Return the model whose one logit s is slope * s + intercept: its last layer scaled and shifted."""
        out = theta.copy()
        weight, bias = self.layers(out)[-1]
        weight *= slope
        bias[...] = slope * bias + intercept
        return out

    def features(self, theta: Array, x: Array) -> Array:
        """Return the inputs of the last layer: (..., n, width). A linear model's features are its inputs."""
        for w, b in self.layers(theta)[:-1]:
            x = x @ w + b[..., None, :]
            np.maximum(x, 0, out=x)
        return x

    def gradient(
        self,
        theta: Array,
        x: Array,
        target: Array,
        weight: Array,
        out: Array,
        pull: Callable[[Array], Array] | None = None,
        slope: Slope | None = None,
    ) -> None:
        """Write into `out` (K, P) the gradient of sum_i weight_i * loss(target_i, x_i), per site.

        theta (K, P), x (K, B, d), target (K, B, C) probabilities (or outcomes), weight (K, B): a padded row has weight 0.
        `pull` gives, for features (K, B, width), the gradient of a further loss with respect to them. `slope` gives the
        derivative of another loss with respect to the logits.
        """
        self.gradient_into(self.layers(theta), self.layers(out), x, target, weight, pull, slope)

    def gradient_into(
        self,
        layers: Layers,
        grads: Layers,
        x: Array,
        target: Array,
        weight: Array,
        pull: Callable[[Array], Array] | None,
        slope: Slope | None = None,
    ) -> None:
        """Compute `gradient` on prepared views, because creating them dominates a loop of small steps."""
        delta, inputs = self._delta(layers, x, target, weight, slope)
        for i in reversed(range(len(layers))):
            gw, gb = grads[i]
            np.matmul(inputs[i].swapaxes(-1, -2), delta, out=gw)
            np.add.reduce(delta, axis=-2, out=gb)
            if i:
                delta = delta @ layers[i][0].swapaxes(-1, -2)
                if pull is not None and i == len(layers) - 1:
                    delta += pull(inputs[i])
                delta *= inputs[i] > 0

    def deltas(self, layers: Layers, x: Array, target: Array, weight: Array) -> tuple[list[Array], list[Array]]:
        """Return for each layer the gradient of every row's weighted loss at its outputs, (K, B, width), and the layer's inputs.

        Their outer product is the row's gradient, so per-row clipping needs no more.
        """
        delta, inputs = self._delta(layers, x, target, weight)
        slopes = [delta]
        for i in reversed(range(1, len(layers))):
            delta = delta @ layers[i][0].swapaxes(-1, -2)
            delta *= inputs[i] > 0
            slopes.insert(0, delta)
        return slopes, inputs

    def input_gradient(self, theta: Array, x: Array, target: Array) -> Array:
        """Compute the gradient of each row's loss with respect to the row: (K, n, d)."""
        layers = self.layers(theta)
        delta, inputs = self._delta(layers, x, target, np.ones(x.shape[:-1], x.dtype))
        for i in reversed(range(len(layers))):
            delta = delta @ layers[i][0].swapaxes(-1, -2)
            if i:
                delta *= inputs[i] > 0
        return delta

    def layers(self, buffer: Array) -> Layers:
        """Return the weight and bias of each layer, as views of (..., P)."""
        views = list(self.layout.views(buffer).values())
        return list(zip(views[::2], views[1::2], strict=True))

    def _delta(
        self, layers: Layers, x: Array, target: Array, weight: Array, slope: Slope | None = None
    ) -> tuple[Array, list[Array]]:
        """Compute the gradient at the logits, and the inputs of each layer."""
        inputs = [x]
        for w, b in layers:
            z = inputs[-1] @ w
            z += b[..., None, :]
            inputs.append(z)
            if len(inputs) <= len(layers):
                np.maximum(z, 0, out=z)
        if slope is not None:
            return slope(inputs.pop(), target, np) * weight[..., None], inputs
        if self.loss != CROSS_ENTROPY:
            return loss_gradient(self.loss, inputs.pop(), target, weight), inputs
        delta = probabilities(inputs.pop())
        delta -= target
        delta *= weight[..., None]
        return delta, inputs


def _read_start(views: Mapping[str, Array], path: Path) -> None:
    """Write the arrays of a .safetensors file into the layers; all must be there, with their shapes."""
    if path.suffix != ".safetensors":
        raise BadInput(
            f"model.weights is {path}, which is not a .safetensors file: give model.safetensors of a run, or convert yours",
            code="not-safetensors",
        )
    sources.check(sources.WEIGHTS, str(path))
    arrays, _ = load(path, links=True)
    for name, view in views.items():
        array = arrays.get(name)
        if array is None or array.shape != view.shape:
            present = "none" if array is None else "x".join(map(str, array.shape))
            raise BadInput(
                f"{name} in {path} does not fit: {present} in the file, {'x'.join(map(str, view.shape))} here; the file must be "
                "of a model with the same inputs and layers",
                code="mismatched-weights",
            )
        if not np.isfinite(array).all():
            raise BadInput(
                f"{name} in {path} holds values that are not finite; the file cannot be used", code="not-finite"
            )
        view[...] = array


def probabilities(logits: Array) -> Array:
    """Apply the sigmoid to one logit, softmax to several, along the last axis; never overflows. A new array."""
    if logits.shape[-1] == 1:
        odds: Array = np.minimum(logits, 80)  # np.clip takes longer than the rest of a small step
        np.maximum(odds, -80, out=odds)
        np.exp(np.negative(odds, out=odds), out=odds)
        odds += 1
        return np.reciprocal(odds, out=odds)
    out: Array = logits - logits.max(axis=-1, keepdims=True)
    np.exp(out, out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


def class_probabilities(logits: Array) -> Array:
    """Compute (n, C) probabilities of all classes; one logit becomes two columns."""
    p = probabilities(logits)
    return np.concatenate([1 - p, p], axis=-1) if p.shape[-1] == 1 else p


def targets(y: Array, outputs: int, dtype: np.typing.DTypeLike = np.float32) -> Array:
    """Convert class numbers to target probabilities (n, outputs)."""
    if outputs == 1:
        return y[:, None].astype(dtype)
    return np.eye(outputs, dtype=dtype)[y]
