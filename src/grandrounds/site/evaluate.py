"""Scoring one model on every site's own rows: the tasks `evaluate` and `calibrate`.

The model is the same everywhere, so all rows go through it at once; what is reported is a tally
for each site (sums and histograms), never a score of a patient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.metrics import tally
from grandrounds.models import Model
from grandrounds.site.stack import Stack

_ROWS = 8192


def score(model: Model, theta: Array, x: Array) -> Array:
    """Logits (n, C) of one model, in blocks of rows that keep memory small. A model that diverged gives infinities."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(x) <= _ROWS or model.kernel == "torch":  # torch takes its own blocks
            return model.logits(theta, x)
        return np.concatenate([model.logits(theta, x[i : i + _ROWS]) for i in range(0, len(x), _ROWS)])


def site_logits(model: Model, stack: Stack, theta: Array, part: str) -> Array:
    """Logits of all rows of a part, each site's by its own statistics and within its own task where it has them."""
    rows = stack.parts[part]
    if stack.statistics is None:
        logits = score(model, theta, rows.x)
    else:
        own = with_statistics(model, theta, stack.statistics)
        cuts = zip(rows.offsets, rows.offsets[1:], strict=False)
        logits = np.concatenate([score(model, own[k], rows.x[a:b]) for k, (a, b) in enumerate(cuts)])
    return logits if stack.penalty is None else logits + stack.penalty[rows.owner()]


def with_statistics(model: Model, theta: Array, statistics: Array) -> Array:
    """The model (K, P) as each of K sites uses it: shared weights, the site's own BatchNorm statistics."""
    out = np.repeat(theta[None], len(statistics), axis=0)
    out[:, out.shape[1] - statistics.shape[1] :] = statistics
    return out


def evaluate(
    model: Model, stack: Stack, members: Array, theta: Array, *, parts: Sequence[str], groups: int
) -> dict[str, Any]:
    """Task `evaluate`: for each part a Tally with leading axes (site, subgroup)."""
    columns: dict[str, Any] = {}
    classes = max(2, model.outputs)
    for name in parts:
        part = stack.parts[name]
        owner = part.owner()
        cell = owner * groups + np.minimum(part.group, groups - 1)
        logits = site_logits(model, stack, theta, name)
        total = tally(logits, part.y, group=cell, groups=len(stack.names) * groups, classes=classes)
        for field, array in total.arrays().items():
            shaped = array.reshape(len(stack.names), groups, *array.shape[1:])
            columns[f"{name}.{field}"] = shaped if len(members) == len(stack.names) else shaped[members]
    return columns


def temperature_losses(model: Model, stack: Stack, members: Array, theta: Array, grid: Array) -> Array:
    """Task `calibrate`: each site's summed log loss of logits / T for each T of the grid, (m, len(grid)).

    SSE-AGG eq. 12: the temperature that minimises the total is fitted without moving a logit.
    """
    part = stack.parts["val"]
    logits = site_logits(model, stack, theta, "val").astype(float)
    signed = logits[:, 0] * (2 * part.y - 1) if model.outputs == 1 else None
    sites = len(part.offsets) - 1
    out = np.zeros((sites, len(grid)))
    for j, t in enumerate(grid):
        if signed is not None:
            loss = np.logaddexp(0, -signed / t)
        else:
            z = logits / t
            top = z.max(axis=1)
            loss = top + np.log(np.exp(z - top[:, None]).sum(axis=1)) - z[np.arange(len(z)), part.y]
        out[:, j] = np.bincount(part.owner(), weights=loss, minlength=sites)
    return out[members]
