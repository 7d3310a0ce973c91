"""What the confusion matrix (..., C, C) [true, predicted] says."""

from __future__ import annotations

import numpy as np

from grandrounds.metrics.arithmetic import Array, Floats, mean_defined, ratio


def accuracy(confusion: Array) -> Floats:
    """Share of rows on the diagonal, (...)."""
    return ratio(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


def majority(confusion: Array) -> Floats:
    """Share of the most common true class, (...): the accuracy of always answering it."""
    return ratio(confusion.sum(axis=-1).max(axis=-1), confusion.sum(axis=(-2, -1)))


def balanced_accuracy(confusion: Array) -> Floats:
    """Mean recall over the classes that occur, (...); NaN when only one does, for it balances nothing."""
    truth = confusion.sum(axis=-1)
    recall = ratio(np.diagonal(confusion, axis1=-2, axis2=-1), truth)
    several = (truth > 0).sum(axis=-1) > 1
    return np.where(several, mean_defined(recall), np.nan)


def macro_f1(confusion: Array) -> Floats:
    """Mean F1 over the classes that occur or are predicted, (...)."""
    hit = np.diagonal(confusion, axis1=-2, axis2=-1)
    return mean_defined(ratio(2 * hit, confusion.sum(axis=-1) + confusion.sum(axis=-2)))
