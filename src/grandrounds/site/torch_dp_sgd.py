"""DP-SGD with torch, for nets of any kind: gradients of single rows by vmap, clipped and summed a few rows at a time.

It uses the same sampling and noise as the NumPy kernel, so a dense model gives the same numbers on either. Sites are
trained one after another, on a CPU as on a GPU. BatchNorm has no gradient of one row, because its output depends on the other
rows of the batch.
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
from grandrounds.privacy.clipping import MARGIN
from grandrounds.site.dp_sgd import SampledSteps
from grandrounds.site.torch_job import DeviceReference, TorchJob
from grandrounds.site.torch_train import anchor_reference
from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult

_BYTES = 256 * 2**20
"""Bytes for the gradients of single rows."""

Gradients = Callable[..., tuple[Tensor, ...]]


def train(job: TrainJob, sampled: SampledSteps) -> TrainResult:
    """Train the member sites with DP-SGD, like `dp_sgd.train`, for torch.

    Args:
        job: The model, the rows and the settings.
        sampled: The rows and the noise of every step.

    Raises:
        BadInput: The net has BatchNorm, which has no gradient of one row.
    """
    model, start, config = cast("TorchModel", job.model), job.start, job.config
    if model.statistics:
        raise BadInput(
            "DP-SGD clips the gradient of each row, but BatchNorm mixes rows: set model.norm = 'group'",
            code="unsupported-with-dp",
        )
    work = TorchJob.build(job)
    if job.inputs is not None:
        work = work.with_rows(model.tensor(job.inputs))
    order, m = sampled.order, len(job.members)
    if start.ndim == 2:
        work = replace(work, start=work.start[torch.from_numpy(order).to(model.device)])
    if job.correction is not None:
        work = work.with_correction(model.tensor(job.correction[order]))
    if job.objective is not None:
        work = work.with_objective(job.objective, order)
    theta = work.start.expand(m, -1).clone()
    closed = None if job.penalty is None else model.tensor(job.penalty[order])
    state = [model.tensor(s[order]) for s in job.slots] or [torch.zeros_like(theta) for _ in range(work.slots)]
    t = theta.new_zeros(m, 1) if job.clock is None else model.tensor(job.clock[order])
    gradients = _row_gradients(work)
    anchor = None if job.reference_draws is None else anchor_reference(job, job.reference_draws, order)
    model.net.train()
    for j in np.flatnonzero(sampled.steps[order] > 0).tolist():
        with torch_seed(job.seeds[order[j]], model.device) if job.seeds else nullcontext():
            penalty = None if closed is None else closed[j]
            slots = [s[j] for s in state]
            _one_site(work, sampled, j, theta[j], slots, t[j], penalty, gradients, anchor, config)
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(model.device)

    def to_host(tensor: Tensor) -> Array:
        return tensor[back].cpu().numpy()

    kept_slots = tuple(to_host(s) for s in state) if config.keep_optimizer else ()
    return TrainResult(to_host(theta).astype(start.dtype, copy=False), sampled.steps, kept_slots, to_host(t))


def _one_site(
    job: TorchJob,
    sampled: SampledSteps,
    j: int,
    theta: Tensor,
    slots: list[Tensor],
    t: Tensor,
    closed: Tensor | None,
    gradients: Gradients,
    anchor: DeviceReference | None,
    config: TrainConfig,
) -> None:
    """Take all steps of one site. theta (P,), slots (P,), t (1,) change in place."""
    model = job.model
    start = job.start if job.start.dim() == 1 else job.start[j]
    correction, penalty = None if job.correction is None else job.correction[j], job.penalty(j)
    pieces = [(piece, shape) for _, piece, shape in model.layout.slices]
    few = max(1, _BYTES // (theta.numel() * theta.element_size()))
    for s in range(int(sampled.steps[sampled.order[j]])):
        rows = torch.from_numpy(sampled.rows[s, j][sampled.real[s, j]]).to(model.device)
        params = tuple(theta[piece].view(shape) for piece, shape in pieces)
        total = torch.zeros_like(theta)
        for block in torch.split(rows, few):
            if len(block):
                total += _clipped_sum(job, gradients, params, block, closed, clip=config.clip)
        noise = torch.from_numpy(config.noise * config.clip * sampled.noise.next_for(j)).to(model.device)
        gradient = ((total.double() + noise) / sampled.expected[j]).to(theta.dtype)
        if anchor is not None:
            gradient += _anchor_gradient(job, anchor, params, s, j)
        with torch.no_grad():
            t += 1
            change, new = job.change(
                theta, gradient, slots, t, start=start, decay=job.decay, correction=correction, penalty=penalty
            )
            theta += change
            for old, fresh in zip(slots, new, strict=True):
                old.copy_(fresh)


def _clipped_sum(
    job: TorchJob, gradients: Gradients, params: Sequence[Tensor], rows: Tensor, closed: Tensor | None, *, clip: float
) -> Tensor:
    """Sum (P,) the gradients of these rows, each clipped; a gradient that is not finite is left out."""
    weight = job.x.new_ones(len(rows)) if job.class_weight is None else job.class_weight[job.y[rows]]
    blocks = gradients(params, job.x[rows], job.target[rows], weight, closed)
    each = torch.cat([g.reshape(len(rows), -1) for g in blocks], dim=1).detach()
    length = each.double().square().sum(dim=1).sqrt()
    factor = (MARGIN * clip / length.clamp_min(1e-300)).clamp_max(1.0)
    good = length.isfinite()
    each = torch.where(good[:, None], each, 0)
    return torch.where(good, factor, 0.0).to(each.dtype) @ each


def _anchor_gradient(job: TorchJob, anchor: DeviceReference, params: tuple[Tensor, ...], step: int, j: int) -> Tensor:
    """Compute the reference rows' part of the gradient (P,): they are not protected patients, so it is added after the noise."""
    drawn = anchor.for_step(step, j)
    weight = (drawn["pull"] / len(drawn["rows"])).expand(len(drawn["rows"]))
    batch = {"x": anchor.inputs(drawn), "target": drawn["target"], "weight": weight}
    gradients = cast("tuple[Tensor, ...]", grad(job.loss)(params, batch))
    return torch.cat([g.reshape(-1) for g in gradients])


def _row_gradients(job: TorchJob) -> Gradients:
    """Make gradients(params, x, target, weight, closed): of each parameter the gradients of all rows, (n, ...)."""

    def loss(params: Sequence[Tensor], x: Tensor, target: Tensor, weight: Tensor, closed: Tensor | None) -> Tensor:
        batch = {"x": x[None], "target": target[None], "weight": weight[None]}
        return job.loss(params, batch if closed is None else {**batch, "closed": closed})

    return cast("Gradients", vmap(grad(loss), in_dims=(None, 0, 0, 0, None), randomness="different"))
