"""Aggregation weights: the rules of [method.weigh], and the signals on the simplex that they blend (SSE-AGG, eq. 4-8, 20-21)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import WeighSettings
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

EXPLANATIONS = "explanations"
"""The rule of [method.weigh] that is SSE-AGG's (`grandrounds.methods.sse_agg.weights`)."""

SIGNALS = {
    "data": "its share of the training rows (eq. 4)",
    "agreement": "agreement of its explanations with the consensus (eq. 5)",
    "worst_site": "its validation loss: sites with a high loss have more weight (eq. 6)",
    "calibration": "its calibration error: badly calibrated sites have more weight (eq. 7)",
}
"""Signals that SSE-AGG blends."""

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

MATERIAL_HARM = 0.05
"""Relative increase of the log loss on reference rows above which a site does harm."""

HARM = 2.0
"""Standard errors above MATERIAL_HARM, over the rounds, from which an outlier may lose more than its least share."""

HARM_ALONE = 5.0
"""Standard errors from which harm alone lowers the weight, also without outlying explanations, by a power of the excess."""

HARM_MEMORY = 0.8
"""Share of earlier rounds in harm, which starts at 0: in the first rounds barely trained models harm one another."""

MIN_ROWS_TO_HALVE = 20
"""Fewest training rows of a site whose harm is confirmed on halves of its patients; a smaller site is evaluated on all of
them."""

MAX_REMEMBERED_RATIO = 10.0
"""Upper bound of a stored outlier ratio."""


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
    return _shares(np.exp(-distance / distance.mean()))


def disagreement(sketches: Any, consensus_sketches: Array | None = None) -> Array:
    """D_k = ||E_k - mean E||_1 of sketches (K, F), in [0, 2] (eq. 20); `consensus_sketches`: the sketches to average."""
    values = np.asarray(getattr(sketches, "values", sketches), float)
    out: Array = np.abs(values - (values if consensus_sketches is None else consensus_sketches).mean(axis=0)).sum(
        axis=1
    )
    return out


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


def agreement(sketches: Any, *, eps: float, sharpness: float = 1.0) -> Array:
    """Shares that follow c_k = 1 / (eps + ||E_k - mean E||_1) (eq. 5), raised to the power `sharpness`."""
    return inverse_weights(disagreement(sketches), sharpness=sharpness, eps=eps)


def inverse_weights(distance: Array, *, eps: float, sharpness: float = 1.0) -> Array:
    """Eq. 5 for distances (K,) to a consensus: shares that follow (eps + D_k)^-sharpness."""
    return _shares(_power((eps + distance.min()) / (eps + distance), sharpness))


def exponential_weights(distance: Array, *, tau: float) -> Array:
    """Eq. 21: shares that follow exp(-tau D_k)."""
    return _shares(np.exp(-tau * (distance - distance.min())))


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


def retained_share(
    standing: Array, harm: Array, *, least: float, sharpness: float, confirmed: Array | None = None
) -> Array:
    """Compute the share of its rows' weight that each site keeps, (K,), by its outlier ratio and its harm.

    A site keeps at least `least` unless the model is worse with it on reference rows (`harm` above HARM). Harm above HARM_ALONE
    lowers the weight by itself. NaN: there are no labelled reference rows to measure harm, so `least` applies. Harm that is not
    `confirmed` (K,) is capped at HARM, which has no effect.
    """
    finite_harm = np.nan_to_num(harm, nan=0.0)
    if confirmed is not None:
        finite_harm = np.where(confirmed, finite_harm, np.minimum(finite_harm, HARM))
    trust = outlier_weight(standing, sharpness=sharpness)
    trust = np.where(finite_harm > HARM, trust, np.maximum(trust, least))
    out: Array = np.minimum(trust, outlier_weight(finite_harm / HARM_ALONE, sharpness=sharpness))
    return out


def find_suspects(standing: Array, harm: Array, *, least: float) -> Array:
    """Find the sites, (K,) of bool, that would be demoted for harm, which must be confirmed."""
    finite_harm = np.nan_to_num(harm, nan=0.0)
    out: Array = (finite_harm > HARM_ALONE) | (
        (least > 0) & (np.nan_to_num(standing, nan=0.0) > 1) & (finite_harm > HARM)
    )
    return out


def confirm_on_halves(first: Array, second: Array, rows: Array) -> Array:
    """Find the sites, (K,) of bool, whose harm is confirmed: the loss rises by more than MATERIAL_HARM with either half alone.

    An accident of its patients affects one half and not the other; `harm` over the rounds rules out chance in the reference
    rows. Sites with fewer than MIN_ROWS_TO_HALVE rows are not halved. NaN: not tried yet.
    """
    out: Array = ((first > 0) & (second > 0)) | (rows < MIN_ROWS_TO_HALVE)
    return out


def remember_harm(now: Array, before: Array) -> Array:
    """Mix this round's harm with that of the rounds before, in the share HARM_MEMORY; a round without it (NaN) changes
    nothing."""
    mixed = HARM_MEMORY * np.nan_to_num(before) + (1 - HARM_MEMORY) * np.maximum(now, -HARM)  # negative harm does not accumulate
    out: Array = np.where(np.isnan(now), before, mixed)
    return out


def trimmed_max(distance: Array) -> float:
    """Return the largest distance of all sites but the furthest, one in OUTLIER_SHARE: the usual spread of honest sites.

    The median would tolerate fewer than half bad sites. But with skewed labels three hospitals of five may be similar, and two
    with other patients would be excluded with their data.
    """
    return float(np.sort(distance)[max(0, len(distance) - 1 - max(1, len(distance) // OUTLIER_SHARE))])


def outlier_weight(ratio: Array, *, sharpness: float) -> Array:
    """Compute the share of its weight that each site keeps, in [0, 1], from its `outlier_ratio` (our form, not the paper's).

    It is 1 for ratios up to 1 or unknown, beyond that the power `sharpness` of the inverse ratio. Sites with usual differences
    keep the weight of their rows; one with outlying explanations loses it.
    """
    return _power(1 / np.fmax(ratio, 1.0), sharpness)


def smoothed_ratio(ratio: Array, before: Array, memory: float) -> Array:
    """Mix outlier ratios with those of `before` (NaN: none), which count for the share `memory`.

    Explanations come from a few hundred rows, so an honest site is an outlier in some rounds, and a bad one in some is not.
    Earlier ratios are capped at MAX_REMEMBERED_RATIO, so that a site with one extreme round can recover. A round without a ratio
    (NaN) keeps the earlier one.
    """
    mixed = memory * np.minimum(before, MAX_REMEMBERED_RATIO) + (1 - memory) * ratio
    out: Array = np.where(np.isnan(before), ratio, np.where(np.isnan(ratio), before, mixed))
    return out


def is_comparable(distance: Array) -> bool:
    """Check whether most sites' explanations are close enough, by their distances (K,), to identify outliers."""
    return bool(np.median(distance) <= COMPARABLE_MEDIAN)


def softmax_signal(values: Array, temperature: float) -> Array:
    """exp(t v_k) / sum_j exp(t v_j) (eq. 6-7; Algorithm 1 omits the exp in the denominator): the larger, the more weight.

    A site without a value (NaN: no validation rows) gets the mean of the others.
    """
    v = np.asarray(values, float)
    finite = np.isfinite(v)
    if not finite.any():
        return uniform_weights(len(v))
    v = np.where(finite, v, v[finite].mean())
    return _shares(np.exp(temperature * v - (temperature * v).max()))


def blend(signals: Mapping[str, Array], lambdas: Mapping[str, float]) -> Array:
    """sum_s lambda_s w_s (eq. 8), by signal name: (K,).

    The lambdas are not negative and sum to 1. With a single signal the result is that signal to the bit.
    """
    check_lambdas(lambdas, signals)
    used = {name: share for name, share in lambdas.items() if share}
    if len(used) == 1:
        return np.asarray(signals[next(iter(used))], float)
    total: Array = np.sum([share * np.asarray(signals[name], float) for name, share in used.items()], axis=0)
    return total


def check_lambdas(lambdas: Mapping[str, float], signals: Any = SIGNALS) -> None:
    """Refuse lambdas that are not a convex combination of known signals."""
    for name, share in lambdas.items():
        if name not in signals:
            raise BadInput(f"lambdas name the signal '{name}'; {nearest(name, signals)}", code="unknown-signal")
        if not share >= 0:
            raise BadInput(f"the lambda of '{name}' is {share:g}, but none may be negative", code="bad-lambdas")
    if not abs(sum(lambdas.values()) - 1) <= 1e-6:
        raise BadInput(f"the lambdas sum to {sum(lambdas.values()):g}, but must sum to 1", code="bad-lambdas")


def apply_floor(weights: Array, floor: float) -> Array:
    """Raise weights to at least `floor` (w_min) and normalise them; unchanged if none is below."""
    return weights if (weights >= floor).all() else _shares(np.maximum(weights, floor))


def _power(base: Array, exponent: float) -> Array:
    out: Array = np.asarray(base, float) ** exponent
    return out


def _shares(values: Array) -> Array:
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
    if settings.rule == EXPLANATIONS:
        from grandrounds.methods.sse_agg.weights import explanation_weights  # imports this module

        return explanation_weights(settings, server, answers, groups)
    if settings.rule == "uniform":
        return WeightingResult(uniform_weights(len(answers)), {}, "every site that answered has the same weight")
    if settings.rule == "distance":
        distance = model_distances(np.asarray(answers["model"]))
        why = "a site's weight falls with the distance of its model from the mean of all, exp(-d / mean d)"
        return WeightingResult(distance_weights(distance), {"distance": distance}, why)
    if settings.rule == "reference_accuracy":
        assert server.reference is not None
        right = server.reference.accuracy(np.asarray(answers["model"]))
        why = "a site's weight is its model's accuracy on the server's reference rows, as a share of all"
        weights = data_size(right) if right.any() else uniform_weights(len(right))
        return WeightingResult(weights, {"reference_accuracy": right}, why)
    why = "a site's weight is its share of the training rows of all sites that answered"
    return WeightingResult(data_size(answers["count"]), {}, why)
