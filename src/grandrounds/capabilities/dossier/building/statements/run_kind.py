"""Kind of a run, as far as statements depend on it: task, images, rows at real sites, a result without a model."""

from __future__ import annotations

from typing import Any

from grandrounds.capabilities.dossier.building.evidence import PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Source, Value
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.methods.baselines import POOL
from grandrounds.metrics.fairness import is_defined

AT_SITES = "at the sites"
"""`data.table` of a plan whose rows are at real sites."""


def task_of(facts: Facts) -> str:
    """Return the task: "classification", "regression", "count" or "survival"."""
    return str(facts.get(SUMMARY, "task", default=CLASSIFICATION))


def task_source(facts: Facts) -> Source:
    """Name the source of the task."""
    return facts.source(SUMMARY, "task")


def classifies(facts: Facts) -> bool:
    """Tell whether the model predicts classes."""
    return task_of(facts) == CLASSIFICATION


def has_event(facts: Facts) -> bool:
    """Tell whether one of two classes is the event."""
    return classifies(facts) and facts.has(SUMMARY, "event", "class")


def trains_model(facts: Facts) -> bool:
    """Tell whether the run has a prediction model; Table 1 and Kaplan-Meier curves have none."""
    return not facts.has(SUMMARY, "statistic")


def reads_images(facts: Facts) -> bool:
    """Tell whether the model reads images."""
    return len(facts.get(SUMMARY, "inputs", default=())) == 3


def is_deployed(facts: Facts) -> bool:
    """Tell whether rows were at real sites."""
    return bool(facts.get(PLAN, "data", "table") == AT_SITES)


def has_test_rows(facts: Facts) -> bool:
    """Tell whether the model was scored on test rows."""
    count = facts.get(SUMMARY, "final", "count")
    return is_defined(count) and count > 0


def under_budget(facts: Facts) -> bool:
    """Tell whether the run has a budget of differential privacy."""
    return facts.has(PLAN, "privacy", "epsilon") or facts.has(SUMMARY, "privacy", "budget")


def site_rows(facts: Facts) -> dict[str, dict[str, int]]:
    """Return the rows of each site by part; the pool of a pooled run is no site.

    Raises:
        MissingFact: The run has none.
    """
    return {str(site): dict(rows) for site, rows in facts.raw(SUMMARY, "rows").items() if site != POOL}


def defined(facts: Facts, *path: str | int, reason: str = "", show: str = "") -> Value:
    """Read a number of summary.json that is defined.

    Args:
        facts: The facts.
        path: Keys.
        reason: Why it may be missing, for the gap; empty: the place is named.
        show: Form of the value in sentences.

    Raises:
        MissingFact: It is missing, null or not a number.
    """
    value: Any = facts.get(SUMMARY, *path)
    if not is_defined(value):
        raise MissingFact(reason or f"{SUMMARY} has no value of {'.'.join(map(str, path))}")
    return facts.value(SUMMARY, *path, show=show)
