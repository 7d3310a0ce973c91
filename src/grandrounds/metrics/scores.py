"""Every figure that is printed, from a tally."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from grandrounds.metrics import confusion as table
from grandrounds.metrics.arithmetic import Array, Floats, mean_defined, ratio
from grandrounds.metrics.calibration import calibration_error, calibration_line
from grandrounds.metrics.occupied import Occupied
from grandrounds.metrics.ranking import (
    average_precision,
    precision_resolution,
    recall_at_specificity,
    roc_area,
    roc_interval,
    roc_resolution,
)
from grandrounds.metrics.tally import Apart, Tally

DESCRIPTIONS: dict[str, str] = {
    "count": "Rows scored.",
    "events": "Rows of the positive class (two classes only).",
    "decision_accuracy": "Share of rows that the model decides rightly at the run's threshold.",
    "decision_balanced_accuracy": "Mean recall of the decisions at the run's threshold; undefined for one class.",
    "decision_macro_f1": "Mean F1 of the decisions at the run's threshold.",
    "accuracy": "Share of rows whose predicted class (P >= 0.5, or the top class) is right.",
    "majority": "Share of the most common true class: the accuracy of always answering it.",
    "balanced_accuracy": "Mean recall over the classes that occur; undefined when only one does.",
    "macro_f1": "Mean F1 over the classes that occur or are predicted.",
    "auroc": "Chance that a positive scores above a negative; several classes: mean of one against the rest.",
    "auroc_low": "Lower end of DeLong's 95% interval of the AUROC (two classes only).",
    "auroc_high": "Upper end of DeLong's 95% interval of the AUROC (two classes only).",
    "auroc_resolution": "Largest error that the AUROC can have because scores were counted in bins; 0 at a site.",
    "auprc": "Average precision; several classes: mean of one against the rest.",
    "auprc_resolution": "Largest error that the average precision can have because scores were counted in bins; 0 at a site.",
    "brier": "Mean squared error of P(y=1); several classes: summed over classes, from 0 to 2.",
    "log_loss": "Mean negative log-likelihood in nats.",
    "ece": "Expected calibration error: mean gap of confidence and outcome over 15 equal-width bins.",
    "calibration_slope": "Slope of the logistic regression of y on log-odds: 1 is ideal, less overconfident.",
    "calibration_intercept": "Intercept of that same regression, fitted together with the slope; 0 is ideal.",
    "recall_at_90_specificity": "Share of positives found, 90% of negatives spared; several classes: mean.",
    "sensitivity": "Share of positives at or above the threshold (two classes only).",
    "specificity": "Share of negatives below the threshold (two classes only).",
    "ppv": "Share of positives among rows at or above the threshold (two classes only).",
    "npv": "Share of negatives among rows below the threshold (two classes only).",
}

HIGHER_IS_BETTER: dict[str, bool | None] = {
    "count": None,
    "events": None,
    "decision_accuracy": True,
    "decision_balanced_accuracy": True,
    "decision_macro_f1": True,
    "accuracy": True,
    "majority": None,
    "balanced_accuracy": True,
    "macro_f1": True,
    "auroc": True,
    "auroc_low": True,
    "auroc_high": True,
    "auroc_resolution": None,
    "auprc": True,
    "auprc_resolution": None,
    "brier": False,
    "log_loss": False,
    "ece": False,
    "calibration_slope": None,
    "calibration_intercept": None,
    "recall_at_90_specificity": True,
    "sensitivity": True,
    "specificity": True,
    "ppv": True,
    "npv": True,
}

DECISIONS: dict[str, Callable[[Array], Floats]] = {
    "decision_accuracy": table.accuracy,
    "decision_balanced_accuracy": table.balanced_accuracy,
    "decision_macro_f1": table.macro_f1,
}
"""Figures of what the model decides at the threshold, each of a confusion matrix."""


def scores(
    tally: Tally | Apart, *, threshold: float = 0.5, only: Collection[str] = tuple(DESCRIPTIONS)
) -> dict[str, Array]:
    """The figures of `DESCRIPTIONS` (or `only` some) by name, each of the tally's leading shape (0-d for none).

    `threshold` is on P(y=1) and moves sensitivity, specificity, ppv, npv and the figures of decisions alone. With three
    classes or more a decision is the top class, so that these equal accuracy, balanced accuracy and macro F1. Means over classes
    leave out a class that has no positives or no negatives. What is undefined is NaN; with three
    classes or more that includes the AUROC interval (the ends of the classes' own intervals do not
    average to one for their mean), the calibration line and the four figures at the threshold.
    """
    count, asked = tally.count, set(only)
    single: dict[str, Callable[[], Array]] = {
        "count": lambda: count,
        "accuracy": lambda: table.accuracy(tally.confusion),
        "majority": lambda: table.majority(tally.confusion),
        "balanced_accuracy": lambda: table.balanced_accuracy(tally.confusion),
        "macro_f1": lambda: table.macro_f1(tally.confusion),
        "auroc": lambda: mean_defined(roc_area(tally.held)),
        "auroc_resolution": lambda: mean_defined(roc_resolution(tally.held)),
        "auprc": lambda: mean_defined(average_precision(tally.held)),
        "auprc_resolution": lambda: mean_defined(precision_resolution(tally.held)),
        "brier": lambda: ratio(tally.brier, count),
        "log_loss": lambda: ratio(tally.log_loss, count),
        "ece": lambda: calibration_error(tally.reliability),
        "recall_at_90_specificity": lambda: mean_defined(recall_at_specificity(tally.held, specificity=0.9)),
    }
    found = {name: work() for name, work in single.items() if name in asked}
    if asked & DECISIONS.keys():
        decided = _decisions(tally.held, threshold=threshold) if tally.binary else tally.confusion
        found |= {name: work(decided) for name, work in DECISIONS.items() if name in asked}
    if tally.binary:
        if asked & {"auroc_low", "auroc_high"}:
            found["auroc_low"], found["auroc_high"] = roc_interval(tally.held)
        if asked & {"calibration_slope", "calibration_intercept"}:
            found["calibration_slope"], found["calibration_intercept"] = calibration_line(tally.held)
        if asked & {"sensitivity", "specificity", "ppv", "npv"}:
            found |= _at_threshold(tally.held, threshold=threshold)
        if "events" in asked:
            found["events"] = np.where(count > 0, tally.held.positives[..., 0], np.nan)
    undefined = np.full(tally.shape, np.nan)
    return {name: np.reshape(found.get(name, undefined), tally.shape) for name in DESCRIPTIONS if name in asked}


def _at_threshold(held: Occupied, *, threshold: float) -> dict[str, Floats]:
    """Sensitivity, specificity, ppv and npv (...) of calling positive what reaches the threshold."""
    false_alarms, caught = held.reaching(threshold)
    spared, missed = held.negatives - false_alarms, held.positives - caught
    return {
        "sensitivity": ratio(caught, held.positives),
        "specificity": ratio(spared, held.negatives),
        "ppv": ratio(caught, caught + false_alarms),
        "npv": ratio(spared, spared + missed),
    }


def _decisions(held: Occupied, *, threshold: float) -> Array:
    """Confusion matrix (..., 2, 2) [true, decided] of calling positive what reaches the threshold; `held` has one head.

    Exact where the threshold is an edge of the grid, as 0.5 and every chosen one are; else the threshold's bin is shared
    out (`Occupied.reaching`).
    """
    false_alarms, caught = (reached[..., 0] for reached in held.reaching(threshold))
    negatives, positives = held.negatives[..., 0], held.positives[..., 0]
    rows = [np.stack([negatives - false_alarms, false_alarms], -1), np.stack([positives - caught, caught], -1)]
    return np.stack(rows, axis=-2)
