"""The gradient sketch: |input x gradient of the loss|, one backward pass for all features.

The change of a row's cross-entropy, to first order, were a feature's inputs those of a baseline: the mean patient.
Standardised numbers have it at zero; a 0/1 input of a category does not, and against zero a level that everybody has
would count for everybody. It costs less than an epoch of local training, so it can be taken every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense

_BLOCK = 512 * 2**10
"""Bytes of input gradients worked on at once."""


@dataclass(frozen=True)
class Gradient:
    """An explainer of tables. The inputs of a feature are added up before the absolute value is taken."""

    features: Features
    baseline: Array | None = None  # (d,) what a row is compared with; not given: zero

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        """|(x - baseline) . gradient| over each feature's inputs: (n, F) by one model (P,), (K, n, F) by models (K, P)."""
        if x.ndim != 2 or x.shape[1] != len(self.features.of):
            raise BadInput(
                f"the gradient sketch reads rows of {len(self.features.of)} inputs, not an array of shape {x.shape}"
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
                    np.abs(self.features.summed(slope), out=out[k : k + size, a:b])
        return out if theta.ndim == 2 else out[0]

    def _gradients(self, model: Any) -> Any:
        if isinstance(model, Dense):
            return model.input_gradient
        if model.kernel == "torch":
            return lambda models, x, target: _by_autograd(model, models, x, target)
        raise BadInput(f"a model of kind '{model.kernel}' has no gradient; explain it by 'permutation'")


def _by_autograd(model: Any, models: Array, x: Array, target: Array) -> Array:
    """Gradient of each row's cross-entropy with respect to the row by a torch model, (K, n, d)."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    loss = binary_cross_entropy_with_logits if model.outputs == 1 else cross_entropy
    goal = model.tensor(target)
    model.net.eval()
    found = []
    for theta in models:
        rows = model.tensor(x).requires_grad_()
        params = dict(zip(model.trainable, model.point_at(model.tensor(theta)), strict=True))
        (slope,) = torch.autograd.grad(loss(model.forward(params, rows), goal, reduction="sum"), rows)
        found.append(slope.cpu().numpy())
    return np.stack(found)
