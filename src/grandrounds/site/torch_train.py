"""Local training with torch: on a CPU one site after another, on a GPU all sites at once in a CUDA graph.

The same plan of batches, the same loss and the same step rules as the NumPy kernel, so a dense model gives the
same numbers on either. Convolutions are not batched over sites on a CPU (that costs 1.8x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from grandrounds.arrays import Array
from grandrounds.models.torch_model import TorchModel
from grandrounds.models.torch_optimizers import SLOTS, Step, torch_optimizer
from grandrounds.site.batches import Plan
from grandrounds.site.stack import Part
from grandrounds.site.work import Trained, Work


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
    x: Array | None = None,
    penalty: Array | None = None,
    statistics: Array | None = None,
) -> Trained:
    """Train the member sites from `start` (P,) on their own rows; like the NumPy kernel's `train`.

    `x` stands in for the part's own rows in this round (augmented pictures); `penalty` (m, C) closes the classes of
    other tasks; `statistics` (m, S) are the sites' own of BatchNorm.
    """
    job = Job.of(model, part, start, work, class_weight)
    if x is not None:
        job.x.copy_(model.tensor(x))
    order, m = plan.order, len(members)
    theta = job.start.repeat(m, 1)
    if statistics is not None:
        theta[:, model.learnt :] = model.tensor(statistics[order])
    closed = None if penalty is None else model.tensor(penalty[order])
    state = [model.tensor(s[order]) for s in slots] or [theta.new_zeros(m, model.learnt) for _ in range(job.slots)]
    t = theta.new_zeros(m, 1) if clock is None else model.tensor(clock[order])
    if model.device.type == "cuda" and not model.statistics:  # padded rows would spoil BatchNorm's statistics
        from grandrounds.site.cuda_train import run_graph

        run_graph(job, plan, theta, state, t, closed)
    else:
        for j in range(m):
            _one_site(job, plan, j, theta[j], [s[j] for s in state], t[j], None if closed is None else closed[j])
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(model.device)

    def home(x: Tensor) -> Array:
        return x[back].cpu().numpy()

    kept = tuple(home(s) for s in state) if work.keep_optimizer else ()
    return Trained(home(theta).astype(start.dtype, copy=False), plan.steps, kept, home(t))


@dataclass(frozen=True)
class Job:
    """What does not change from step to step."""

    model: TorchModel
    x: Tensor
    target: Tensor
    y: Tensor
    start: Tensor  # (P,)
    decay: Tensor  # (learnt,) 1 on weights, 0 on biases and norms
    rule: Step
    slots: int
    l2: float
    proximal: float
    lr: Tensor
    class_weight: Tensor | None
    key: tuple[object, ...]  # what a recorded graph of this job depends on

    @classmethod
    def of(cls, model: TorchModel, part: Part, start: Array, work: Work, class_weight: Array | None) -> Job:
        x, target, y = _on_device(model, part)
        return cls(
            model=model,
            x=x,
            target=target,
            y=y,
            start=model.tensor(start),
            decay=model.tensor(model.decay_mask()),
            rule=torch_optimizer(work.optimizer, momentum=work.momentum, weight_decay=work.weight_decay),
            slots=SLOTS[work.optimizer],
            l2=work.l2,
            proximal=work.proximal,
            lr=torch.tensor(work.lr, dtype=model.dtype, device=model.device),
            class_weight=None if class_weight is None else model.tensor(class_weight),
            key=(work.optimizer, work.momentum, work.weight_decay, work.l2, work.proximal, class_weight is not None),
        )

    @property
    def is_plain_sgd(self) -> bool:
        return not (self.slots or self.l2 or self.proximal)

    def change(
        self, theta: Tensor, gradient: Tensor, slots: list[Tensor], t: Tensor, *, start: Tensor, decay: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """What one step changes, element by element, and the new slots; `t` counts the step that is taken."""
        if self.l2:
            gradient = gradient + self.l2 * decay * theta
        if self.proximal:
            gradient = gradient + self.proximal * (theta - start)
        return self.rule(theta, gradient, slots, t, self.lr, decay)


def _on_device(model: TorchModel, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """A part's rows as tensors, moved once and kept with the model while the part lives."""
    held = model.held.get("part")
    if held is None or held[0] is not part:
        tensors = model.tensor(part.x), model.tensor(part.target), torch.as_tensor(part.y).to(model.device)
        held = model.held["part"] = (part, tensors)
    return cast("tuple[Tensor, Tensor, Tensor]", held[1])


def row_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each row against target probabilities: (B,)."""
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none")[..., 0]
    return -(target * F.log_softmax(logits, dim=-1)).sum(-1)


def _one_site(
    job: Job, plan: Plan, j: int, theta: Tensor, slots: list[Tensor], t: Tensor, closed: Tensor | None
) -> None:
    """All steps of one site: the bare loop, without padding. theta (P,), slots (learnt,), t (1,) change in place."""
    model = job.model
    model.net.train()
    params = model.point_at(theta)
    learnt, start = theta[: model.learnt], job.start[: model.learnt]
    for s in range(int(plan.steps_in_order[j])):
        rows, weight = plan.batch(s, j)
        i = torch.from_numpy(rows).to(model.device)
        w = torch.as_tensor(weight).to(model.device, model.dtype)
        if job.class_weight is not None:
            w = w * job.class_weight[job.y[i]]
        gradient = torch.cat([g.reshape(-1) for g in single_gradients(job, params, job.x[i], job.target[i], w, closed)])
        with torch.no_grad():
            t += 1
            change, new = job.change(learnt, gradient, slots, t, start=start, decay=job.decay)
            learnt += change
            for old, fresh in zip(slots, new, strict=True):
                old.copy_(fresh)


def single_gradients(
    job: Job, params: Sequence[Tensor], x: Tensor, target: Tensor, weight: Tensor, closed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The gradient of one site's weighted loss with respect to each of its parameters; `closed` (C,) is its penalty."""
    out = job.model.forward(dict(zip(job.model.trainable, params, strict=True)), x)
    out = out if closed is None else out + closed
    return torch.autograd.grad((row_losses(out, target) * weight).sum(), list(params))


def stacked_gradients(job: Job) -> Callable[..., tuple[Tensor, ...]]:
    """gradients(params, x, target, weight[, closed]): for each parameter (K, ...) its gradient, by vmap over the stack."""
    model = job.model

    def loss(params: tuple[Tensor, ...], x: Tensor, target: Tensor, weight: Tensor, *closed: Tensor) -> Tensor:
        out = model.forward(dict(zip(model.trainable, params, strict=True)), x)
        out = out + closed[0] if closed else out
        return (row_losses(out, target) * weight).sum()

    return cast("Callable[..., tuple[Tensor, ...]]", vmap(grad(loss)))
