"""Metrics from sums of per-site statistics: tally at each site, add, score the sum."""

from grandrounds.metrics.classification import BINS, LIMIT, SOFTNESS, bin_centres, bin_edges
from grandrounds.metrics.decision import DecisionCurve, choose_threshold, decision_curve
from grandrounds.metrics.scores import (
    DESCRIPTIONS,
    HIGHER_IS_BETTER,
    METRICS,
    MetricSpec,
    Place,
    scores,
    shown_in,
)
from grandrounds.metrics.statistics import PairedTest, Summary, describe, paired_t
from grandrounds.metrics.tally import ScoredRows, Tally, tally

__all__ = [
    "BINS",
    "DESCRIPTIONS",
    "HIGHER_IS_BETTER",
    "LIMIT",
    "METRICS",
    "SOFTNESS",
    "DecisionCurve",
    "MetricSpec",
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
    "paired_t",
    "scores",
    "shown_in",
    "tally",
]
