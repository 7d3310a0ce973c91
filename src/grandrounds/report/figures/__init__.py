"""Figures of runs and explanations: each function takes plain data and returns a `Figure`."""

from __future__ import annotations

from grandrounds.report.figures.calibration import decision_curve, reliability
from grandrounds.report.figures.cases import beeswarm, waterfall
from grandrounds.report.figures.comparison import arm_curves, intervals, pareto, radar, setting_curves, trade_off
from grandrounds.report.figures.deployed import deployed_losses
from grandrounds.report.figures.drift import (
    distance_to_consensus,
    drift_over_rounds,
    jaccard_over_rounds,
    pairwise_drift,
)
from grandrounds.report.figures.estimates import coefficients
from grandrounds.report.figures.forest import forest
from grandrounds.report.figures.images import image_grid, map_concentration, map_similarity, rationale_over_rounds
from grandrounds.report.figures.importance import importance_heatmap, importances, spurious_masses
from grandrounds.report.figures.privacy import epsilon_over_rounds
from grandrounds.report.figures.risk_card import risk_by_total
from grandrounds.report.figures.selection import selection_over_rounds
from grandrounds.report.figures.shapes import shape
from grandrounds.report.figures.survival import brier_over_time, survival_calibration, survival_curves
from grandrounds.report.figures.training import (
    bytes_over_rounds,
    crossed_curves,
    curves,
    local_curves,
    outcome_curves,
    presence_over_rounds,
    seconds_over_rounds,
    site_curves,
)
from grandrounds.report.figures.trees import validation_curve
from grandrounds.report.figures.trust import nsds_over_rounds, rewards_over_rounds, trust_over_rounds, trust_parts
from grandrounds.report.figures.weighting import (
    cohorts_over_rounds,
    disagreement_over_rounds,
    weights,
    weights_by_signal,
)

__all__ = [
    "arm_curves",
    "beeswarm",
    "setting_curves",
    "brier_over_time",
    "bytes_over_rounds",
    "coefficients",
    "cohorts_over_rounds",
    "curves",
    "decision_curve",
    "deployed_losses",
    "disagreement_over_rounds",
    "distance_to_consensus",
    "drift_over_rounds",
    "epsilon_over_rounds",
    "forest",
    "image_grid",
    "importance_heatmap",
    "importances",
    "intervals",
    "jaccard_over_rounds",
    "map_similarity",
    "map_concentration",
    "crossed_curves",
    "local_curves",
    "nsds_over_rounds",
    "outcome_curves",
    "pairwise_drift",
    "pareto",
    "presence_over_rounds",
    "radar",
    "rationale_over_rounds",
    "reliability",
    "rewards_over_rounds",
    "risk_by_total",
    "seconds_over_rounds",
    "selection_over_rounds",
    "shape",
    "site_curves",
    "spurious_masses",
    "survival_calibration",
    "survival_curves",
    "trade_off",
    "trust_over_rounds",
    "trust_parts",
    "validation_curve",
    "waterfall",
    "weights",
    "weights_by_signal",
]
