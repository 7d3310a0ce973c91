"""Which way a model's reasons point: the sign that absolute SHAP values drop.

A model that learnt from flipped labels uses the right features in the wrong direction. Its mean |SHAP| is that of an honest
one; this is its opposite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.explainers.shapley import Shap
from grandrounds.explain.features import Features


def direction(model: Any, theta: Array, x: Array, background: Array, *, steps: int = 10) -> Array:
    """Whether more of an input speaks for or against each output, and how much: a vector of length 1, (C * d,).

    mean over rows of phi_j * sign(x_j - mean background_j), for the SHAP values phi of every output; of a linear model
    w_j * mean |x_j - b_j|. All zeros where no input counts.
    """
    if not len(x):
        return np.zeros(model.outputs * x.shape[1])
    explainer = Shap(Features.of_inputs([str(j) for j in range(x.shape[1])]), background, steps)
    phi = [explainer.signed(model, theta, x, np.full(len(x), c)) for c in range(model.outputs)]
    return unit(np.concatenate([pointing(values, x, background) for values in phi]).astype(float))


def pointing(values: Array, x: Array, background: Array) -> Array:
    """mean phi_j sign(x_j - mean background_j) over rows, for SHAP values phi (n, d)."""
    found: Array = (values * np.sign(np.asarray(x) - np.asarray(background).mean(axis=0))).mean(axis=0)
    return found


def unit(vector: Array) -> Array:
    """Of length 1; zeros stay zeros."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector
