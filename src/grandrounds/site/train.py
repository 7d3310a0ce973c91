"""Local training of many sites at once on the NumPy kernel: the task `train` for dense models.

Sites are sorted by their number of steps and the finished ones sliced away, so unequal sites
waste no work. Rows are gathered in blocks of steps. A short last batch is padded to the full
width with rows of weight zero, and every gradient is averaged over the real rows only.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models.dense import Dense
from grandrounds.models.optimizers import optimizer
from grandrounds.site.align import Alignment
from grandrounds.site.anchor import Anchor, Lent, Taken
from grandrounds.site.batches import Plan
from grandrounds.site.contrast import Contrast
from grandrounds.site.private import Noise
from grandrounds.site.stack import Part
from grandrounds.site.work import Trained, Work

_BLOCK_BYTES = 2 * 2**20
"""Rows gathered at once: what is gathered should still be in the cache when it is used."""


def train(
    model: Dense,
    part: Part,
    members: Array,
    start: Array,
    *,
    plan: Plan,
    work: Work,
    class_weight: Array | None = None,
    slots: tuple[Array, ...] = (),
    clock: Array | None = None,
    correction: Array | None = None,
    contrast: Contrast | None = None,
    taken: Taken | None = None,
    lent: Lent | None = None,
    consensus: Array | None = None,
    noise: Noise | None = None,
) -> Trained:
    """Train the member sites on their own rows from `start`: one model (P,) for all, or each from its own (m, P).

    `slots`, `clock`: what they kept of the optimiser, (m, P) and (m, 1). `correction` (m, P) is added to every
    gradient (SCAFFOLD), `contrast` to the loss (MOON). `taken` are the lent rows that anchor each step; on those that
    are `lent` sketches are aligned to `consensus` (F,). `noise`, times work.gradient_noise, is added to every gradient
    (FL-XAI 4.7); nothing is clipped, so that it promises no privacy.
    """
    order, active = plan.order, plan.active
    base = np.broadcast_to(start if start.ndim == 1 else start[order], (len(members), start.shape[-1]))
    theta = base.copy()
    drift = None if correction is None else correction[order].astype(start.dtype)
    mask = model.layout.mask("weight").astype(start.dtype)
    rule = optimizer(work.optimizer, momentum=work.momentum, weight_decay=work.weight_decay, mask=mask)
    state = [s[order].astype(start.dtype) for s in slots] or [np.zeros_like(theta) for _ in range(rule.slots)]
    t = np.zeros((len(members), 1)) if clock is None else clock[order].astype(float)
    grad = np.empty_like(theta)
    l2 = work.l2 * mask if work.l2 else None

    anchor = alignment = None
    if taken is not None:
        anchor = Anchor.of(model, taken, start, order, weight=work.anchor)
    if lent is not None:
        alignment = Alignment.of(model, lent, start, order, weight=work.alignment, consensus=consensus)
    width = plan.rows.shape[2] + (0 if anchor is None else anchor.target.shape[2])
    row_bytes = max(1, part.x.shape[1] * part.x.itemsize * width)
    at, working = 0, -1
    with np.errstate(over="ignore", invalid="ignore"):
        while at < len(active):
            a = active[at]
            until = min(len(active), at + max(1, _BLOCK_BYTES // (row_bytes * a)))
            block = plan.rows[at:until, :a]
            xs, ts = part.x.take(block, axis=0), part.target.take(block, axis=0)
            ws = plan.weight[at:until, :a]
            if class_weight is not None:
                ws = ws * class_weight[part.y[block]]
            if anchor is not None:
                xs, ts, ws = anchor.beside((xs, ts, ws), slice(at, until), a)
            for s in range(until - at):
                if active[at + s] != working:
                    a = working = active[at + s]
                    th, g, kept = theta[:a], grad[:a], [v[:a] for v in state]
                    layers, grads = model.layers(th), model.layers(g)
                pull = None if contrast is None else contrast.pull(block[s, :a], ws[s, :a])
                model.gradient_into(layers, grads, xs[s, :a], ts[s, :a], ws[s, :a], pull)
                if alignment is not None:
                    alignment.add_gradient(layers, grads)
                if l2 is not None:
                    g += l2 * th
                if work.proximal:
                    g += work.proximal * (th - base[:a])
                if drift is not None:
                    g += drift[:a]
                if noise is not None:
                    g += (work.gradient_noise * noise.next()[:a]).astype(g.dtype)
                t[:a] += 1
                rule.step(th, g, kept, t[:a], work.lr)
            at = until
    back = np.argsort(order, kind="stable")
    slots = tuple(v[back] for v in state) if work.keep_optimizer else ()
    reasons = None if alignment is None else alignment.reasons(model, theta)[back]
    return Trained(theta[back], plan.steps, slots, t[back], reasons)
