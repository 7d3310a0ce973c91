"""All sites' batches of one round as two arrays, for the floors that train every site at once."""

from __future__ import annotations

import numpy as np

from workloads import Array, Rows, Workload, shuffles


def step_counts(rows: Rows, w: Workload) -> Array:
    """Local steps of each site in a round."""
    return w.epochs * -(-rows.counts // w.batch)


def batches(rows: Rows, w: Workload, round: int, order: Array) -> tuple[Array, Array]:
    """Row numbers (steps, sites, batch), sites in the given order, and 1 where a place is a row and 0 where it is empty."""
    counts = rows.counts
    steps = int(step_counts(rows, w).max())
    at = np.zeros((len(order), steps * w.batch), np.int64)
    real = np.zeros(at.shape, np.float32)
    for j, k in enumerate(order):
        per_epoch = -(-counts[k] // w.batch) * w.batch
        for e, shuffled in enumerate(shuffles(int(k), round, int(counts[k]), w.epochs)):
            place = slice(e * per_epoch, e * per_epoch + counts[k])
            at[j, place] = shuffled + rows.offsets[k]
            real[j, place] = 1
    shape = (len(order), steps, w.batch)
    return at.reshape(shape).swapaxes(0, 1), real.reshape(shape).swapaxes(0, 1)
