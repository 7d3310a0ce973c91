"""Small survival results, for figures and pages."""

from __future__ import annotations

import numpy as np

from grandrounds.capabilities.statistics.brier import BrierScores, CalibrationGroup
from grandrounds.capabilities.statistics.concordance import Concordance
from grandrounds.capabilities.statistics.kaplan_meier import estimate_curve
from grandrounds.capabilities.statistics.log_rank import LogRank
from grandrounds.capabilities.statistics.survival_scores import SurvivalScores
from grandrounds.capabilities.statistics.time_counts import TimeCounts

_COUNTS = TimeCounts(np.array([5.0, 10.0]), np.array([[2.0, 2.0]]), np.array([[2.0, 0.0]]), np.array([4.0]))
BY_DAY = estimate_curve("a <b>", _COUNTS, grid="days")
ON_BINS = estimate_curve("c", _COUNTS, grid="bins", least=2)
LOG_RANK = LogRank(("a <b>", "c"), (4.0, 4.0), (5.0, 3.0), 0.61, 1, 0.4348)
SCORES = SurvivalScores(
    40,
    Concordance(5, 1, 8),
    brier=BrierScores((1.0, 2.0), (0.1, 0.15), (0.12, 0.2), 0.125, 0.16),
    calibration=(CalibrationGroup(20, 0.1, 0.12, 0.05, 0.3), CalibrationGroup(20, 0.4, 0.35, 0.2, 0.6)),
    horizon=2.0,
)
