"""Metrics from sums of per-site statistics: tally at each site, add, score the sum."""

from grandrounds.metrics.classification import BINS, LIMIT, SOFTNESS, bin_centres, bin_edges
from grandrounds.metrics.decision import DecisionCurve, choose_threshold, decision_curve
from grandrounds.metrics.outcomes import OutcomeTally, tally_outcome
from grandrounds.metrics.scores import (
    DESCRIPTIONS,
    HEADLINE,
    HIGHER_IS_BETTER,
    LOSS,
    METRICS,
    MetricSpec,
    Place,
    metrics_of,
    scores,
    shown_in,
)
from grandrounds.metrics.statistics import PairedTest, Summary, describe, paired_t
from grandrounds.metrics.tally import ScoredRows, Tally, tally

__all__ = [
    "BINS",
    "DESCRIPTIONS",
    "HEADLINE",
    "HIGHER_IS_BETTER",
    "LIMIT",
    "LOSS",
    "METRICS",
    "SOFTNESS",
    "DecisionCurve",
    "MetricSpec",
    "OutcomeTally",
    "PairedTest",
    "Place",
    "ScoredRows",
    "Summary",
    "Tally",
    "bin_centres",
    "bin_edges",
    "choose_threshold",
    "decision_curve",
    "describe",
    "metrics_of",
    "paired_t",
    "scores",
    "shown_in",
    "tally",
    "tally_outcome",
]
