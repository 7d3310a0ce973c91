"""Outliers in their explanations: our form of agreement, in place of eq. 5.

The paper's form takes weight from every site in proportion to its distance from the mean. Ours leaves a site the weight of its
rows unless its explanations differ from the median site's by more than is usual, more than by sampling, and from more than one
other site. Importances are compared as they are, not as shares that sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import WeighSettings
from grandrounds.methods.sse_agg.agreement import comparisons
from grandrounds.protocol.messages import Answers

COMPARABLE_MEDIAN = 0.25
"""Median distance up to which explanations are comparable: a quarter of the total importance."""

MIN_DISTANCE = 0.1
"""Distance up to which no site is an outlier, however close the others are to one another."""

BROKEN_MODEL_DISTANCE = 5.0
"""Distance, in units of the usual total importance, beyond which a model is broken, not just different.

At least in units of the score (nats of a log loss): in early rounds importances are near zero, and the first site that learns is
many times that distance away."""

OUTLIER_SHARE = 4
"""One in this many sites, and at least one, may be an outlier."""

TOLERANCE = 1.5
"""Tolerated distance of a site's explanations from the consensus, as a multiple of the others', in the outlier form."""

MIN_NEIGHBOURS = 2
"""Fewest other sites from which an outlier's explanations are too far: one neighbour is not enough."""

MAX_REMEMBERED_RATIO = 10.0
"""Upper bound of a stored outlier ratio."""


@dataclass(frozen=True)
class Distances:
    """Distances of the sites' explanations from the median site's, (K,) each, and sentences for the Decision.

    `ratio`: distance over the tolerated one, NaN where sites differ too much to tell. `sampling`: its sampling error.
    `neighbours`: other sites from which it is too far.
    """

    distance: Array
    ratio: Array
    sampling: Array
    neighbours: Array
    notes: tuple[str, ...]


def measure_distances(settings: WeighSettings, answers: Answers, cohorts: Array | None, *, lenient: bool) -> Distances:
    """Measure the distance of each site's importances to the median of its cohort.

    Args:
        settings: The section [method.weigh].
        answers: Answers with sketches and total importances.
        cohorts: The cohort of each answer, (K,), where explanations are compared within cohorts.
        lenient: Sampling error and neighbours count. Otherwise (preset "defence") an outlier is one by its distance alone.
    """
    flat, count = np.asarray(answers["sketch.flat"], bool), len(answers)
    importances = np.asarray(answers["sketch"], float) * np.asarray(answers["sketch.total"], float)[:, None]
    sampling = read_column(answers, "sketch.sampling", 0.0) if lenient else np.zeros(count)
    distance, ratio = np.zeros(count), np.full(count, np.nan)
    neighbours = np.full(count, 0.0 if lenient else np.inf)
    notes: list[str] = []
    for group in comparisons(flat, cohorts):
        values, margin = importances[group.compared], sampling[group.compared]
        apart, usual_total = outlier_distance(values, values[group.speaking])
        distance[group.members] = group.of_members(apart)
        if not is_comparable(apart[group.speaking]):
            cohort = None if cohorts is None else int(cohorts[group.members[0]]) + 1
            notes.append(_describe_incomparable(float(np.median(apart[group.speaking])), cohort))
        if flat[group.compared].all():
            continue
        distant = neighbours[group.compared]
        if lenient:
            distant = _count_distant(values, margin, apart, group.speaking, usual_total, tolerance=settings.tolerance)
        found = outlier_ratio_beyond_sampling(
            apart, margin, distant, tolerance=settings.tolerance, peers=apart[group.speaking], usual_total=usual_total
        )
        ratio[group.members], neighbours[group.members] = group.of_members(found), group.of_members(distant)
    return Distances(distance, ratio, sampling, neighbours, tuple(notes))


def _describe_incomparable(usual: float, cohort: int | None) -> str:
    whose = "" if cohort is None else f"cohort {cohort}: "
    return f"{whose}explanations usually differ by {usual:.2f} from their consensus, too much to identify outliers"


def _count_distant(
    importances: Array, sampling: Array, distance: Array, speaking: Array, usual_total: float, *, tolerance: float
) -> Array:
    """Count, for each site (C,), the sites with explanations from which it is too far."""
    counted, some = np.zeros(len(distance)), np.flatnonzero(speaking)
    counted[some] = count_neighbours(importances[some], sampling[some], distance[some], usual_total, tolerance=tolerance)
    return counted


def read_column(answers: Answers, name: str, missing: float) -> Array:
    """Read a column (K,) that the server adds if it has models and reference rows."""
    return np.asarray(answers[name], float) if name in answers else np.full(len(answers), missing)


def outlier_distance(importances: Array, consensus_importances: Array | None = None) -> tuple[Array, float]:
    """Compute the distance of each site's importances (K, F) to the median site's, as a share of the median's total.

    A few bad sites cannot move the median of each feature, unlike the mean. A model trained on wrong labels may rely on the
    right features too little, which shares that sum to 1 do not show. `consensus_importances`: the importances for the median.
    Also returns the total.
    """
    middle = np.median(importances if consensus_importances is None else consensus_importances, axis=0)
    total = float(middle.sum())
    out: Array = np.abs(importances - middle).sum(axis=1) / (total if total > 0 else 1.0)
    return out, total


def outlier_ratio(
    distance: Array, *, tolerance: float = TOLERANCE, peers: Array | None = None, usual_total: float = 1.0
) -> Array:
    """Compute each site's distance divided by the tolerated distance: at most 1 for a usual difference.

    The tolerated distance is `tolerance` times the `trimmed_max` of the `peers`, at least MIN_DISTANCE. If most sites differ
    widely (`is_comparable`), a hospital with different patients looks like a bad one. Then only a broken model is an outlier
    (BROKEN_MODEL_DISTANCE), and the others are unknown (NaN). `usual_total`: total importance at the median site.
    """
    peer_distances = distance if peers is None else peers
    if is_comparable(peer_distances):
        close: Array = distance / max(tolerance * trimmed_max(peer_distances), MIN_DISTANCE)
        return close
    absurd = BROKEN_MODEL_DISTANCE * max(1.0, 1 / usual_total) if usual_total > 0 else BROKEN_MODEL_DISTANCE
    apart = distance / max(tolerance * trimmed_max(peer_distances), absurd)
    return np.where(apart > 1, apart, np.nan)


def outlier_ratio_beyond_sampling(
    distance: Array,
    sampling: Array,
    neighbours: Array,
    *,
    tolerance: float = TOLERANCE,
    peers: Array,
    usual_total: float = 1.0,
) -> Array:
    """Compute each site's outlier ratio beyond sampling error, (K,): `outlier_ratio` of its distance less sampling error.

    Independent errors add in squares, so the square of `sampling` is subtracted from that of the distance. A site that is too
    far from fewer than MIN_NEIGHBOURS others is at most 1.
    """
    ratio = outlier_ratio(
        subtract_sampling(distance, sampling), tolerance=tolerance, peers=peers, usual_total=usual_total
    )
    out: Array = np.where(neighbours >= MIN_NEIGHBOURS, ratio, np.fmin(ratio, 1.0))
    return np.where(np.isnan(ratio), np.nan, out)


def subtract_sampling(distance: Array, sampling: Array | float) -> Array:
    """Subtract sampling error from distances, in squares; at least 0."""
    out: Array = np.sqrt(np.maximum(distance**2 - np.asarray(sampling, float) ** 2, 0.0))
    return out


def count_neighbours(
    importances: Array, sampling: Array, distance: Array, usual_total: float, *, tolerance: float
) -> Array:
    """Count the other sites, (K,), from which each site's importances (K, F) differ by more than is tolerated, beyond
    sampling."""
    allowed = max(tolerance * trimmed_max(distance), MIN_DISTANCE) * (usual_total if usual_total > 0 else 1.0)
    beyond_sampling = sampling * (usual_total if usual_total > 0 else 1.0)
    out = [
        int((subtract_sampling(np.abs(importances - row).sum(axis=1), margin) > allowed).sum())
        for row, margin in zip(importances, beyond_sampling, strict=True)
    ]
    return np.array(out, float)


def trimmed_max(distance: Array) -> float:
    """Return the largest distance of all sites but the furthest, one in OUTLIER_SHARE: the usual spread of honest sites.

    The median would tolerate fewer than half bad sites. But with skewed labels three hospitals of five may be similar, and two
    with other patients would be excluded with their data.
    """
    return float(np.sort(distance)[max(0, len(distance) - 1 - max(1, len(distance) // OUTLIER_SHARE))])


def is_comparable(distance: Array) -> bool:
    """Check whether most sites' explanations are close enough, by their distances (K,), to identify outliers."""
    return bool(np.median(distance) <= COMPARABLE_MEDIAN)


def outlier_weight(ratio: Array, *, sharpness: float) -> Array:
    """Compute the share of its weight that each site keeps, in [0, 1], from its `outlier_ratio` (our form, not the paper's).

    It is 1 for ratios up to 1 or unknown, beyond that the power `sharpness` of the inverse ratio. Sites with usual differences
    keep the weight of their rows; one with outlying explanations loses it.
    """
    out: Array = (1 / np.fmax(ratio, 1.0)) ** sharpness
    return out


def smoothed_ratio(ratio: Array, before: Array, memory: float) -> Array:
    """Mix outlier ratios with those of `before` (NaN: none), which count for the share `memory`.

    Explanations come from a few hundred rows, so an honest site is an outlier in some rounds, and a bad one in some is not.
    Earlier ratios are capped at MAX_REMEMBERED_RATIO, so that a site with one extreme round can recover. A round without a ratio
    (NaN) keeps the earlier one.
    """
    mixed = memory * np.minimum(before, MAX_REMEMBERED_RATIO) + (1 - memory) * ratio
    out: Array = np.where(np.isnan(before), ratio, np.where(np.isnan(ratio), before, mixed))
    return out
