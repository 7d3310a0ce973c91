"""Acceptance of a round's weights, which is not in the paper: every site recomputes all weights before its model counts."""

from __future__ import annotations

import json
from collections.abc import Generator

from grandrounds.core.errors import RunFailed
from grandrounds.explain.trust import TrustInputs, TrustResult, TrustRule
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import ERROR, WEIGHTS


def ask_acceptance(
    round: int, rule: TrustRule, sites: tuple[str, ...], inputs: TrustInputs, verdict: TrustResult
) -> Generator[Ask, Answers, Answers]:
    """Send all inputs and weights to all sites, which recompute them and accept or reject."""
    shared: dict[str, Value] = {
        "names": json.dumps(sites),
        "rule": rule.to_json(),
        "weights": verdict.weights,
        **inputs.to_values(),
    }
    agreed: Answers = yield Ask(WEIGHTS, shared=shared, to=sites, report=("agreed", ERROR))
    if not len(agreed):
        why = next(iter(agreed.missing.values()), "nobody answered")
        hint = f"; the largest is {verdict.weights.max():.2f}: raise privacy.largest_weight, or let more sites take part"
        hint = hint if "(weight-too-large)" in why else ""
        raise RunFailed(
            f"round {round}: every site rejected the aggregation weights ({why}){hint}",
            code="weights-rejected",
        )
    return agreed
