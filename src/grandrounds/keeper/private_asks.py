"""Whether an Ask promises differential privacy to training and validation patients by itself, as its own words say.

This is the policy's plain yes or no, told before anything is done. What an answer spends is the purse's matter (`charges`),
which remembers what the site holds; the two together let nothing out that was not paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import MODELS

DP_SGD, CLIENT = "dp-sgd", "client"

_RAW = ("summarise", "score", "calibrate", "explain", "maps")
"""Tasks that tell of own training or validation rows as they are."""

_FIGURES = ("val_loss", "ece", "local", "reasons")
"""Reports of training that do."""


def is_private(ask: Ask, plan: Mapping[str, Any] | None) -> bool:
    """Whether nothing of this Ask's answer is of training or validation rows without noise."""
    if ask.task in _RAW:
        return False
    mechanism = "none" if plan is None else str(plan["privacy"]["mechanism"])
    match ask.task:
        case "prepare":
            return not {"centre", "notes"} & set(ask.report)
        case "train" | "finetune":
            return _training(ask, mechanism)
        case "platt":
            return "sums" not in ask.report and ("counts" in ask.held or _above_zero(ask, "epsilon"))
        case "veil.census" | "veil.scores" | "veil.moments" | "veil.percentiles":
            return _above_zero(ask, "noise") or _above_zero(ask, "epsilon") or set(ask.report) <= set(ask.held)
        case "veil.propose":
            return _above_zero(ask, "epsilon") and str(ask.shared.get("selection")) != "paper"
        case "secagg.masked":
            of_models = str(ask.shared.get("tag", "")).split(" ")[0] == MODELS
            return not of_models or mechanism == DP_SGD or _above_zero(ask, "noise")
    return True


def _training(ask: Ask, mechanism: str) -> bool:
    """DP-SGD at the site; or a clipped update that a secure sum adds noise to. A server's own noise is not taken on trust."""
    if set(_FIGURES) & set(ask.report):
        return False
    if {"shap", "trust"} & set(ask.report) and not (
        ask.shared.get("attribute_on", "") and ask.shared.get("attribute_judged", "-")
    ):
        return False  # reasons or accuracy on own rows
    if mechanism == DP_SGD:
        return all(_above_zero(ask, name) for name in ("rate", "noise", "clip"))
    released = {"model", "update", "variate"} & set(ask.report)
    return mechanism == CLIENT and _above_zero(ask, "longest") and released <= set(ask.held)


def _above_zero(ask: Ask, name: str) -> bool:
    value = ask.shared.get(name, 0.0)
    return isinstance(value, int | float) and value > 0
