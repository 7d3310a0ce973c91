"""What evaluation.local_models cannot be asked of, refused in words before a round is run; [privacy] has its own reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.methods import is_variant_of, method_class

NONE, OWN, CROSSED = "none", "own", "crossed"
"""The values of evaluation.local_models."""


def refusals(model: Any, plan: Plan, *, sites: int) -> Iterator[str]:
    """Reasons why local models cannot be scored in this run; `sites` is how many train."""
    wanted, m = plan.evaluation.local_models, plan.method
    if wanted == NONE:
        return
    if is_variant_of(m.name, "veil"):
        yield f"evaluation.local_models is '{wanted}', but sites of method '{m.name}' train no local models: set it to 'none'"
    if wanted != CROSSED:
        return
    prefix = f"evaluation.local_models is '{CROSSED}'"
    if sites < 2:
        yield f"{prefix}, but one site trains and no other can score its model: set it to '{OWN}'"
    if method_class(m.name).family == "async":
        yield f"{prefix}, but method '{m.name}' does not wait for all sites, so their models are not together: set it to '{OWN}'"
    if getattr(model, "statistics", ()) and (is_variant_of(m.name, "fedbn") or plan.model.statistics == "site"):
        yield f"{prefix}, but sites keep BatchNorm entries to themselves, so no local model is whole elsewhere: set it to '{OWN}'"
    if plan.tasks.plain():
        yield f"{prefix}, but sites with different tasks cannot score each other's models: set it to '{OWN}'"
