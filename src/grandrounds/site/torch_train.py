"""Local training with torch: on a CPU one site after another, on a GPU all sites at once in a CUDA graph.

The same plan of batches, the same loss and the same step rules as the NumPy kernel, so a dense model gives the
same numbers on either. Convolutions are not batched over sites on a CPU (that costs 1.8x).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from grandrounds.core.arrays import Array
from grandrounds.models.torch_model import TorchModel, torch_seed
from grandrounds.site.align import EPS
from grandrounds.site.anchor import Lent, Taken, distinct
from grandrounds.site.batches import Plan
from grandrounds.site.contrast import Contrast
from grandrounds.site.forked import WORTHWHILE, Cores, shared, spread
from grandrounds.site.private import Noise
from grandrounds.site.stack import Part
from grandrounds.site.torch_job import Borrowed, Job, single_gradients, use
from grandrounds.site.work import Trained, Work

_ROWS = 256
"""Lent rows that go through a net at once, outside of steps."""


def train(
    model: TorchModel,
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
    x: Array | None = None,
    penalty: Array | None = None,
    seeds: Sequence[int] = (),
    workers: int = 1,
) -> Trained:
    """Train the member sites from `start` (P,) or (m, P) on their own rows; like the NumPy kernel's `train`.

    `taken` are the lent rows that anchor each step; on those that are `lent` sketches are aligned to `consensus` (F,).
    `noise`, times work.gradient_noise, is added to every gradient, drawn on the CPU: with it a GPU takes site after site.
    `x` stands in for the part's own rows in this round (augmented pictures); `penalty` (m, C) closes the classes of
    other tasks. `seeds` are the sites' own, for networks that draw random numbers.
    `workers` processes share the sites of a CPU; 0 is as many as there are cores free.
    """
    job = Job.of(model, part, start, work, class_weight)
    if x is not None:
        job = job.with_rows(model.tensor(x))
    order, m = plan.order, len(members)
    if start.ndim == 2:
        job = replace(job, start=job.start[torch.from_numpy(order).to(model.device)])
    if correction is not None:
        job = job.with_correction(model.tensor(correction[order][:, : model.learnt]))
    if contrast is not None:
        job = job.with_contrast(contrast)
    if taken is not None:
        job = job.with_borrowed(anchored(model, taken, start, order, work))
    if lent is not None:
        job = job.with_borrowed(_aligned(model, lent, start, order, work, consensus))
    theta = job.start.expand(m, -1).clone()
    closed = None if penalty is None else model.tensor(penalty[order])
    state = [model.tensor(s[order]) for s in slots] or [theta.new_zeros(m, model.learnt) for _ in range(job.slots)]
    t = theta.new_zeros(m, 1) if clock is None else model.tensor(clock[order])
    # padded rows would spoil BatchNorm's statistics, and a graph cannot draw a site's own noise
    if model.device.type == "cuda" and model.stacks and not model.statistics and noise is None:
        from grandrounds.site.cuda_train import run_graph

        run_graph(job, plan, theta, state, t, closed)
    else:
        count = _workers(model, m, workers)
        if count > 1:
            theta, t, *state = (shared(held) for held in (theta, t, *state))

        def one(j: int) -> None:
            with torch_seed(seeds[order[j]], model.device) if seeds else nullcontext():
                own = None if closed is None else closed[j]
                blur = None if noise is None else _Blur(noise, j, work.gradient_noise)
                _one_site(job, plan, j, theta[j], [s[j] for s in state], t[j], own, blur)

        began = time.perf_counter()
        spread(one, m, (theta, t, *state), workers=count)
        model.cache["alone"] = (time.perf_counter() - began) * count
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(model.device)

    def home(x: Tensor) -> Array:
        """In page-locked memory, which a GPU writes and reads ten times as fast: a stack of large nets is gigabytes."""
        out = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        return cast("Array", out.copy_(x[back]).numpy())

    kept = tuple(home(s) for s in state) if work.keep_optimizer else ()
    aligned = job.borrowed if lent is not None else None
    reasons = None if aligned is None else home(_sketches(model, aligned, theta, aligned.sites["label"]))
    return Trained(home(theta).astype(start.dtype, copy=False), plan.steps, kept, home(t), reasons)


def _workers(model: TorchModel, sites: int, asked: int) -> int:
    """How many processes to train with: as told, or as many as there are free cores once a round has shown its length."""
    if model.device.type != "cpu" or sites < 2:
        return 1
    if asked:
        return min(asked, sites)
    cores: Cores = model.cache.setdefault("cores", Cores())
    return min(cores.free(), sites) if model.cache.get("alone", 0.0) > WORTHWHILE else 1


@dataclass(frozen=True)
class _Blur:
    """One site's noise, step after step."""

    noise: Noise
    site: int
    deviation: float

    def added(self, gradient: Tensor) -> Tensor:
        """The gradient (learnt,) with the next draw: the NumPy kernel's own numbers."""
        drawn = torch.from_numpy(self.deviation * self.noise.of_site(self.site))
        return gradient + drawn.to(gradient.device, gradient.dtype)


def _one_site(
    job: Job,
    plan: Plan,
    j: int,
    theta: Tensor,
    slots: list[Tensor],
    t: Tensor,
    closed: Tensor | None,
    blur: _Blur | None,
) -> None:
    """All steps of one site: the bare loop, without padding. theta (P,), slots (learnt,), t (1,) change in place."""
    model = job.model
    model.net.train()
    params = model.point_at(theta)
    learnt = theta[: model.learnt]
    start = (job.start if job.start.dim() == 1 else job.start[j])[: model.learnt]
    correction = None if job.correction is None else job.correction[j]
    for s in range(int(plan.steps_in_order[j])):
        rows, weight = plan.batch(s, j)
        i = torch.from_numpy(rows).to(model.device)
        w = torch.as_tensor(weight).to(model.device, model.dtype)
        if job.class_weight is not None:
            w = w * job.class_weight[job.y[i]]
        taken = None if job.borrowed is None else job.borrowed.at(s, j)
        gradient = torch.cat([g.reshape(-1) for g in single_gradients(job, params, job.batch(i, w, closed, taken))])
        if blur is not None:
            gradient = blur.added(gradient)
        with torch.no_grad():
            t += 1
            change, new = job.change(learnt, gradient, slots, t, start=start, decay=job.decay, correction=correction)
            learnt += change
            for old, fresh in zip(slots, new, strict=True):
                old.copy_(fresh)


def anchored(model: TorchModel, taken: Taken, start: Array, order: Array, work: Work) -> Borrowed:
    """With what the model that each site starts from says of the rows its steps take; see `Anchor.of`."""
    models, mine = distinct(start, order)
    starts = model.tensor(models)
    borrowed = Borrowed.of(model, taken.lent, weight=work.anchor)
    borrowed = borrowed.with_steps(rows=taken.rows, other=taken.other, feature=taken.feature)
    if taken.feature is None:
        said = torch.stack([_probabilities(_said(model, theta, borrowed.x)) for theta in starts])
        return borrowed.with_steps(
            target=said[torch.from_numpy(mine)[:, None].to(model.device), borrowed.steps["rows"]]
        )
    target = borrowed.x.new_zeros(*taken.rows.shape, model.outputs)
    for j, steps in taken.pieces():
        x = borrowed.inputs({name: t[steps, j] for name, t in borrowed.steps.items()})
        said = _probabilities(_said(model, starts[mine[j]], x.flatten(0, 1)))
        target[steps, j] = said.view(*x.shape[:2], -1)
    return borrowed.with_steps(target=target)


def _aligned(
    model: TorchModel, lent: Lent, start: Array, order: Array, work: Work, consensus: Array | None
) -> Borrowed:
    """With the classes that the sites' starts see in the rows, and the sketch to pull to; see `Alignment.of`."""
    models, mine = distinct(start, order)
    starts, which = model.tensor(models), torch.from_numpy(mine).to(model.device)
    borrowed = Borrowed.of(model, lent, weight=work.alignment)
    logits = torch.stack([_said(model, theta, borrowed.x) for theta in starts])
    classes = torch.arange(model.outputs, device=model.device)
    labels = (logits > 0 if model.outputs == 1 else classes == logits.argmax(-1, keepdim=True)).to(model.dtype)
    if consensus is None:
        towards = _sketches(model, borrowed, starts, labels)[which]
    else:
        towards = model.tensor(consensus).expand(len(mine), -1)
    return replace(borrowed, sites={"label": labels[which], "towards": towards})


@torch.no_grad()
def _sketches(model: TorchModel, borrowed: Borrowed, theta: Tensor, labels: Tensor) -> Tensor:
    """The sketch (K, F) of each of K models on the lent rows, with labels (K, R, C)."""
    model.net.eval()
    found = []
    for own, label in zip(theta, labels, strict=True):
        named = dict(zip(model.trainable, model.point_at(own), strict=True))
        blocks = zip(torch.split(borrowed.x, _ROWS), torch.split(label, _ROWS), strict=True)
        used = torch.stack([use(model, borrowed.member, named, x, t) for x, t in blocks]).sum(0)
        found.append(used / used.sum().clamp_min(EPS))
    return torch.stack(found)


@torch.no_grad()
def _said(model: TorchModel, theta: Tensor, x: Tensor) -> Tensor:
    """The logits (n, C) of one model. Unlike `model.logits` it keeps nothing of the rows on the device."""
    model.net.eval()
    named = dict(zip(model.trainable, model.point_at(theta), strict=True))
    return torch.cat([model.forward(named, block) for block in torch.split(x, _ROWS)])


def _probabilities(logits: Tensor) -> Tensor:
    return torch.sigmoid(logits) if logits.shape[-1] == 1 else torch.softmax(logits, dim=-1)
