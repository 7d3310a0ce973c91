"""Whether an Ask promises differential privacy to training and validation patients by itself, as its own words say.

This is the policy's plain yes or no, told before anything is done. What an answer spends is the purse's matter (`charges`),
which remembers what the site holds; the two together let nothing out that was not paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import MODEL, TaskSpec
from grandrounds.protocol.tasks import MASKED, MODELS, PROPOSE, spec_of

DP_SGD, CLIENT = "dp-sgd", "client"


def is_private(ask: Ask, plan: Mapping[str, Any] | None) -> bool:
    """Check that nothing in the answer to an Ask is of training or validation rows without noise.

    Args:
        ask: The question.
        plan: The plan of the run; None before a run is opened.

    Returns:
        True where every report has noise, is withheld for a secure sum, or discloses nothing of these rows.
    """
    spec = spec_of(ask.task)
    if spec.is_raw or any(r in spec.reports and spec.reports[r].is_raw for r in ask.report):
        return False
    mechanism = "none" if plan is None else str(plan["privacy"]["mechanism"])
    if spec.is_training:
        return _training(ask, spec, mechanism)
    noised = any(_above_zero(ask, name) for name in spec.noised_by)
    if ask.task == PROPOSE:
        return noised and str(ask.shared.get("selection")) != "paper"
    if ask.task == MASKED:
        of_models = str(ask.shared.get("tag", "")).split(" ")[0] == MODELS
        return noised or not of_models or mechanism == DP_SGD
    withheld = bool(ask.report) and all(r in ask.held for r in ask.report)
    return noised or withheld or not spec.noised_by


def _training(ask: Ask, spec: TaskSpec, mechanism: str) -> bool:
    """DP-SGD at the site; or a clipped update that a secure sum adds noise to. A server's own noise is not taken on trust."""
    if {"shap", "trust"} & set(ask.report) and not (
        ask.shared.get("attribute_on", "") and ask.shared.get("attribute_judged", "-")
    ):
        return False  # reasons or accuracy on own rows
    if mechanism == DP_SGD:
        return all(_above_zero(ask, name) for name in ("rate", "noise", "clip"))
    released = {r for r in ask.report if r in spec.reports and spec.reports[r].kind == MODEL}
    return mechanism == CLIENT and _above_zero(ask, "longest") and released <= set(ask.held)


def _above_zero(ask: Ask, name: str) -> bool:
    value = ask.shared.get(name, 0.0)
    return isinstance(value, int | float) and value > 0
