"""Which way a model's reasons point: the sign that absolute SHAP values drop.

A model that learnt from flipped labels uses the right features in the wrong direction. Its mean |SHAP| is that of an honest
one; this is its opposite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.explain.features import Features
from grandrounds.explain.shapley import Shap


def direction(model: Any, theta: Array, x: Array, background: Array, *, steps: int = 10) -> Array:
    """Whether more of an input speaks for or against each output, and how much: a vector of length 1, (C * d,).

    mean over rows of phi_j * sign(x_j - mean background_j), for the SHAP values phi of every output; of a linear model
    w_j * mean |x_j - b_j|. All zeros where no input counts.
    """
    if not len(x):
        return np.zeros(model.outputs * x.shape[1])
    explainer = Shap(Features.of_inputs([str(j) for j in range(x.shape[1])]), background, steps)
    side = np.sign(x - background.mean(axis=0))
    parts = [(explainer.signed(model, theta, x, np.full(len(x), c)) * side).mean(axis=0) for c in range(model.outputs)]
    found = np.concatenate(parts).astype(float)
    length = float(np.linalg.norm(found))
    return found / length if length > 0 else found
