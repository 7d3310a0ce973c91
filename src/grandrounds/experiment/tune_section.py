"""The section [tune] of an experiment: what `rounds tune` searches. A run takes no notice of it, nor does its plan."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from grandrounds.core.section import Section


class Tune(Section):
    """What `rounds tune` searches, and by which figure; a run takes no notice of it."""

    trials: int = Field(50, ge=1, le=100_000, description="how many settings are tried in all")
    metric: str | None = Field(
        None, description="figure of the validation rows to go by; not set: auroc for two classes, else accuracy"
    )
    direction: Literal["auto", "maximize", "minimize"] = Field(
        "auto", description="auto: as the metric has it; one of your own must say"
    )
    share: float = Field(
        1.0, gt=0, le=1, description="share of each site's training and validation rows to tune on; 1: the whole split"
    )
    space: dict[str, Any] = Field(
        default_factory=dict,
        description='setting -> what to try: "train.lr" = { low = 0.001, high = 1.0, log = true }, "train.batch" = '
        "{ choices = [16, 32] }; none: what is usual for the method",
    )
