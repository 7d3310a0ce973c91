"""What one row's logits say against its label, in forms that stay exact when a model saturates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grandrounds.metrics.arithmetic import Array

_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class Measured:
    """What each row adds: log_loss, brier, predicted, confidence, hit (n,) and log_odds (H, n)."""

    log_loss: Array
    brier: Array
    predicted: Array
    confidence: Array
    hit: Array
    log_odds: Array


def two_classes(logits: Array, y: Array) -> Measured:
    """Rows of a two-class model, in the form that neither overflows nor rounds a small loss to zero."""
    z = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    small = np.exp(-np.abs(z))
    p = np.where(z >= 0, 1.0, small) / (1.0 + small)
    wrong_way = np.where(y == 1, -z, z)
    return Measured(
        log_loss=np.maximum(wrong_way, 0.0) + np.log1p(small),
        brier=(p - y) ** 2,
        predicted=(z >= 0).astype(np.intp),
        confidence=p,
        hit=y,
        log_odds=z[None],
    )


def turned(rows: Measured) -> Measured:
    """The same rows of a two-class model with the other class as the event: losses stay as they are, to the last bit."""
    return replace(
        rows, predicted=1 - rows.predicted, confidence=1.0 - rows.confidence, hit=1 - rows.hit, log_odds=-rows.log_odds
    )


def several_classes(logits: Array, y: Array) -> Measured:
    """Rows of a softmax model; the top class's rivals are summed apart, as 1 - p would cancel."""
    z = np.ascontiguousarray(logits.T)
    rows = np.arange(z.shape[1])
    top = z.argmax(axis=0)
    z -= z[top, rows]
    weight = np.exp(z)
    weight[top, rows] = 0.0
    rivals = weight.sum(axis=0)
    weight[top, rows] = 1.0
    total = 1.0 + rivals
    others = total - weight
    others[top, rows] = np.maximum(rivals, _TINY)
    p = weight / total
    return Measured(
        log_loss=np.log1p(rivals) - z[y, rows],
        brier=(p * p).sum(axis=0) - 2.0 * p[y, rows] + 1.0,
        predicted=top,
        confidence=p[top, rows],
        hit=top == y,
        log_odds=z - np.log(others),
    )
