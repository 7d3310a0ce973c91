"""Explain one patient of a table: contributions of each column to each of the model's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.explainers.gradients import IntegratedGradients, sum_by_feature
from grandrounds.explain.explainers.lime import Lime
from grandrounds.explain.explainers.linear import linear_layer
from grandrounds.explain.explainers.shapley import Shap, scores, shap_deep, shap_kernel
from grandrounds.explain.features import Features

_STEPS = 100  # points on a path: one patient allows many
_SAMPLES = 5000

Outputs = tuple[Array, Array]
"""Contributions (C, F) to each of the model's outputs, and the base value of each (C,)."""


@dataclass(frozen=True)
class Question:
    """A patient (1, d), a model, the background (B, d) to compare with, and the class: a contrast (C,) of the outputs."""

    model: Any
    theta: Array
    x: Array
    background: Array
    features: Features
    contrast: Array
    seed: int


def explain_shap(q: Question) -> Outputs:
    """Explain by Shapley values: exact for linear models and trees, path gradients for nets."""
    return _explain_outputs(q, Shap(q.features, q.background, steps=_STEPS)), _mean_score(q)


def explain_lime(q: Question) -> Outputs:
    """Explain by LIME, a local linear model around the patient."""
    return _explain_outputs(q, Lime(q.features, q.background, samples=_SAMPLES, seed=q.seed)), _mean_score(q)


def explain_integrated_gradients(q: Question) -> Outputs:
    """Explain by integrated gradients from the background's mean row."""
    average = q.background.mean(axis=0)
    parts = _explain_outputs(q, IntegratedGradients(q.features, average, steps=_STEPS))
    return parts, scores(q.model, q.theta)(average[None])[0].astype(float)


def explain_deep_shap(q: Question) -> Outputs:
    """Explain by SHAP's DeepExplainer."""
    return q.features.sum_inputs(shap_deep(q.model, q.theta, q.x, q.background)[0].astype(float)), _mean_score(q)


def explain_kernel_shap(q: Question) -> Outputs:
    """Explain by SHAP's KernelExplainer."""
    return q.features.sum_inputs(shap_kernel(q.model, q.theta, q.x, q.background, seed=q.seed)[0]), _mean_score(q)


def explain_coefficients(q: Question) -> Outputs:
    """Explain by coefficients times the patient's standardised values, starting from the intercept."""
    w, b = linear_layer(q.model, q.theta)
    return sum_by_feature(q.features, w.T * q.x), b.astype(float)


def _explain_outputs(q: Question, explainer: Any) -> Array:
    """Return contributions (C, F): the patient is explained once for each output."""
    count = q.model.outputs
    values: Array = explainer.signed(q.model, q.theta, np.repeat(q.x, count, axis=0), np.arange(count))
    return values.astype(float)


def _mean_score(q: Question) -> Array:
    mean: Array = scores(q.model, q.theta)(q.background).astype(float).mean(axis=0)
    return mean
