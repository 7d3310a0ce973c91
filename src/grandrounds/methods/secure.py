"""Secure sums, for any method: what sites hold is added up, and the server sees the sum alone.

    answers = yield ask.withholding("model")
    summed = yield from secure_sum(server.secure, answers, weights={"model": weights})

Five exchanges (privacy/secagg). Sites that drop out on the way are left out of the sum and named as missing; where too few
are left it is `Halted`, loudly. `aggregate_secure` makes one model of the sum of the sites' models by their weights.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.records import Stage
from grandrounds.methods.aggregate import Aggregation
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.exchanges import intercept
from grandrounds.methods.weigh import WeightingResult, weigh
from grandrounds.protocol.messages import Answers, Ask, Payload, Value
from grandrounds.protocol.packing import LAYOUT, layout_reports, narrow_layout, packed_size, unpack
from grandrounds.protocol.tasks import ERROR, INTRODUCE, MEET, MODELS, SUM_STEPS, TALLIES

if TYPE_CHECKING:
    from grandrounds.methods.base import Effect, Method, Server
    from grandrounds.privacy.secagg import Halted


MODEL_BITS, STATISTIC_BITS = 32, 64
STATISTIC_BOUND = 2.0**34
"""The largest entry of a tally, of a loss times its rows: beyond what a hospital holds."""


@dataclass(frozen=True)
class SecureRule:
    """How a run's sums are kept secret: who takes part, by name and public key, and how large a model's entries may be."""

    peers: Mapping[str, bytes]
    bound: float = 64.0


@dataclass(frozen=True)
class SumResult:
    """What was held, added up over the sites that stayed: by name, each times its weights."""

    sites: tuple[str, ...]
    values: Mapping[str, Array]
    weights: Mapping[str, float]  # by name: the sum of the weights of those that stayed
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def exchange_identities(sites: tuple[str, ...]) -> Generator[Ask, Answers, dict[str, bytes]]:
    """Ask every site for its public key, and tell all of them of all."""
    answers = yield Ask(INTRODUCE, to=sites, report=("identity",))
    keys = np.asarray(answers["identity"], np.uint8)
    shared: Payload = {"names": json.dumps(answers.sites), "identities": keys}
    yield Ask(MEET, shared=shared, to=answers.sites, report=("met",))
    return {site: row.tobytes() for site, row in zip(answers.sites, keys, strict=True)}


def secure_sum(
    rule: SecureRule,
    answers: Answers,
    *,
    weights: Mapping[str, Mapping[str, float]] | None = None,
    bits: int = MODEL_BITS,
    bound: float | None = None,
    purpose: str = MODELS,
    noise: float = 0.0,
    of: Sequence[str] = (),
) -> Generator[Ask, Answers, SumResult]:
    """Add up what the sites of these answers hold. `weights`: by report and site, adding up to at most 1; else plain sums.

    `of`: no more than these reports; the others are for another sum.
    `noise`: the least standard deviation of what sites add to the sum together, each its share (discrete, and sized for the
    fewest honest sites that may stay). What that is worth is for an accountant to say.
    """
    from grandrounds.privacy.secagg import STEPS, Context, Scale, SecureSum, Skellam, fewest_honest

    assert answers.id is not None
    told, sites, odd = _majority_layout(answers)
    told = narrow_layout(told, of) if of else told
    if weights and not layout_reports(told) <= set(weights):
        raise BadInput(
            "a secure sum is weighted or plain: give weights for all that is held, or for nothing",
            code="incomplete-weights",
        )
    bound = rule.bound if bound is None else bound
    parties = max(1, len(sites))
    spare = Skellam(noise, fewest_honest(parties)).room(parties) if noise else 0.0
    scale = Scale(bits, bound, parties, weighted=bool(weights), spare=spare)
    tag = f"{purpose} {answers.id.step}"
    context = Context(answers.id.run, answers.id.round, tag)
    parts = sorted(layout_reports(told))
    by_site = {s: [weights[name][s] for name in parts] for s in sites} if weights else None
    peers = {s: rule.peers[s] for s in sites}
    work = SecureSum(context, peers=peers, scale=scale, size=packed_size(told), weights=by_site)
    what: dict[str, Value] = {"of": str(answers.id), "bits": bits, "bound": bound, "parties": parties, "noise": noise}
    what["reports"] = ",".join(sorted(of))
    for step in STEPS:
        question = work.ask()
        task = f"secagg.{step}"
        shared = {**question.shared, **(what if step == "masked" else {}), "tag": tag}
        heard: Answers = yield Ask(task, shared=shared, each=question.each, to=question.to, report=SUM_STEPS[task])
        for site, values in heard:
            work.take(site, {name: values[name] for name in values if name != ERROR})
        for site, why in heard.missing.items():
            work.lost(site, why)
    total = work.total()
    kept = {name: sum(of[s] for s in work.sites) for name, of in (weights or {}).items()}
    notes = tuple(f"{site}: {why}" for site, why in work.faults.items())
    return SumResult(work.sites, unpack(total, told), kept, {**odd, **work.missing}, notes)


def is_halt(error: Exception) -> TypeGuard[Halted]:
    """Whether this is a secure sum that could not be finished, told without importing cryptography where there is none."""
    return any(kind.__name__ == "Halted" for kind in type(error).__mro__)


def with_secure_totals(work: Generator[Any, Any, Any], rule: SecureRule) -> Generator[Effect, Any, Any]:
    """A generator whose Asks for totals are answered by secure sums: tallies, histograms, losses at temperatures."""

    def through(effect: Effect) -> Generator[Effect, Any, Any]:
        if isinstance(effect, Ask) and effect.summed:
            return (yield from _secure_total(effect, rule))
        return (yield effect)

    return intercept(work, through)


def _secure_total(ask: Ask, rule: SecureRule) -> Generator[Ask, Answers, Answers]:
    answers: Answers = yield replace(ask, summed=(), withheld=ask.summed)
    summed = yield from secure_sum(rule, answers, bits=STATISTIC_BITS, bound=STATISTIC_BOUND, purpose=TALLIES)
    kept = [k for k, s in enumerate(answers.sites) if s in summed.sites]
    rest = answers.only(kept, summed.missing)
    rest.columns.pop(LAYOUT, None)
    rest.totals = dict(summed.values)
    return rest


def _majority_layout(answers: Answers) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """The layout that most sites announced, those that did, and the others with a reason."""
    said = dict(zip(answers.sites, answers[LAYOUT], strict=True)) if len(answers) else {}
    counted = sorted(said.values(), key=lambda told: (-list(said.values()).count(told), told))
    told = counted[0] if counted else "[]"
    sites = tuple(s for s, own in said.items() if own == told)
    return told, sites, {s: "holds something of another shape" for s in said if s not in sites}


def aggregate_secure(
    server: Server, rule: SecureRule, ask: Ask, method: Method
) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
    """Train as asked, weigh by what sites may tell, and sum; the answers that come with it hold sums and no models.

    The weights are public and each site multiplies before it masks. Who drops out after that is not in the sum, so
    the weights of those that stayed are made to sum to 1.
    """
    shares = method.regularizer.secure_weights(server)
    answers = yield ask.withholding("model", *shares)
    weighed = weigh(method.settings.weigh, server, answers)
    return (yield from secure_weighted_sum(server, rule, answers, weighed, shares))


def secure_weighted_sum(
    server: Server, rule: SecureRule, answers: Answers, weighed: WeightingResult, shares: Mapping[str, Mapping[str, float]]
) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
    """The sum of the models that sites hold, by these weights; `shares`: what else is added up, by report and site."""
    own = dict(zip(answers.sites, weighed.weights.tolist(), strict=True))
    of = {"model": own, **{name: {s: by[s] for s in answers.sites} for name, by in shares.items()}}
    summed = yield from secure_sum(rule, answers, weights=of, of=tuple(of))
    if not summed.weights["model"] > 0:
        raise RunFailed(f"round {server.round}: no site that stayed in the secure sum has any weight", code="no-weight-left")
    kept = answers.only([k for k, s in enumerate(answers.sites) if s in summed.sites], summed.missing)
    mean = summed.values["model"] / summed.weights["model"]
    kept.totals = {**summed.values, "model": mean}
    weights = np.array([own[s] for s in kept.sites]) / summed.weights["model"]
    of = {name: dict(zip(answers.sites, np.asarray(v).tolist(), strict=True)) for name, v in weighed.signals.items()}
    said = f"{len(kept)} of {len(answers)} models were added up under masks; none was seen by the server"
    joined = Aggregation(
        ModelAssignment(mean),
        kept.sites,
        weights,
        weighed.merge_signals({"data_size": answers.by_site("count"), **of}),
        (Stage("weigh", weighed.why, own), Stage("secure", said, dict(zip(kept.sites, weights.tolist(), strict=True)))),
        _rescale_shares(answers, kept, weighed.shares, summed.weights["model"]),
        {},
        weighed.memory,
        (*weighed.notes, *summed.notes),
        weighed.attributions,
    )
    return joined, kept


def _rescale_shares(
    answers: Answers, kept: Answers, shares: Mapping[str, Array], total: float
) -> dict[str, dict[str, float]]:
    """What each signal contributes to the weights of those that stayed."""
    place = {s: k for k, s in enumerate(answers.sites)}
    return {name: {s: float(part[place[s]]) / total for s in kept.sites} for name, part in shares.items()}
