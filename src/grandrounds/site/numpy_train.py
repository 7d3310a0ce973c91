"""Local training of many sites at once on the NumPy kernel: the task `train` for dense models.

Sites are sorted by their number of steps and the finished ones sliced away, so unequal sites cause no wasted work. Rows are
gathered in blocks of steps. A short last batch is padded to the full
width with rows of weight zero, and every gradient is averaged over the real rows only.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models.dense import Dense
from grandrounds.models.optimizers import optimizer
from grandrounds.site.align import Alignment
from grandrounds.site.anchor import Anchor
from grandrounds.site.batches import BatchPlan
from grandrounds.site.train_job import TrainJob, TrainResult

_BLOCK_BYTES = 2 * 2**20
"""Bytes of rows gathered at once: they should fit in the CPU cache."""


def train(job: TrainJob, plan: BatchPlan) -> TrainResult:
    """Train the member sites on their own rows.

    Args:
        job: The model, the rows and the settings; `reference_draws` anchor each step, on `reference` sketches are aligned.
        plan: The batches of every step.

    Returns:
        The local models in the members' order.
    """
    model, part, start, config = cast("Dense", job.model), job.part, job.start, job.config
    order, active = plan.order, plan.active
    base = np.broadcast_to(start if start.ndim == 1 else start[order], (len(job.members), start.shape[-1]))
    theta = base.copy()
    drift = None if job.correction is None else job.correction[order].astype(start.dtype)
    mask = model.layout.mask("weight").astype(start.dtype)
    rule = optimizer(config.optimizer, momentum=config.momentum, weight_decay=config.weight_decay, mask=mask)
    state = [s[order].astype(start.dtype) for s in job.slots] or [np.zeros_like(theta) for _ in range(rule.slots)]
    t = np.zeros((len(job.members), 1)) if job.clock is None else job.clock[order].astype(float)
    grad = np.empty_like(theta)
    l2 = config.l2 * mask if config.l2 else None
    frozen = None if job.frozen is None else np.isin(np.arange(theta.shape[1]), job.frozen)

    own = job.objective
    vectors = {} if own is None else {n: v[order] for n, v in own.state.items()}
    slope = own.loss_gradient if own is not None and own.has_loss else None
    penalty = own.penalty_gradient if own is not None and own.has_penalty else None
    anchor = alignment = None
    if job.reference_draws is not None:
        anchor = Anchor.build(model, job.reference_draws, start, order, weight=config.anchor)
    if job.reference is not None:
        alignment = Alignment.build(
            model, job.reference, start, order, weight=config.alignment, consensus=job.consensus
        )
    width = plan.rows.shape[2] + (0 if anchor is None else anchor.target.shape[2])
    row_bytes = max(1, part.x.shape[1] * part.x.itemsize * width)
    first, working = 0, -1
    with np.errstate(over="ignore", invalid="ignore"):
        while first < len(active):
            a = active[first]
            until = min(len(active), first + max(1, _BLOCK_BYTES // (row_bytes * a)))
            block = plan.rows[first:until, :a]
            xs, ts = part.x.take(block, axis=0), part.target.take(block, axis=0)
            ws: Array = plan.weight[first:until, :a]
            if job.class_weight is not None:
                ws = ws * job.class_weight[part.y[block]]
            if anchor is not None:
                xs, ts, ws = anchor.append_to((xs, ts, ws), slice(first, until), a)
            for s in range(until - first):
                if active[first + s] != working:
                    a = working = active[first + s]
                    th, g, slots = theta[:a], grad[:a], [v[:a] for v in state]
                    layers, grads = model.layers(th), model.layers(g)
                pull = None if job.contrast is None else job.contrast.pull(block[s, :a], ws[s, :a])
                model.gradient_into(layers, grads, xs[s, :a], ts[s, :a], ws[s, :a], pull, slope)
                if alignment is not None:
                    alignment.add_gradient(layers, grads)
                if l2 is not None:
                    g += l2 * th
                if config.proximal:
                    g += config.proximal * (th - base[:a])
                if penalty is not None:
                    g += penalty(th, base[:a], {n: v[:a] for n, v in vectors.items()})
                if drift is not None:
                    g += drift[:a]
                if job.noise is not None:
                    g += (config.gradient_noise * job.noise.next()[:a]).astype(g.dtype)
                t[:a] += 1
                rule.step(th, g, slots, t[:a], config.lr)
                if frozen is not None:
                    np.copyto(th, base[:a], where=frozen)
            first = until
    back = np.argsort(order, kind="stable")
    kept_slots = tuple(v[back] for v in state) if config.keep_optimizer else ()
    reasons = None if alignment is None else alignment.reasons(model, theta)[back]
    return TrainResult(theta[back], plan.steps, kept_slots, t[back], reasons)
