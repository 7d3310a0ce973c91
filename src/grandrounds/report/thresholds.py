"""Threshold explorer: decisions of a run at other thresholds than its own, for all hospitals and for each.

Everything comes from `score_counts` of the summary: test patients counted by predicted risk. Counts are exact at the edges of
their cells; between two edges a figure is known to lie between those at the edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.metrics.confusion import Decisions
from grandrounds.metrics.score_counts import ScoreCounts
from grandrounds.report.hospitals import name_threshold
from grandrounds.report.outcome import task_of_run

CHOSEN = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Thresholds of the table; each is moved to the nearest edge of the counts."""

_HIDDEN = {
    "secure": "This run used secure aggregation: the server received sums over all hospitals only, so single hospitals have no "
    "figures at other thresholds.",
    "budget": "This run has a privacy budget: counts of single hospitals would have no noise, so they are not stored.",
    "many": "This run has too many hospitals to store the counts of each.",
}


@dataclass(frozen=True)
class ThresholdExplorer:
    """Counts by predicted risk of a run.

    Attributes:
        threshold: The threshold of the run's decisions.
        least: Smallest count of a hospital's cells.
        deployed: Whether the risks are those of the models that hospitals deploy.
        overall: All test patients.
        hospitals: Each hospital's, by name; empty where they were not stored.
        hidden: Why there are none of single hospitals; "" where there are.
        common_threshold: The threshold of the common model; it may differ from that of the deployed models.
    """

    threshold: float
    least: int
    deployed: bool
    overall: ScoreCounts
    hospitals: Mapping[str, ScoreCounts]
    hidden: str = ""
    common_threshold: float | None = None

    @property
    def threshold_name(self) -> str:
        """Name the threshold of the run's decisions."""
        return name_threshold(self.threshold, self.common_threshold)

    def find(self, hospital: str = "") -> ScoreCounts | None:
        """Return the counts of a hospital, or of all for ""."""
        return self.overall if not hospital else self.hospitals.get(hospital)

    @property
    def note(self) -> str:
        """Explain how the counts were made."""
        return (
            "Test patients are counted by predicted risk. Cells of a hospital are merged until each has no patient or at least "
            f"{self.least} with and without the event, so a small hospital is known at few thresholds. Between two of them a "
            "figure lies in the range shown."
        )


def read_thresholds(summary: Mapping[str, Any], *, deployed: bool = True) -> ThresholdExplorer | None:
    """Read the counts of a summary.

    Args:
        summary: The summary of a finished run.
        deployed: Those of the models that hospitals deploy, where they differ from the common one.

    Returns:
        The counts; None for a run without them (`why_absent` says why).

    Raises:
        BadInput: The record is damaged.
    """
    personal = (summary.get("personal") or {}).get("score_counts") if deployed else None
    record = personal or summary.get("score_counts")
    if not record:
        return None
    try:
        return ThresholdExplorer(
            float(record["threshold"]),
            int(record["least"]),
            personal is not None,
            ScoreCounts.from_dict(record["all"]),
            {str(site): ScoreCounts.from_dict(counts) for site, counts in record["sites"].items()},
            _HIDDEN.get(str(record.get("hidden", "")), ""),
            None if summary.get("threshold") is None else float(summary["threshold"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "summary.json is damaged: its score counts cannot be read; run the experiment again", code="damaged-record"
        ) from None


def why_absent(summary: Mapping[str, Any]) -> str:
    """Explain why a finished run has no counts by predicted risk."""
    if task_of_run(summary) != CLASSIFICATION:
        return "This run predicts no class: there is no threshold to choose."
    if len(summary.get("classes") or ()) > 2:
        return "This run has three classes or more: a decision is the class with the highest probability."
    return "No row was set aside for a test: the run has no decisions to count."


def choose_rows(counts: ScoreCounts, threshold: float, chosen: Sequence[float] = CHOSEN) -> list[Decisions]:
    """Return the decisions at some edges of the counts: those nearest to the chosen thresholds, and the run's own."""
    inner = range(1, len(counts.edges) - 1)
    near = {min(inner, key=lambda k: abs(counts.edges[k] - t)) for t in (*chosen, threshold)} if inner else set()
    return [counts.decide(k) for k in sorted(near)]
