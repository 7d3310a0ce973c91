"""Settings of local training, as a training Ask carries them: the learning rate of a round, and the local objective."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from grandrounds.core.plan_types import TrainSettings
    from grandrounds.protocol.messages import Value


def learning_rate(schedule: str, *, base: float, round: int, rounds: int, warmup: int = 0, decay: float = 0.5) -> float:
    """Return the learning rate of a round (counted from 1).

    `constant`; `step` (times `decay` at half and at three quarters of the rounds); `exponential`
    (times `decay` over the whole run, a little each round); `cosine` (to zero). A warm-up of w
    rounds grows linearly to the base first.
    """
    if round <= warmup:
        return base * round / (warmup + 1)
    progress = (round - 1 - warmup) / max(1, rounds - warmup)
    if schedule == "step":
        return base * decay ** int((progress >= 0.5) + (progress >= 0.75))
    if schedule == "exponential":
        return float(base * decay**progress)
    if schedule == "cosine":
        return float(base * 0.5 * (1 + np.cos(np.pi * progress)))
    return base


def objective_payload(train: TrainSettings) -> dict[str, Value]:
    """Return the settings of an Ask that name the local objective of [train]; empty for none.

    Args:
        train: The [train] section of a plan.
    """
    if not train.objective:
        return {}
    return {"objective": train.objective, "objective_options": json.dumps(train.objective_options.plain(), sort_keys=True)}
