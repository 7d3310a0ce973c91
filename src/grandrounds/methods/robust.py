"""Robust aggregation rules, which limit the influence of a few bad sites on the model.

An update is a site's model minus the server's. Every rule returns a `RobustResult`: the update, the weight of each site, the
signals of the rule, and one sentence for an auditor. The arithmetic is in `robust_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.methods.robust_kernels import (
    MAX_STEPS,
    centred_gram,
    cosines_to_reference,
    foolsgold_rates,
    inverse_norms,
    krum_scores,
    normalise,
    pairwise_cosines,
    select_lowest,
    trimmed_mean,
    trust_scores,
    update_norms,
    weighted_mean,
    weiszfeld,
)

RULES = {
    "none": "the weighted mean, without robust aggregation",
    "krum": "the one update closest to its neighbours (Blanchard et al. 2017)",
    "multi-krum": "the weighted mean of the updates closest to their neighbours (Blanchard et al. 2017)",
    "median": "the coordinate-wise median (Yin et al. 2018)",
    "trimmed-mean": "the coordinate-wise mean without the largest and smallest values (Yin et al. 2018)",
    "geometric-median": "the point with the smallest total distance to all updates (RFA, Pillutla et al. 2022)",
    "fltrust": "by the cosine similarity to an update on the server's reference data (Cao et al. 2021)",
    "foolsgold": "less weight for sites whose updates are similar to another's (Fung et al. 2020)",
    "clip": "the weighted mean of updates clipped to a common norm (Sun et al. 2019)",
}
ONE_VOTE = frozenset({"krum", "median", "trimmed-mean", "fltrust"})
"""Rules that give every site one vote, regardless of its weight."""
NEEDS_REFERENCE = frozenset({"fltrust"})
"""Rules that need `root`, an update on the server's reference data."""

_MAX_NORM = 1e140


@dataclass(frozen=True)
class RobustRule:
    """A robust rule and its settings.

    `attackers`: number of bad sites to tolerate (Krum's f). `keep`: number of updates that multi-krum averages (m); 0 is K - f -
    2, the most its proof allows (Damaskinos et al. 2019). `trim`: share of sites that trimmed-mean removes at each end. `norm`:
    norm that clip clips to; 0 is the median norm of the round's updates.
    """

    rule: str
    attackers: int = 1
    keep: int = 0
    trim: float = 0.1
    norm: float = 0.0


@dataclass(frozen=True)
class RobustResult:
    """The result of a robust rule on one round's updates (K, P).

    `update` (P,) is added to the server's model. `weights` (K,) sum to 1, or to 0 if no site is trusted and the update is zero.
    `signals` are the values (K,) that the rule used. `memory` is its state for the next round.
    """

    update: Array
    weights: Array
    signals: Mapping[str, Array]
    why: str
    memory: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class _RobustInputs:
    updates: Array
    weights: Array
    norm: Array
    settings: RobustRule
    root: Array | None
    history: Array | None

    def verdict(self, weights: Array, why: str, *, update: Array | None = None, **signals: Array) -> RobustResult:
        """Build the result of a rule; its update is the mean by `weights` unless one is given."""
        mean = weighted_mean(self.updates, weights) if update is None else update
        return RobustResult(mean, weights, {"norm": self.norm, **signals}, why)


def aggregate_robust(
    updates: Array,
    weights: Array,
    settings: RobustRule,
    *,
    root: Array | None = None,
    history: Array | None = None,
) -> RobustResult:
    """Aggregate updates (K, P) of sites with weights (K,) by the rule in `settings`.

    `root` (P,) is the server's reference update for fltrust; `history` (K, P) is each site's sum of updates so far, including
    this round, for foolsgold. The result does not depend on the order of sites. An update that is not finite, or too long to be
    squared in double precision, has weight 0, which signals and `why` report.
    """
    _check(updates, settings, root=root)
    norm = update_norms(updates)
    usable = norm < _MAX_NORM
    if history is not None:
        usable &= update_norms(history) < _MAX_NORM
    if usable.all():
        return _RULE_FUNCTIONS[settings.rule](_RobustInputs(updates, weights, norm, settings, root, history))
    if not usable.any():
        nothing = np.zeros(len(updates))
        why = "no site is trusted: no update has a finite norm"
        return RobustResult(np.zeros_like(updates[0]), nothing, {"left_out": 1.0 - usable}, why)
    past = None if history is None else history[usable]
    case = _RobustInputs(updates[usable], normalise(weights[usable]), norm[usable], settings, root, past)
    return _include_unusable(_RULE_FUNCTIONS[settings.rule](case), usable)


def _include_unusable(verdict: RobustResult, usable: Array) -> RobustResult:
    """Extend the result on usable updates to all sites: those left out have weight 0 and signals of 0."""

    def spread(values: Array) -> Array:
        everyone = np.zeros(len(usable))
        everyone[usable] = values
        return everyone

    signals = {name: spread(values) for name, values in verdict.signals.items()} | {"left_out": 1.0 - usable}
    why = f"{verdict.why}; {int((~usable).sum())} of {len(usable)} updates had no finite norm and were left out"
    return replace(verdict, weights=spread(verdict.weights), signals=signals, why=why)


def _check(updates: Array, settings: RobustRule, *, root: Array | None) -> None:
    if settings.rule not in RULES:
        raise BadInput(f"unknown robust rule '{settings.rule}': {nearest(settings.rule, RULES)}", code="unknown-rule")
    if updates.ndim != 2 or 0 in updates.shape:
        raise ValueError(f"updates must be (K, P) with at least one of each, not {updates.shape}")
    for name, value in (("attackers", settings.attackers), ("keep", settings.keep), ("norm", settings.norm)):
        if not value >= 0:
            raise BadInput(f"robust setting {name} is {value}, but it cannot be below 0", code="setting-out-of-range")
    if not 0 <= settings.trim < 0.5:
        raise BadInput(
            f"robust setting trim is {settings.trim}, but it must be at least 0 and below 0.5",
            code="setting-out-of-range",
        )
    if settings.rule in NEEDS_REFERENCE and root is None:
        raise BadInput(
            f"robust rule '{settings.rule}' needs reference data at the server: add [reference.root] with rows = 100, or "
            "use another rule",
            code="missing-reference-set"
        )
    if root is not None and not update_norms(root[None, :])[0] < _MAX_NORM:
        raise BadInput(
            "the server's reference update is not finite: check the reference data, or lower train.lr",
            code="update-not-finite",
        )


def _none(case: _RobustInputs) -> RobustResult:
    return case.verdict(case.weights, "every site has its weight; no robust rule was used")


def _krum(case: _RobustInputs) -> RobustResult:
    """Krum: the update with the lowest score (Blanchard et al. 2017, sec. 4); ties are averaged."""
    scores, caution = _score_by_krum(case)
    places = select_lowest(scores, keep=1)
    near, ties = _describe_neighbours(len(scores) - case.settings.attackers - 2), int((places > 0).sum())
    chosen = (
        "the one update closest to its" if ties == 1 else f"the mean of {ties} updates that tie as the closest to their"
    )
    return case.verdict(places, f"Krum took {chosen} {near}{caution}", krum_score=scores)


def _multi_krum(case: _RobustInputs) -> RobustResult:
    """Multi-Krum: the weighted mean of the m updates with the lowest scores."""
    scores, caution = _score_by_krum(case)
    sites, safe = len(scores), len(scores) - case.settings.attackers - 2
    keep = case.settings.keep or safe
    if keep > sites:
        raise BadInput(
            f"multi-krum is to keep {keep} updates, but only {sites} sites answered; lower keep, or set it to 0",
            code="too-few-sites"
        )
    if keep > safe:
        caution += f"; its proof allows at most {safe}"
    why = f"multi-Krum averaged the {keep} of {sites} updates closest to their {_describe_neighbours(safe)}{caution}"
    return case.verdict(normalise(select_lowest(scores, keep=keep) * case.weights), why, krum_score=scores)


def _describe_neighbours(count: int) -> str:
    return "nearest other" if count == 1 else f"{count} nearest others"


def _score_by_krum(case: _RobustInputs) -> tuple[Array, str]:
    """Compute Krum scores, and a caution if 2f + 2 < K, the condition of its guarantee, is not met."""
    sites, f = len(case.updates), case.settings.attackers
    if sites < f + 3:
        raise BadInput(
            f"{case.settings.rule} with attackers = {f} needs at least {f + 3} sites, but {sites} answered; "
            "lower attackers, or ask more sites",
            code="too-few-sites"
        )
    caution = f"; its guarantee needs more than {2 * f + 2} sites, not {sites}" if sites <= 2 * f + 2 else ""
    return krum_scores(centred_gram(case.updates), neighbours=sites - f - 2), caution


def _median(case: _RobustInputs) -> RobustResult:
    sites = len(case.updates)
    update, shares = trimmed_mean(case.updates, cut=(sites - 1) // 2)
    why = "each parameter is the median of the sites' values; a site's weight is the share of parameters it supplied"
    return case.verdict(shares, why + _majority_caution(case), update=update)


def _trimmed_mean(case: _RobustInputs) -> RobustResult:
    """Trimmed mean: int(trim * K) values are removed at each end, as in SciPy and Flower."""
    sites, f = len(case.updates), case.settings.attackers
    cut = int(case.settings.trim * sites)
    update, shares = trimmed_mean(case.updates, cut=cut)
    why = f"each parameter is the mean of the sites' values without the {cut} largest and {cut} smallest"
    if cut < f:
        why += f"; to tolerate {f} of {sites} sites it must trim as many: raise trim"
    return case.verdict(shares, why + _majority_caution(case), update=update)


def _geometric_median(case: _RobustInputs) -> RobustResult:
    shares, distance, settled = weiszfeld(centred_gram(case.updates), case.weights)
    why = "the update is the geometric median of all updates; a site's weight falls with its distance"
    if not settled:
        why += f"; the iteration was stopped after {MAX_STEPS} steps"
    return case.verdict(shares, why + _majority_caution(case), distance=distance)


def _majority_caution(case: _RobustInputs) -> str:
    sites, f = len(case.updates), case.settings.attackers
    return f"; it tolerates fewer than half bad sites, not {f} of {sites}" if 2 * f >= sites > 1 else ""


def _fltrust(case: _RobustInputs) -> RobustResult:
    """FLTrust: sum_k TS_k (||g_0|| / ||g_k||) g_k / sum_k TS_k, with g_0 the root update (Cao et al. 2021)."""
    assert case.root is not None
    similarity = cosines_to_reference(case.updates, case.root)
    trust = trust_scores(similarity)
    weights = normalise(trust)
    scale = float(update_norms(case.root[None, :])[0]) * inverse_norms(case.norm)
    why = "a site's weight is the cosine similarity of its update to the one on the server's reference data"
    if not trust.any():
        why = "no site is trusted: no update has a positive cosine similarity to the one on the server's reference data"
    update = weighted_mean(case.updates, weights * scale)
    return case.verdict(weights, why, update=update, similarity=similarity, trust=trust)


def _foolsgold(case: _RobustInputs) -> RobustResult:
    """FoolsGold: updates of sybils with one aim are similar, those of honest sites differ. It penalises honest sites with the
    same data."""
    similar = pairwise_cosines(case.updates if case.history is None else case.history)
    rates = foolsgold_rates(similar)
    weights = normalise(rates * case.weights)
    why = "a site's weight falls with the similarity of its past updates to another site's, as with colluding sites"
    if not weights.any():
        why = "no site is trusted: the past updates of all sites are similar, as with colluding sites"
    return case.verdict(weights, why, similarity=similar.max(axis=1), trust=rates)


def _clip(case: _RobustInputs) -> RobustResult:
    """Norm clipping: sum_k w_k u_k min(1, c / ||u_k||) (Sun et al. 2019, without their noise).

    Their bound c is fixed; ours is the median norm by default, so it follows the updates as they shrink. The signal `clipped` is
    the share of an update's norm that was removed.
    """
    bound = case.settings.norm or float(np.median(case.norm))
    scale = np.where(case.norm > bound, bound * inverse_norms(case.norm), 1.0)
    why = f"updates were clipped to the norm {bound:.3g}: {int((scale < 1).sum())} of {len(scale)}"
    return case.verdict(
        case.weights, why, update=weighted_mean(case.updates, case.weights * scale), clipped=1.0 - scale
    )


_RULE_FUNCTIONS: dict[str, Callable[[_RobustInputs], RobustResult]] = {
    "none": _none,
    "krum": _krum,
    "multi-krum": _multi_krum,
    "median": _median,
    "trimmed-mean": _trimmed_mean,
    "geometric-median": _geometric_median,
    "fltrust": _fltrust,
    "foolsgold": _foolsgold,
    "clip": _clip,
}
