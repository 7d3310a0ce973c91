"""SSE-AGG's weights as the paper prints them: Algorithm 1 (eq. 4 to 8), and the form of Experiment II (eq. 20 and 21).

Of K sites, `sketches` are the paper's E (K, F), `distance` is ||E_k - mean E||_1 or D (K,), `loss` is l and `ece` is ECE (K,).
Eq. 4 is `methods.weigh.data_size`. Each function of weights returns shares, which sum to 1. Our own form of agreement is in
`outliers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import WeighSettings
from grandrounds.methods.sse_agg.agreement import Agreement, comparisons, describe_flat, limit_flat, resolve_sharpness
from grandrounds.methods.weigh import as_shares, data_size, uniform_weights
from grandrounds.protocol.messages import Answers

SIGNALS = {
    "data": "its share of the training rows (eq. 4)",
    "agreement": "agreement of its explanations with the consensus (eq. 5)",
    "worst_site": "its validation loss: sites with a high loss have more weight (eq. 6)",
    "calibration": "its calibration error: badly calibrated sites have more weight (eq. 7)",
}
"""Signals that SSE-AGG blends."""


def disagreement(sketches: Array, consensus_sketches: Array | None = None) -> Array:
    """D_k = ||E_k - mean E||_1, in [0, 2] (eq. 5 and 20); `consensus_sketches`: the sketches to average."""
    consensus = (sketches if consensus_sketches is None else consensus_sketches).mean(axis=0)
    out: Array = np.abs(sketches - consensus).sum(axis=1)
    return out


def agreement_weights(distance: Array, *, eps: float, sharpness: float = 1.0) -> Array:
    """Eq. 5: w_k follows c_k = 1 / (eps + ||E_k - mean E||_1); `sharpness`: a power of c_k, 1 in the paper."""
    return as_shares(((eps + distance.min()) / (eps + distance)) ** sharpness)


def exponential_weights(distance: Array, *, tau: float) -> Array:
    """Eq. 21: beta_k follows exp(-tau D_k)."""
    return as_shares(np.exp(-tau * (distance - distance.min())))


def worst_site_weights(loss: Array, *, beta: float) -> Array:
    """Eq. 6: w_k follows exp(beta l_k). Algorithm 1 omits the exp in the denominator."""
    return _softmax(loss, beta)


def calibration_weights(ece: Array, *, gamma: float) -> Array:
    """Eq. 7: w_k follows exp(gamma ECE_k). Algorithm 1 omits the exp in the denominator."""
    return _softmax(ece, gamma)


def blend(signals: Mapping[str, Array], lambdas: Mapping[str, float]) -> Array:
    """Eq. 8: w_k = sum_s lambda_s w_k^s, by signal name.

    The lambdas are not negative and sum to 1. With a single signal the result is that signal to the bit.
    """
    check_lambdas(lambdas, signals)
    used = {name: share for name, share in lambdas.items() if share}
    if len(used) == 1:
        return np.asarray(signals[next(iter(used))], float)
    total: Array = np.sum([share * np.asarray(signals[name], float) for name, share in used.items()], axis=0)
    return total


def apply_floor(weights: Array, floor: float) -> Array:
    """Raise weights to at least `floor` (w_min of Experiment II) and normalise them; unchanged if none is below."""
    return weights if (weights >= floor).all() else as_shares(np.maximum(weights, floor))


def printed_agreement(settings: WeighSettings, answers: Answers, cohorts: Array | None) -> Agreement:
    """Compute the agreement signal by eq. 5 (form "inverse") or eq. 21 ("exponential"), in each cohort.

    `trust` is relative to the site nearest to the consensus. Models that use no feature are left out of the consensus
    (`agreement.py`); if no model uses any, the signal follows rows.
    """
    sketches, flat = np.asarray(answers["sketch"], float), np.asarray(answers["sketch.flat"], bool)
    distance, trust = np.zeros(len(flat)), np.ones(len(flat))
    for group in comparisons(flat, cohorts):
        compared = sketches[group.compared]
        apart = disagreement(compared, compared[group.speaking])
        distance[group.members] = group.of_members(apart)
        trust[group.members] = group.of_members(relative_agreement(settings, apart, group.speaking))
    trust = limit_flat(trust, flat)
    numbers = {"disagreement": distance, "agreement": trust}
    if not flat.any():
        return Agreement(trust, as_shares(trust), numbers)
    shares = as_shares(data_size(answers["count"]) if flat.all() else trust)
    return Agreement(trust, shares, numbers | {"flat": flat.astype(float)}, tuple(describe_flat(answers.sites, flat)))


def relative_agreement(settings: WeighSettings, distance: Array, speaking: Array) -> Array:
    """Compute each site's agreement as a share of that of the nearest site with a sketch, by the form of [method.weigh]."""
    far = np.maximum(distance, distance[speaking].min())
    if settings.form == "exponential":
        shares = exponential_weights(far, tau=settings.tau)
    else:
        shares = agreement_weights(far, eps=settings.eps, sharpness=resolve_sharpness(settings))
    out: Array = shares / shares.max()
    return out


def check_lambdas(lambdas: Mapping[str, float], signals: Any = SIGNALS) -> None:
    """Refuse lambdas that are not a convex combination of known signals."""
    for name, share in lambdas.items():
        if name not in signals:
            raise BadInput(f"lambdas name the signal '{name}'; {nearest(name, signals)}", code="unknown-signal")
        if not share >= 0:
            raise BadInput(f"the lambda of '{name}' is {share:g}, but none may be negative", code="bad-lambdas")
    if not abs(sum(lambdas.values()) - 1) <= 1e-6:
        raise BadInput(f"the lambdas sum to {sum(lambdas.values()):g}, but must sum to 1", code="bad-lambdas")


def _softmax(values: Array, temperature: float) -> Array:
    """Compute exp(t v_k) / sum_j exp(t v_j); a site without a value (NaN: no validation rows) gets the mean of the others."""
    v = np.asarray(values, float)
    finite = np.isfinite(v)
    if not finite.any():
        return uniform_weights(len(v))
    v = np.where(finite, v, v[finite].mean())
    return as_shares(np.exp(temperature * v - (temperature * v).max()))
