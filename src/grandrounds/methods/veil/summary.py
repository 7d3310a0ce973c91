"""VEIL's own numbers: traffic, features used, and the privacy that was charged beside what the paper claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.method_facts import MethodFact
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Part, RoundRecord, RunSummary
from grandrounds.privacy.in_words import plain


def veil_numbers(plan: Plan, records: Sequence[RoundRecord], model: Array) -> dict[str, object]:
    """Return `method_numbers` of the summary.

    `used` of `features` weights are not zero, without the intercept. `dense_bytes` is the traffic of a method that sends the
    model's weights to every site that was asked, and back, in each round.
    """
    claimed = plan.method.veil.claimed_epsilon
    return {
        "features": len(model) - 1,
        "used": int(np.count_nonzero(model[:-1])),
        "dense_bytes": 2 * model.nbytes * sum(len(r.decision.asked) for r in records),
        **({} if claimed is None else {"claimed_epsilon": claimed}),
    }


def describe_run(summary: RunSummary) -> tuple[MethodFact, ...]:
    """Describe traffic, sparsity and privacy of a run."""
    numbers = summary.method_numbers
    if not numbers:
        return ()
    return (_traffic(summary.cost, numbers), _sparsity(numbers), *_charged(summary.privacy or {}, numbers))


def _traffic(cost: Mapping[str, float], numbers: Part) -> MethodFact:
    """Compare what sites and server exchanged with a method that sends weights; evaluation is in neither."""
    arrays = cost["payload_up"] + cost["payload_down"]
    messages = cost["bytes_up"] + cost["bytes_down"] - cost["evaluation_bytes"]
    return MethodFact(
        "traffic of training, both ways",
        _megabytes(arrays),
        f"sending the model's weights in each round: {_megabytes(numbers['dense_bytes'])}; "
        f"all messages but evaluation, with preparation and calibration: {_megabytes(messages)}",
    )


def _sparsity(numbers: Part) -> MethodFact:
    return MethodFact("features used", f"{numbers['used']} of {numbers['features']}", "weights that are not zero")


def _charged(privacy: Part, numbers: Part) -> list[MethodFact]:
    """State the epsilon charged for training rows, with its releases, beside the epsilon that the paper claims."""
    releases = [f"{event['count']} x {event['what']}" for event in privacy.get("events", ()) if event["of"] == "training"]
    if not releases:
        return []
    spent, unit = (privacy.get("spent") or {}).get("training"), privacy["unit"]
    charged = "infinity" if spent is None else f"{spent:.2f} of {privacy['budget']:g}, delta {plain(privacy['delta'])}"
    facts = [MethodFact(f"epsilon charged for each {unit}", charged, f"released: {', '.join(releases)}")]
    if "claimed_epsilon" in numbers:
        claimed = f"{numbers['claimed_epsilon']:g}"
        facts.append(MethodFact("epsilon claimed by the paper", claimed, "it does not count the signs, which have no noise"))
    return facts


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3f} MB" if size < 1e6 else f"{size / 1e6:.2f} MB"
