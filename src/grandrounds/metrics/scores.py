"""The table of metrics: one `MetricSpec` a metric, with its formula, its words, its direction and the places that show it.

A metric is added by one entry here. Records, screens, reports, the model card, the console and comparisons take their columns
from the table (`shown_in`), and `scores` works out every figure of it from a tally.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np

from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL
from grandrounds.metrics.calibration import Estimated, calibration_error, calibration_in_the_large, calibration_line
from grandrounds.metrics.classification import (
    Array,
    Floats,
    OccupiedBins,
    average_precision,
    mean_defined,
    precision_resolution,
    ratio,
    recall_at_specificity,
    roc_area,
    roc_interval,
    roc_resolution,
)
from grandrounds.metrics.outcomes import (
    OutcomeTally,
    c_index,
    cox_loss,
    events,
    explained_deviance,
    explained_variance,
    mean_absolute_error,
    mean_error,
    mean_squared_error,
    poisson_deviance,
    root_mean_squared_error,
)
from grandrounds.metrics.tally import ExactTally, Tally

Range = tuple[float, float]
SHARE: Range = (0.0, 1.0)
CORRELATION: Range = (-1.0, 1.0)
POSITIVE: Range = (0.0, float("inf"))
DISTANCE: Range = (0.0, 2.0)


class Place(Enum):
    """Tables, lists and records that have some of the metrics."""

    ROUND = "the consortium's figures in the record of a round"
    ROUND_SITES = "each site's figures in the record of a round"
    TASK = "figures of each task in the summary, where sites have different ones"
    GAP = "train minus test in the summary"
    WORST_SITE = "figures of the worst site in the summary"
    SCREEN = "table of a run on the terminal; accuracy, balanced accuracy and macro F1 are of decisions (`fairness.decided`)"
    TILES = "figures at the head of a run in the console, after the accuracy"
    SCREEN_SITES = "table of sites on the terminal, after the AUROC and the accuracy"
    SCREEN_SHORTCUT = "line on a shortcut on the terminal"
    REPORT_SITES = "table of sites in the report and the console, after the AUROC and the accuracy"
    REPORT_TASKS = "table of tasks in the report"
    REPORT_SHORTCUT = "table of a shortcut in the report"
    CARD = "model card"
    SUBGROUPS = "tables of subgroups, and figures by which one is called clearly worse"
    COURSE = "curves over rounds, and tables that follow a site or a run"
    COMPARISON = "comparison of runs, unless told otherwise"
    COMPARISON_BESIDE = "comparison of runs in the console, after the metrics of test rows"
    RUN_LIST = "list of runs in the console"
    CONSOLE_SITES = "values of each site in the console"
    CONSOLE_SUBGROUPS = "values of each subgroup in the console"


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: Key in summary.json and in `rounds compare --metrics`.
        text: Definition in one sentence.
        higher_is_better: None where neither direction is better.
        work: The figure of a tally, of its leading shape; None for figures that are read from a summary.
        two_classes: Undefined with three classes or more.
        at_threshold: Moves with the run's threshold when there are two classes.
        limits: The least and the largest possible value; None where there are none.
        called: Name for people, where it is not the key without underscores.
        digits: Decimals in the report's table of all metrics.
        shown: Places that show it, with its rank there; metrics of equal rank are in the order of the table.
        path: Keys that lead to it in a summary; empty for figures of test rows.
        of_outcome: The figure of an `OutcomeTally`, for tasks other than classification.
    """

    name: str
    text: str = ""
    higher_is_better: bool | None = None
    work: Callable[[Figures], Array] | None = None
    two_classes: bool = False
    at_threshold: bool = False
    limits: Range | None = SHARE
    called: str = ""
    digits: int = 4
    shown: Mapping[Place, int] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    of_outcome: Callable[[OutcomeTally], Array] | None = None

    @property
    def words(self) -> str:
        """Return the name that people read."""
        return self.called or self.name.replace("_", " ")


class Figures:
    """A tally at a threshold on P(y=1), with what several metrics share worked out once."""

    def __init__(self, tally: Tally | ExactTally, threshold: float) -> None:
        self.tally, self.threshold = tally, threshold

    @property
    def bins(self) -> OccupiedBins:
        return self.tally.bins

    @cached_property
    def counts_at_threshold(self) -> tuple[Floats, Floats]:
        """Compute the negatives and positives (...) whose probability is at least the threshold."""
        return self.bins.count_at_least(self.threshold)

    @cached_property
    def decisions(self) -> Array:
        """Compute the confusion matrix (..., C, C) [true, decided]; with three classes or more a decision is the top class.

        Exact where the threshold is an edge of the grid, as 0.5 and every chosen one are; else the threshold's bin is shared
        out (`OccupiedBins.count_at_least`).
        """
        if not self.tally.binary:
            return self.tally.confusion
        false_alarms, caught = (reached[..., 0] for reached in self.counts_at_threshold)
        negatives, positives = self.bins.negatives[..., 0], self.bins.positives[..., 0]
        rows = [np.stack([negatives - false_alarms, false_alarms], -1), np.stack([positives - caught, caught], -1)]
        return np.stack(rows, axis=-2)

    @cached_property
    def interval(self) -> tuple[Floats, Floats]:
        """Ends of DeLong's interval of the AUROC."""
        return roc_interval(self.bins)

    @cached_property
    def line(self) -> tuple[Estimated, Estimated]:
        """Fit the slope and intercept of the calibration line."""
        return calibration_line(self.bins)

    @cached_property
    def in_the_large(self) -> Estimated:
        """Fit the intercept of the log-odds with a slope of 1."""
        return calibration_in_the_large(self.bins)


def accuracy(confusion: Array) -> Floats:
    """Compute the share of rows on the diagonal of a confusion matrix (..., C, C) [true, predicted], (...)."""
    return ratio(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


def majority(confusion: Array) -> Floats:
    """Compute the share of the most common true class, (...): the accuracy of always answering it."""
    return ratio(confusion.sum(axis=-1).max(axis=-1), confusion.sum(axis=(-2, -1)))


def balanced_accuracy(confusion: Array) -> Floats:
    """Compute the mean recall over the classes that occur, (...); NaN when only one does, for it balances nothing."""
    truth = confusion.sum(axis=-1)
    recall = ratio(np.diagonal(confusion, axis1=-2, axis2=-1), truth)
    several = (truth > 0).sum(axis=-1) > 1
    return np.where(several, mean_defined(recall), np.nan)


def macro_f1(confusion: Array) -> Floats:
    """Compute the mean F1 over the classes that occur or are predicted, (...)."""
    hit = np.diagonal(confusion, axis1=-2, axis2=-1)
    return mean_defined(ratio(2 * hit, confusion.sum(axis=-1) + confusion.sum(axis=-2)))


def matthews(confusion: Array) -> Floats:
    """Compute the correlation of true and decided class, (...) (Matthews 1975; Gorodkin 2004 for several classes).

    NaN where all rows are of one class, or all are decided alike: a margin of zero.
    """
    table = confusion.astype(np.float64)
    truth, decided, rows = table.sum(axis=-1), table.sum(axis=-2), table.sum(axis=(-2, -1))
    together = np.trace(table, axis1=-2, axis2=-1) * rows - (truth * decided).sum(axis=-1)
    off_diagonal = 1.0 - np.eye(table.shape[-1])  # pairs of different classes: exactly zero where one class has all rows
    apart = [np.einsum("...j,...k,jk->...", margin, margin, off_diagonal) for margin in (truth, decided)]
    return np.clip(ratio(together, np.sqrt(apart[0] * apart[1])), -1.0, 1.0)


def _sensitivity(f: Figures) -> Floats:
    return ratio(f.counts_at_threshold[1], f.bins.positives)


def _specificity(f: Figures) -> Floats:
    return ratio(f.bins.negatives - f.counts_at_threshold[0], f.bins.negatives)


def _ppv(f: Figures) -> Floats:
    false_alarms, caught = f.counts_at_threshold
    return ratio(caught, caught + false_alarms)


def _npv(f: Figures) -> Floats:
    spared, missed = f.bins.negatives - f.counts_at_threshold[0], f.bins.positives - f.counts_at_threshold[1]
    return ratio(spared, spared + missed)


def _shown(*places: Place, **ranks: int) -> dict[Place, int]:
    """Places in the order of the table, and places by name with a rank."""
    return dict.fromkeys(places, 0) | {Place[place.upper()]: rank for place, rank in ranks.items()}


P = Place
SCORES: tuple[MetricSpec, ...] = (
    MetricSpec(
        "count", "Rows scored.", None, lambda f: f.tally.count,
        limits=POSITIVE, digits=0, shown=_shown(P.ROUND, P.ROUND_SITES, P.TASK, worst_site=1),
    ),
    MetricSpec(
        "events", "Rows of the positive class (two classes only).", None,
        lambda f: np.where(f.tally.count > 0, f.bins.positives[..., 0], np.nan),
        two_classes=True, limits=POSITIVE, digits=0, shown=_shown(worst_site=2),
    ),
    MetricSpec(
        "decision_accuracy", "Share of rows that the model decides rightly at the run's threshold.", True,
        lambda f: accuracy(f.decisions),
        at_threshold=True, shown=_shown(worst_site=4, console_sites=5, console_subgroups=4),
    ),
    MetricSpec(
        "decision_balanced_accuracy", "Mean recall of the decisions at the run's threshold; undefined for one class.", True,
        lambda f: balanced_accuracy(f.decisions), at_threshold=True,
    ),
    MetricSpec(
        "decision_macro_f1", "Mean F1 of the decisions at the run's threshold.", True,
        lambda f: macro_f1(f.decisions), at_threshold=True, called="decision macro F1",
    ),
    MetricSpec(
        "accuracy", "Share of rows whose predicted class (P >= 0.5, or the top class) is right.", True,
        lambda f: accuracy(f.tally.confusion),
        shown=_shown(
            P.ROUND, P.ROUND_SITES, P.TASK, P.GAP, P.SCREEN, P.REPORT_TASKS, P.COURSE, P.COMPARISON, P.RUN_LIST,
            card=3, report_shortcut=3, screen_shortcut=3, worst_site=3, console_sites=4,
        ),
    ),
    MetricSpec(
        "majority", "Accuracy of always answering the most common true class (of all rows: that of each hospital).", None,
        lambda f: majority(f.tally.confusion),
        shown=_shown(
            P.TASK, P.REPORT_SITES, P.SCREEN_SITES, P.REPORT_TASKS, report_shortcut=4, worst_site=5, console_sites=6
        ),
    ),
    MetricSpec(
        "balanced_accuracy", "Mean recall over the classes that occur; undefined when only one does.", True,
        lambda f: balanced_accuracy(f.tally.confusion),
        shown=_shown(P.ROUND, P.TASK, P.SCREEN, card=4, report_shortcut=5),
    ),
    MetricSpec(
        "macro_f1", "Mean F1 over the classes that occur or are predicted.", True,
        lambda f: macro_f1(f.tally.confusion),
        called="macro F1", shown=_shown(P.ROUND, P.TASK, P.SCREEN, P.COMPARISON),
    ),
    MetricSpec(
        "mcc", "Matthews correlation coefficient of the decisions at the run's threshold; undefined for one class.", True,
        lambda f: matthews(f.decisions), at_threshold=True, limits=CORRELATION, called="MCC", shown=_shown(P.SCREEN, card=8),
    ),
    MetricSpec(
        "auroc", "Chance that a positive scores above a negative; several classes: mean of one against the rest.", True,
        lambda f: mean_defined(roc_area(f.bins)), called="AUROC",
        shown=_shown(
            P.ROUND, P.ROUND_SITES, P.TASK, P.GAP, P.SCREEN, P.REPORT_TASKS, P.COURSE, P.COMPARISON, P.RUN_LIST, P.SUBGROUPS,
            card=1, report_shortcut=1, screen_shortcut=1, worst_site=6, console_sites=1, console_subgroups=1,
        ),
    ),
    MetricSpec(
        "auroc_low", "Lower end of DeLong's 95% interval of the AUROC (two classes only).", True,
        lambda f: f.interval[0], two_classes=True, shown=_shown(worst_site=7, console_sites=2),
    ),
    MetricSpec(
        "auroc_high", "Upper end of DeLong's 95% interval of the AUROC (two classes only).", True,
        lambda f: f.interval[1], two_classes=True, shown=_shown(worst_site=8, console_sites=3),
    ),
    MetricSpec(
        "auroc_resolution", "Largest error that the AUROC can have because scores were counted in bins; 0 at a site.", None,
        lambda f: mean_defined(roc_resolution(f.bins)),
    ),
    MetricSpec(
        "auprc", "Average precision; several classes: mean of one against the rest.", True,
        lambda f: mean_defined(average_precision(f.bins)), called="AUPRC",
        shown=_shown(P.ROUND, P.TASK, P.SCREEN, P.COMPARISON, card=2, report_shortcut=2, screen_shortcut=2),
    ),
    MetricSpec(
        "auprc_resolution",
        "Largest error that the average precision can have because scores were counted in bins; 0 at a site.", None,
        lambda f: mean_defined(precision_resolution(f.bins)),
    ),
    MetricSpec(
        "brier", "Mean squared error of P(y=1); several classes: summed over classes, from 0 to 2.", False,
        lambda f: ratio(f.tally.brier, f.tally.count), limits=DISTANCE, shown=_shown(P.ROUND, P.SCREEN, card=10),
    ),
    MetricSpec(
        "log_loss", "Mean negative log-likelihood in nats.", False,
        lambda f: ratio(f.tally.log_loss, f.tally.count), limits=POSITIVE,
        shown=_shown(
            P.ROUND, P.ROUND_SITES, P.TASK, P.GAP, P.SCREEN, P.REPORT_SITES, P.REPORT_TASKS, P.COURSE, P.COMPARISON, P.RUN_LIST,
            P.TILES,
            card=9, report_shortcut=6, worst_site=9, console_sites=7,
        ),
    ),
    MetricSpec(
        "ece", "Expected calibration error: mean gap of confidence and outcome over 15 equal-width bins.", False,
        lambda f: calibration_error(f.tally.reliability), called="ECE",
        shown=_shown(
            P.ROUND, P.ROUND_SITES, P.SCREEN, P.REPORT_SITES, P.SCREEN_SITES, P.COMPARISON, P.RUN_LIST, P.TILES,
            card=11, report_shortcut=7, console_sites=8, console_subgroups=5,
        ),
    ),
    MetricSpec(
        "calibration_slope", "Slope of the logistic regression of y on log-odds: 1 is ideal, less overconfident.", None,
        lambda f: f.line[0].value, two_classes=True, limits=None, shown=_shown(P.SCREEN, card=12),
    ),
    MetricSpec("calibration_slope_low", "Lower end of the 95% interval of the calibration slope.", None,
               lambda f: f.line[0].low, two_classes=True, limits=None),
    MetricSpec("calibration_slope_high", "Upper end of the 95% interval of the calibration slope.", None,
               lambda f: f.line[0].high, two_classes=True, limits=None),
    MetricSpec(
        "calibration_in_the_large", "Intercept with the slope fixed at 1: 0 is ideal, above 0 risks are too low.", None,
        lambda f: f.in_the_large.value, two_classes=True, limits=None, called="calibration in the large",
        shown=_shown(P.SCREEN, card=13),
    ),
    MetricSpec("calibration_in_the_large_low", "Lower end of the 95% interval of calibration in the large.", None,
               lambda f: f.in_the_large.low, two_classes=True, limits=None),
    MetricSpec("calibration_in_the_large_high", "Upper end of the 95% interval of calibration in the large.", None,
               lambda f: f.in_the_large.high, two_classes=True, limits=None),
    MetricSpec(
        "calibration_intercept", "Intercept of that same regression, fitted together with the slope; 0 is ideal.", None,
        lambda f: f.line[1].value, two_classes=True, limits=None, called="calibration intercept, fitted with the slope",
    ),
    MetricSpec("calibration_intercept_low", "Lower end of the 95% interval of that intercept.", None,
               lambda f: f.line[1].low, two_classes=True, limits=None),
    MetricSpec("calibration_intercept_high", "Upper end of the 95% interval of that intercept.", None,
               lambda f: f.line[1].high, two_classes=True, limits=None),
    MetricSpec(
        "recall_at_90_specificity", "Share of positives found, 90% of negatives spared; several classes: mean.", True,
        lambda f: mean_defined(recall_at_specificity(f.bins, specificity=0.9)), shown=_shown(P.SCREEN),
    ),
    MetricSpec(
        "sensitivity", "Share of positives at or above the threshold (two classes only).", True, _sensitivity,
        two_classes=True, at_threshold=True, shown=_shown(P.SCREEN, P.SUBGROUPS, card=5, console_subgroups=2),
    ),
    MetricSpec(
        "specificity", "Share of negatives below the threshold (two classes only).", True, _specificity,
        two_classes=True, at_threshold=True, shown=_shown(P.SCREEN, P.SUBGROUPS, card=6, console_subgroups=3),
    ),
    MetricSpec(
        "ppv", "Share of positives among rows at or above the threshold (two classes only).", True, _ppv,
        two_classes=True, at_threshold=True, called="PPV", shown=_shown(P.SCREEN, card=7),
    ),
    MetricSpec(
        "npv", "Share of negatives among rows below the threshold (two classes only).", True, _npv,
        two_classes=True, at_threshold=True, called="NPV", shown=_shown(P.SCREEN),
    ),
)  # fmt: skip
"""Figures of test rows, in the order of summary.json."""

_TRAINING, _DEPLOYED = ("explanation", "training"), ("explanation", "deployed")
SUMMARY_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "auroc_within", "Mean AUROC of the hospitals by pairs of patients: both patients of a pair are of one hospital.", True,
        called="AUROC within hospitals", path=("final", "auroc_within"), shown=_shown(card=0, screen=-1),
    ),
    MetricSpec("auroc_within_low", "Lower end of the 95% interval of the AUROC within hospitals.", True,
               path=("final", "auroc_within_low")),
    MetricSpec("auroc_within_high", "Upper end of the 95% interval of the AUROC within hospitals.", True,
               path=("final", "auroc_within_high")),
    MetricSpec("auroc_within_hospitals", "Hospitals that it is of: those with five test rows of each class or more.", None,
               limits=POSITIVE, digits=0, path=("final", "auroc_within_hospitals")),
    MetricSpec("auroc_gap", "AUROC of all rows pooled less the AUROC within hospitals; above 0 it ranks hospitals as well.", None,
               limits=CORRELATION, called="AUROC pooled less within", path=("final", "auroc_gap")),
    MetricSpec("auroc_gap_low", "Lower end of the 95% interval of that difference.", limits=CORRELATION,
               path=("final", "auroc_gap_low")),
    MetricSpec("auroc_gap_high", "Upper end of the 95% interval of that difference.", limits=CORRELATION,
               path=("final", "auroc_gap_high")),
    MetricSpec("training_drift", higher_is_better=False, limits=DISTANCE, path=(*_TRAINING, "drift"),
               shown=_shown(comparison_beside=1)),
    MetricSpec("consensus_drift", higher_is_better=False, limits=DISTANCE, path=(*_TRAINING, "consensus_drift")),
    MetricSpec("training_jaccard", higher_is_better=True, path=(*_TRAINING, "jaccard"), shown=_shown(comparison_beside=2)),
    MetricSpec("sketch_density", path=(*_TRAINING, "density")),
    MetricSpec("deployed_divergence", higher_is_better=False, limits=DISTANCE, path=(*_DEPLOYED, "drift"),
               shown=_shown(comparison_beside=3)),
    MetricSpec("deployed_jaccard", higher_is_better=True, path=(*_DEPLOYED, "jaccard"), shown=_shown(comparison_beside=4)),
    MetricSpec("spurious_mass", higher_is_better=False, path=(*_TRAINING, "spurious_mass"), shown=_shown(comparison_beside=7)),
    MetricSpec("deployed_spurious_mass", higher_is_better=False, path=(*_DEPLOYED, "spurious_mass")),
    MetricSpec("cohorts", limits=POSITIVE, path=("cohorts", "count")),
    MetricSpec("cohort_consistency", higher_is_better=True, limits=CORRELATION, path=("cohorts", "consistency")),
    MetricSpec("mean_trust", higher_is_better=True, path=("trust", "mean_trust"), shown=_shown(comparison_beside=5)),
    MetricSpec("mean_nsds", limits=POSITIVE, called="mean NSDS", path=("trust", "mean_nsds"), shown=_shown(comparison_beside=6)),
    MetricSpec("reward_correlation", higher_is_better=True, limits=CORRELATION, path=("trust", "reward_correlation")),
    MetricSpec("scoring_accuracy", higher_is_better=True, path=("reasons", "accuracy")),
    MetricSpec("xai_accuracy", higher_is_better=True, called="XAI accuracy", path=("reasons", "xai"),
               shown=_shown(comparison_beside=8)),
    MetricSpec("grid_accuracy", higher_is_better=True, path=("reasons", "grid")),
    MetricSpec("in_mask_share", higher_is_better=True, called="in-mask share", path=("reasons", "in_mask"),
               shown=_shown(comparison_beside=9)),
    MetricSpec("masked_accuracy", higher_is_better=True, path=("reasons", "masked_accuracy")),
    MetricSpec("local_train_accuracy", higher_is_better=True, path=("local", "train_accuracy")),
    MetricSpec("local_test_accuracy", higher_is_better=True, path=("local", "test_accuracy")),
    MetricSpec("others_train_accuracy", higher_is_better=True, path=("local", "others_train")),
    MetricSpec("external_accuracy", higher_is_better=True, path=("local", "external"), shown=_shown(comparison_beside=10)),
    MetricSpec("clear_gaps", higher_is_better=False, limits=POSITIVE, path=("fairness", "flagged")),
)  # fmt: skip
"""Figures of a summary besides those of test rows, and where it has them: the AUROC within hospitals, explanations, cohorts,
trust (FedXChain), scoring images (XFed), local models (FL-XAI), groups of patients. Not known of runs that did not measure
them."""

_EVERYWHERE = (
    P.ROUND, P.ROUND_SITES, P.GAP, P.WORST_SITE, P.SCREEN, P.TILES, P.SCREEN_SITES, P.REPORT_SITES, P.CARD, P.SUBGROUPS, P.COURSE,
    P.COMPARISON, P.RUN_LIST, P.CONSOLE_SITES, P.CONSOLE_SUBGROUPS,
)  # fmt: skip
_TABLES = tuple(p for p in _EVERYWHERE if p not in (P.GAP, P.TILES, P.RUN_LIST, P.COURSE))
_ROWS = MetricSpec(
    "count", "Rows scored.", limits=POSITIVE, digits=0, of_outcome=lambda t: t.count,
    shown=_shown(P.ROUND, P.ROUND_SITES, P.WORST_SITE),
)  # fmt: skip
_RMSE = MetricSpec(
    "rmse", "Root of the mean squared error, in units of the outcome.", False, limits=POSITIVE, called="RMSE",
    of_outcome=root_mean_squared_error, shown=_shown(*_EVERYWHERE),
)  # fmt: skip
_MAE = MetricSpec(
    "mae", "Mean absolute error, in units of the outcome.", False, limits=POSITIVE, called="MAE", of_outcome=mean_absolute_error,
    shown=_shown(*_TABLES),
)  # fmt: skip
_BIAS = MetricSpec(
    "bias", "Mean of prediction minus outcome; 0 is ideal.", None, limits=None, of_outcome=mean_error,
    shown=_shown(P.ROUND, P.SCREEN, P.CARD, P.REPORT_SITES),
)  # fmt: skip

OUTCOME_SCORES: Mapping[str, tuple[MetricSpec, ...]] = {
    REGRESSION: (
        _ROWS,
        MetricSpec(
            "r2", "Share of the variance that predictions explain; below 0 where the mean predicts better.", True,
            limits=(float("-inf"), 1.0), called="R2", of_outcome=explained_variance, shown=_shown(*_EVERYWHERE),
        ),
        _RMSE,
        _MAE,
        _BIAS,
        MetricSpec(
            "mse", "Mean squared error, in squared units of the outcome: the loss of training.", False, limits=POSITIVE,
            called="MSE", of_outcome=mean_squared_error, shown=_shown(P.ROUND, P.ROUND_SITES),
        ),
    ),
    COUNT: (
        _ROWS,
        MetricSpec(
            "deviance", "Mean Poisson deviance of a row: the loss of training.", False, limits=POSITIVE,
            called="Poisson deviance", of_outcome=poisson_deviance, shown=_shown(*_EVERYWHERE),
        ),
        MetricSpec(
            "d2", "Share of the Poisson deviance that predictions explain; below 0 where the mean predicts better.", True,
            limits=(float("-inf"), 1.0), called="D2", of_outcome=explained_deviance, shown=_shown(*_EVERYWHERE),
        ),
        _RMSE,
        _MAE,
        _BIAS,
    ),
    SURVIVAL: (
        _ROWS,
        MetricSpec(
            "events", "Rows whose event was observed.", None, limits=POSITIVE, digits=0, of_outcome=events,
            shown=_shown(P.ROUND, P.WORST_SITE),
        ),
        MetricSpec(
            "c_index", "Chance that of two comparable patients of one site the one with the earlier event has the higher score.",
            True, called="C-index", of_outcome=c_index, shown=_shown(*_EVERYWHERE),
        ),
        MetricSpec(
            "cox_loss", "Negative log partial likelihood for each event, with risk sets within sites: the loss of training.",
            False, limits=POSITIVE, called="Cox loss", of_outcome=cox_loss,
            shown=_shown(*(p for p in _EVERYWHERE if p != P.GAP)),
        ),
    ),
}  # fmt: skip
"""Metrics of tasks other than classification, by task."""

LOSS: Mapping[str, str] = {
    CLASSIFICATION: "log_loss", REGRESSION: "mse", COUNT: "deviance", SURVIVAL: "cox_loss",
}  # fmt: skip
"""The metric that training minimises, by task: early stopping follows it."""

HEADLINE: Mapping[str, str] = {CLASSIFICATION: "auroc", REGRESSION: "r2", COUNT: "d2", SURVIVAL: "c_index"}
"""The metric that ranks sites and runs, by task; higher is better."""

METRICS: tuple[MetricSpec, ...] = (*SCORES, *SUMMARY_METRICS)
_OTHERS = {metric.name: metric for table in OUTCOME_SCORES.values() for metric in table}
COMPARED: tuple[MetricSpec, ...] = (
    MetricSpec("worst_site_accuracy", higher_is_better=True),
    MetricSpec("worst_site_auroc", higher_is_better=True, called="worst site AUROC"),
    MetricSpec("harmed_sites", higher_is_better=False, limits=POSITIVE),
    MetricSpec("spurious_gap", higher_is_better=False, limits=CORRELATION),
    MetricSpec("megabytes", higher_is_better=False, limits=POSITIVE),
    MetricSpec("epsilon", higher_is_better=False, limits=POSITIVE),
    MetricSpec("drift", higher_is_better=False, limits=None),
    MetricSpec("nsds", higher_is_better=False, limits=None, called="NSDS"),
    MetricSpec("sketch_entries", higher_is_better=False, limits=None),
    MetricSpec("payload", higher_is_better=False, limits=None),
    MetricSpec("bad_weight", higher_is_better=False, limits=None),
)
"""Figures that comparisons and studies work out of runs."""
BY_NAME: Mapping[str, MetricSpec] = _OTHERS | {metric.name: metric for metric in METRICS}
DESCRIPTIONS: dict[str, str] = {metric.name: metric.text for metric in SCORES}
HIGHER_IS_BETTER: dict[str, bool | None] = {
    **{metric.name: metric.higher_is_better for metric in SCORES},
    **{metric.name: metric.higher_is_better for metric in _OTHERS.values()},
}


def metrics_of(task: str = CLASSIFICATION) -> tuple[MetricSpec, ...]:
    """Return the table of metrics of test rows for a task."""
    return SCORES if task == CLASSIFICATION else OUTCOME_SCORES[task]


def shown_in(place: Place, task: str = CLASSIFICATION) -> tuple[str, ...]:
    """Return the names of the metrics that a place shows for a task, in its order."""
    table = (*metrics_of(task), *SUMMARY_METRICS)
    return tuple(m.name for m in sorted((m for m in table if place in m.shown), key=lambda m: m.shown[place]))


def scores(
    tally: Tally | ExactTally | OutcomeTally, *, threshold: float = 0.5, only: Collection[str] | None = None
) -> dict[str, Array]:
    """Compute metrics of a tally.

    Means over classes leave out a class that has no positives or no negatives. With three classes or more a decision is the top
    class, so that the figures of decisions equal accuracy, balanced accuracy and macro F1; the AUROC interval (the ends of the
    classes' own intervals do not average to one for their mean), the calibration line and the four figures at the threshold
    are undefined.

    Args:
        tally: Statistics of the rows.
        threshold: On P(y=1); moves sensitivity, specificity, ppv, npv, MCC and the figures of decisions alone.
        only: Names of the figures; others than those of the task are passed over. None: all of the task.

    Returns:
        The figures by name in the order of the table, each of the tally's leading shape (0-d for none); NaN where undefined.
    """
    if isinstance(tally, OutcomeTally):
        table = [(m.name, m.of_outcome) for m in metrics_of(tally.task) if only is None or m.name in only]
        return {name: np.reshape(work(tally), tally.shape) for name, work in table if work is not None}
    wanted = set(DESCRIPTIONS if only is None else only)
    figures, undefined = Figures(tally, threshold), np.full(tally.shape, np.nan)
    out = {}
    for metric in SCORES:
        if metric.name in wanted and metric.work is not None:
            value = undefined if metric.two_classes and not tally.binary else metric.work(figures)
            out[metric.name] = np.reshape(value, tally.shape)
    return out
