"""Attribute one patient's score to clinical columns, by any explainer that suits the model.

The score is a contrast of logits, z_c - mean of the other classes' z: with two classes the log-odds themselves, with more
the log-odds of the class against the (geometric) mean of the others. Every explainer here is linear in the outputs, so
it is asked for each output and the answers are contrasted. A forest has no logits; its vote is explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.explain.explainers.cases import Question
from grandrounds.explain.explainers.gradients import sum_by_feature
from grandrounds.explain.explainers.linear import as_dense, linear_layer
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.explainers.shapley import scores
from grandrounds.models.protocol import GRADIENT_FREE

_CASES = explainers_for(Use.CASE)
EXPLAINERS = {name: spec.words for name, spec in _CASES.items()}
"""Explainers for a row of a table, each with one line."""

LOG_ODDS, PROBABILITY = "log-odds", "probability"


@dataclass(frozen=True, eq=False)
class ScoreAttribution:
    """A score as the sum base + contributions (F,) + remainder."""

    contributions: Array
    base: float
    score: float
    start: Array  # (C,) the scores of all outputs that the base is made from

    @property
    def remainder(self) -> float:
        return self.score - self.base - float(self.contributions.sum())


def attribute_score(question: Question, explainer: str) -> ScoreAttribution:
    """Attribute one patient's score to columns.

    Args:
        question: The model, the patient's inputs and the rows to compare with.
        explainer: A name in EXPLAINERS.

    Raises:
        BadInput: The explainer is unknown, does not suit the model, or needs a package that is not installed.
    """
    if explainer not in EXPLAINERS:
        raise BadInput(
            f"no explainer '{explainer}' for a case; {nearest(explainer, EXPLAINERS)}", code="unknown-explainer"
        )
    suitable = suitable_explainers(question.model)
    if explainer not in suitable:
        has_layers = question.model.kernel not in GRADIENT_FREE
        why = "is for logistic models" if has_layers else "reads layers, which this model does not have"
        raise BadInput(f"explainer '{explainer}' {why}: use {', '.join(suitable)}", code="explainer-does-not-fit")
    try:
        parts, start = _CASES[explainer].load()(question)
    except ImportError as e:
        raise BadInput(
            f"explainer '{explainer}' needs a package that is not installed here ({e.name}); use 'shap'",
            code="missing-package",
        ) from None
    v = question.contrast
    score = float(scores(question.model, question.theta)(question.x)[0].astype(float) @ v)
    return ScoreAttribution(v @ parts, float(start @ v), score, start)


def suitable_explainers(model: Any) -> tuple[str, ...]:
    """List the explainers that suit a model."""
    if model.kernel in GRADIENT_FREE:
        return tuple(name for name, spec in _CASES.items() if not spec.needs_gradient)
    return tuple(name for name, spec in _CASES.items() if is_linear(model) or not spec.needs_linear)


def is_linear(model: Any) -> bool:
    """Tell that a model's logits are a weighted sum of its inputs: then Shapley values are exact, by their means alone."""
    if model.kernel in GRADIENT_FREE:
        return False
    dense = as_dense(model)
    return dense is not None and len(dense.widths) == 2


def score_unit(model: Any) -> str:
    """Name the unit of contributions: log-odds or probability."""
    return PROBABILITY if model.kernel == "forest" else LOG_ODDS


def zero_weight_columns(question: Question) -> tuple[str, ...]:
    """List the columns that a linear model gives no weight; empty for any other model."""
    if not is_linear(question.model):
        return ()
    weights, _ = linear_layer(question.model, question.theta)
    weight_by_column = sum_by_feature(question.features, np.abs(weights).T).sum(axis=0).tolist()
    return tuple(name for name, some in zip(question.features.names, weight_by_column, strict=True) if not some)


def contrast_weights(outputs: int, task_outputs: Sequence[int], target: int, *, kernel: str) -> Array:
    """Compute the weights (outputs,) that make the score of class `target` out of a task's outputs.

    One output is the log-odds of class 1: for class 0 its sign is turned round.
    """
    if outputs == 1:
        return np.array([1.0 if target else -1.0])
    v = np.zeros(outputs)
    if kernel != "forest":
        v[list(task_outputs)] = -1 / (len(task_outputs) - 1)
    v[target] = 1
    return v
