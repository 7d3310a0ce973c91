"""DP-SGD with torch, for nets of any kind: gradients of single rows by vmap, clipped and added up a few rows at a time.

The same draws of rows and the same noise as the NumPy kernel, so a dense model gives the same numbers on either. Sites are
trained one after another, on a CPU as on a GPU. BatchNorm has no gradient of one row: what it makes of a row depends on the
others in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.torch_model import TorchModel, torch_seed
from grandrounds.privacy.clipped import SHY
from grandrounds.site.anchor import Taken
from grandrounds.site.private import Draws
from grandrounds.site.stack import Part
from grandrounds.site.torch_job import Borrowed, Job
from grandrounds.site.torch_train import anchored
from grandrounds.site.work import Trained, Work

_BYTES = 256 * 2**20
"""Gradients of single rows that are held at once."""

Gradients = Callable[..., tuple[Tensor, ...]]


def train(
    model: TorchModel,
    part: Part,
    members: Array,
    start: Array,
    *,
    draws: Draws,
    work: Work,
    class_weight: Array | None = None,
    slots: tuple[Array, ...] = (),
    clock: Array | None = None,
    correction: Array | None = None,
    taken: Taken | None = None,
    x: Array | None = None,
    penalty: Array | None = None,
    seeds: Sequence[int] = (),
) -> Trained:
    """Like `private.train`, for torch; `x`, `penalty` and `seeds` as in `torch_train.train`."""
    if model.statistics:
        raise BadInput(
            "DP-SGD clips the gradient of each row and BatchNorm mixes rows: set model.norm = 'group'",
            code="unsupported-with-dp",
        )
    job = Job.of(model, part, start, work, class_weight)
    if x is not None:
        job = job.with_rows(model.tensor(x))
    order, m = draws.order, len(members)
    if start.ndim == 2:
        job = replace(job, start=job.start[torch.from_numpy(order).to(model.device)])
    if correction is not None:
        job = job.with_correction(model.tensor(correction[order]))
    theta = job.start.expand(m, -1).clone()
    closed = None if penalty is None else model.tensor(penalty[order])
    state = [model.tensor(s[order]) for s in slots] or [torch.zeros_like(theta) for _ in range(job.slots)]
    t = theta.new_zeros(m, 1) if clock is None else model.tensor(clock[order])
    gradients = _of_rows(job)
    anchor = None if taken is None else anchored(model, taken, start, order, work)
    model.net.train()
    for j in np.flatnonzero(draws.steps[order] > 0).tolist():
        with torch_seed(seeds[order[j]], model.device) if seeds else nullcontext():
            own = None if closed is None else closed[j]
            _one_site(job, draws, j, theta[j], [s[j] for s in state], t[j], own, gradients, anchor, work)
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(model.device)

    def home(held: Tensor) -> Array:
        return held[back].cpu().numpy()

    kept = tuple(home(s) for s in state) if work.keep_optimizer else ()
    return Trained(home(theta).astype(start.dtype, copy=False), draws.steps, kept, home(t))


def _one_site(
    job: Job,
    draws: Draws,
    j: int,
    theta: Tensor,
    slots: list[Tensor],
    t: Tensor,
    closed: Tensor | None,
    gradients: Gradients,
    anchor: Borrowed | None,
    work: Work,
) -> None:
    """All steps of one site. theta (P,), slots (P,), t (1,) change in place."""
    model = job.model
    start = job.start if job.start.dim() == 1 else job.start[j]
    correction = None if job.correction is None else job.correction[j]
    at = [(piece, shape) for _, piece, shape in model.layout.slices]
    few = max(1, _BYTES // (theta.numel() * theta.element_size()))
    for s in range(int(draws.steps[draws.order[j]])):
        rows = torch.from_numpy(draws.rows[s, j][draws.real[s, j]]).to(model.device)
        params = tuple(theta[piece].view(shape) for piece, shape in at)
        total = torch.zeros_like(theta)
        for block in torch.split(rows, few):
            if len(block):
                total += _clipped_sum(job, gradients, params, block, closed, clip=work.clip)
        noise = torch.from_numpy(work.noise * work.clip * draws.noise.of_site(j)).to(model.device)
        gradient = ((total.double() + noise) / draws.expected[j]).to(theta.dtype)
        if anchor is not None:
            gradient += _held(job, anchor, params, s, j)
        with torch.no_grad():
            t += 1
            change, new = job.change(theta, gradient, slots, t, start=start, decay=job.decay, correction=correction)
            theta += change
            for old, fresh in zip(slots, new, strict=True):
                old.copy_(fresh)


def _clipped_sum(
    job: Job, gradients: Gradients, params: Sequence[Tensor], rows: Tensor, closed: Tensor | None, *, clip: float
) -> Tensor:
    """The sum (P,) of the gradients of these rows, each clipped; one that is no number counts for nothing."""
    weight = job.x.new_ones(len(rows)) if job.class_weight is None else job.class_weight[job.y[rows]]
    found = gradients(params, job.x[rows], job.target[rows], weight, closed)
    each = torch.cat([g.reshape(len(rows), -1) for g in found], dim=1).detach()
    length = each.double().square().sum(dim=1).sqrt()
    factor = (SHY * clip / length.clamp_min(1e-300)).clamp_max(1.0)
    good = length.isfinite()
    each = torch.where(good[:, None], each, 0)
    return torch.where(good, factor, 0.0).to(each.dtype) @ each


def _held(job: Job, anchor: Borrowed, params: tuple[Tensor, ...], step: int, j: int) -> Tensor:
    """What the lent rows of a step add to the gradient (P,): no patient is among them, so it comes after the noise."""
    taken = anchor.at(step, j)
    weight = (taken["pull"] / len(taken["rows"])).expand(len(taken["rows"]))
    batch = {"x": anchor.inputs(taken), "target": taken["target"], "weight": weight}
    found = cast("tuple[Tensor, ...]", grad(job.loss)(params, batch))
    return torch.cat([g.reshape(-1) for g in found])


def _of_rows(job: Job) -> Gradients:
    """gradients(params, x, target, weight, closed): of each parameter the gradients of all rows, (n, ...)."""

    def loss(params: Sequence[Tensor], x: Tensor, target: Tensor, weight: Tensor, closed: Tensor | None) -> Tensor:
        batch = {"x": x[None], "target": target[None], "weight": weight[None]}
        return job.loss(params, batch if closed is None else {**batch, "closed": closed})

    return cast("Gradients", vmap(grad(loss), in_dims=(None, 0, 0, 0, None), randomness="different"))
