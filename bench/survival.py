"""Distance of survival statistics from sums to those of pooled rows, on lung, gbsg2 and, with GRANDROUNDS_DATA, TCGA-BRCA.

python bench/survival.py

Columns: Kaplan-Meier by day and log-rank against lifelines; Kaplan-Meier on intervals of at least 5 events; C-index from
128 x 128 bins; Brier and integrated Brier score with censoring on intervals of at least 10 censored rows, against days.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test
from lifelines.utils import concordance_index

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.capabilities.statistics.cohorts import gbsg2, lung, tcga
from tests.capabilities.statistics.test_survival_scores import baseline_of, fitted, pooled_brier

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.kaplan_meier import fit_kaplan_meier
from grandrounds.capabilities.statistics.question import Record, fit_in_memory
from grandrounds.capabilities.statistics.survival_scores import fit_survival_scores
from smoke import SMOKE


def measure(make) -> None:
    """Print one line of distances."""
    cohort, beta, _ = fitted(make)
    sites, names = cohort.rows(), cohort.names()
    pooled = KaplanMeierFitter().fit(cohort.time, cohort.event)
    days, record = fit_in_memory(fit_kaplan_meier(names, grid="days"), sites, ANSWERS), Record()
    bins = fit_in_memory(fit_kaplan_meier(), sites, ANSWERS, record)

    def off(curve) -> float:
        return float(np.abs(pooled.survival_function_at_times(curve.times) - curve.survival).max())

    test = multivariate_logrank_test(cohort.time, cohort.group, cohort.event)
    baseline = baseline_of(make)
    scores = fit_in_memory(fit_survival_scores(beta, baseline, across=True), sites, ANSWERS)
    c_index = concordance_index(cohort.time, -(cohort.x @ beta), cohort.event)
    horizons = np.array(scores.brier.horizons)
    reference = pooled_brier(cohort, np.exp(-np.exp(cohort.x @ beta)[:, None] * baseline.at(horizons)), horizons)
    width = np.diff(horizons)
    integrated = float((width * (reference[1:] + reference[:-1])).sum() / 2 / width.sum())
    print(
        f"{make.__name__:6} KM by day {off(days.overall):.1e}  "
        f"log-rank {abs(days.log_rank.statistic - test.test_statistic):.1e}  "
        f"KM on intervals {off(bins.overall):.4f} ({len(bins.overall.times)} points, {record.exchanges} exchanges, "
        f"{record.numbers} numbers)  C-index {abs(scores.across.index - c_index):.4f}  "
        f"Brier {np.abs(reference - scores.brier.model).max():.4f}  integrated {abs(scores.brier.integrated - integrated):.1e}"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for chosen in (lung, gbsg2, *([tcga] if "GRANDROUNDS_DATA" in os.environ and not SMOKE else [])):
        measure(chosen)
