"""Checks of [personal] before a round is run: the models, methods and mechanisms that a personal part works with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.methods import is_exact, is_variant_of, method_class
from grandrounds.methods.personal.parts import FINETUNE, HEAD, IN_ROUNDS, INTERCEPT, RECALIBRATION
from grandrounds.methods.personal.server import guard_rows, is_personal, unguarded
from grandrounds.methods.personal.training import head_of
from grandrounds.methods.weigh import CHOSEN_RULES
from grandrounds.models.protocol import COLUMN_KERNELS

_LINES = (INTERCEPT, RECALIBRATION)
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
    if part in (*IN_ROUNDS, FINETUNE):
        yield from _training(plan, part)
    if part == HEAD:
        yield from _head(model, plan)
    if (part in _LINES or plan.personal.guard) and not _ends_with_line(model):
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
    if plan.personal.part in _LINES:
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
    if not p.guard and p.part not in _LINES:
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
    if part in _LINES:
        return
    if is_exact(name):
        yield (
            f"method '{name}' fits from sums and has no training steps for personal.part = '{part}': use 'intercept' or "
            "'recalibration'"
        )
    elif is_variant_of(name, "veil") and part in IN_ROUNDS:
        yield f"method '{name}' trains no local models beside which personal.part = '{part}' could be trained: use 'finetune'"


def _model(model: Any, plan: Plan, part: str) -> Iterator[str]:
    """Check that the model has the part."""
    if model.kernel in _WHOLE:
        yield f"model.name is '{plan.model.name}': {_WHOLE[model.kernel]}: set personal.part = 'none'"
    elif model.kernel in COLUMN_KERNELS and part not in _LINES:
        yield (
            f"model.name is '{plan.model.name}', which has no training steps for personal.part = '{part}': use 'intercept' or "
            "'recalibration'"
        )


def _training(plan: Plan, part: str) -> Iterator[str]:
    """Check settings of training that a personal part does not share with the run."""
    if plan.train.objective:
        yield (
            f"personal.part = '{part}' is trained with the usual loss, not with train.objective '{plan.train.objective}': leave "
            "one of them out"
        )
    if plan.train.finetune:
        yield (
            f"train.finetune sends fine-tuned models to the server, and personal.part = '{part}' keeps them at the sites: set "
            "train.finetune = 0"
        )


def _head(model: Any, plan: Plan) -> Iterator[str]:
    """Check settings that need the whole model, of which a site sends all but the last layer."""
    m, e = plan.method, plan.evaluation
    where = "personal.part = 'head' keeps the last layer at each site"
    if not len(head_of(model)):
        yield (
            f"model.name is '{plan.model.name}', which is one layer, and personal.part = 'head' needs layers before the last: "
            "use 'intercept' or 'finetune'"
        )
    if not getattr(model, "ends_linear", True):
        yield f"model.name is '{plan.model.name}': its last layer is no torch.nn.Linear, which personal.part = 'head' needs"
    if plan.privacy.mechanism != "none" or plan.privacy.epsilon is not None:
        yield (
            "a head of a site's own is trained without noise, and what leaves the site depends on it: use personal.part = "
            "'ditto' or 'finetune', or no privacy.mechanism and privacy.epsilon"
        )
    if is_variant_of(m.name, "fedbn") or plan.model.statistics == "site":
        yield f"{where}, and BatchNorm layers as well: use method 'fedavg' with model.statistics = 'averaged'"
    for name in ("sse-agg", "fedxchain", "xfed", "clustered"):
        if is_variant_of(m.name, name):
            yield f"{where}, and method '{m.name}' scores or explains whole local models: use 'fedavg'"
    if m.weigh.rule in CHOSEN_RULES and m.weigh.rule != "distance":
        yield f"{where}, and method.weigh = '{m.weigh.rule}' scores whole local models: use 'data_size'"
    if plan.explain.sketch != "none" and explained_on(plan) is not None:
        yield f"{where}, and local models are explained on reference rows '{explained_on(plan)}': set explain.sketch = 'none'"
    if maps_asked(plan):
        yield f"{where}, and explain.maps compares whole local models: leave it out"
    if e.local_models != "none":
        yield f"{where}, and evaluation.local_models scores whole local models: set it to 'none'"
    if e.rationale_set is not None:
        yield f"{where}, and evaluation.rationale_set explains the common model, whose last layer is not trained: leave it out"
    if e.calibrate != "none":
        yield f"{where}, and evaluation.calibrate = '{e.calibrate}' changes the common one, which no site uses: set it to 'none'"
    if plan.train.early_stop:
        yield f"{where}, and train.early_stop goes back to a round of which sites keep none: set train.early_stop = 0"


def _ends_with_line(model: Any) -> bool:
    """Return True if a line of the scores can be put into the model, or if the model is no net."""
    if model.kernel != "torch":
        return True
    return getattr(model, "ends_linear", True) and f"{model.last_layer}.bias" in model.trainable
