"""Checks of FedXChain: the settings that trust needs, and those it is incompatible with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name
from grandrounds.methods import is_variant_of
from grandrounds.methods.sse_agg.weights import resolve_lambdas
from grandrounds.methods.weigh import EXPLANATIONS

_MIN_SITES = 3  # sites: with two, neither is an outlier


def keeps_trust(plan: Plan) -> bool:
    """Check whether this run computes the trust of its sites."""
    return is_variant_of(plan.method.name, "fedxchain")


def needs_mean_patient(plan: Plan) -> bool:
    """Check whether SHAP values use the consortium's mean patient as background, which sites must report."""
    return keeps_trust(plan) and plan.method.trust.explained == "own" and reference_name(plan) is None


def trust_references(plan: Plan) -> tuple[str, ...]:
    """Return the reference sets shared with sites, which score and explain their own models under secure aggregation."""
    name = reference_name(plan)
    if not keeps_trust(plan) or not plan.privacy.secure or name is None or not plan.reference.plain()[name]["sent"]:
        return ()
    return (name,)


def uses_agreement(plan: Plan) -> bool:
    """Check whether SSE-AGG's agreement of sketches multiplies the trust weights."""
    return keeps_trust(plan) and bool(plan.method.trust.reasons)


def refusals(model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
    """Yield reasons why trust cannot be computed in this run; `sites` is the number of training sites."""
    t, name = plan.method.trust, reference_name(plan)
    wanted = [key for key in ("accuracy_at", "explained") if getattr(t, key) == "reference"]
    if wanted and name is None:
        yield f"method.trust.{wanted[0]} is 'reference': add [reference.root] with rows = 40, or name one (method.reference)"
    if wanted and name is not None:
        reference = plan.reference.plain()[name]
        if not reference["labelled"] and "accuracy_at" in wanted:
            yield f"method.trust.accuracy_at is 'reference', but reference.{name} has no labels: set it to 'site'"
        if not reference["labelled"] and t.explained == "reference" and model.outputs > 1:
            yield f"method.trust.explained is 'reference', but reference.{name} has no labels, which explanations need: use 'own'"
        if plan.privacy.secure and not reference["sent"]:
            yield (
                f"method.trust.{wanted[0]} is 'reference', but privacy.secure hides models from the server: set "
                f"reference.{name}.sent = true, so that sites evaluate themselves on these rows"
            )
    if t.accuracy_at == "site" and not plan.split.val:
        yield "method.trust.accuracy_at is 'site', by validation rows, but split.val is 0: set it to 0.15"
    if t.signed and pictures:
        yield "method.trust.signed is for tables: set it to false"
    if t.explainer == "shap" and pictures:
        yield "method.trust.explainer 'shap' is for tables: use 'integrated_gradients', or 'auto'"
    if t.explainer == "integrated_gradients" and model.kernel == "forest":
        yield "method.trust.explainer 'integrated_gradients' needs gradients, which trees do not have: use 'shap', or 'auto'"
    if t.reasons:
        yield from _agreement_refusals(plan, sites)
    if plan.method.weigh.rule == EXPLANATIONS and plan.method.weigh.every != 1:
        yield "method 'fedxchain' with method.weigh 'explanations' needs explanations in every round: set method.weigh.every = 1"
    if plan.method.robust.rule == "foolsgold":
        yield "method.robust 'foolsgold' and method 'fedxchain' both compute trust: leave one of them out"
    if plan.tasks.plain():
        yield "sites with different tasks have no comparable explanations: use method 'fedavg'"
    if plan.method.cohorts.models == "separate" and plan.method.cohorts.count != 1:
        yield "cohorts with separate models have no common explanations: set method.cohorts.models = 'combined'"


def _agreement_refusals(plan: Plan, sites: int) -> Iterator[str]:
    """Yield reasons why SSE-AGG's agreement cannot be combined with trust."""
    weigh = plan.method.weigh
    if weigh.form != "outlier" or weigh.every != 1:
        yield "method.trust.reasons needs outliers in every round: set method.weigh.form = 'outlier' and every = 1"
    if {name for name, share in resolve_lambdas(weigh).items() if share} - {"data"} != {"agreement"}:
        yield "method.trust.reasons uses agreement alone: leave method.weigh.lambdas and explanation_weight out"
    if sites < _MIN_SITES:
        yield f"method.trust.reasons needs three sites to find outliers, but {sites} train: set it to false"
