"""Losses of dense models beside cross-entropy: squared, Poisson (log link) and Cox's partial likelihood.

A loss is known by its derivative with respect to the model's one output z, times the weight of each row:

    squared      (z - y)^2 / 2               z - y
    Poisson      exp(z) - y z                exp(z) - y
    Cox          event (log sum_R exp(z) - z), R the rows of the batch with as long a time or longer (Breslow's rule for ties)

The Cox loss is the mean over all rows of a batch, censored ones too, as in FLamby. It couples rows, so no gradient belongs to one
row: DP-SGD refuses it. Only the order of times counts; targets hold their ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL

CROSS_ENTROPY, SQUARED, POISSON, COX = "cross_entropy", "squared", "poisson", "cox"

LOSSES: Mapping[str, str] = {CLASSIFICATION: CROSS_ENTROPY, REGRESSION: SQUARED, COUNT: POISSON, SURVIVAL: COX}
"""The loss of each task."""

_LARGEST_LOG = 80.0


def loss_gradient(loss: str, z: Array, target: Array, weight: Array) -> Array:
    """Compute the derivative of the weighted loss with respect to the outputs.

    Args:
        loss: "squared", "poisson" or "cox".
        z: Outputs, (..., B, 1).
        target: Outcomes, (..., B, 1); for Cox (..., B, 2): the event, and the rank of the time.
        weight: Weights, (..., B); a padded row has weight 0.

    Returns:
        (..., B, 1), in the precision of z.
    """
    if loss == COX:
        gradient = cox_gradient(z[..., 0], target[..., 0], target[..., 1], weight)
        return gradient[..., None].astype(z.dtype, copy=False)
    out: Array = (link(loss, z) - target) * weight[..., None]
    return out


def cox_gradient(z: Array, event: Array, time: Array, weight: Array) -> Array:
    """Compute the derivative of sum_i weight_i event_i (log sum_R exp(z) - z_i) with respect to z, (..., B).

    Rows of weight 0 are in no risk set.
    """
    real = weight > 0
    order = np.argsort(np.where(real, -np.asarray(time, np.float64), np.inf), axis=-1, kind="stable")
    t, w, d, eta = (np.take_along_axis(np.asarray(a, np.float64), order, axis=-1) for a in (time, weight, event, z))
    counted = np.take_along_axis(real, order, axis=-1)
    highest = np.max(np.where(counted, eta, -np.inf), axis=-1, keepdims=True, initial=-1e300)
    hazard = np.where(counted, np.exp(np.minimum(eta - highest, 0.0)), 0.0)
    first = np.ones(t.shape, bool)
    first[..., 1:] = (t[..., 1:] != t[..., :-1]) | (counted[..., 1:] != counted[..., :-1])
    last = np.ones(t.shape, bool)
    last[..., :-1] = first[..., 1:]
    total = np.where(last, np.cumsum(hazard, axis=-1), np.inf)
    at_risk = np.flip(np.minimum.accumulate(np.flip(total, -1), axis=-1), -1)  # the sum up to the last row of equal time
    share = np.where(counted, w * d / np.maximum(at_risk, 1e-300), 0.0)
    later = np.flip(np.cumsum(np.flip(share, -1), axis=-1), -1)
    summed = np.minimum.accumulate(np.where(first, later, np.inf), axis=-1)  # the sum from the first row of equal time
    gradient = np.where(counted, hazard * summed - w * d, 0.0)
    out = np.empty_like(gradient)
    np.put_along_axis(out, order, gradient, axis=-1)
    return out


def link(loss: str, z: Array) -> Array:
    """Compute the prediction in units of training: z itself, or exp(z) for counts. A new array."""
    if loss == POISSON:
        return np.asarray(np.exp(np.minimum(z, _LARGEST_LOG)))
    return np.array(z)


def row_losses(loss: str, z: Array, target: Array) -> Array:
    """Compute each row's loss (n,) of outputs (n, 1) and targets (n, 1); for Cox the terms of the rows with an event.

    Args:
        loss: "squared", "poisson" or "cox".
        z: Outputs, (n, 1).
        target: As in training, (n, 1) or (n, 2).

    Returns:
        (n,). Terms of the Cox loss depend on all rows.
    """
    score, y = np.asarray(z[:, 0], np.float64), np.asarray(target[:, 0], np.float64)
    if loss == SQUARED:
        return np.asarray((score - y) ** 2 / 2)
    if loss == POISSON:
        return np.asarray(np.exp(np.minimum(score, _LARGEST_LOG)) - y * score)
    if not len(score):
        return np.zeros(0)
    time = np.asarray(target[:, 1], np.float64)
    order = np.argsort(-time, kind="stable")
    at_risk = np.logaddexp.accumulate(score[order])[np.searchsorted(-time[order], -time, side="right") - 1]
    return np.asarray(y * (at_risk - score))


def cumulative_hazard(z: Array, target: Array) -> Array:
    """Compute Breslow's cumulative baseline hazard at each row's time, (n,), from log hazards z (n,) and targets (n, 2).

    With it the loss of a row is that of a Poisson count: hazard exp(z) - event z, which no longer depends on other rows.
    """
    event, time = np.asarray(target[:, 0], np.float64), np.asarray(target[:, 1], np.float64)
    if not len(event):
        return np.zeros(0)
    order = np.argsort(-time, kind="stable")
    falling = -time[order]
    at_risk = np.logaddexp.accumulate(np.asarray(z, np.float64)[order])[np.searchsorted(falling, -time, side="right") - 1]
    steps = event * np.exp(-at_risk)
    rising = np.argsort(time, kind="stable")
    return np.asarray(np.cumsum(steps[rising])[np.searchsorted(time[rising], time, side="right") - 1])


def rank_times(time: Array) -> Array:
    """Rank times (n,) from 0, equal times alike: single precision holds ranks exactly."""
    return np.unique(np.asarray(time, np.float64), return_inverse=True)[1].reshape(-1).astype(np.float64)
