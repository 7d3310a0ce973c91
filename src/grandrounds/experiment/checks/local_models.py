"""Check that a run can evaluate local models (evaluation.local_models). `checks.privacy` has further limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.methods import is_variant_of, method_class

NONE, OWN, CROSSED = "none", "own", "crossed"
"""The values of evaluation.local_models."""


def refusals(model: Any, plan: Plan, *, sites: int) -> Iterator[str]:
    """Yield the errors of evaluation.local_models in this plan.

    Args:
        model: The built model.
        plan: The run's plan.
        sites: Number of training sites.
    """
    wanted, m = plan.evaluation.local_models, plan.method
    if wanted == NONE:
        return
    if is_variant_of(m.name, "veil"):
        yield f"evaluation.local_models is '{wanted}', but method '{m.name}' trains no local models: set it to 'none'"
    if wanted != CROSSED:
        return
    prefix = f"evaluation.local_models is '{CROSSED}'"
    if sites < 2:
        yield f"{prefix}, but only one site trains, so no other site can evaluate its model: set it to '{OWN}'"
    if method_class(m.name).family == "async":
        yield f"{prefix}, but method '{m.name}' is asynchronous and never has all local models at once: set it to '{OWN}'"
    if getattr(model, "statistics", ()) and (is_variant_of(m.name, "fedbn") or plan.model.statistics == "site"):
        yield f"{prefix}, but BatchNorm entries stay at their site, so other sites cannot run the model: set it to '{OWN}'"
    if plan.tasks.plain():
        yield f"{prefix}, but sites with different tasks cannot evaluate each other's models: set it to '{OWN}'"
