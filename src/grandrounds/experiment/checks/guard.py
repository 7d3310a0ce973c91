"""Checks of [personal] before a round is run: the models, methods and mechanisms that the guard and a part work with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.capability import load
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.methods import is_exact, is_variant_of, method_class
from grandrounds.methods.guard.candidates import HEAD, LINES, trained_parts, trains_in_rounds
from grandrounds.methods.guard.server import guard_rows, is_personal, unguarded
from grandrounds.models.protocol import COLUMN_KERNELS

_WHOLE = {
    "forest": "trees of a forest are joined, and none of them is a site's own",
    "boosted": "boosted trees are grown on pooled rows, and none of them is a site's own",
    "ebm": "an EBM is fitted to pooled rows, and no part of it is a site's own",
    "card": "a risk card prints its risks, and has no intercept that a site could replace",
}


def refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Yield the reasons why a plan's personal part or guard cannot be used, each with the setting to change.

    Args:
        model: The built model.
        plan: The run's plan.

    Yields:
        One sentence each.
    """
    if not is_personal(plan):
        return
    part = plan.personal.part
    if part != "none":
        yield from _model(model, plan, part)
        yield from _method(plan, part)
    if part in (parts := trained_parts()):
        yield from load(parts[part].refusals)(model, plan)
    if (part in LINES or plan.personal.guard) and not _ends_with_line(model):
        yield (
            f"model.name is '{plan.model.name}': an intercept of a site's own needs a torch.nn.Linear with a bias that computes "
            "the logits: add one, or leave [personal] out"
        )


def task_refusals(plan: Plan, task: str) -> Iterator[str]:
    """Yield the reasons why [personal] does not fit the type of the outcome.

    Args:
        plan: The run's plan.
        task: The type of the outcome.
    """
    if task != SURVIVAL or not is_personal(plan):
        return
    if plan.personal.part in LINES:
        yield f"a Cox model has no intercept for personal.part = '{plan.personal.part}'; use 'finetune' or 'ditto'"
    if plan.personal.guard:
        yield "the guard compares losses of single rows, which a Cox model does not have; set personal.guard = false"


def warnings(plan: Plan) -> tuple[str, ...]:
    """Return warnings about a guard without anything to guard, and about sites that never train a head of their own.

    Args:
        plan: The run's plan.
    """
    if plan.personal.guard and (why := unguarded(plan)):
        return (f"personal.guard has no effect: {why}",)
    if not is_personal(plan) or plan.personal.part != HEAD:
        return ()
    return (
        "each site keeps its own last layer (personal.part = 'head'): that of the common model is not trained, so a new hospital "
        "must train one before it can use the model",
    )


def refuse_without_validation(model: Any, plan: Plan, *, rows: int) -> None:
    """Refuse a comparison on validation rows, or a line fitted to them, where there are none.

    Args:
        model: The built model.
        plan: The run's plan.
        rows: Validation rows of all sites.

    Raises:
        BadInput: The guard or the personal part has no rows.
    """
    if rows or not is_personal(plan) or guard_rows(plan, model) != "validation":
        return
    p = plan.personal
    if not p.guard and p.part not in LINES:
        return
    setting = "personal.guard" if p.guard else "personal.part"
    off = "false" if p.guard else "'none'"
    why = "personal.rows is 'validation'" if p.rows != "auto" else f"model '{plan.model.name}' can memorise its training rows"
    raise BadInput(
        f"{setting} needs validation rows, because {why}, and the split has none: set split.val above 0, or {setting} = {off}",
        code="no-validation-rows",
    )


def _method(plan: Plan, part: str) -> Iterator[str]:
    """Check that the method has a common model, and steps for a part that is trained."""
    name = plan.method.name
    kind = method_class(name)
    if not kind.has_model:
        yield f"method '{name}' fits no model, so no part of it can be personal: leave [personal] out"
    if is_variant_of(name, "local"):
        yield f"method '{name}' has no common model to which personal.part = '{part}' could belong: use 'fedavg'"
    if is_variant_of(name, "pooled"):
        yield f"method '{name}' trains in one place, where no site has a part of its own: set personal.part = 'none'"
    if kind.local_part(plan) != "none":
        yield f"method '{name}' keeps {kind.local_part(plan)} of each site's own already: set personal.part = 'none'"
    if part in LINES:
        return
    if is_exact(name):
        yield (
            f"method '{name}' fits from sums and has no training steps for personal.part = '{part}': use 'intercept' or "
            "'recalibration'"
        )
    elif is_variant_of(name, "veil") and trains_in_rounds(part):
        yield f"method '{name}' trains no local models beside which personal.part = '{part}' could be trained: use 'finetune'"


def _model(model: Any, plan: Plan, part: str) -> Iterator[str]:
    """Check that the model has the part."""
    if model.kernel in _WHOLE:
        yield f"model.name is '{plan.model.name}': {_WHOLE[model.kernel]}: set personal.part = 'none'"
    elif model.kernel in COLUMN_KERNELS and part not in LINES:
        yield (
            f"model.name is '{plan.model.name}', which has no training steps for personal.part = '{part}': use 'intercept' or "
            "'recalibration'"
        )


def _ends_with_line(model: Any) -> bool:
    """Return True if a line of the scores can be put into the model, or if the model is no net."""
    if model.kernel != "torch":
        return True
    return getattr(model, "ends_linear", True) and f"{model.last_layer}.bias" in model.trainable
