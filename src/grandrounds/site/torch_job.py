"""One round of training with torch, before it is decided how: the rows, the loss, the step rule, the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from grandrounds.arrays import Array
from grandrounds.models.torch_model import TorchModel
from grandrounds.models.torch_optimizers import SLOTS, Step, torch_optimizer
from grandrounds.site.stack import Part
from grandrounds.site.work import Work


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

    def with_rows(self, x: Tensor) -> Job:
        """The same job on other rows. They get a place of their own, the same in every round (a graph reads from it):

        on a CPU `self.x` is the site's own memory, and its pictures must not change.
        """
        place = self.model.held.get("rows")
        if place is None or place.shape != x.shape:
            place = self.model.held["rows"] = torch.empty_like(self.x)
        place.copy_(x)
        return replace(self, x=place)

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
