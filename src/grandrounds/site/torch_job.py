"""One round of training with torch, before it is decided how: the rows, the loss, the step rule, the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from grandrounds.core.arrays import Array
from grandrounds.models.torch_model import TorchModel
from grandrounds.models.torch_optimizers import SLOTS, Step, torch_optimizer
from grandrounds.site.align import EPS as NO_USE
from grandrounds.site.align import near
from grandrounds.site.anchor import Lent
from grandrounds.site.contrast import EPS, Contrast
from grandrounds.site.stack import Part
from grandrounds.site.work import Work


@dataclass(frozen=True)
class Borrowed:
    """Lent rows on the device, and what steps and sites make of them; sites in the plan's order.

    Anchored (`anchor.py`): each step takes some. Aligned (`align.py`): each site has labels for all, and a sketch.
    """

    x: Tensor  # (R, d) or (R, C, H, W)
    belongs: Tensor  # (d,) or (H, W): the feature that an input or pixel belongs to
    member: Tensor  # (d, F) the same as ones and zeros
    weight: float
    steps: Mapping[str, Tensor] = field(default_factory=dict)  # (S, m, A, ...) rows, target; permuted: other, feature
    sites: Mapping[str, Tensor] = field(default_factory=dict)  # (m, ...) label (R, C) and towards (F,)

    @classmethod
    def of(cls, model: TorchModel, lent: Lent, *, weight: float) -> Borrowed:
        """The rows, moved once and kept with the model while they are the same."""
        held = model.cache.get("lent")
        if held is None or held[0] is not lent:
            of = torch.as_tensor(lent.features.feature_index).to(model.device)
            member = (of[:, None] == torch.arange(len(lent.features), device=model.device)).to(model.dtype)
            of = of if lent.x.ndim == 2 else of.view(lent.x.shape[2:])
            held = model.cache["lent"] = (lent, model.tensor(lent.x), of, member)
        return cls(held[1], held[2], held[3], weight)

    def with_steps(self, **more: Array | Tensor | None) -> Borrowed:
        """With further things that each step takes."""
        new = {n: torch.as_tensor(a).to(self.x.device) for n, a in more.items() if a is not None}
        return replace(self, steps={**self.steps, **new})

    def at(self, step: int, j: int) -> dict[str, Tensor]:
        """What one site has in one step."""
        steps, sites = {n: t[step, j] for n, t in self.steps.items()}, {n: t[j] for n, t in self.sites.items()}
        return {**steps, **sites, "pull": self.x.new_tensor(self.weight)}

    def inputs(self, taken: Mapping[str, Tensor]) -> Tensor:
        """The rows (..., A, ...) that were taken, permuted (or with a tile hidden) where they are."""
        x = self.x[taken["rows"]]
        if "feature" not in taken:
            return x
        moved = self.belongs == taken["feature"].view(*taken["feature"].shape, *(1,) * self.belongs.dim())
        if self.belongs.dim() == 2:
            return torch.where(moved.unsqueeze(-3), 0, x)
        return torch.where(moved, self.x[taken["other"]], x)


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
    borrowed: Borrowed | None = None

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
            class_weight=None if class_weight is None else _placed(model, "class weights", model.tensor(class_weight)),
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

    def with_borrowed(self, borrowed: Borrowed) -> Job:
        """The same job with lent rows in every step."""
        shapes = tuple((n, t.shape[2:]) for n, t in borrowed.steps.items())
        key = ("borrowed", borrowed.weight, borrowed.x.data_ptr(), shapes, tuple(borrowed.sites))
        return replace(self, borrowed=borrowed, key=(*self.key, *key))

    def batch(
        self, rows: Tensor, weight: Tensor, closed: Tensor | None, taken: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """What the loss of these rows needs, each with the leading axes of `rows`; `taken` is of the lent rows."""
        out = {"x": self.x[rows], "target": self.target[rows], "weight": weight}
        if self.borrowed is not None and taken is not None and "rows" in taken:
            each = (taken["pull"][..., None] / taken["rows"].shape[-1]).expand(taken["rows"].shape)
            lent = {"x": self.borrowed.inputs(taken), "target": taken["target"], "weight": each}
            out = {name: torch.cat([own, lent[name]], dim=rows.dim() - 1) for name, own in out.items()}
        elif taken:
            out |= taken
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
        loss = ((losses if further is None else losses + further) * batch["weight"]).sum()
        if self.borrowed is not None and "towards" in batch:
            used = use(self.model, self.borrowed.member, named, self.borrowed.x, batch["label"])
            sketch, delta = used / used.sum().clamp_min(NO_USE), near(len(used))
            apart = F.huber_loss(sketch, batch["towards"], reduction="sum", delta=delta) / delta
            loss = loss + batch["pull"] * apart
        return loss

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
    held = model.cache.get("part")
    if held is None or held[0] is not part:
        tensors = model.tensor(part.x), model.tensor(part.target), torch.as_tensor(part.y).to(model.device)
        held = model.cache["part"] = (part, tensors)
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


def use(model: TorchModel, member: Tensor, named: Mapping[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
    """How much one model uses each feature on these rows, U of `align.py`: (F,), with a slope of its own."""

    def total(rows: Tensor) -> Tensor:
        return row_losses(model.forward(named, rows), label).sum()

    product = x * cast("Tensor", grad(total)(x))
    return ((product if x.dim() == 2 else product.sum(1)).flatten(1) @ member).abs().sum(0)


def _placed(model: TorchModel, name: str, values: Tensor) -> Tensor:
    """These values at a place of their own, the same in every round: a recorded graph reads from it."""
    place = model.cache.get(name)
    if place is None or place.shape != values.shape:
        place = model.cache[name] = torch.empty_like(values)
    place.copy_(values)
    return cast("Tensor", place)


def single_gradients(job: Job, params: Sequence[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The gradient of one site's weighted loss with respect to each of its parameters."""
    return torch.autograd.grad(job.loss(params, batch), list(params))


def stacked_gradients(job: Job) -> Callable[..., tuple[Tensor, ...]]:
    """gradients(params, batch): for each parameter (K, ...) its gradient, by vmap over the stack."""
    return cast("Callable[..., tuple[Tensor, ...]]", vmap(grad(job.loss)))
