"""Local training with torch: on a CPU one site after another, on a GPU all sites at once in a CUDA graph.

It uses the same batches, loss and step rules as the NumPy kernel, so a dense model gives the same numbers on either.
Convolutions are not batched over sites on a CPU, which would take 1.8 times as long.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from grandrounds.core.arrays import Array
from grandrounds.models.losses import CROSS_ENTROPY, POISSON
from grandrounds.models.torch_model import TorchModel, torch_seed
from grandrounds.site.align import EPS
from grandrounds.site.anchor import ReferenceDraws, SharedReference, distinct
from grandrounds.site.batches import BatchPlan
from grandrounds.site.dp_sgd import Noise
from grandrounds.site.objective import Batch
from grandrounds.site.own_loop import Gradient, run_loop
from grandrounds.site.process_pool import WORTHWHILE, Cores, parallel_for, shared
from grandrounds.site.torch_job import DeviceReference, TorchJob, feature_use, single_gradients
from grandrounds.site.train_job import TrainJob, TrainResult

_ROWS = 256
"""Reference rows that go through a net at once, outside of steps."""


def train(job: TrainJob, plan: BatchPlan) -> TrainResult:
    """Train the member sites on their own rows, like the NumPy kernel's `train`.

    Args:
        job: The model, the rows and the settings.
        plan: The batches of every step.

    Returns:
        The local models in the members' order.
    """
    model, start, config = cast("TorchModel", job.model), job.start, job.config
    order, m = plan.order, len(job.members)
    work = _on_device(job, model, order)
    theta = work.start.expand(m, -1).clone()
    closed = None if job.penalty is None else model.tensor(job.penalty[order])
    state = [model.tensor(s[order]) for s in job.slots] or [theta.new_zeros(m, model.learnt) for _ in range(work.slots)]
    t = theta.new_zeros(m, 1) if job.clock is None else model.tensor(job.clock[order])
    # padded rows would spoil BatchNorm's statistics, and a graph supports neither gradient noise nor local objectives
    is_plain = job.noise is None and job.objective is None
    if model.device.type == "cuda" and model.stacks and not model.statistics and is_plain:
        from grandrounds.site.cuda_train import run_graph

        run_graph(work, plan, theta, state, t, closed)
    else:
        count = _workers(model, m, job.workers)
        if count > 1:
            theta, t, *state = (shared(tensor) for tensor in (theta, t, *state))

        def one(j: int) -> None:
            with torch_seed(job.seeds[order[j]], model.device) if job.seeds else nullcontext():
                penalty = None if closed is None else closed[j]
                noise = None if job.noise is None else _SiteNoise(job.noise, j, config.gradient_noise)
                _one_site(work, plan, j, theta[j], [s[j] for s in state], t[j], penalty, noise)

        began = time.perf_counter()
        parallel_for(one, m, (theta, t, *state), workers=count)
        model.cache["alone"] = (time.perf_counter() - began) * count
    if job.frozen is not None and model.statistics:  # BatchNorm's statistics follow the rows, not gradients
        still = torch.from_numpy(job.frozen[job.frozen >= model.learnt]).to(model.device)
        theta[:, still] = work.start.expand(m, -1)[:, still]
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(model.device)

    def to_host(x: Tensor) -> Array:
        """Copy to page-locked memory, which a GPU writes and reads ten times as fast: large nets take gigabytes."""
        out = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        return cast("Array", out.copy_(x[back]).numpy())

    slots = tuple(to_host(s) for s in state) if config.keep_optimizer else ()
    aligned = work.reference if job.reference is not None else None
    reasons = None if aligned is None else to_host(_sketches(model, aligned, theta, aligned.sites["label"]))
    return TrainResult(to_host(theta).astype(start.dtype, copy=False), plan.steps, slots, to_host(t), reasons)


def _on_device(job: TrainJob, model: TorchModel, order: Array) -> TorchJob:
    """Move a job to the device, with sites in the plan's order."""
    work = TorchJob.build(job)
    if job.inputs is not None:
        work = work.with_rows(model.tensor(job.inputs))
    if job.start.ndim == 2:
        work = replace(work, start=work.start[torch.from_numpy(order).to(model.device)])
    if job.correction is not None:
        work = work.with_correction(model.tensor(job.correction[order][:, : model.learnt]))
    if job.frozen is not None:
        work = work.with_frozen(job.frozen)
    if job.contrast is not None:
        work = work.with_contrast(job.contrast)
    if job.reference_draws is not None:
        work = work.with_reference(anchor_reference(job, job.reference_draws, order))
    if job.reference is not None:
        work = work.with_reference(_alignment_reference(job, job.reference, order))
    if job.objective is not None:
        work = work.with_objective(job.objective, order)
    return work


def _workers(model: TorchModel, sites: int, workers: int) -> int:
    """Choose the number of processes: as set, or one per free core if rounds are long."""
    if model.device.type != "cpu" or sites < 2:
        return 1
    if workers:
        return min(workers, sites)
    cores: Cores = model.cache.setdefault("cores", Cores())
    return min(cores.free(), sites) if model.cache.get("alone", 0.0) > WORTHWHILE else 1


def train_own_loop(job: TrainJob, plan: BatchPlan) -> TrainResult:
    """Train the member sites with the objective's own loop, with gradients by torch.

    Args:
        job: The model, the rows and the settings.
        plan: The batches of every step.

    Returns:
        The local models in the members' order.
    """
    model, config = cast("TorchModel", job.model), job.config
    members = np.arange(len(job.members))
    work = _on_device(job, model, members)
    closed = None if job.penalty is None else model.tensor(job.penalty)

    def gradient_at(j: int, start: Array) -> Gradient:
        first, penalty, seen = model.tensor(start), work.penalty(j), None if closed is None else closed[j]

        def gradient(theta: Array, batch: Batch) -> Array:
            model.net.train()
            at = model.tensor(theta)
            params = model.point_at(at)
            rows = torch.from_numpy(batch[0]).to(model.device)
            weight = torch.as_tensor(batch[1]).to(model.device, model.dtype)
            if work.class_weight is not None:
                weight = weight * work.class_weight[work.y[rows]]
            g = torch.cat([p.reshape(-1) for p in single_gradients(work, params, work.batch(rows, weight, seen))])
            if work.correction is not None:
                g = g + work.correction[j]
            g = g + config.l2 * work.decay * at
            if config.proximal:
                g = g + config.proximal * (at - first)
            if penalty is not None:
                g = g + penalty(at, first)
            return cast("Array", g.detach().cpu().numpy().astype(start.dtype, copy=False))

        return gradient

    def seeded(j: int, start: Array) -> Gradient:
        plain = gradient_at(j, start)
        if not job.seeds:
            return plain
        calls = iter(range(2**31))

        def gradient(theta: Array, batch: Batch) -> Array:
            with torch_seed((job.seeds[j] + next(calls)) % 2**63, model.device):
                return plain(theta, batch)

        return gradient

    return run_loop(job, plan, seeded)


@dataclass(frozen=True)
class _SiteNoise:
    """One site's gradient noise, step after step."""

    noise: Noise
    site: int
    deviation: float

    def add_to(self, gradient: Tensor) -> Tensor:
        """Add the next draw to the gradient (learnt,): the NumPy kernel's own numbers."""
        drawn = torch.from_numpy(self.deviation * self.noise.next_for(self.site))
        return gradient + drawn.to(gradient.device, gradient.dtype)


def _one_site(
    job: TorchJob,
    plan: BatchPlan,
    j: int,
    theta: Tensor,
    slots: list[Tensor],
    t: Tensor,
    closed: Tensor | None,
    noise: _SiteNoise | None,
) -> None:
    """Take all steps of one site, without padding. theta (P,), slots (learnt,), t (1,) change in place."""
    model = job.model
    model.net.train()
    params = model.point_at(theta)
    learnt = theta[: model.learnt]
    start = (job.start if job.start.dim() == 1 else job.start[j])[: model.learnt]
    correction, penalty = None if job.correction is None else job.correction[j], job.penalty(j)
    for s in range(int(plan.steps_in_order[j])):
        rows, weight = plan.batch(s, j)
        i = torch.from_numpy(rows).to(model.device)
        w = torch.as_tensor(weight).to(model.device, model.dtype)
        if job.class_weight is not None:
            w = w * job.class_weight[job.y[i]]
        drawn = None if job.reference is None else job.reference.for_step(s, j)
        gradient = torch.cat([g.reshape(-1) for g in single_gradients(job, params, job.batch(i, w, closed, drawn))])
        if noise is not None:
            gradient = noise.add_to(gradient)
        with torch.no_grad():
            t += 1
            change, new = job.change(
                learnt,
                gradient,
                slots,
                t,
                start=start,
                decay=job.decay,
                correction=correction,
                frozen=job.frozen,
                penalty=penalty,
            )
            learnt += change
            for old, fresh in zip(slots, new, strict=True):
                old.copy_(fresh)


def anchor_reference(job: TrainJob, draws: ReferenceDraws, order: Array) -> DeviceReference:
    """Predict the drawn rows with the model that each site starts from; see `Anchor.build`."""
    model = cast("TorchModel", job.model)
    models, mine = distinct(job.start, order)
    starts = model.tensor(models)
    reference = DeviceReference.build(model, draws.reference, weight=job.config.anchor)
    reference = reference.with_steps(rows=draws.rows, other=draws.other, feature=draws.feature)
    if draws.feature is None:
        predicted = torch.stack([_predict(model, theta, reference.x) for theta in starts])
        return reference.with_steps(
            target=predicted[torch.from_numpy(mine)[:, None].to(model.device), reference.steps["rows"]]
        )
    target = reference.x.new_zeros(*draws.rows.shape, model.outputs)
    for j, steps in draws.blocks():
        x = reference.inputs({name: t[steps, j] for name, t in reference.steps.items()})
        predicted = _predict(model, starts[mine[j]], x.flatten(0, 1))
        target[steps, j] = predicted.view(*x.shape[:2], -1)
    return reference.with_steps(target=target)


def _predict(model: TorchModel, theta: Tensor, x: Tensor) -> Tensor:
    """Compute a model's predictions as targets of training: probabilities, or outcomes in units of training."""
    z = _logits(model, theta, x)
    if model.loss == CROSS_ENTROPY:
        return _probabilities(z)
    return z.clamp_max(80).exp() if model.loss == POISSON else z


def _alignment_reference(job: TrainJob, shared_rows: SharedReference, order: Array) -> DeviceReference:
    """Predict the classes of the rows with the sites' starts, and compute the sketch to align to; see `Alignment.build`."""
    model = cast("TorchModel", job.model)
    models, mine = distinct(job.start, order)
    starts, model_of = model.tensor(models), torch.from_numpy(mine).to(model.device)
    reference = DeviceReference.build(model, shared_rows, weight=job.config.alignment)
    logits = torch.stack([_logits(model, theta, reference.x) for theta in starts])
    classes = torch.arange(model.outputs, device=model.device)
    labels = (logits > 0 if model.outputs == 1 else classes == logits.argmax(-1, keepdim=True)).to(model.dtype)
    if job.consensus is None:
        towards = _sketches(model, reference, starts, labels)[model_of]
    else:
        towards = model.tensor(job.consensus).expand(len(mine), -1)
    return replace(reference, sites={"label": labels[model_of], "towards": towards})


@torch.no_grad()
def _sketches(model: TorchModel, reference: DeviceReference, theta: Tensor, labels: Tensor) -> Tensor:
    """Compute the sketch (K, F) of each of K models on the reference rows, with labels (K, R, C)."""
    model.net.eval()
    out = []
    for vector, label in zip(theta, labels, strict=True):
        named = dict(zip(model.trainable, model.point_at(vector), strict=True))
        blocks = zip(torch.split(reference.x, _ROWS), torch.split(label, _ROWS), strict=True)
        used = torch.stack([feature_use(model, reference.member, named, x, t) for x, t in blocks]).sum(0)
        out.append(used / used.sum().clamp_min(EPS))
    return torch.stack(out)


@torch.no_grad()
def _logits(model: TorchModel, theta: Tensor, x: Tensor) -> Tensor:
    """Compute the logits (n, C) of one model. Unlike `model.logits` it does not cache the rows on the device."""
    model.net.eval()
    named = dict(zip(model.trainable, model.point_at(theta), strict=True))
    return torch.cat([model.forward(named, block) for block in torch.split(x, _ROWS)])


def _probabilities(logits: Tensor) -> Tensor:
    return torch.sigmoid(logits) if logits.shape[-1] == 1 else torch.softmax(logits, dim=-1)
