"""Explain linear models: their coefficients, and the Shapley values that follow from them in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense

if TYPE_CHECKING:
    from grandrounds.explain.rule import SketchRule


@dataclass(frozen=True)
class Coefficients:
    """The size of each feature's coefficients on the inputs as the model sees them, the same for every row.

    Inputs are standardised, so a coefficient is the effect of one standard deviation in log-odds. A feature of several
    inputs, or of several classes, has the root of the sum of its squared coefficients.
    """

    features: Features

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> Coefficients:
        """Make the explainer that a rule describes."""
        return cls(features)

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        w, _ = linear_layer(model, theta)
        size = np.sqrt(self.features.sum_inputs((w**2).sum(axis=-1)))
        return np.broadcast_to(size[..., None, :], (*size.shape[:-1], len(x), size.shape[-1]))


def linear_shap(model: Any, theta: Array, x: Array, background: Array) -> Array:
    """Compute Shapley values of a linear model's logits, (n, C, d): w_cj (x_j - mean of the background's column j).

    They are exact when a missing input is drawn from the background whatever the others are (interventional; Lundberg &
    Lee 2017, corollary 1).
    """
    w, _ = linear_layer(model, theta)
    away = x - background.mean(axis=0)
    out: Array = away[:, None] * w.T
    return out


def linear_layer(model: Any, theta: Array) -> tuple[Array, Array]:
    """Return the coefficients (..., d, C) and intercepts (..., C) of a linear model; refuse any other model."""
    dense = as_dense(model)
    if dense is None or len(dense.widths) != 2:
        raise BadInput(
            "only a linear or logistic model has coefficients; explain an MLP by 'shap' or 'permutation', a forest by 'shap'",
            code="needs-linear-model",
        )
    return dense.layers(theta)[0]


def as_dense(model: Any) -> Dense | None:
    """Return the dense model that reads the same vector: the model itself, or the one whose torch twin it is; else None."""
    if isinstance(model, Dense):
        return model
    if model.kernel != "torch":
        return None
    from grandrounds.models.torch_build import DenseNet

    if not isinstance(model.net, DenseNet):
        return None
    biases = [shape for name, shape in model.layout.shapes if name.endswith(".bias")]
    return Dense((model.layout.shapes[0][1][0], *(width for (width,) in biases)), model.loss)
