"""By which figure settings are judged, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plugins import last_word
from grandrounds.metrics import DESCRIPTIONS, HIGHER_IS_BETTER


@dataclass(frozen=True)
class Goal:
    """A figure of the validation rows, to be made large or small."""

    metric: str
    maximize: bool

    @property
    def worst(self) -> float:
        """What a trial that failed counts as."""
        return -math.inf if self.maximize else math.inf

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.maximize else "minimize"

    def rank(self, value: float | None) -> float:
        """Least is best; a trial without a value comes last."""
        return math.inf if value is None else -value if self.maximize else value


def check_metric(metric: str | None, direction: str, own: Sequence[str]) -> None:
    """Refuse a metric that no run will have, or that says neither of more nor of less that it is better.

    `own` are import paths of the experiment's own metrics.
    """
    if metric is None:
        return
    known = [*DESCRIPTIONS, *map(last_word, own)]
    if metric not in known:
        raise BadInput(f"no metric '{metric}'; {nearest(metric, known)}", code="unknown-metric")
    if direction == "auto" and HIGHER_IS_BETTER.get(metric) is None:
        raise BadInput(f"is more of '{metric}' better or less? say --direction maximize or minimize", code="unknown-direction")


def goal(metric: str | None, direction: str, *, classes: int) -> Goal:
    """The figure asked for, or AUROC for two classes and accuracy for more."""
    name = metric or ("auroc" if classes == 2 else "accuracy")
    return Goal(name, HIGHER_IS_BETTER.get(name) is True if direction == "auto" else direction == "maximize")
