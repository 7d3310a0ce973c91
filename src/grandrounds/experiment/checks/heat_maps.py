"""What heat maps of a run do not go with, refused in words before a round is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.methods import is_variant_of

_AT_A_LAYER = tuple(name for name, spec in explainers_for(Use.HEAT_MAP).items() if spec.needs_layer)


def maps_asked(plan: Plan) -> tuple[str, ...]:
    """The maps that a run makes; plans of earlier versions ask for none."""
    return tuple(dict.fromkeys(plan.explain.plain().get("maps", ())))


def mapped_rounds(plan: Plan) -> tuple[int, ...]:
    """The rounds after which maps are made: those named, else the last."""
    return tuple(sorted(set(plan.explain.maps_at))) or (plan.method.rounds,)


def refuse_unmappable(plan: Plan, model: Any, inputs: tuple[int, ...]) -> None:
    """Raise the first reason why this run cannot have the maps it asks for."""
    for reason in (*_run(plan, pictures=len(inputs) > 1), *_private(plan), *_model(plan, model, inputs)):
        raise BadInput(reason, code="heat-maps-do-not-fit")


def _run(plan: Plan, *, pictures: bool) -> Iterator[str]:
    m = plan.method
    if not pictures:
        yield "explain.maps shows where a net looks on pictures, and these rows are a table: leave it out, use explain.sketch"
    if is_variant_of(m.name, "local") or is_variant_of(m.name, "pooled"):
        subject = "no common model" if is_variant_of(m.name, "local") else "no local models"
        yield f"explain.maps compares local models with the common one, and method '{m.name}' has {subject}: use 'fedavg'"
    if plan.tasks.plain():
        yield "explain.maps is of one task, and these sites have several: leave explain.maps or [tasks] out"
    late = [r for r in mapped_rounds(plan) if r > m.rounds]
    if late:
        yield f"explain.maps_at names round {late[0]}, but there are {m.rounds} rounds: lower it, or raise method.rounds"
    if plan.train.early_stop and not plan.explain.maps_at:
        yield "explain.maps is for the last round, and with train.early_stop nobody knows which that is: set explain.maps_at"


def _private(plan: Plan) -> Iterator[str]:
    """Numbers of one site's maps leave it as they are."""
    if plan.privacy.secure:
        yield "privacy.secure hides single models, and explain.maps tells numbers of each site's: leave one of them out"
    if plan.privacy.epsilon is not None:
        yield (
            "explain.maps tells numbers of each site's own pictures, which no noise covers while privacy.epsilon is set: "
            "leave it out"
        )


def _model(plan: Plan, model: Any, inputs: tuple[int, ...]) -> Iterator[str]:
    wanted = [name for name in maps_asked(plan) if name in _AT_A_LAYER]
    if not wanted or getattr(model, "kernel", "") != "torch":
        return
    from grandrounds.explain.explainers.layers import trace_net

    if trace_net(model, model.init(plan.seed), np.zeros(inputs, np.float32)).map is None:
        yield (
            f"explain.maps has {wanted[0]}, which is read from the last convolution's map, and model '{plan.model.name}' has "
            "none: use gradient_norm, saliency or integrated_gradients"
        )
