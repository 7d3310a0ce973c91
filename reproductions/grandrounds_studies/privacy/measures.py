"""Measures of a run with a privacy guarantee: what it spent, and what it was charged for."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def _epsilon(run: Run) -> float:
    """By the accountant, at the run's delta; NaN where nothing is guaranteed."""
    spent = run.summary["privacy"].get("epsilon")
    return nan if spent is None else float(spent)


EPSILON = Measure("epsilon", "epsilon spent", _epsilon, lower=True, digits=4)


def promise(run: Run) -> dict[str, Any]:
    """The guarantee as text, and every release that was charged for."""
    told = run.summary["privacy"]
    return {"statement": str(told.get("statement", "")), "charged": [str(e["what"]) for e in told.get("events", ())]}
