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
    "agreement": "how well its reasons agree with the consensus (eq. 5)",
    "worst_site": "its validation loss: sites that do badly count more (eq. 6)",
    "calibration": "its calibration error: sites that are ill calibrated count more (eq. 7)",
}
"""What SSE-AGG blends."""

EPS = 0.01
"""How far apart two sketches may be, of at most 2, without it meaning anything: the epsilon of eq. 5, which the paper
does not give. Without it a site that happens to sit on the consensus would take all of the weight."""

COMPARABLE_MEDIAN = 0.25
"""The median distance up to which sites have reasons in common: a quarter of what all features count for together."""

MIN_DISTANCE = 0.1
"""The distance up to which nobody stands out, however close the others are to one another."""

BROKEN_MODEL_DISTANCE = 5.0
"""The distance, in what all features usually count for together, beyond which a model is broken, not different.

At least in units of the score (nats, of a log loss): where nobody has learnt much yet features count for next to nothing, and
the first site that does learn is many times that far off."""

OUTLIER_SHARE = 4
"""One site of so many, and at least one, may be bad: no more than that can stand out by being different."""

TOLERANCE = 1.5
"""How many times as far as the others a site's reasons may be from the consensus before the outlier form takes weight."""

MIN_NEIGHBOURS = 2
"""Other sites that a site's explanations must lie too far from before it stands out: never one neighbour alone."""

MATERIAL_HARM = 0.05
"""Share of the log loss by which a model must be worse on reference rows with a site before that counts as harm at all."""

HARM = 2.0
"""Standard errors beyond MATERIAL, over the rounds, from which a site that stands out may lose more than its least share."""

HARM_ALONE = 5.0
"""Standard errors from which harm alone takes weight, also where explanations do not stand out: a power of the excess."""

HARM_MEMORY = 0.8
"""Share of earlier rounds in harm, which starts at 0: barely trained models harm one another in the first rounds."""

MIN_ROWS_TO_HALVE = 20
"""Fewest training rows of a site that is tried on either half of its own patients; a smaller one is judged by all of them."""

MAX_REMEMBERED_RATIO = 10.0
"""How far beyond that a site counts at most as having been, once the round is over."""


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

    SSE-AGG names parameter distance as a baseline without saying how; this form has no scale to tune.
    """
    if not distance.any():
        return uniform_weights(len(distance))
    return _shares(np.exp(-distance / distance.mean()))


def disagreement(sketches: Any, consensus_sketches: Array | None = None) -> Array:
    """D_k = ||E_k - mean E||_1 of sketches (K, F), in [0, 2] (eq. 20); `consensus_sketches`: the sketches that the mean is of."""
    values = np.asarray(getattr(sketches, "values", sketches), float)
    out: Array = np.abs(values - (values if consensus_sketches is None else consensus_sketches).mean(axis=0)).sum(
        axis=1
    )
    return out


def outlier_distance(importances: Array, consensus_importances: Array | None = None) -> tuple[Array, float]:
    """Compute the distance of each site's importances (K, F) to the median site's, as a share of the median's total.

    The median of each feature is one that few bad sites cannot pull to themselves, as they can the mean. And a model that
    learnt from wrong labels may use the right features and too little of them, which shares that sum to 1 do not show.
    `consensus_importances`: the importances that the median is of. The total comes second.
    """
    middle = np.median(importances if consensus_importances is None else consensus_importances, axis=0)
    total = float(middle.sum())
    out: Array = np.abs(importances - middle).sum(axis=1) / (total if total > 0 else 1.0)
    return out, total


def agreement(sketches: Any, *, sharpness: float = 1.0, eps: float = EPS) -> Array:
    """Shares that follow c_k = 1 / (eps + ||E_k - mean E||_1) (eq. 5), raised to the power `sharpness`."""
    return inverse_weights(disagreement(sketches), sharpness=sharpness, eps=eps)


def inverse_weights(distance: Array, *, sharpness: float = 1.0, eps: float = EPS) -> Array:
    """Eq. 5 for distances (K,) to a consensus: shares that follow (eps + D_k)^-sharpness."""
    return _shares(_power((eps + distance.min()) / (eps + distance), sharpness))


def exponential_weights(distance: Array, *, tau: float) -> Array:
    """Eq. 21: shares that follow exp(-tau D_k)."""
    return _shares(np.exp(-tau * (distance - distance.min())))


def outlier_ratio(
    distance: Array, *, tolerance: float = TOLERANCE, peers: Array | None = None, usual_total: float = 1.0
) -> Array:
    """Compute each site's distance over the tolerated distance: up to 1 it differs as sites usually do.

    That distance is `tolerance` times the `trimmed_max` of those `peers`, or SLACK. Where most are far apart (`is_comparable`) a
    hospital with other patients looks like a bad one: only one that is out of all proportion stands out (ABSURD), and of
    the others nothing is known (NaN). `usual_total`: what all features count for together at the median site.
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
    """Compute how far each site stands out beyond sampling, (K,): `outlier_ratio` of its distance without what sampling gives it.

    Independent errors add in squares, so the square of `sampling` is taken off that of the distance. A site that lies too far
    from fewer than NEIGHBOURS others is not beyond 1: one neighbour does not judge another.
    """
    ratio = outlier_ratio(
        subtract_sampling(distance, sampling), tolerance=tolerance, peers=peers, usual_total=usual_total
    )
    out: Array = np.where(neighbours >= MIN_NEIGHBOURS, ratio, np.fmin(ratio, 1.0))
    return np.where(np.isnan(ratio), np.nan, out)


def subtract_sampling(distance: Array, sampling: Array | float) -> Array:
    """Subtract sampling from distances, in squares; never below 0."""
    out: Array = np.sqrt(np.maximum(distance**2 - np.asarray(sampling, float) ** 2, 0.0))
    return out


def count_neighbours(
    importances: Array, sampling: Array, distance: Array, usual_total: float, *, tolerance: float
) -> Array:
    """Count the others, (K,), from which each site's importances (K, F) lie further than passes unnoticed, beyond sampling."""
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
    """Compute the share of its rows' weight that each site keeps, (K,), by how far it stands out and by the harm it does.

    A site keeps at least `least` unless the model is worse with it on reference rows (`harm` above HARM). Harm above HARM_ALONE
    takes weight by itself. NaN: no labelled reference rows tell of harm, and then `least` holds. Harm that is not `confirmed`
    (K,) counts no more than HARM, which takes nothing.
    """
    finite_harm = np.nan_to_num(harm, nan=0.0)
    if confirmed is not None:
        finite_harm = np.where(confirmed, finite_harm, np.minimum(finite_harm, HARM))
    trust = outlier_weight(standing, sharpness=sharpness)
    trust = np.where(finite_harm > HARM, trust, np.maximum(trust, least))
    out: Array = np.minimum(trust, outlier_weight(finite_harm / HARM_ALONE, sharpness=sharpness))
    return out


def find_suspects(standing: Array, harm: Array, *, least: float) -> Array:
    """Find the sites, (K,) of bool, that would be demoted for the harm they do: what `retained_share` needs confirmed."""
    finite_harm = np.nan_to_num(harm, nan=0.0)
    out: Array = (finite_harm > HARM_ALONE) | (
        (least > 0) & (np.nan_to_num(standing, nan=0.0) > 1) & (finite_harm > HARM)
    )
    return out


def confirm_on_halves(first: Array, second: Array, rows: Array) -> Array:
    """Find the sites, (K,) of bool, whose harm is confirmed: the loss is worse by more than MATERIAL with either half alone.

    An accident of who happens to be its patient is in one half and not in the other; that it is no chance of the reference rows
    `harm` over the rounds shows. Sites with fewer than HALVED rows have no halves to try. NaN: not tried yet.
    """
    out: Array = ((first > 0) & (second > 0)) | (rows < MIN_ROWS_TO_HALVE)
    return out


def remember_harm(now: Array, before: Array) -> Array:
    """Mix this round's harm with that of the rounds before, in the share HARM_MEMORY; a round without it (NaN) says nothing."""
    mixed = HARM_MEMORY * np.nan_to_num(before) + (1 - HARM_MEMORY) * np.maximum(now, -HARM)  # good is not saved up
    out: Array = np.where(np.isnan(now), before, mixed)
    return out


def trimmed_max(distance: Array) -> float:
    """Return the greatest distance of all sites but the furthest, one in FEW: how far apart honest sites are.

    The median would do against fewer than half. But where labels are skewed three hospitals of five may happen to be alike,
    and two that see other patients would be shut out with all that only they know.
    """
    return float(np.sort(distance)[max(0, len(distance) - 1 - max(1, len(distance) // OUTLIER_SHARE))])


def outlier_weight(ratio: Array, *, sharpness: float) -> Array:
    """Compute the share of its weight that each site keeps, in [0, 1], from its `outlier_ratio` (our form, not the paper's).

    1 up to 1 and where nothing is known, past it the power `sharpness` of its inverse. Sites that differ as sites do keep
    the weight of their rows; one whose reasons stand out loses it.
    """
    return _power(1 / np.fmax(ratio, 1.0), sharpness)


def smoothed_ratio(ratio: Array, before: Array, memory: float) -> Array:
    """Mix outlier ratios with those of `before` (NaN: none), which count for the share `memory`.

    Reasons are read off a few hundred rows, so an honest site stands out in some rounds, and a bad one in some does not. What
    came before counts at most FORGIVEN, so that a site which was out of all proportion once can come back. A round that
    says nothing of a site (NaN) leaves what was found.
    """
    mixed = memory * np.minimum(before, MAX_REMEMBERED_RATIO) + (1 - memory) * ratio
    out: Array = np.where(np.isnan(before), ratio, np.where(np.isnan(ratio), before, mixed))
    return out


def is_comparable(distance: Array) -> bool:
    """Return whether most sites' reasons are near enough to one another, by their distances (K,), to say who is not."""
    return bool(np.median(distance) <= COMPARABLE_MEDIAN)


def softmax_signal(values: Array, temperature: float) -> Array:
    """exp(t v_k) / sum_j exp(t v_j) (eq. 6-7; Algorithm 1 forgets the exp below the line): the larger, the more weight.

    A site that has no value (NaN: no validation rows) counts as the mean of those that have.
    """
    v = np.asarray(values, float)
    finite = np.isfinite(v)
    if not finite.any():
        return uniform_weights(len(v))
    v = np.where(finite, v, v[finite].mean())
    return _shares(np.exp(temperature * v - (temperature * v).max()))


def blend(signals: Mapping[str, Array], lambdas: Mapping[str, float]) -> Array:
    """sum_s lambda_s w_s (eq. 8), by signal name: (K,).

    The lambdas are not negative and sum to 1. With all of it on one signal the result is that signal to the bit.
    """
    check_lambdas(lambdas, signals)
    used = {name: share for name, share in lambdas.items() if share}
    if len(used) == 1:
        return np.asarray(signals[next(iter(used))], float)
    total: Array = np.sum([share * np.asarray(signals[name], float) for name, share in used.items()], axis=0)
    return total


def check_lambdas(lambdas: Mapping[str, float], signals: Any = SIGNALS) -> None:
    """Refuse lambdas that are no convex blend of known signals."""
    for name, share in lambdas.items():
        if name not in signals:
            raise BadInput(f"lambdas name the signal '{name}'; {nearest(name, signals)}", code="unknown-signal")
        if not share >= 0:
            raise BadInput(f"the lambda of '{name}' is {share:g}, but none may be negative", code="bad-lambdas")
    if not abs(sum(lambdas.values()) - 1) <= 1e-6:
        raise BadInput(f"the lambdas sum to {sum(lambdas.values()):g}, but must sum to 1", code="bad-lambdas")


def apply_floor(weights: Array, floor: float) -> Array:
    """Weights of at least `floor` (w_min), made to sum to 1 again; as they are where none is below."""
    return weights if (weights >= floor).all() else _shares(np.maximum(weights, floor))


def _power(base: Array, exponent: float) -> Array:
    out: Array = np.asarray(base, float) ** exponent
    return out


def _shares(values: Array) -> Array:
    out: Array = values / values.sum()
    return out


@dataclass(frozen=True)
class WeightingResult:
    """A weight for each answer, (K,), with the signals behind it and the reason in words.

    `shares`: what each signal contributes, (K,) each; they add up to the weights. `memory`: what to know next round.
    """

    weights: Array
    signals: Mapping[str, Array]
    why: str
    shares: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attributions: Mapping[str, float] = field(
        default_factory=dict
    )  # the consortium's, by feature, where sites are held to them
    rejected_signals: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # signals, by site, of those that were weighed too and did not go along

    def merge_signals(self, signals: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Add the signals of sites that rejected the weights."""
        return {name: {**values, **self.rejected_signals.get(name, {})} for name, values in signals.items()}


RULES = {
    "data_size": "by training rows (FedAvg)",
    "uniform": "every site alike",
    "distance": "the nearer a site's model is to the mean of all, the more it counts",
    "reference_accuracy": "by the accuracy of a site's model on the server's reference rows",
    "trust": "FedXChain's trust: accuracy, agreement of SHAP values with the consortium's, steadiness (method 'fedxchain')",
    "explanations": "SSE-AGG's blend of data size, agreement of reasons, worst site and calibration",
}
NEEDS_REFERENCE = ("reference_accuracy",)
CHOSEN_RULES = ("distance", "reference_accuracy", "trust", EXPLANATIONS)
"""Ways of weighing that someone chose: never the default."""


def weigh(settings: WeighSettings, server: Server, answers: Answers, groups: Array | None = None) -> WeightingResult:
    """Weigh answers by the rule of [method.weigh].

    Args:
        settings: The section [method.weigh].
        server: The state of the round.
        answers: Answers to a training Ask.
        groups: The cohort of each answer, (K,), where explanations are compared within cohorts.

    Returns:
        The weights, with the signals behind them and the reason.
    """
    if settings.rule == EXPLANATIONS:
        from grandrounds.methods.sse_agg.weights import explanation_weights  # which blends the signals of this module

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
