"""Checks of XFed: required and incompatible settings."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name
from grandrounds.methods import is_variant_of, regularizer_class


def selects_by_explanations(plan: Plan) -> bool:
    """Check whether sites are selected by their scores on reference images: XFed, or a subclass."""
    return is_variant_of(plan.method.name, "xfed")


def scoring_references(plan: Plan) -> tuple[str, ...]:
    """Return the reference images that sites are sent to score themselves on."""
    name = reference_name(plan)
    if not selects_by_explanations(plan) or name is None or not plan.reference.plain()[name]["sent"]:
        return ()
    return (name,)


def refusals(plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
    """Yield reasons why XFed cannot choose sites in this run."""
    x, name = plan.method.xfed, reference_name(plan)
    if not pictures:
        yield "method 'xfed' scores heat maps of images: use 'fedxchain' or 'sse-agg' for tables"
    if name is None and plan.reference.plain():
        yield "method 'xfed' needs one set of reference images for scoring: set method.reference"
    elif name is None:
        yield "method 'xfed' needs scoring images: add [reference.scoring] with rows = 30 and sent = true"
    elif not plan.reference.plain()[name]["sent"] or not plan.reference.plain()[name]["labelled"]:
        yield f"method 'xfed' needs labelled images at the sites: set reference.{name}.sent = true, labelled = true"
    if x.score == "grid" and not x.grid:
        yield "method.xfed.score is 'grid', but method.xfed.grid = 0 makes no scenes: set it to 2"
    if sites < 2:
        yield f"method 'xfed' excludes at least one site, but {sites} trains: use 'fedavg'"
    if plan.privacy.secure:
        yield "method 'xfed' asks the chosen sites for their models, which privacy.secure hides: leave one of them out"
    if plan.privacy.epsilon is not None or plan.privacy.mechanism != "none":
        yield "the reports of method 'xfed' have no noise: leave [privacy] out, or use 'fedavg'"
    regularizer = regularizer_class(plan.method).name
    if regularizer not in ("none", "proximal", "moon"):
        yield f"stability '{regularizer}' uploads more than a model: use none, proximal or moon with 'xfed'"
    if x.weights == "rank" and plan.method.weigh.rule != "data_size":
        yield f"method.xfed.weights 'rank' replaces method.weigh '{plan.method.weigh.rule}': leave one of them out"
    if plan.tasks.plain():
        yield "sites with different tasks cannot be ranked by one score: leave [tasks] out, or use 'fedavg'"
