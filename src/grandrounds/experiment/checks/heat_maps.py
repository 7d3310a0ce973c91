"""Check that a run can make the heat maps of explain.maps, before its first round."""

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
    """Return the kinds of heat maps that a run makes."""
    return tuple(dict.fromkeys(plan.explain.maps))


def mapped_rounds(plan: Plan) -> tuple[int, ...]:
    """Return the rounds after which heat maps are made: explain.maps_at, else the last."""
    return tuple(sorted(set(plan.explain.maps_at))) or (plan.method.rounds,)


def refuse_unmappable(plan: Plan, model: Any, inputs: tuple[int, ...]) -> None:
    """Check that this run can make its heat maps.

    Raises:
        BadInput: explain.maps does not fit the data, the method, the privacy settings or the model.
    """
    for reason in (*_run(plan, pictures=len(inputs) > 1), *_private(plan), *_model(plan, model, inputs)):
        raise BadInput(reason, code="heat-maps-do-not-fit")


def _run(plan: Plan, *, pictures: bool) -> Iterator[str]:
    m = plan.method
    if not pictures:
        yield "explain.maps makes heat maps of images, and the data is a table: remove explain.maps, or use explain.sketch"
    if is_variant_of(m.name, "local") or is_variant_of(m.name, "pooled"):
        subject = "no global model" if is_variant_of(m.name, "local") else "no local models"
        yield f"explain.maps compares local models with the global one, and method '{m.name}' has {subject}: use 'fedavg'"
    if plan.tasks.plain():
        yield "explain.maps supports one task, and [tasks] has several: remove explain.maps or [tasks]"
    late = [r for r in mapped_rounds(plan) if r > m.rounds]
    if late:
        yield f"explain.maps_at has round {late[0]}, but method.rounds is {m.rounds}: lower it or raise method.rounds"
    if plan.train.early_stop and not plan.explain.maps_at:
        yield "explain.maps needs the number of the last round, unknown with train.early_stop: set explain.maps_at"


def _private(plan: Plan) -> Iterator[str]:
    """Check privacy: figures of one site's heat maps are sent without protection."""
    if plan.privacy.secure:
        yield "explain.maps sends figures of each site's model, which privacy.secure hides: remove one of them"
    if plan.privacy.epsilon is not None:
        yield (
            "explain.maps sends figures of each site's images without noise, which privacy.epsilon does not cover: remove "
            "explain.maps"
        )


def _model(plan: Plan, model: Any, inputs: tuple[int, ...]) -> Iterator[str]:
    wanted = [name for name in maps_asked(plan) if name in _AT_A_LAYER]
    if not wanted or getattr(model, "kernel", "") != "torch":
        return
    from grandrounds.explain.explainers.layers import trace_net

    if trace_net(model, model.init(plan.seed), np.zeros(inputs, np.float32)).map is None:
        yield (
            f"explain.maps has {wanted[0]}, which needs a convolution, and model '{plan.model.name}' has none: use "
            "gradient_norm, saliency or integrated_gradients"
        )
