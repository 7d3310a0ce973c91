"""One round of training with torch, before it is decided how: the rows, the loss, the step rule, the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from grandrounds.arrays import Array
from grandrounds.models.torch_model import TorchModel
from grandrounds.models.torch_optimizers import SLOTS, Step, torch_optimizer
from grandrounds.site.contrast import EPS, Contrast
from grandrounds.site.stack import Part
from grandrounds.site.work import Work


@dataclass(frozen=True)
class Job:
    """What does not change from step to step."""

    model: TorchModel
    x: Tensor
    target: Tensor
    y: Tensor
    start: Tensor  # (P,), or (m, P) in the plan's order
    decay: Tensor  # (learnt,) 1 on weights, 0 on biases and norms
    rule: Step
    slots: int
    l2: float
    proximal: float
    lr: Tensor
    class_weight: Tensor | None
    key: tuple[object, ...]  # what a recorded graph of this job depends on
    correction: Tensor | None = None  # (m, learnt) added to every gradient, in the plan's order
    contrast: tuple[Tensor, Tensor, float, float] | None = None  # MOON: towards and away (N, width), mu, temperature

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
        return replace(self, x=_placed(self.model, "rows", x))

    def with_correction(self, correction: Tensor) -> Job:
        """The same job with something added to each site's gradients."""
        return replace(self, correction=correction, key=(*self.key, "correction"))

    def with_contrast(self, contrast: Contrast) -> Job:
        """The same job with MOON's loss."""
        towards = _placed(self.model, "towards", self.model.tensor(contrast.towards))
        away = _placed(self.model, "away", self.model.tensor(contrast.away))
        made = (towards, away, contrast.mu, contrast.temperature)
        return replace(self, contrast=made, key=(*self.key, "contrast", *made[2:], towards.data_ptr(), away.data_ptr()))

    def batch(self, rows: Tensor, weight: Tensor, closed: Tensor | None) -> dict[str, Tensor]:
        """What the loss of these rows needs, each with the leading axes of `rows`."""
        out = {"x": self.x[rows], "target": self.target[rows], "weight": weight}
        if closed is not None:
            out["closed"] = closed
        if self.contrast is not None:
            out["towards"], out["away"] = self.contrast[0][rows], self.contrast[1][rows]
        return out

    def loss(self, params: Sequence[Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """One site's weighted loss."""
        named = dict(zip(self.model.trainable, params, strict=True))
        if self.contrast is None:
            out, further = self.model.forward(named, batch["x"]), None
        else:
            out, features = self.model.with_features(named, batch["x"])
            further = _contrastive(features, batch["towards"], batch["away"], self.contrast[3]) * self.contrast[2]
        if "closed" in batch:
            out = out + batch["closed"]
        losses = row_losses(out, batch["target"])
        return ((losses if further is None else losses + further) * batch["weight"]).sum()

    @property
    def is_plain_sgd(self) -> bool:
        return not (self.slots or self.l2 or self.proximal) and self.correction is None

    def change(
        self,
        theta: Tensor,
        gradient: Tensor,
        slots: list[Tensor],
        t: Tensor,
        *,
        start: Tensor,
        decay: Tensor,
        correction: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """What one step changes, element by element, and the new slots; `t` counts the step that is taken."""
        if correction is not None:
            gradient = gradient + correction
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


def _contrastive(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """MOON's loss of each row: (B,). See `contrast.py`."""
    own = features / torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min(EPS)
    return F.softplus((own * (away - towards)).sum(-1) / temperature)


def _placed(model: TorchModel, name: str, values: Tensor) -> Tensor:
    """These values at a place of their own, the same in every round: a recorded graph reads from it."""
    place = model.held.get(name)
    if place is None or place.shape != values.shape:
        place = model.held[name] = torch.empty_like(values)
    place.copy_(values)
    return cast("Tensor", place)


def single_gradients(job: Job, params: Sequence[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The gradient of one site's weighted loss with respect to each of its parameters."""
    return torch.autograd.grad(job.loss(params, batch), list(params))


def stacked_gradients(job: Job) -> Callable[..., tuple[Tensor, ...]]:
    """gradients(params, batch): for each parameter (K, ...) its gradient, by vmap over the stack."""
    return cast("Callable[..., tuple[Tensor, ...]]", vmap(grad(job.loss)))
