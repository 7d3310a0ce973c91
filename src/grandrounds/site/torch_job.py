"""One round of training with torch: the rows, the loss, the step rule, the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from grandrounds.core.arrays import Array
from grandrounds.models.losses import COX, CROSS_ENTROPY, POISSON, SQUARED
from grandrounds.models.torch_model import TorchModel
from grandrounds.models.torch_optimizers import SLOTS, Step, torch_optimizer
from grandrounds.site.align import EPS as NO_USE
from grandrounds.site.align import rounding_width
from grandrounds.site.anchor import SharedReference
from grandrounds.site.contrast import EPS, Contrast
from grandrounds.site.objective import BoundObjective
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainJob

Penalty = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class DeviceReference:
    """Reference rows on the device, with the tensors of each step and site; sites in the plan's order.

    Anchors (`anchor.py`): each step uses some rows. Alignment (`align.py`): each site has labels for all rows, and a sketch.
    """

    x: Tensor  # (R, d) or (R, C, H, W)
    belongs: Tensor  # (d,) or (H, W): the feature that an input or pixel belongs to
    member: Tensor  # (d, F) the same as ones and zeros
    weight: float
    steps: Mapping[str, Tensor] = field(default_factory=dict)  # (S, m, A, ...) rows, target; permuted: other, feature
    sites: Mapping[str, Tensor] = field(default_factory=dict)  # (m, ...) label (R, C) and towards (F,)

    @classmethod
    def build(cls, model: TorchModel, reference: SharedReference, *, weight: float) -> DeviceReference:
        """Move the rows to the device once; they are cached with the model."""
        cached = model.cache.get("lent")
        if cached is None or cached[0] is not reference:
            feature_of = torch.as_tensor(reference.features.feature_index).to(model.device)
            numbers = torch.arange(len(reference.features), device=model.device)
            member = (feature_of[:, None] == numbers).to(model.dtype)
            feature_of = feature_of if reference.x.ndim == 2 else feature_of.view(reference.x.shape[2:])
            cached = model.cache["lent"] = (reference, model.tensor(reference.x), feature_of, member)
        return cls(cached[1], cached[2], cached[3], weight)

    def with_steps(self, **more: Array | Tensor | None) -> DeviceReference:
        """Return a copy with further tensors of each step."""
        new = {n: torch.as_tensor(a).to(self.x.device) for n, a in more.items() if a is not None}
        return replace(self, steps={**self.steps, **new})

    def for_step(self, step: int, j: int) -> dict[str, Tensor]:
        """Return the tensors of one site in one step."""
        steps, sites = {n: t[step, j] for n, t in self.steps.items()}, {n: t[j] for n, t in self.sites.items()}
        return {**steps, **sites, "pull": self.x.new_tensor(self.weight)}

    def inputs(self, drawn: Mapping[str, Tensor]) -> Tensor:
        """Gather the drawn rows (..., A, ...), permuted (or with a tile hidden) if requested."""
        x = self.x[drawn["rows"]]
        if "feature" not in drawn:
            return x
        moved = self.belongs == drawn["feature"].view(*drawn["feature"].shape, *(1,) * self.belongs.dim())
        if self.belongs.dim() == 2:
            return torch.where(moved.unsqueeze(-3), 0, x)
        return torch.where(moved, self.x[drawn["other"]], x)


@dataclass(frozen=True)
class TorchJob:
    """The constant parts of a training job, on the device."""

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
    key: tuple[object, ...]  # settings that a captured graph of this job depends on
    correction: Tensor | None = None  # (m, learnt) added to every gradient, in the plan's order
    frozen: Tensor | None = None  # (learnt,) True where an entry keeps its start
    contrast: tuple[Tensor, Tensor, float, float] | None = None  # MOON: towards and away (N, width), mu, temperature
    reference: DeviceReference | None = None
    objective: BoundObjective | None = None
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (m, learnt) the objective's state, in the plan's order

    @classmethod
    def build(cls, job: TrainJob) -> TorchJob:
        """Move a job's rows and start to the device, and make its step rule."""
        model, config, class_weight = cast("TorchModel", job.model), job.config, job.class_weight
        x, target, y = _on_device(model, job.part)
        return cls(
            model=model,
            x=x,
            target=target,
            y=y,
            start=model.tensor(job.start),
            decay=model.tensor(model.decay_mask()),
            rule=torch_optimizer(config.optimizer, momentum=config.momentum, weight_decay=config.weight_decay),
            slots=SLOTS[config.optimizer],
            l2=config.l2,
            proximal=config.proximal,
            lr=torch.tensor(config.lr, dtype=model.dtype, device=model.device),
            class_weight=None if class_weight is None else _placed(model, "class weights", model.tensor(class_weight)),
            key=(
                config.optimizer,
                config.momentum,
                config.weight_decay,
                config.l2,
                config.proximal,
                class_weight is not None,
            ),
        )

    def with_rows(self, x: Tensor) -> TorchJob:
        """Return the job on other rows.

        They are copied to a fixed buffer, from which a graph reads: on a CPU `self.x` is the site's own memory, and its images
        must not change.
        """
        return replace(self, x=_placed(self.model, "rows", x))

    def with_correction(self, correction: Tensor) -> TorchJob:
        """Return the job with a correction that is added to each site's gradients."""
        return replace(self, correction=correction, key=(*self.key, "correction"))

    def with_frozen(self, entries: Array) -> TorchJob:
        """Return the job in which these entries keep their start."""
        mask = torch.zeros(self.model.learnt, dtype=torch.bool)
        mask[torch.from_numpy(entries[entries < self.model.learnt])] = True
        return replace(self, frozen=mask.to(self.model.device), key=(*self.key, "frozen", entries.tobytes()))

    def with_contrast(self, contrast: Contrast) -> TorchJob:
        """Return the job with MOON's loss."""
        towards = _placed(self.model, "towards", self.model.tensor(contrast.towards))
        away = _placed(self.model, "away", self.model.tensor(contrast.away))
        terms = (towards, away, contrast.mu, contrast.temperature)
        return replace(
            self, contrast=terms, key=(*self.key, "contrast", *terms[2:], towards.data_ptr(), away.data_ptr())
        )

    def with_reference(self, reference: DeviceReference) -> TorchJob:
        """Return the job with reference rows in every step."""
        shapes = tuple((n, t.shape[2:]) for n, t in reference.steps.items())
        key = ("reference", reference.weight, reference.x.data_ptr(), shapes, tuple(reference.sites))
        return replace(self, reference=reference, key=(*self.key, *key))

    def with_objective(self, objective: BoundObjective, order: Array) -> TorchJob:
        """Return the job with a local objective by import path; `order` is the plan's."""
        learnt = self.model.learnt
        vectors = {n: self.model.tensor(v[order][:, :learnt]) for n, v in objective.state.items()}
        return replace(self, objective=objective, vectors=vectors)

    def penalty(self, j: int) -> Penalty | None:
        """Return the gradient of the objective's penalty for the j-th site, given its model and its start; None for none."""
        own, vectors = self.objective, {n: v[j] for n, v in self.vectors.items()}
        if own is None or not own.has_penalty:
            return None
        return lambda theta, start: cast("Tensor", own.penalty_gradient(theta, start, vectors))

    def batch(
        self, rows: Tensor, weight: Tensor, closed: Tensor | None, drawn: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Gather the arguments of the loss for these rows, each with the leading axes of `rows`; `drawn`: of reference rows."""
        out = {"x": self.x[rows], "target": self.target[rows], "weight": weight}
        if self.reference is not None and drawn is not None and "rows" in drawn:
            each = (drawn["pull"][..., None] / drawn["rows"].shape[-1]).expand(drawn["rows"].shape)
            more = {"x": self.reference.inputs(drawn), "target": drawn["target"], "weight": each}
            out = {name: torch.cat([tensor, more[name]], dim=rows.dim() - 1) for name, tensor in out.items()}
        elif drawn:
            out |= drawn
        if closed is not None:
            out["closed"] = closed
        if self.contrast is not None:
            out["towards"], out["away"] = self.contrast[0][rows], self.contrast[1][rows]
        return out

    def loss(self, params: Sequence[Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Compute one site's weighted loss."""
        named = dict(zip(self.model.trainable, params, strict=True))
        if self.contrast is None:
            out, further = self.model.forward(named, batch["x"]), None
        else:
            out, features = self.model.with_features(named, batch["x"])
            further = _contrastive(features, batch["towards"], batch["away"], self.contrast[3]) * self.contrast[2]
        if "closed" in batch:
            out = out + batch["closed"]
        if self.objective is not None and self.objective.has_loss:  # a surrogate with the gradient of the objective
            slope = cast("Tensor", self.objective.loss_gradient(out.detach(), batch["target"], torch))
            losses = (out * slope).sum(-1)
        elif self.model.loss == COX:
            losses = cox_terms(out[..., 0], batch["target"], batch["weight"])
        else:
            losses = row_losses(out, batch["target"], self.model.loss)
        loss = ((losses if further is None else losses + further) * batch["weight"]).sum()
        if self.reference is not None and "towards" in batch:
            used = feature_use(self.model, self.reference.member, named, self.reference.x, batch["label"])
            sketch, delta = used / used.sum().clamp_min(NO_USE), rounding_width(len(used))
            apart = F.huber_loss(sketch, batch["towards"], reduction="sum", delta=delta) / delta
            loss = loss + batch["pull"] * apart
        return loss

    @property
    def is_plain_sgd(self) -> bool:
        return not (self.slots or self.l2 or self.proximal) and self.correction is None and self.frozen is None

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
        frozen: Tensor | None = None,
        penalty: Penalty | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the change of one step, element by element, and the new slots; `t` counts the step that is taken."""
        if correction is not None:
            gradient = gradient + correction
        if self.l2:
            gradient = gradient + self.l2 * decay * theta
        if self.proximal:
            gradient = gradient + self.proximal * (theta - start)
        if penalty is not None:
            gradient = gradient + penalty(theta, start)
        change, new = self.rule(theta, gradient, slots, t, self.lr, decay)
        return change if frozen is None else change.masked_fill(frozen, 0.0), new


def _on_device(model: TorchModel, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Move a part's rows to the device once; they are cached with the model."""
    cached = model.cache.get("part")
    if cached is None or cached[0] is not part:
        tensors = model.tensor(part.x), model.tensor(part.target), torch.as_tensor(part.y).to(model.device)
        cached = model.cache["part"] = (part, tensors)
    return cast("tuple[Tensor, Tensor, Tensor]", cached[1])


def row_losses(logits: Tensor, target: Tensor, loss: str = CROSS_ENTROPY) -> Tensor:
    """Compute the loss of each row against target probabilities, or against outcomes in units of training: (B,)."""
    if loss == SQUARED:
        return (logits - target).square()[..., 0] / 2
    if loss == POISSON:
        return (logits.clamp_max(80).exp() - target * logits)[..., 0]
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none")[..., 0]
    return -(target * F.log_softmax(logits, dim=-1)).sum(-1)


def cox_terms(z: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute event (log sum_R exp(z) - z) of each row (B,), R the rows with as long a time or longer (Breslow's rule for ties).

    Rows of weight 0, which pad a batch, are in no risk set.
    """
    real = weight > 0
    time = torch.where(real, target[..., 1], -1.0)  # ranks are 0 or more
    falling, order = torch.sort(time, dim=-1, descending=True, stable=True)
    eta = torch.where(real, z, -1e9).gather(-1, order)
    at_risk = torch.logcumsumexp(eta, dim=-1)
    place = torch.arange(z.shape[-1], device=z.device).expand_as(falling)
    is_last = torch.ones_like(falling, dtype=torch.bool)
    is_last = torch.cat([falling[..., 1:] != falling[..., :-1], is_last[..., :1]], dim=-1)
    ends = torch.where(is_last, place, z.shape[-1]).flip(-1).cummin(dim=-1).values.flip(-1)  # the last row of equal time
    # An event that nobody outlives says nothing. Its gradient must be exactly zero: Adam would divide rounding by itself.
    terms = target[..., 0].gather(-1, order) * torch.where(ends == 0, 0.0, at_risk.gather(-1, ends) - eta)
    return torch.where(real, torch.zeros_like(z).scatter(-1, order, terms), 0.0)


def _contrastive(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """MOON's loss of each row: (B,). See `contrast.py`."""
    unit = features / torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min(EPS)
    return F.softplus((unit * (away - towards)).sum(-1) / temperature)


def feature_use(model: TorchModel, member: Tensor, named: Mapping[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
    """Measure one model's use of each feature on these rows, U of `align.py`: (F,), differentiable."""

    def total(rows: Tensor) -> Tensor:
        return row_losses(model.forward(named, rows), label).sum()

    product = x * cast("Tensor", grad(total)(x))
    return ((product if x.dim() == 2 else product.sum(1)).flatten(1) @ member).abs().sum(0)


def _placed(model: TorchModel, name: str, values: Tensor) -> Tensor:
    """Copy values to a fixed buffer, from which a captured graph reads."""
    place = model.cache.get(name)
    if place is None or place.shape != values.shape:
        place = model.cache[name] = torch.empty_like(values)
    place.copy_(values)
    return cast("Tensor", place)


def single_gradients(job: TorchJob, params: Sequence[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Compute the gradient of one site's weighted loss with respect to each of its parameters."""
    return torch.autograd.grad(job.loss(params, batch), list(params))


def stacked_gradients(job: TorchJob) -> Callable[..., tuple[Tensor, ...]]:
    """Make gradients(params, batch): for each parameter (K, ...) its gradient, by vmap over the stack."""
    return cast("Callable[..., tuple[Tensor, ...]]", vmap(grad(job.loss)))
