"""How answers are weighed: signals on the simplex."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.arrays import Array
from grandrounds.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

RULES = {
    "data_size": "by training rows (FedAvg)",
    "uniform": "every site alike",
    "distance": "the nearer a site's model is to the mean of all, the more it counts",
    "reference_accuracy": "by the accuracy of a site's model on the server's reference rows",
}
NEEDS_REFERENCE = ("reference_accuracy",)


@dataclass(frozen=True)
class Weighed:
    """A weight for each answer, (K,), with the signal it comes from and the reason in words."""

    weights: Array
    signals: Mapping[str, Array]
    why: str


def weigh(rule: str, server: Server, answers: Answers) -> Weighed:
    """The weights a rule gives these answers."""
    if rule == "uniform":
        return Weighed(uniform(len(answers)), {}, "every site that answered has the same weight")
    if rule == "distance":
        far = distances(np.asarray(answers["model"]))
        why = "a site's weight falls with the distance of its model from the mean of all, exp(-d / mean d)"
        return Weighed(nearness(far), {"distance": far}, why)
    if rule == "reference_accuracy":
        assert server.reference is not None
        right = server.reference.accuracy(np.asarray(answers["model"]))
        why = "a site's weight is its model's accuracy on the server's reference rows, as a share of all"
        return Weighed(data_size(right) if right.any() else uniform(len(right)), {"reference_accuracy": right}, why)
    why = "a site's weight is its share of the training rows of all sites that answered"
    return Weighed(data_size(answers["count"]), {}, why)


def data_size(counts: Array) -> Array:
    """n_k / n: the weight FedAvg gives (McMahan et al. 2017)."""
    rows: Array = np.asarray(counts, float)
    shares: Array = rows / rows.sum()
    return shares


def uniform(sites: int) -> Array:
    """1 / K for each of K sites."""
    return np.full(sites, 1 / sites)


def distances(models: Array) -> Array:
    """||theta_k - mean theta|| of models (K, P): (K,)."""
    out: Array = np.linalg.norm(models - models.mean(axis=0, dtype=float), axis=1)
    return out


def nearness(far: Array) -> Array:
    """Weights that fall with distance, exp(-d_k / mean d), as shares; alike where all are at one place.

    SSE-AGG names parameter distance as a baseline without saying how; this form has no scale to tune.
    """
    if not far.any():
        return uniform(len(far))
    closeness = np.exp(-far / far.mean())
    shares: Array = closeness / closeness.sum()
    return shares
