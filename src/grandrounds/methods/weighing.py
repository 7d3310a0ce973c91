"""How answers are weighed: the rules of [method.weigh]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.reasons import EXPLANATIONS, by_explanations
from grandrounds.methods.weigh import data_size, distances, nearness, uniform
from grandrounds.methods.weighed import Weighed
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

RULES = {
    "data_size": "by training rows (FedAvg)",
    "uniform": "every site alike",
    "distance": "the nearer a site's model is to the mean of all, the more it counts",
    "reference_accuracy": "by the accuracy of a site's model on the server's reference rows",
    "trust": "FedXChain's trust: accuracy, agreement of SHAP values with the consortium's, steadiness (method 'fedxchain')",
    "explanations": "SSE-AGG's blend of data size, agreement of reasons, worst site and calibration",
}
NEEDS_REFERENCE = ("reference_accuracy",)
OWN_WEIGHTS = ("distance", "reference_accuracy", "trust", EXPLANATIONS)
"""Ways of weighing that someone chose: never the default."""


def weigh(settings: Any, server: Server, answers: Answers, groups: Array | None = None) -> Weighed:
    """The weights that a rule gives these answers; `groups` (K,): the cohort of each, where reasons are compared within."""
    if settings.rule == EXPLANATIONS:
        return by_explanations(settings, server, answers, groups)
    if settings.rule == "uniform":
        return Weighed(uniform(len(answers)), {}, "every site that answered has the same weight")
    if settings.rule == "distance":
        far = distances(np.asarray(answers["model"]))
        why = "a site's weight falls with the distance of its model from the mean of all, exp(-d / mean d)"
        return Weighed(nearness(far), {"distance": far}, why)
    if settings.rule == "reference_accuracy":
        assert server.reference is not None
        right = server.reference.accuracy(np.asarray(answers["model"]))
        why = "a site's weight is its model's accuracy on the server's reference rows, as a share of all"
        return Weighed(data_size(right) if right.any() else uniform(len(right)), {"reference_accuracy": right}, why)
    why = "a site's weight is its share of the training rows of all sites that answered"
    return Weighed(data_size(answers["count"]), {}, why)
