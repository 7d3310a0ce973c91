"""Trust as a detector of attackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grandrounds.report.figure import Figure
from grandrounds_studies import detection
from grandrounds_studies.detection import area
from grandrounds_studies.fedxchain.measures import means, sides
from grandrounds_studies.results import Results
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def trust_of_sites(run: Run) -> dict[str, Any]:
    """The last round's trust of attackers and of honest sites."""
    bad, honest = sides(run)
    return {"bad": bad, "honest": honest}


DETECTED = Measure("detected", "ROC area of trust", lambda run: area(*sides(run)), lower=False, digits=2)


def _by_contribution(run: Run) -> float:
    """The same by what sites contributed, as the mean over rounds."""
    return area(*detection.sides(run, means(run, "contribution")))


CONTRIBUTED = Measure("contributed", "ROC area of contribution", _by_contribution, lower=False, digits=2)


def roc_curves(results: Results) -> list[tuple[str, Sequence[Figure]]]:
    """At each point one curve an arm, of all sites of all seeds."""
    return detection.roc_curves(results, "Trust")
