"""FedXChain's consensus: the sites' attributions pooled by last round's trust (eq. 6), and each site's divergence (eq. 4).

As printed (eq. 2, Algorithm 2) every site sends its mask with the masked attributions, so the server sees them, as `pool` does.
With secure aggregation masks are never sent: `pool_secretly` gives the server the sum, and one number of each site.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.explainers.shapley import unit_vector
from grandrounds.explain.trust import SMOOTHING, divergence, pool_shares
from grandrounds.methods.secure import STATISTIC_BITS, SecureRule, secure_sum
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import DIVERGE, REASONS


@dataclass(frozen=True)
class PooledAttributions:
    """The consortium's attributions, and each site's divergence from them."""

    shares: Array  # (F,), or of the separate features and all others together
    nsds: Array
    alignment: Array | None = None


def pool(shares: Array, points: Array | None, trust: Array) -> PooledAttributions:
    """Pool the attributions at the server (eq. 6), and compute each site's divergence from them (eq. 4)."""
    mean = pool_shares(shares, trust)
    if points is None:
        return PooledAttributions(mean, divergence(shares, mean))
    return PooledAttributions(mean, divergence(shares, mean), points @ unit_vector(pool_shares(points, trust)))


def pool_secretly(
    rule: SecureRule, answers: Answers, trust: Array
) -> Generator[Ask, Answers, tuple[PooledAttributions, Answers]]:
    """Pool the attributions by secure aggregation: sites multiply by their trust, and report their divergence from the
    sum."""
    trust = trust if trust.any() else np.ones_like(trust)
    weights = dict(zip(answers.sites, (trust / trust.sum()).tolist(), strict=True))
    summed = yield from secure_sum(
        rule,
        answers,
        weights={"shap": weights},
        only_reports=("shap",),
        bits=STATISTIC_BITS,
        bound=1.0,
        purpose=REASONS,
    )
    mean = np.maximum(summed.values["shap.shares"] / summed.weights["shap"], SMOOTHING)
    mean /= mean.sum()
    shared: dict[str, Value] = {"shares": mean, "of": str(answers.id)}
    if "shap.direction" in summed.values:
        shared["direction"] = unit_vector(summed.values["shap.direction"])
    stayed = answers.only([k for k, s in enumerate(answers.sites) if s in summed.sites], summed.missing)
    heard = yield Ask(DIVERGE, shared=shared, to=stayed.sites, report=("trust",))
    remaining = stayed.only([k for k, s in enumerate(stayed.sites) if s in heard.sites], heard.missing)
    alignment = np.asarray(heard["trust.alignment"], float) if "trust.alignment" in heard else None
    return PooledAttributions(mean, np.asarray(heard["trust.nsds"], float), alignment), remaining
