"""Checks of `train.objective` before a round is run: the models, methods and mechanisms that a local objective works with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.core.sources import AT_SITES
from grandrounds.methods import is_variant_of, regularizer_class
from grandrounds.site.objective import LocalObjective, build_objective, overrides, refused_by_dp_sgd


def local_objective(plan: Plan) -> LocalObjective | None:
    """Build the local objective of a plan.

    Args:
        plan: The experiment's plan.

    Returns:
        The objective; None where the plan has none, or where only hospitals import it.

    Raises:
        BadInput: It cannot be imported or built.
    """
    name = plan.train.objective
    if not name or plan.data.table == AT_SITES:
        return None
    return build_objective(name, plan.train.objective_options.plain())


def refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Yield the reasons why a plan's local objective cannot be used, each with the setting to change."""
    name = plan.train.objective
    if not name:
        return
    if model.kernel not in ("numpy", "torch"):
        yield f"train.objective is '{name}', and model '{plan.model.name}' is not trained by gradients: use 'logistic' or 'mlp'"
    if is_variant_of(plan.method.name, "veil"):
        yield f"train.objective is '{name}', and method 'veil' trains no local models: leave train.objective out"
    if plan.train.finetune:
        yield f"train.finetune trains with the cross-entropy loss, not with train.objective '{name}': set train.finetune = 0"
    objective = local_objective(plan)
    if objective is None:
        return
    regularizer = regularizer_class(plan.method)
    if overrides(objective, "loss_gradient") and "reference" in regularizer.needs:
        yield (
            f"stability '{regularizer.name}' adds reference rows to the cross-entropy loss, which train.objective '{name}' "
            "replaces: leave one of them out"
        )
    if overrides(objective, "fit"):
        yield from _loop(model, plan, name)


def _loop(model: Any, plan: Plan, name: str) -> Iterator[str]:
    """Yield the terms that a training loop of one's own is not given."""
    regularizer, t = regularizer_class(plan.method), plan.train
    unused = {
        f"method.stability '{regularizer.name}'": regularizer.name not in ("none", "proximal"),
        "train.keep_optimizer": t.keep_optimizer,
        "train.noise": bool(t.noise),
        f"train.optimizer '{t.optimizer}'": t.optimizer != "sgd",
        "BatchNorm (set model.norm = 'group')": bool(getattr(model, "statistics", ())),
    }
    for setting in (s for s, is_set in unused.items() if is_set):
        yield f"train.objective '{name}' has its own training loop (fit), which {setting} is no part of: leave one of them out"


def dp_sgd_refusals(plan: Plan) -> Iterator[str]:
    """Yield the reason why DP-SGD does not cover a plan's local objective: it clips the gradient of each row."""
    objective = local_objective(plan)
    hook = "" if objective is None else refused_by_dp_sgd(objective)
    if hook:
        yield (
            f"train.objective is '{plan.train.objective}', whose {hook} may mix rows, and DP-SGD clips the gradient of each row: "
            "override penalty_gradient or correction only, or set privacy.mechanism = 'none'"
        )
