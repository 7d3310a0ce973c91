"""Checks of VEIL: required and incompatible settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.data.event import ONE_AGAINST_OTHERS
from grandrounds.methods.veil.budget import VOTING, resolve_selection


def refusals(model: Any, plan: Plan) -> Iterator[str]:
    """Yield reasons why VEIL, which fits one linear score, cannot run this plan."""
    m = plan.method
    if plan.train.noise:
        yield "method 'veil' takes no gradient steps, so train.noise has no effect: set it to 0"
    v, how = m.veil, resolve_selection(m.veil.selection, secure=plan.privacy.secure)
    if plan.model.name != "logistic" or model.kernel != "numpy":
        yield f"method 'veil' fits a linear model, not '{plan.model.name}': set model.name = 'logistic', engine.kernel = 'auto'"
    elif model.outputs != 1:
        yield f"method 'veil' needs two classes, but the data have {model.outputs}: {ONE_AGAINST_OTHERS}"
    elif how not in ("select_then_fit", "moments") and v.k > model.layout.size - 1:
        yield f"method.veil.k is {v.k}, but there are {model.layout.size - 1} features to propose: lower it"
    if how == "select_then_fit" and v.features and m.rounds < 2 * (v.stages or 1):
        yield (
            f"method.veil.stages is {v.stages or 1}, each with a selection and a fit, but there are {m.rounds} rounds: "
            "raise method.rounds or lower stages"
        )
    if v.selection == "paper" and plan.privacy.epsilon is not None:
        yield "method.veil.selection 'paper' has no budget: signs are sent without noise; set method.veil.claimed_epsilon instead"
    if v.claimed_epsilon is not None and v.selection != "paper":
        yield f"method.veil.claimed_epsilon is for selection 'paper', not '{v.selection}': set privacy.epsilon"


def secure_refusals(plan: Plan) -> Iterator[str]:
    """Yield reasons why VEIL cannot be run with secure aggregation: some of its selections do not use sums."""
    v = plan.method.veil
    if v.selection in VOTING:
        yield f"and method.veil.selection '{v.selection}' sends each site's proposals: use 'select_then_fit' or 'moments'"
    if plan.privacy.on_halt == "skip":
        yield "and a round of 'veil' needs the selection of the round before: set privacy.on_halt = 'retry' or 'stop'"
