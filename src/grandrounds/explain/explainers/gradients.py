"""Explain tables by gradients: the gradient sketch, integrated gradients from one baseline, path gradients from many.

The gradient sketch is |(input - baseline) x gradient of the loss|, one backward pass for all features: the first-order change of
a row's cross-entropy if a feature had the values of the mean patient. For standardised numbers that is zero; for a 0/1 input of
a category it is not, and with a zero baseline a level that all patients have would seem important. It takes less time than an
epoch of local training, so it can be computed in every round.

Along straight lines gradients are added up: phi_j = mean over backgrounds b and points alpha of (x_j - b_j) * df/dx_j at
b + alpha (x - b), f the logit of one class. With one background this is integrated gradients (Sundararajan et al. 2017,
eq. 1); with many it is expected gradients (Erion et al. 2021, eq. 3) on a fixed grid in place of random draws. These are
path gradients: Aumann-Shapley values averaged over backgrounds, not exact Shapley values. The two agree for linear models
and rank features much alike for small MLPs.

The integral over alpha is the midpoint rule. Values add up to f(x) - mean f(b) as far as the rule is exact; they do so
better with more steps, since a ReLU net's gradient jumps between points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainers.linear import as_dense, linear_shap
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense
from grandrounds.models.losses import CROSS_ENTROPY, POISSON, SQUARED

if TYPE_CHECKING:
    from grandrounds.explain.rule import SketchRule

_BLOCK = 512 * 2**10
"""Bytes of input gradients computed at once."""


@dataclass(frozen=True)
class Gradient:
    """Explainer of tables by input x gradient; the inputs of a feature are summed before taking the absolute value."""

    features: Features
    baseline: Array | None = None  # (d,) the row to compare with; not given: zero

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> Gradient:
        """Make the explainer that a rule describes."""
        return cls(features, baseline=background.mean(axis=0))

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        """Return |(x - baseline) . gradient| over each feature's inputs: (n, F) by one model (P,), (K, n, F) by models (K, P)."""
        if x.ndim != 2 or x.shape[1] != len(self.features.feature_index):
            raise BadInput(
                f"the gradient sketch reads rows of {len(self.features.feature_index)} inputs, not an array of shape {x.shape}",
                code="mismatched-shapes",
            )
        models = theta if theta.ndim == 2 else theta[None]
        apart = x if self.baseline is None else x - self.baseline.astype(x.dtype)
        gradients = self._gradients(model)
        out = np.empty((len(models), len(x), len(self.features)), np.result_type(theta, x))
        with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged
            for a, b in pairwise(offsets.tolist()):
                size = max(1, _BLOCK // max(1, x[a:b].nbytes))
                for k in range(0, len(models), size):
                    slope = gradients(models[k : k + size], x[a:b], target[a:b])
                    slope *= apart[a:b]
                    np.abs(self.features.sum_inputs(slope), out=out[k : k + size, a:b])
        return out if theta.ndim == 2 else out[0]

    def _gradients(self, model: Any) -> Any:
        if isinstance(model, Dense):
            return model.input_gradient
        if model.kernel == "torch":
            return lambda models, x, target: _autograd_loss_slopes(model, models, x, target)
        raise BadInput(
            f"a model of kind '{model.kernel}' has no gradient; explain it by 'permutation'", code="no-gradient"
        )


def loss_slopes(model: Any, models: Array, x: Array, target: Array) -> Array:
    """Compute the gradient of each row's loss with respect to the row.

    Args:
        model: A dense net or a torch model.
        models: Parameters, (K, P).
        x: Rows, (n, ...).
        target: Targets, (n, C).

    Returns:
        (K, n, ...).
    """
    if isinstance(model, Dense):
        return model.input_gradient(models, x, target)
    return _autograd_loss_slopes(model, models, x, target)


def _autograd_loss_slopes(model: Any, models: Array, x: Array, target: Array) -> Array:
    """Gradient of each row's cross-entropy with respect to the row by a torch model, (K, n, d)."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, poisson_nll_loss

    losses = {SQUARED: mse_loss, POISSON: poisson_nll_loss, CROSS_ENTROPY: binary_cross_entropy_with_logits}
    loss: Any = cross_entropy if model.outputs > 1 else losses[model.loss]
    goal = model.tensor(target)
    model.net.eval()
    slopes = []
    for theta in models:
        rows = model.tensor(x).requires_grad_()
        params = dict(zip(model.trainable, model.point_at(model.tensor(theta)), strict=True))
        (slope,) = torch.autograd.grad(loss(model.forward(params, rows), goal, reduction="sum"), rows)
        slopes.append(slope.cpu().numpy())
    return np.stack(slopes)


_CELLS = 2**17  # numbers of a hidden layer computed at once: they stay in cache
_POINTS = 512  # points of paths given to a torch net at once

Signed = Callable[[Any, Array, Array, Array], Array]
"""Signed attributions (n, F) by a model (P,) of rows x for the outputs (n,)."""


@dataclass(frozen=True)
class PathGradients:
    """Path gradients over an agreed background (B, d), with `steps` points on each path."""

    features: Features
    background: Array
    steps: int = 10

    def signed(self, model: Any, theta: Array, x: Array, outputs: Array) -> Array:
        """Signed attributions (n, F) to the logit of each row's output."""
        values = path_gradients(model, theta, x, self.background, steps=self.steps, outputs=outputs)
        return sum_by_feature(self.features, values)

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        return magnitudes(self.signed, model, theta, x, target)


@dataclass(frozen=True)
class IntegratedGradients:
    """Integrated gradients from one baseline (d,), with `steps` points on the path."""

    features: Features
    baseline: Array
    steps: int = 20

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> IntegratedGradients:
        """Make the explainer that a rule describes."""
        return cls(features, baseline=background.mean(axis=0), steps=rule.steps)

    def signed(self, model: Any, theta: Array, x: Array, outputs: Array) -> Array:
        """Signed attributions (n, F) to the logit of each row's output."""
        values = integrated_gradients(model, theta, x, self.baseline, steps=self.steps, outputs=outputs)
        return sum_by_feature(self.features, values)

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        return magnitudes(self.signed, model, theta, x, target)


def integrated_gradients(
    model: Any, theta: Array, x: Array, baseline: Array, *, steps: int = 20, outputs: Array | int = 0
) -> Array:
    """Signed integrated gradients of the logit of `outputs`, in the shape of x."""
    return path_gradients(model, theta, x, baseline[None], steps=steps, outputs=outputs)


def path_gradients(
    model: Any, theta: Array, x: Array, background: Array, *, steps: int = 10, outputs: Array | int = 0
) -> Array:
    """Signed path gradients of the logit of `outputs` (one for all rows, or one a row), in the shape of x.

    For dense models a row's numbers do not depend on the other rows.
    """
    if steps < 1:
        raise BadInput(f"a path needs at least one step, not {steps}", code="too-few-steps")
    check_background(x, background)
    chosen = check_outputs(model, len(x), outputs)
    dense = as_dense(model)
    if dense is not None and len(dense.widths) == 2:
        return linear_shap(dense, theta, x, background)[np.arange(len(x)), chosen]
    if dense is not None:
        return _dense_path_gradients(dense, theta, x, background, steps, chosen)
    if model.kernel == "torch":
        return _autograd_path_gradients(model, theta, x, background, steps, chosen)
    raise BadInput(
        "trees have no gradient to follow along a path; explain them by 'shap' or 'permutation'", code="no-gradient"
    )


def magnitudes(signed: Signed, model: Any, theta: Array, x: Array, target: Array) -> Array:
    """Return |signed attributions| to the logit of each row's class: (n, F) by one model (P,), (K, n, F) by models (K, P)."""
    outputs = explained_outputs(target) if model.outputs > 1 else np.zeros(len(target), np.int64)
    if theta.ndim == 1:
        return np.abs(signed(model, theta, x, outputs))
    return np.stack([np.abs(signed(model, vector, x, outputs)) for vector in theta])


def explained_outputs(target: Array) -> Array:
    """The output that is explained for each row, (n,): its class's logit, or the one logit of a binary model."""
    out: Array = target.argmax(axis=1) if target.shape[1] > 1 else np.zeros(len(target), np.int64)
    return out


def check_outputs(model: Any, rows: int, outputs: Array | int) -> Array:
    """Return the chosen output of each row, (n,), from one for all or one a row; refuse one that the model does not have."""
    chosen = np.broadcast_to(np.asarray(outputs, np.int64), rows)
    unknown = chosen[(chosen < 0) | (chosen >= model.outputs)]
    if len(unknown):
        raise BadInput(
            f"the model has no output {unknown[0]}: its outputs are numbered 0 to {model.outputs - 1}",
            code="unknown-output",
        )
    return chosen


def sum_by_feature(features: Features, values: Array) -> Array:
    """Sum signed values in the shape of rows (n, d) or images (n, C, H, W) within features: (n, F)."""
    inputs = len(features.feature_index)
    channels = prod(values.shape[1:]) // inputs
    return features.sum_inputs(values.reshape(len(values), channels, inputs).sum(axis=1))


def check_background(x: Array, background: Array) -> None:
    """Refuse a background that is empty, or whose rows are not like those explained."""
    if not len(background) or background.shape[1:] != x.shape[1:]:
        raise BadInput(
            f"the background has shape {background.shape} and the rows to explain {x.shape}; "
            "give at least one background row, with the same inputs",
            code="bad-background",
        )


def _midpoints(steps: int) -> Array:
    out: Array = (np.arange(steps) + 0.5) / steps
    return out


def _dense_path_gradients(dense: Dense, theta: Array, x: Array, background: Array, steps: int, outputs: Array) -> Array:
    """Compute an MLP's path gradients, a block of rows at a time.

    The first layer is linear along a path, z = (1 - alpha) z_b + alpha z_x, so it is applied to rows and backgrounds
    only, and gradients at it are added up over alpha before they go back to the inputs. Units come first and points
    last, (rows, units, points): that order is up to twice as fast in a matrix product.
    """
    (w, b), *_ = layers = dense.layers(theta)
    dtype = np.result_type(x, theta)
    alpha = _midpoints(steps).astype(dtype)
    of_rows = x[:, None] @ w + b  # one product a row, so that a row's bits are its own
    of_background = (background @ w + b).T
    start = (1 - alpha)[:, None] * of_background[:, None]  # (units, steps, backgrounds)
    size = max(1, _CELLS // (max(dense.widths[1:]) * steps * len(background)))
    out = np.empty(x.shape, dtype)
    for first in range(0, len(x), size):
        block = slice(first, first + size)
        z = start + (of_rows[block].swapaxes(1, 2) * alpha)[..., None]
        slope = _first_slopes(layers, z.reshape(*z.shape[:2], -1), outputs[block])
        back: Array = w @ slope.reshape(z.shape).sum(axis=2)
        back *= x[block, :, None] - background.T
        out[block] = back.sum(axis=2)
    out /= steps * len(background)
    return out


def _first_slopes(layers: list[tuple[Array, Array]], z: Array, outputs: Array) -> Array:
    """d logit / dz of the first layer's z (rows, units, points), for each row's output. z is overwritten."""
    active = [np.maximum(z, 0, out=z)]
    for w, b in layers[1:-1]:
        z = w.T @ active[-1]
        z += b[:, None]
        active.append(np.maximum(z, 0, out=z))
    slope: Array = layers[-1][0].T[outputs][..., None]
    for i in reversed(range(len(active))):
        gate = np.greater(active[i], 0, out=active[i])
        slope = np.multiply(gate, slope, out=gate)
        if i:
            slope = layers[i][0] @ slope
    return slope


def _autograd_path_gradients(
    model: Any, theta: Array, x: Array, background: Array, steps: int, outputs: Array
) -> Array:
    """Compute a torch net's path gradients by autograd, `_POINTS` points at a time."""
    import torch

    params = dict(zip(model.trainable, model.point_at(model.tensor(theta)), strict=True))
    model.net.eval()
    rows, baselines = model.tensor(x), model.tensor(background)
    alpha, chosen = model.tensor(_midpoints(steps)), torch.as_tensor(outputs.copy(), device=model.device)
    out = torch.zeros_like(rows)
    total = len(x) * len(background) * steps
    for first, last in pairwise([*range(0, total, _POINTS), total]):
        point = torch.arange(first, last, device=model.device)
        row, rest = point // (len(background) * steps), point % (len(background) * steps)
        away = rows[row] - baselines[rest // steps]
        share = alpha[rest % steps].reshape(-1, *[1] * (x.ndim - 1))
        points = (baselines[rest // steps] + share * away).requires_grad_()
        with torch.enable_grad():
            logit = model.forward(params, points).gather(1, chosen[row, None]).sum()
            (slope,) = torch.autograd.grad(logit, points)
        out.index_add_(0, row, away * slope)
    values: Array = (out / (len(background) * steps)).cpu().numpy()
    return values
