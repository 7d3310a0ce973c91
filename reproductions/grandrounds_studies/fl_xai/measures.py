"""Measures of the FL-XAI reproduction: the common model, sites' own models on their training rows, courses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.metrics.local_models import local_means
from grandrounds_studies.measures import ACCURACY, LOG_LOSS
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

TRAINED = "train_accuracy"


def number(value: Any) -> float:
    """A figure of a run; NaN where it has none."""
    return nan if value is None else float(value)


def of_sites(run: Run) -> dict[str, float]:
    """Each site's own model on its own training rows, the newest that is known: asynchronous sites answer in turn."""
    told = [r["local"][TRAINED] for r in run.rounds if r.get("local")]
    return {s: float(v) for held in told for s, v in held.items() if v is not None and isfinite(v)}


def _trained(run: Run) -> float:
    return number(local_means({TRAINED: of_sites(run)}, run.summary["rows"])[TRAINED])


def _spread(run: Run) -> float:
    held = list(of_sites(run).values())
    return float(np.std(held)) if len(held) > 1 else nan


def _first(run: Run, *path: str) -> float:
    """The weighed mean over sites of the first round's, or a figure of the common model in it."""
    record = run.rounds[0]
    if path[0] == "local":
        told = record.get("local", {}).get(path[1], {})
        return number(local_means({path[1]: told}, run.summary["rows"])[path[1]])
    return number(record.get(path[0], {}).get(path[1]))


ERROR_RATE = Measure("error_rate", "error rate", lambda run: 1 - ACCURACY.read(run), lower=True)
LOCAL = Measure("local_train", "training accuracy of local models", _trained, lower=False)
SPREAD = Measure("local_spread", "its deviation over sites", _spread, lower=True, digits=4)
FIRST = Measure("first", "accuracy in round 1", lambda run: _first(run, "test", "accuracy"), lower=False)
FIRST_LOCAL = Measure(
    "first_local", "training accuracy in round 1", lambda run: _first(run, "local", TRAINED), lower=False
)
OF_A_RUN = (ACCURACY, LOG_LOSS, ERROR_RATE, LOCAL, SPREAD)


def accuracies(run: Run) -> list[float]:
    """The common model's by round, in rounds that were judged."""
    return [number(r["test"]["accuracy"]) for r in run.rounds if "test" in r]


def courses(run: Run) -> dict[str, Any]:
    """For curves: the common model's accuracy by round, and each site's own model beside it where it was scored."""
    return {"accuracy": accuracies(run), "rounds": list(_told(run))}


def _told(run: Run) -> Iterator[Mapping[str, Any]]:
    for r in run.rounds:
        if r.get("local") and "test" in r:
            yield {
                "round": r["round"],
                "test": {"accuracy": r["test"]["accuracy"]},
                "local": {TRAINED: r["local"][TRAINED]},
            }
