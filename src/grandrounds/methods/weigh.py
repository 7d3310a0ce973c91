"""Aggregation weights: the rules of [method.weigh]. SSE-AGG's and FedXChain's are in their own folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import WeighSettings
from grandrounds.core.registry import Registry
from grandrounds.protocol.messages import Answers, Payload

if TYPE_CHECKING:
    from grandrounds.methods.base import Server
    from grandrounds.site.plugin import SitePlugin

EXPLANATIONS = "explanations"
"""The rule of [method.weigh] that is SSE-AGG's (`grandrounds.methods.sse_agg.weights`)."""


def data_size(counts: Array) -> Array:
    """Compute n_k / n: the weight FedAvg gives (McMahan et al. 2017)."""
    rows: Array = np.asarray(counts, float)
    shares: Array = rows / rows.sum()
    return shares


def uniform_weights(sites: int) -> Array:
    """1 / K for each of K sites."""
    return np.full(sites, 1 / sites)


def model_distances(models: Array) -> Array:
    """||theta_k - mean theta|| of models (K, P): (K,)."""
    mean = models.mean(axis=0, dtype=float)
    return np.array([np.linalg.norm(model - mean) for model in models])


def distance_weights(distance: Array) -> Array:
    """Compute weights that fall with distance, exp(-d_k / mean d), as shares; equal where all distances are 0.

    SSE-AGG names parameter distance as a baseline without a formula; this form has no scale to tune.
    """
    if not distance.any():
        return uniform_weights(len(distance))
    return as_shares(np.exp(-distance / distance.mean()))


def as_shares(values: Array) -> Array:
    """Divide values by their sum."""
    out: Array = values / values.sum()
    return out


@dataclass(frozen=True)
class WeightingResult:
    """A weight for each answer, (K,), with its signals and an explanation.

    `shares`: the contribution of each signal, (K,) each, which sum to the weights. `memory`: state for the next round.
    """

    weights: Array
    signals: Mapping[str, Array]
    why: str
    shares: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attributions: Mapping[str, float] = field(
        default_factory=dict
    )  # the consortium's attributions by feature, if sites are compared with them
    rejected_signals: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # signals, by site, of sites that rejected the weights

    def merge_signals(self, signals: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Add the signals of sites that rejected the weights."""
        return {name: {**values, **self.rejected_signals.get(name, {})} for name, values in signals.items()}


RULES = {
    "data_size": "by training rows (FedAvg)",
    "uniform": "uniform: every site has the same weight",
    "distance": "higher weight for models close to the mean of all models",
    "reference_accuracy": "by the accuracy of a site's model on the server's reference rows",
    "trust": "FedXChain's trust: accuracy, agreement of SHAP values and consistency (method 'fedxchain')",
    "explanations": "SSE-AGG's blend of data size, agreement of explanations, worst site and calibration",
}
NEEDS_REFERENCE = ("reference_accuracy",)
CHOSEN_RULES = ("distance", "reference_accuracy", "trust", EXPLANATIONS)
"""Weighting rules that are never the default."""


class WeightingRule:
    """A rule of [method.weigh]: what sites are asked for besides their models, and the weight of each answer.

    This one needs models and their rows alone; others are in `RULE_CLASSES`.
    """

    site: ClassVar[tuple[type[SitePlugin], ...]] = ()  # its plug-ins at the sites

    def __init__(self, settings: WeighSettings) -> None:
        self.settings = settings

    def reports(self, round: int) -> tuple[str, ...]:
        """Return the reports that the rule needs in a round besides the model."""
        return ()

    def site_payloads(self, server: Server) -> Mapping[str, Payload]:
        """Return further values of the training Ask for single sites, by site."""
        return {}

    def weigh(self, server: Server, answers: Answers, groups: Array | None = None) -> WeightingResult:
        """Weigh the answers to a training Ask; `groups` as in `weigh`."""
        rule = self.settings.rule
        if rule == "uniform":
            return WeightingResult(uniform_weights(len(answers)), {}, "every site that answered has the same weight")
        if rule == "distance":
            distance = model_distances(np.asarray(answers["model"]))
            why = "a site's weight falls with the distance of its model from the mean of all, exp(-d / mean d)"
            return WeightingResult(distance_weights(distance), {"distance": distance}, why)
        if rule == "reference_accuracy":
            assert server.reference is not None
            right = server.reference.accuracy(np.asarray(answers["model"]))
            why = "a site's weight is its model's accuracy on the server's reference rows, as a share of all"
            weights = data_size(right) if right.any() else uniform_weights(len(right))
            return WeightingResult(weights, {"reference_accuracy": right}, why)
        why = "a site's weight is its share of the training rows of all sites that answered"
        return WeightingResult(data_size(answers["count"]), {}, why)


RULE_CLASSES: Registry[WeightingRule] = Registry({EXPLANATIONS: "grandrounds.methods.sse_agg.weights:ExplanationRule"})
"""Rules that ask sites for more than their models."""


def weighting_rule(settings: WeighSettings) -> WeightingRule:
    """Build the rule of [method.weigh]."""
    return RULE_CLASSES.get(settings.rule, WeightingRule)(settings)


def weigh(settings: WeighSettings, server: Server, answers: Answers, groups: Array | None = None) -> WeightingResult:
    """Weigh answers by the rule of [method.weigh].

    Args:
        settings: The section [method.weigh].
        server: The state of the round.
        answers: Answers to a training Ask.
        groups: The cohort of each answer, (K,), where explanations are compared within cohorts.

    Returns:
        The weights, with their signals and an explanation.
    """
    return weighting_rule(settings).weigh(server, answers, groups)
