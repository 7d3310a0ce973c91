"""What each clinical column adds to one patient's score, by any of the explainers that fit the model.

The score is a contrast of logits, z_c - mean of the other classes' z: with two classes the log-odds themselves, with more
the log-odds of the class against the (geometric) mean of the others. Every explainer here is linear in the outputs, so
it is asked for each output and the answers are contrasted. A forest has no logits; its vote is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.explain.explainers.gradients import IntegratedGradients, by_feature
from grandrounds.explain.explainers.lime import Lime
from grandrounds.explain.explainers.linear import dense_of, linear_layer
from grandrounds.explain.explainers.shapley import Shap, scores, shap_deep, shap_kernel
from grandrounds.explain.features import Features

EXPLAINERS = {
    "shap": "exact for linear models and trees; for nets path gradients, averaged over the background",
    "deep": "SHAP's DeepExplainer, layer by layer, for MLPs and nets (needs torch)",
    "kernel": "SHAP's KernelExplainer, by sampling, for any model; slow",
    "integrated_gradients": "gradients along the straight line from the background's mean row to this patient",
    "lime": "the straight line that fits the model best around this patient (LIME); it does not add up exactly",
    "coefficients": "a linear model's coefficients times the patient's standardised values",
}
"""Name and one line for each explainer of a case of a table."""

_TREES = ("forest", "boosted")
LOG_ODDS, PROBABILITY = "log-odds", "probability"
_STEPS = 100  # points on a path: for one patient there is time for many
_SAMPLES = 5000

Outputs = tuple[Array, Array]
"""Contributions (C, F) to each of the model's outputs, and what each starts from (C,)."""


@dataclass(frozen=True, eq=False)
class Attributed:
    """score = base + contributions (F,) + what the explainer leaves over."""

    contributions: Array
    base: float
    score: float
    start: Array  # (C,) the scores of all outputs that the base is made from

    @property
    def remainder(self) -> float:
        return self.score - self.base - float(self.contributions.sum())


@dataclass(frozen=True)
class Question:
    """Which patient (1, d), by which model, beside whom (B, d), about which class: a contrast (C,) of the outputs."""

    model: Any
    theta: Array
    x: Array
    background: Array
    features: Features
    contrast: Array
    seed: int


def attribute(question: Question, explainer: str) -> Attributed:
    """One patient's score taken apart; an explainer that does not fit the model is refused in words."""
    if explainer not in EXPLAINERS:
        raise BadInput(f"no explainer '{explainer}' for a case; {nearest(explainer, EXPLAINERS)}")
    known = fitting(question.model)
    if explainer not in known:
        why = "reads layers, not trees" if question.model.kernel in _TREES else "is for logistic models"
        raise BadInput(f"explainer '{explainer}' {why}: use {', '.join(known)}")
    try:
        parts, start = _WAYS[explainer](question)
    except ImportError as e:
        raise BadInput(
            f"explainer '{explainer}' needs a package that is not installed here ({e.name}); use 'shap'"
        ) from None
    v = question.contrast
    score = float(scores(question.model, question.theta)(question.x)[0].astype(float) @ v)
    return Attributed(v @ parts, float(start @ v), score, start)


def fitting(model: Any) -> tuple[str, ...]:
    """The explainers that a model can be explained by."""
    if model.kernel in _TREES:
        return "shap", "kernel", "lime"
    return tuple(name for name in EXPLAINERS if is_linear(model) or name != "coefficients")


def is_linear(model: Any) -> bool:
    """Whether a model's logits are a weighted sum of its inputs: then Shapley values are exact, by their means alone."""
    if model.kernel in _TREES:
        return False
    dense = dense_of(model)
    return dense is not None and len(dense.widths) == 2


def unit(model: Any) -> str:
    """What contributions are counted in."""
    return PROBABILITY if model.kernel == "forest" else LOG_ODDS


def unread(question: Question) -> tuple[str, ...]:
    """The columns that a linear model gives no weight at all; of any other model nothing is said."""
    if not is_linear(question.model):
        return ()
    weights, _ = linear_layer(question.model, question.theta)
    held = by_feature(question.features, np.abs(weights).T).sum(axis=0).tolist()
    return tuple(name for name, some in zip(question.features.names, held, strict=True) if not some)


def contrast(outputs: int, own: Sequence[int], explained: int, *, kernel: str) -> Array:
    """The weights (outputs,) that make the score of class `explained` out of a task's `own` outputs.

    One output is the log-odds of class 1: for class 0 its sign is turned round.
    """
    if outputs == 1:
        return np.array([1.0 if explained else -1.0])
    v = np.zeros(outputs)
    if kernel != "forest":
        v[list(own)] = -1 / (len(own) - 1)
    v[explained] = 1
    return v


def _shap(q: Question) -> Outputs:
    return _each(q, Shap(q.features, q.background, steps=_STEPS)), _mean(q)


def _lime(q: Question) -> Outputs:
    return _each(q, Lime(q.features, q.background, samples=_SAMPLES, seed=q.seed)), _mean(q)


def _integrated(q: Question) -> Outputs:
    average = q.background.mean(axis=0)
    parts = _each(q, IntegratedGradients(q.features, average, steps=_STEPS))
    return parts, scores(q.model, q.theta)(average[None])[0].astype(float)


def _deep(q: Question) -> Outputs:
    return q.features.summed(shap_deep(q.model, q.theta, q.x, q.background)[0].astype(float)), _mean(q)


def _kernel(q: Question) -> Outputs:
    return q.features.summed(shap_kernel(q.model, q.theta, q.x, q.background, seed=q.seed)[0]), _mean(q)


def _coefficients(q: Question) -> Outputs:
    w, b = linear_layer(q.model, q.theta)
    return by_feature(q.features, w.T * q.x), b.astype(float)


def _each(q: Question, explainer: Any) -> Array:
    """(C, F): the patient once for each output."""
    count = q.model.outputs
    found: Array = explainer.signed(q.model, q.theta, np.repeat(q.x, count, axis=0), np.arange(count))
    return found.astype(float)


def _mean(q: Question) -> Array:
    mean: Array = scores(q.model, q.theta)(q.background).astype(float).mean(axis=0)
    return mean


_WAYS: dict[str, Callable[[Question], Outputs]] = {
    "shap": _shap,
    "deep": _deep,
    "kernel": _kernel,
    "integrated_gradients": _integrated,
    "lime": _lime,
    "coefficients": _coefficients,
}
