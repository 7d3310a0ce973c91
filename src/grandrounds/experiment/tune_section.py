"""Define the section [tune], the search space of `rounds tune`. Runs and their plans ignore it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from grandrounds.core.section import Section


class Tune(Section):
    """Search space, metric and number of trials of `rounds tune`. A run ignores it."""

    trials: int = Field(50, ge=1, le=100_000, description="total number of trials")
    metric: str | None = Field(
        None, description="validation metric to optimise; not set: auroc for two classes, else accuracy"
    )
    direction: Literal["auto", "maximize", "minimize"] = Field(
        "auto", description="auto: known from the metric; required for your own metric"
    )
    share: float = Field(
        1.0, gt=0, le=1, description="share of each site's training and validation rows used for tuning; 1: all"
    )
    space: dict[str, Any] = Field(
        default_factory=dict,
        description='setting -> values to try: "train.lr" = { low = 0.001, high = 1.0, log = true }, "train.batch" = '
        "{ choices = [16, 32] }; not set: the default space of the method",
    )
