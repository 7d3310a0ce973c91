"""FedXChain's arithmetic (eq. 3-8): divergence of a site's attributions, trust in the site, and its weight.

The server, every site and an auditor compute the same weights with it, so it is in a package below all three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

SMOOTHING = 1e-10
"""Epsilon of eq. 3: every share is positive, so that logarithms are finite."""

WIDEST = 0.5
"""Largest standard deviation of numbers in [0, 1]: consistency is 0 there."""

CLOSE = 1e-9
"""Tolerance for two results of the same computation."""

FORMS = {
    "exponential": "rows^kappa x trust x exp(-tau x NSDS)",
    "printed": "rows^kappa x trust x (1 - tau x NSDS), at least 0 (eq. 8)",
}


DOUBTS = {
    "rule-changed": "the trust rule differs from the first one that the site received",
    "not-as-told": "the server passed on other numbers than the site had reported, or impossible numbers",
    "weights-wrong": "the weights do not follow from the sites' numbers",
    "weight-too-large": "one site would have more weight than privacy.largest_weight allows",
}
"""Codes by which a site rejects the weights of a round, with their meaning."""


@dataclass(frozen=True)
class TrustRule:
    """Composition of trust and its form as a weight: public, the same for all sites and rounds."""

    alpha: float = 0.5  # of accuracy
    beta: float = 0.3  # share of agreement with the consortium's attributions
    gamma: float = 0.2  # of consistency
    tau: float = 0.5
    kappa: float = 0.0  # exponent of the rows
    form: str = "exponential"
    signed: bool = False  # attributions of opposite sign count as no agreement
    reasons: bool = False  # SSE-AGG's agreement also affects the weight

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrustRule:
        """Read the rule of a message; refuse anything unknown in it, and a rule by which trust could leave [0, 1]."""
        try:
            rule = cls(**json.loads(text))
            shares = np.array([rule.alpha, rule.beta, rule.gamma], float)
            powers = np.array([rule.tau, rule.kappa], float)
        except (TypeError, ValueError):
            raise BadInput(
                "the trust rule cannot be read: server and site run different versions", code="unreadable-rule"
            ) from None
        if not (shares >= 0).all() or not abs(shares.sum() - 1) < 1e-6 or rule.form not in FORMS:
            raise BadInput(
                "the trust rule is invalid: alpha, beta and gamma must be shares that sum to 1, and the form a known one",
                code="bad-trust-rule",
            )
        if not (np.isfinite(powers) & (powers >= 0)).all():
            raise BadInput("the trust rule is invalid: tau and kappa must be at least 0", code="bad-trust-rule")
        return rule

    @classmethod
    def from_settings(cls, trust: Any) -> TrustRule:
        """Read the rule from an experiment's [method.trust]."""
        return cls(**{f.name: getattr(trust, f.name) for f in fields(cls)})


RANGES: dict[str, tuple[float, float]] = {
    "rows": (0, np.inf),
    "accuracy": (0, 1),
    "accuracies": (0, 1),
    "steadiness": (0, 1),
    "nsds": (0, np.inf),
    "alignment": (-1, 1),
    "in_line": (0, 1),
    "shares": (0, 1),
    "direction": (-1, 1),
    "loss": (0, np.inf),
    "xai": (0, 1),
    "grid": (0, 1),
}
"""Ranges of a site's figures: beyond them one number could outweigh all others."""

UNKNOWN = ("accuracy", "accuracies", "steadiness", "xai", "grid")
"""Figures that may be NaN: not known."""

_ROUNDED = 1e-6
"""Tolerance of rounding at the ends of a range."""


def is_possible(name: str, values: Array) -> Array:
    """Check that each of K sites can have these `values` (K, ...): (K,) of bool."""
    least, most = RANGES[name]
    numbers = np.asarray(values, float)
    fine = (numbers >= least - _ROUNDED) & (numbers <= most + _ROUNDED) & np.isfinite(numbers)
    out: Array = (fine | np.isnan(numbers) if name in UNKNOWN else fine).all(axis=tuple(range(1, numbers.ndim)))
    if name == "shares":  # without shares there is no divergence
        out &= np.abs(numbers.sum(axis=-1) - 1) < _ROUNDED
    if name == "direction":  # a larger one would dominate the consortium's
        out &= (numbers**2).sum(axis=-1) < 1 + _ROUNDED
    return out


@dataclass(frozen=True)
class TrustInputs:
    """Inputs of the trust of K sites, one entry each; accuracies (K, w) are the latest, newest last.

    NaN: not known. Without validation or reference rows there is no accuracy; a first round has no consistency.
    """

    rows: Array
    accuracies: Array
    steadiness: Array
    nsds: Array
    alignment: Array | None = None  # cosine of its signed attributions to the consortium's
    in_line: Array | None = None  # SSE-AGG's agreement of its sketch, in [0, 1]

    def to_values(self) -> dict[str, Array]:
        """Return the values as sent; missing ones are left out."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> TrustInputs:
        return cls(**{f.name: np.asarray(values[f.name], float) for f in fields(cls) if f.name in values})

    def is_complete(self, sites: int) -> bool:
        """Check that the inputs cover this many sites, and have no impossible value."""
        values = self.to_values()
        shaped = self.accuracies.ndim == 2 and all(v.ndim == 1 for n, v in values.items() if n != "accuracies")
        if not shaped or any(len(v) != sites for v in values.values()) or not self.accuracies.shape[1]:
            return False
        return all(bool(is_possible(name, v).all()) for name, v in values.items())


@dataclass(frozen=True)
class TrustResult:
    """Trust in K sites, and the weights that follow; `alone`: all weights were 0, so trust alone decides."""

    trust: Array
    consistency: Array
    weights: Array
    alone: bool = False


def distribution(importances: Array) -> Array:
    """Normalise mean absolute SHAP values (..., F) to shares that sum to 1: eq. 3, smoothed once."""
    sizes = np.abs(np.asarray(importances, float)) + SMOOTHING
    out: Array = sizes / sizes.sum(axis=-1, keepdims=True)
    return out


def pool_shares(shares: Array, trust: Array) -> Array:
    """Average the sites' shares (K, F) by the trust of the round before: the consortium's attributions (F,) (eq. 6)."""
    weight = np.asarray(trust, float)
    weight = weight if weight.any() else np.ones_like(weight)
    out: Array = weight @ np.asarray(shares, float) / weight.sum()
    return out


def divergence(shares: Array, consortium: Array) -> Array:
    """Compute NSDS = KL(P_i || P_global) in nats (eq. 4), of shares (..., F): (...,). At least 0 in spite of rounding."""
    p, q = np.asarray(shares, float), np.maximum(consortium, np.finfo(float).tiny)
    terms = p * (np.log(np.maximum(p, np.finfo(float).tiny)) - np.log(q))
    out: Array = np.maximum(terms.sum(axis=-1), 0.0)
    return out


def group_rest(shares: Array, features: Array) -> Array:
    """Keep shares (..., F) of the chosen `features`, and group all others: (..., q + 1).

    The divergence of grouped shares is never larger than that of the whole (Cover & Thomas 2006, sec. 2.7).
    """
    chosen = np.asarray(shares, float)[..., features]
    rest = np.maximum(1.0 - chosen.sum(axis=-1, keepdims=True), SMOOTHING)
    out: Array = np.concatenate([chosen, rest], axis=-1)
    return out


def steadiness(shares: Array, before: Array) -> Array:
    """Compare attributions (..., F) with those of the last time: 1 less the total variation between the two."""
    out: Array = 1 - np.abs(np.asarray(shares, float) - before).sum(axis=-1) / 2
    return out


def consistency(accuracies: Array, steady: Array) -> Array:
    """Compute the consistency of each site, (K,): the mean of that of its last accuracies (K, w) and of its attributions.

    The paper does not define it. Accuracies: 1 less their standard deviation over 0.5, and 1 with fewer than two of them.
    """
    defined = np.isfinite(accuracies)
    n = defined.sum(axis=1)
    mean = np.where(defined, accuracies, 0).sum(axis=1) / np.maximum(n, 1)
    spread = np.sqrt(np.where(defined, (accuracies - mean[:, None]) ** 2, 0).sum(axis=1) / np.maximum(n, 1))
    even = np.where(n < 2, 1.0, 1 - np.minimum(spread / WIDEST, 1.0))
    out: Array = (even + np.where(np.isfinite(steady), steady, 1.0)) / 2
    return out


def agreement(nsds: Array | float, alignment: Array | float | None) -> Array:
    """Compute agreement with the consortium's attributions, in [0, 1]: exp(-NSDS), times that of signs where they count.

    `alignment`: the cosine of the signed attributions to the consortium's; None: signs do not count.
    """
    out: Array = np.exp(-np.asarray(nsds, float)) * _sign_factor(alignment)
    return out


def divergence_penalty(nsds: Array | float, *, tau: float, form: str) -> Array:
    """Return the factor in [0, 1] by which NSDS reduces the weight that trust alone would give (eq. 8)."""
    divergence = np.asarray(nsds, float)
    out: Array = np.exp(-tau * divergence) if form == "exponential" else np.maximum(1 - tau * divergence, 0)
    return out


def _sign_factor(alignment: Array | float | None) -> Array | float:
    """Return the factor of signs: attributions that point the other way are no agreement."""
    return 1.0 if alignment is None else np.maximum(alignment, 0.0)


def score(rule: TrustRule, accuracy: Array, agreement: Array, steady: Array) -> Array:
    """Compute trust T = alpha Acc + beta exp(-NSDS) + gamma Consistency (eq. 7), given the three, each in [0, 1]."""
    out: Array = rule.alpha * accuracy + rule.beta * agreement + rule.gamma * steady
    return out


def compute_trust(rule: TrustRule, inputs: TrustInputs) -> TrustResult:
    """Compute trust (eq. 7) and weights (eq. 8) of K sites.

    A site without an accuracy gets the mean of the others. If signs are used, attributions of opposite sign count as no
    agreement and have no weight. If all weights are 0, trust alone decides.
    """
    now = inputs.accuracies[:, -1]
    defined = np.isfinite(now)
    accuracy = np.where(defined, now, now[defined].mean() if defined.any() else 1.0)
    points = inputs.alignment if rule.signed else None
    steady = consistency(inputs.accuracies, inputs.steadiness)
    trust = score(rule, accuracy, agreement(inputs.nsds, points), steady)
    factor = divergence_penalty(inputs.nsds, tau=rule.tau, form=rule.form)
    weight = trust * factor * _sign_factor(points) * count_rows(inputs.rows, rule.kappa)
    if rule.reasons and inputs.in_line is not None:
        weight = weight * inputs.in_line
    if weight.any():
        return TrustResult(trust, steady, weight / weight.sum())
    last = trust if trust.any() else np.ones_like(trust)
    return TrustResult(trust, steady, last / last.sum(), alone=True)


def count_rows(rows: Array, kappa: float) -> Array:
    """Raise rows to the power kappa, in units of the largest: no overflow, and the same shares."""
    most = max(float(np.max(rows, initial=0)), 1.0)
    out: Array = (np.asarray(rows, float) / most) ** kappa
    return out
