"""Secure aggregation for methods: sites withhold their reports, and the server sees only the sum.

    answers = yield ask.withholding("model")
    summed = yield from secure_sum(server.secure, answers, weights={"model": weights})

Five exchanges (privacy/secagg). Sites that drop out are left out of the sum and reported as missing; if too few remain, `Halted`
is raised. `aggregate_secure` computes one model from the weighted sum of the sites' models.
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
from grandrounds.methods.effects import intercept
from grandrounds.methods.weigh import WeightingResult, weigh
from grandrounds.protocol.messages import Answers, Ask, Payload, Value
from grandrounds.protocol.packing import LAYOUT, layout_reports, narrow_layout, packed_size, unpack
from grandrounds.protocol.tasks import ERROR, INTRODUCE, MEET, MODELS, SUM_STEPS, TALLIES, spec_of

if TYPE_CHECKING:
    from grandrounds.methods.base import Effect, Method, Server
    from grandrounds.privacy.secagg import Halted


MODEL_BITS, STATISTIC_BITS = 32, 64
STATISTIC_BOUND = 2.0**34
"""Upper bound of an entry of a tally, or of a loss times its rows, above any hospital's."""


@dataclass(frozen=True)
class SecureRule:
    """The parties of a run's secure sums, by name and public key, and the largest entry of a model."""

    peers: Mapping[str, bytes]
    bound: float = 64.0


@dataclass(frozen=True)
class SumResult:
    """The secure sum of withheld reports over the remaining sites, by name, each times its weights."""

    sites: tuple[str, ...]
    values: Mapping[str, Array]
    weights: Mapping[str, float]  # by name: the sum of the remaining sites' weights
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def exchange_identities(sites: tuple[str, ...]) -> Generator[Ask, Answers, dict[str, bytes]]:
    """Ask every site for its public key, and send all keys to all sites."""
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
    whole: bool = False,
    only_reports: Sequence[str] = (),
) -> Generator[Ask, Answers, SumResult]:
    """Sum the withheld reports of these answers' sites. `weights`: by report and site, with a sum of at most 1; None for plain
    sums. `only_reports`: the reports to sum; others are for another sum. `noise`: the smallest standard deviation of the total
    noise, of which each site adds a discrete share, sized for the fewest honest sites that may remain. The accountant determines
    the privacy cost. `whole`: whole numbers whose sum over all sites is within `bound`; they are added without rounding.
    """
    from grandrounds.privacy.secagg import STEPS, Context, Scale, SecureSum, Skellam, fewest_honest

    assert answers.id is not None
    layout, sites, mismatched = _majority_layout(answers)
    layout = narrow_layout(layout, only_reports) if only_reports else layout
    if weights and not layout_reports(layout) <= set(weights):
        raise BadInput(
            "a secure sum is weighted or plain: give weights for all withheld reports, or for none",
            code="incomplete-weights",
        )
    bound = rule.bound if bound is None else bound
    parties = max(1, len(sites))
    spare = Skellam(noise, fewest_honest(parties)).room(parties) if noise else 0.0
    scale = Scale(bits, bound, parties, weighted=bool(weights), spare=spare, whole=whole)
    tag = f"{purpose} {answers.id.step}"
    context = Context(answers.id.run, answers.id.round, tag)
    parts = sorted(layout_reports(layout))
    by_site = {s: [weights[name][s] for name in parts] for s in sites} if weights else None
    peers = {s: rule.peers[s] for s in sites}
    work = SecureSum(context, peers=peers, scale=scale, size=packed_size(layout), weights=by_site)
    terms: dict[str, Value] = {"of": str(answers.id), "bits": bits, "bound": bound, "parties": parties, "noise": noise}
    if whole:
        terms["whole"] = 1
    terms["reports"] = ",".join(sorted(only_reports))
    for step in STEPS:
        question = work.ask()
        task = f"secagg.{step}"
        shared = {**question.shared, **(terms if step == "masked" else {}), "tag": tag}
        step_answers: Answers = yield Ask(
            task, shared=shared, each=question.each, to=question.to, report=SUM_STEPS[task]
        )
        for site, values in step_answers:
            work.take(site, {name: values[name] for name in values if name != ERROR})
        for site, why in step_answers.missing.items():
            work.lost(site, why)
    total = work.total()
    kept_weights = {name: sum(site_weights[s] for s in work.sites) for name, site_weights in (weights or {}).items()}
    notes = tuple(f"{site}: {why}" for site, why in work.faults.items())
    return SumResult(work.sites, unpack(total, layout), kept_weights, {**mismatched, **work.missing}, notes)


def is_halt(error: Exception) -> TypeGuard[Halted]:
    """Check whether an error is a secure sum that could not be finished, without importing cryptography."""
    return any(kind.__name__ == "Halted" for kind in type(error).__mro__)


def with_secure_totals(work: Generator[Any, Any, Any], rule: SecureRule) -> Generator[Effect, Any, Any]:
    """Run a generator with its Asks for totals answered by secure sums: tallies, histograms, losses at temperatures."""

    def through(effect: Effect) -> Generator[Effect, Any, Any]:
        if isinstance(effect, Ask) and effect.summed:
            return (yield from _secure_total(effect, rule))
        return (yield effect)

    return intercept(work, through)


def _secure_total(ask: Ask, rule: SecureRule) -> Generator[Ask, Answers, Answers]:
    answers: Answers = yield replace(ask, summed=(), withheld=ask.summed)
    try:
        summed = yield from secure_sum(rule, answers, bits=STATISTIC_BITS, bound=STATISTIC_BOUND, purpose=TALLIES)
    except RunFailed as e:
        if not (is_halt(e) and spec_of(ask.task).may_fail):
            raise
        return Answers((), {}, missing=dict.fromkeys(answers.sites, str(e)))
    rows = [k for k, s in enumerate(answers.sites) if s in summed.sites]
    rest = answers.only(rows, summed.missing)
    rest.columns.pop(LAYOUT, None)
    rest.totals = dict(summed.values)
    return rest


def _majority_layout(answers: Answers) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return the layout that most sites announced, those sites, and the others with a reason."""
    layouts = dict(zip(answers.sites, answers[LAYOUT], strict=True)) if len(answers) else {}
    counted = sorted(layouts.values(), key=lambda layout: (-list(layouts.values()).count(layout), layout))
    layout = counted[0] if counted else "[]"
    sites = tuple(s for s, announced in layouts.items() if announced == layout)
    return layout, sites, {s: "has a report of another shape" for s in layouts if s not in sites}


def aggregate_secure(
    server: Server, rule: SecureRule, ask: Ask, method: Method
) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
    """Train, weigh by public reports, and sum the models; the returned answers have sums and no models.

    The weights are public, and each site multiplies before masking. Sites that drop out are not in the sum, so the weights of
    the others are normalised to sum to 1.
    """
    shares = method.regularizer.secure_weights(server)
    answers = yield ask.withholding("model", *shares)
    weighting = weigh(method.settings.weigh, server, answers)
    return (yield from secure_weighted_sum(server, rule, answers, weighting, shares))


def secure_weighted_sum(
    server: Server,
    rule: SecureRule,
    answers: Answers,
    weighting: WeightingResult,
    shares: Mapping[str, Mapping[str, float]],
) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
    """Return the weighted sum of the withheld models; `shares`: weights of further reports, by report and site."""
    weight_by_site = dict(zip(answers.sites, weighting.weights.tolist(), strict=True))
    report_weights = {"model": weight_by_site}
    report_weights |= {name: {s: site_weights[s] for s in answers.sites} for name, site_weights in shares.items()}
    summed = yield from secure_sum(rule, answers, weights=report_weights, only_reports=tuple(report_weights))
    if not summed.weights["model"] > 0:
        raise RunFailed(
            f"round {server.round}: no remaining site of the secure sum has a weight above 0", code="no-weight-left"
        )
    remaining = answers.only([k for k, s in enumerate(answers.sites) if s in summed.sites], summed.missing)
    mean = summed.values["model"] / summed.weights["model"]
    remaining.totals = {**summed.values, "model": mean}
    weights = np.array([weight_by_site[s] for s in remaining.sites]) / summed.weights["model"]
    signals_by_site = {
        name: dict(zip(answers.sites, np.asarray(v).tolist(), strict=True)) for name, v in weighting.signals.items()
    }
    sentence = f"{len(remaining)} of {len(answers)} models were summed by secure aggregation; the server saw no single model"
    joined = Aggregation(
        ModelAssignment(mean),
        remaining.sites,
        weights,
        weighting.merge_signals({"data_size": answers.by_site("count"), **signals_by_site}),
        (
            Stage("weigh", weighting.why, weight_by_site),
            Stage("secure", sentence, dict(zip(remaining.sites, weights.tolist(), strict=True))),
        ),
        _rescale_shares(answers, remaining, weighting.shares, summed.weights["model"]),
        {},
        weighting.memory,
        (*weighting.notes, *summed.notes),
        weighting.attributions,
    )
    return joined, remaining


def _rescale_shares(
    answers: Answers, remaining: Answers, shares: Mapping[str, Array], total: float
) -> dict[str, dict[str, float]]:
    """Rescale each signal's contribution to the weights of the remaining sites."""
    place = {s: k for k, s in enumerate(answers.sites)}
    return {name: {s: float(part[place[s]]) / total for s in remaining.sites} for name, part in shares.items()}
