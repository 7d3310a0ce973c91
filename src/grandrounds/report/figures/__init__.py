"""Figures of runs and explanations: plain data in, a `Figure` out. One function a figure."""

from grandrounds.report.figures.calibration import decision_curve, reliability
from grandrounds.report.figures.cases import beeswarm, waterfall
from grandrounds.report.figures.comparison import arm_curves, by_setting, intervals, pareto, radar, trade_off
from grandrounds.report.figures.drift import (
    distance_to_consensus,
    drift_over_rounds,
    jaccard_over_rounds,
    pairwise_drift,
)
from grandrounds.report.figures.images import image_grid, maps_alike, maps_sharp, reasons_over_rounds
from grandrounds.report.figures.importance import importance_heatmap, importances, spurious_masses
from grandrounds.report.figures.privacy import epsilon_over_rounds
from grandrounds.report.figures.training import (
    bytes_over_rounds,
    curves,
    lent_curves,
    local_curves,
    presence_over_rounds,
    seconds_over_rounds,
    site_curves,
)
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
    "by_setting",
    "bytes_over_rounds",
    "cohorts_over_rounds",
    "curves",
    "decision_curve",
    "disagreement_over_rounds",
    "distance_to_consensus",
    "drift_over_rounds",
    "epsilon_over_rounds",
    "image_grid",
    "importance_heatmap",
    "importances",
    "intervals",
    "jaccard_over_rounds",
    "maps_alike",
    "maps_sharp",
    "lent_curves",
    "local_curves",
    "nsds_over_rounds",
    "pairwise_drift",
    "pareto",
    "presence_over_rounds",
    "radar",
    "reasons_over_rounds",
    "reliability",
    "rewards_over_rounds",
    "seconds_over_rounds",
    "site_curves",
    "spurious_masses",
    "trade_off",
    "trust_over_rounds",
    "trust_parts",
    "waterfall",
    "weights",
    "weights_by_signal",
]
