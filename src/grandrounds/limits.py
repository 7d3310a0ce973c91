"""What some models cannot do, refused in words before a round is run."""

from __future__ import annotations

from typing import Any

from grandrounds.errors import BadInput


def refuse_what_it_cannot(kernel: str, plan: Any) -> None:
    """Forests have no gradient and no logits: say what that rules out, and what to do instead."""
    if kernel == "forest":
        from grandrounds.models.forest import REFUSALS

        asked = {
            plan.method.name: plan.method.name in REFUSALS,
            "temperature": plan.evaluation.calibrate == "temperature",
            "keep_optimizer": plan.train.keep_optimizer,
        }
        for name, wanted in asked.items():
            if wanted:
                raise BadInput(f"model.name is 'forest': {REFUSALS[name]}")
    if plan.tasks.plain() and kernel != "torch":
        raise BadInput("sites with different tasks need the torch kernel: set engine.kernel = 'torch'")
    if kernel == "numpy" and plan.engine.precision in ("tf32", "bf16"):
        raise BadInput(
            f"engine.precision '{plan.engine.precision}' is for torch: use float32, or engine.kernel = 'torch'"
        )
