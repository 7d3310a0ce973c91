"""Cohorts: sites with similar updates are aggregated first, each group around its own consensus (eq. 10-11).

A children's hospital and one for adults may rely on different features. k-means on the updates finds groups of similar sites.
Explanations are compared within a group. The groups are then combined, or keep separate models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import CohortsSettings
from grandrounds.methods.robust_kernels import centred_gram

if TYPE_CHECKING:
    from grandrounds.methods.base import Server
    from grandrounds.protocol.messages import Answers

WEIGHTS = {
    "weights": "the sum of its sites' weights",
    "sites": "its number of sites (eq. 11)",
    "rows": "its training rows",
}
MIN_SILHOUETTE = 0.5
"""Mean silhouette below which the sites form one group: Kaufman and Rousseeuw call such structure weak and possibly artificial.
Five to ten similar sites gave 0.1 to 0.5 (higher with fewer parameters); two kinds of sites gave 0.6 or more."""

_RESTARTS = 10


@dataclass(frozen=True)
class CohortAssignment:
    """The cohort of each answer (K,), from 0, largest first, with an explanation."""

    labels: Array
    why: str
    silhouette: float | None = None

    @property
    def count(self) -> int:
        return int(self.labels.max()) + 1


def assign_cohorts(settings: CohortsSettings, server: Server, answers: Answers) -> CohortAssignment | None:
    """Assign answers to cohorts; None if the experiment has no cohorts, or not yet in this round."""
    if settings.count == 1 or server.round < settings.start:
        return None
    if settings.models == "separate" and server.assignment is not None and server.assignment.models is not None:
        return _keep_cohorts(server.assignment.index_by_site, answers.sites)
    updates = np.asarray(answers["model"]) - server.model
    seed = int(server.rng("cohorts").integers(2**31))
    if settings.count == "auto":
        return choose_cohorts(updates, most=settings.most, seed=seed)
    labels = cluster_updates(updates, count=min(int(settings.count), len(updates)), seed=seed)
    count = int(labels.max()) + 1
    return CohortAssignment(labels, f"the sites' updates form {count} cohort{'s' * (count > 1)} (k-means)")


def cluster_updates(updates: Array, *, count: int, seed: int) -> Array:
    """Group updates (K, P) by k-means (eq. 10): the cohort of each, (K,), the largest first."""
    return _label_points(_embed_updates(updates), count, seed)


def choose_cohorts(updates: Array, *, most: int, seed: int) -> CohortAssignment:
    """Choose the number of cohorts, up to `most`, by the mean silhouette; one cohort where updates form no groups."""
    from sklearn.metrics import silhouette_score

    points = _embed_updates(updates)
    best, score = np.zeros(len(points), np.int64), -np.inf
    for count in range(2, min(most, len(points) - 1) + 1):
        labels = _label_points(points, count, seed)
        if labels.max() == 0:
            break  # all updates are equal
        silhouette = float(silhouette_score(points, labels))
        if silhouette > score:
            best, score = labels, silhouette
    if score < MIN_SILHOUETTE:
        one_group, is_known = np.zeros(len(points), np.int64), np.isfinite(score)
        detail = f" (best silhouette {score:.2f})" if is_known else ""
        return CohortAssignment(one_group, f"the sites' updates form one group{detail}", score if is_known else None)
    return CohortAssignment(best, f"the sites' updates form {best.max() + 1} cohorts (silhouette {score:.2f})", score)


def cohort_consistency(before: Mapping[str, int], now: Mapping[str, int]) -> float | None:
    """Compute the adjusted Rand index of two rounds' cohorts over common sites (sec. VIII.B): 1 same, 0 chance."""
    from sklearn.metrics import adjusted_rand_score

    both = [s for s in now if s in before]
    if len(both) < 2:
        return None
    return float(adjusted_rand_score([before[s] for s in both], [now[s] for s in both]))


def cohort_shares(rule: str, labels: Array, weights: Array, counts: Array) -> Array:
    """Compute the weight of each cohort, (m,), by the rule that method.cohorts.weight names."""
    each = {"weights": weights, "sites": np.ones(len(labels)), "rows": np.asarray(counts, float)}[rule]
    total = np.bincount(labels, weights=each)
    out: Array = total / total.sum()
    return out


def _keep_cohorts(index_by_site: Mapping[str, int], sites: Sequence[str]) -> CohortAssignment:
    """Keep sites in their cohorts; a new site joins the first cohort."""
    new = [s for s in sites if s not in index_by_site]
    detail = f" ({', '.join(new)}: new, so in the first cohort)" if new else ""
    labels = np.array([index_by_site.get(s, 0) for s in sites], np.int64)
    return CohortAssignment(labels, f"cohorts keep their own models and their sites{detail}")


def _embed_updates(updates: Array) -> Array:
    """Compute K points in at most K dimensions with the distances of the updates (K, P), from their Gram matrix."""
    values, vectors = np.linalg.eigh(centred_gram(updates))
    out: Array = vectors * np.sqrt(np.maximum(values, 0))
    return out


def _label_points(points: Array, count: int, seed: int) -> Array:
    """Return the cohort of each point, numbered by size, then by the first site, so that numbers are stable."""
    from sklearn.cluster import KMeans

    reach = (
        float(np.abs(points).max()) or 1.0
    )  # equal updates give equal points up to rounding error
    count = min(count, len(np.unique(np.round(points / reach, 6), axis=0)))
    raw = KMeans(count, n_init=_RESTARTS, random_state=seed).fit(points).labels_
    _, first, size = np.unique(raw, return_index=True, return_counts=True)
    place = np.empty(len(size), np.int64)
    place[np.lexsort((first, -size))] = np.arange(len(size))
    out: Array = place[raw]
    return out
