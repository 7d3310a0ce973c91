"""The goal of a search, its trials and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from grandrounds.capabilities.tuning.space import Value
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plugins import last_word
from grandrounds.metrics import DESCRIPTIONS, HIGHER_IS_BETTER
from grandrounds.metrics.scores import HEADLINE, OUTCOME_SCORES

if TYPE_CHECKING:
    from pandas import DataFrame

    from grandrounds.experiment.experiment import Experiment


@dataclass(frozen=True)
class Goal:
    """A metric of the validation rows, to be maximised or minimised."""

    metric: str
    maximize: bool

    @property
    def worst(self) -> float:
        """Return the value of a failed trial."""
        return -math.inf if self.maximize else math.inf

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.maximize else "minimize"

    def rank(self, value: float | None) -> float:
        """Return a sort key: the least is best, and a trial without a value comes last."""
        return math.inf if value is None else -value if self.maximize else value


def check_metric(metric: str | None, direction: str, custom: Sequence[str]) -> None:
    """Refuse a metric that no run will have, or whose direction is unknown.

    Args:
        metric: The metric; None is the default.
        direction: "auto", "maximize" or "minimize".
        custom: Import paths of the experiment's custom metrics.

    Raises:
        BadInput: The metric is unknown, or its direction is.
    """
    if metric is None:
        return
    names = [*DESCRIPTIONS, *(m.name for table in OUTCOME_SCORES.values() for m in table), *map(last_word, custom)]
    if metric not in names:
        raise BadInput(f"no metric '{metric}'; {nearest(metric, names)}", code="unknown-metric")
    if direction == "auto" and HIGHER_IS_BETTER.get(metric) is None:
        raise BadInput(f"the direction of '{metric}' is unknown: give --direction maximize or minimize", code="unknown-direction")


def make_goal(metric: str | None, direction: str, *, classes: int, task: str = CLASSIFICATION) -> Goal:
    """Return the goal: the given metric, or that of the task: AUROC for two classes, accuracy for more, R2, D2, C-index.

    Args:
        metric: The metric; None is the default.
        direction: "auto", "maximize" or "minimize".
        classes: Number of classes.
        task: The type of the outcome.
    """
    usual = ("auroc" if classes == 2 else "accuracy") if task == CLASSIFICATION else HEADLINE[task]
    name = metric or usual
    return Goal(name, HIGHER_IS_BETTER.get(name) is True if direction == "auto" else direction == "maximize")


class Releases(TypedDict, total=False):
    """Releases of a run about patients; empty where it gives no guarantee."""

    delta: float
    events: list[dict[str, Any]]
    unit: str


class PrivacyCost(TypedDict, total=False):
    """The privacy cost of a search, as in results.json."""

    trials: int
    elsewhere: str
    delta: float
    unit: str
    epsilon_each: float
    epsilon_added: float
    epsilon: float | None
    epsilon_with_final: float
    statement: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: its metric, or the reason for the failure."""

    value: float | None
    failed: str = ""
    seconds: float = 0.0
    privacy: Releases = field(default_factory=Releases)


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and their outcome. `same_as`: the earlier trial with the same settings."""

    number: int
    settings: Mapping[str, Value]
    outcome: Outcome
    same_as: int | None = None

    @property
    def value(self) -> float | None:
        return self.outcome.value

    @property
    def failed(self) -> str:
        return self.outcome.failed

    def to_dict(self) -> dict[str, object]:
        return {
            "number": self.number,
            "settings": dict(self.settings),
            "value": self.value,
            "failed": self.failed or None,
            "same_as": self.same_as,
            "seconds": self.outcome.seconds,
        }


@dataclass(frozen=True)
class TuningResult:
    """A finished search: the best trial, all of them in their order, and the experiment with the best settings.

    The first trial is the experiment as it was: it has no value of a setting that was not set.
    """

    best: Trial
    trials: tuple[Trial, ...]
    experiment: Experiment
    goal: Goal
    importance: Mapping[str, float]  # shares that sum to 1, the largest first; empty where too few trials ended
    privacy: PrivacyCost
    folder: Path
    rows: int  # number of validation rows on which settings were scored

    @property
    def searched(self) -> tuple[str, ...]:
        """Return the settings that were searched."""
        return tuple(dict.fromkeys(name for t in reversed(self.trials) for name in t.settings))

    @property
    def ranking(self) -> list[Trial]:
        """Return the trials that ran, best first, the earlier of equals first. Repeated settings are listed once."""
        ended = [t for t in self.trials if t.value is not None and t.same_as is None]
        return sorted(ended, key=lambda t: (self.goal.rank(t.value), t.number))

    @property
    def equals(self) -> int:
        """Count the different settings with the best value."""
        return sum(t.value == self.best.value for t in self.ranking)

    @property
    def frame(self) -> DataFrame:
        """The trials as a data frame, one line per trial in their order: value, failure, seconds, and each setting."""
        from pandas import DataFrame

        lines = []
        for trial in self.trials:
            values = trial.to_dict()
            values.pop("settings")
            settings = {name: trial.settings.get(name) for name in self.searched}
            lines.append({**values, **settings})
        return DataFrame(lines).rename(columns={"number": "trial"}).set_index("trial")

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())

    @property
    def failures(self) -> list[Trial]:
        return [t for t in self.trials if t.failed]
