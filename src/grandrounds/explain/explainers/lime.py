"""LIME for tables (Ribeiro et al. 2016): a local linear model around one row.

A sample keeps each feature of the row or draws it from the background, with even chances and each feature for itself;
a feature of several inputs is kept or drawn as a whole. A ridge regression of the scores on what was kept (1 or 0),
with samples weighed by their proximity to the row, gives each feature's attribution: the effect of keeping the row's value.
Draws do not depend on the row or the model, so all are explained with the same samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.explain.explainers.gradients import check_background, check_outputs, magnitudes
from grandrounds.explain.explainers.shapley import scores
from grandrounds.explain.features import Features

WIDTH = 0.75
"""Width of the kernel, in square roots of the number of features: the default of the authors' package."""

RIDGE = 1e-3
"""Ridge penalty: enough for fewer samples than features, too small to shrink values."""


@dataclass(frozen=True)
class Lime:
    """LIME with `samples` draws from an agreed background (B, d), of which the first is the row itself."""

    features: Features
    background: Array
    samples: int = 500
    seed: int = 0
    ridge: float = RIDGE

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise BadInput(
                f"LIME fits a line and needs at least two samples, not {self.samples}", code="too-few-samples"
            )

    def signed(self, model: Any, theta: Array, x: Array, outputs: Array) -> Array:
        """Signed attributions (n, F) to the logit of each row's output; of a forest, to its vote."""
        check_background(x, self.background)
        score = scores(model, theta)
        chosen = check_outputs(model, len(x), outputs)
        values = [self._solver @ score(self.sample_around(row))[:, c] for row, c in zip(x, chosen, strict=True)]
        return np.reshape(values, (len(x), len(self.features)))

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        return magnitudes(self.signed, model, theta, x, target)

    def sample_around(self, row: Array) -> Array:
        """Return the samples (m, d) around a row (d,)."""
        return np.where(self.keep_mask[:, self.features.feature_index], row, self._draws)

    @cached_property
    def keep_mask(self) -> Array:
        """Mask (m, F) of the features that each sample keeps."""
        rng = generator(self.seed, purpose="lime-kept")
        mask: Array = rng.random((self.samples, len(self.features))) < 0.5
        mask[0] = True
        return mask

    @cached_property
    def proximity(self) -> Array:
        """Weight (m,) of each sample: exp(-D^2 / sigma^2) (sec. 3.4), D^2 the Hamming distance, the number of drawn features."""
        out: Array = np.exp(-(~self.keep_mask).sum(axis=1) / (WIDTH**2 * len(self.features)))
        return out

    @cached_property
    def _draws(self) -> Array:
        """Background values (m, d), each feature from a background row of its own."""
        rng = generator(self.seed, purpose="lime-drawn")
        row = rng.integers(len(self.background), size=(self.samples, len(self.features)))
        return self.background[row[:, self.features.feature_index], np.arange(len(self.features.feature_index))]

    @cached_property
    def _solver(self) -> Array:
        """Matrix (F, m) that turns scores into coefficients: weighted ridge, its intercept not penalised."""
        share = self.proximity / self.proximity.sum()
        centred = self.keep_mask - share @ self.keep_mask
        weighted = centred.T * self.proximity
        return np.linalg.solve(weighted @ centred + self.ridge * np.eye(len(self.features)), weighted)


def lime(
    predict: Callable[[Array], Array],
    row: Array,
    features: Features,
    background: Array,
    *,
    samples: int = 5000,
    seed: int = 0,
    ridge: float = RIDGE,
) -> Array:
    """Explain one row (d,) by LIME: signed attributions (F,).

    Args:
        predict: Gives one score for each of the rows (m, d) it is handed.
        row: The row to explain.
        features: Groups of inputs that are kept or drawn together.
        background: Rows (B, d) to draw from.
        samples: Number of draws.
        seed: Seed of the draws.
        ridge: Strength of the ridge regression.

    Raises:
        BadInput: `predict` does not give one score a row.
    """
    check_background(row[None], background)
    explainer = Lime(features, background, samples=samples, seed=seed, ridge=ridge)
    predictions = np.asarray(predict(explainer.sample_around(row)), float)
    if predictions.shape != (samples,):
        raise BadInput(
            f"LIME explains one score per row: for {samples} rows 'predict' gave an array of shape {predictions.shape}",
            code="bad-prediction-shape",
        )
    out: Array = explainer._solver @ predictions
    return out
