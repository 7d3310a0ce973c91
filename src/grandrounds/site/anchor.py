"""Reference anchors: local training keeps a site's predictions on shared reference rows close to those of its start.

loss + w * mean_i CE(p_start(r_i), p(r_i)) over reference rows r_i that the server shared, beside each batch. No labels are
needed: the target of a row is the prediction of the model that the site was sent, computed at the site. The *permuted*
anchor first permutes one feature of each row (a table's value comes from another row, an image's tile is hidden), so it
preserves the effect of permuting a feature, which a permutation sketch measures. Above w = 3 local training mostly copies the
start, and some runs collapsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.references import which
from grandrounds.core.rng import site_generators
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, probabilities
from grandrounds.models.losses import CROSS_ENTROPY, link
from grandrounds.protocol.messages import Payload
from grandrounds.site.train_job import TrainConfig

_BLOCK_BYTES = 16 * 2**20
"""Bytes of permuted rows held at once while the start predicts them."""


@dataclass(frozen=True)
class SharedReference:
    """Reference rows that the server shared with a site, prepared like its own rows."""

    x: Array  # (R, d), or images (R, C, H, W)
    features: Features
    target: Array | None = None  # (R, C), where their labels were sent too
    masks: Array | None = None  # (R, H, W), where the object in each image was marked

    @classmethod
    def from_payload(
        cls, payload: Payload, dtype: np.typing.DTypeLike, *, like: Array | None = None
    ) -> SharedReference:
        """Read reference rows as the task `lend` sends them.

        Args:
            payload: The shared part of the Ask.
            dtype: The site's floating-point type.
            like: The site's own rows, if prepared: reference rows must have the same shape.

        Raises:
            BadInput: A part is missing, or shapes do not fit.
        """
        missing = next((key for key in ("x", "features") if key not in payload), None)
        if missing is not None:
            raise BadInput(
                f"reference rows lack '{missing}': use the same version of grandrounds at the server and the sites",
                code="protocol-mismatch",
            )
        x, feature_of = np.asarray(payload["x"], dtype), np.asarray(payload["features"], np.int64)
        if like is not None and x.shape[1:] != like.shape[1:]:
            raise BadInput(
                f"reference rows have inputs of shape {x.shape[1:]} , but this site's rows {like.shape[1:]}: prepare both "
                "with the same encoding",
                code="wrong-shape",
            )
        if not len(x) or feature_of.shape != (int(np.prod(x.shape[1:] if x.ndim == 2 else x.shape[2:])),):
            raise BadInput(
                f"{len(x)} reference rows of shape {x.shape[1:]} came with features of shape {feature_of.shape}: "
                "send one feature number for each input",
                code="wrong-shape",
            )
        grid, size = (tuple(np.asarray(payload[key]).tolist()) if key in payload else None for key in ("grid", "size"))
        names = tuple(str(f + 1) for f in range(int(feature_of.max()) + 1))
        target = np.asarray(payload["target"], dtype) if "target" in payload else None
        masks = np.asarray(payload["masks"], bool) if "masks" in payload else None
        return cls(x, Features(names, feature_of, grid, size), target, masks)

    @property
    def classes(self) -> Array | None:
        """Class numbers (R,), where labels were sent."""
        if self.target is None:
            return None
        out: Array = self.target[:, 0].astype(np.int64) if self.target.shape[1] == 1 else self.target.argmax(axis=1)
        return out

    def explained_outputs(self, outputs: int) -> Array:
        """Select the output of each row to explain, (R, C); without labels the first."""
        return np.zeros((len(self.x), outputs), self.x.dtype) if self.target is None else self.target


def find_anchor_reference(references: Mapping[str, SharedReference], config: TrainConfig) -> SharedReference:
    """Find the reference rows that anchor local training, among those that a site was sent.

    Raises:
        BadInput: The site was not sent these rows.
    """
    name = which(references, config.anchor_rows)
    if name is None or name not in references:
        wanted = f"'{name}'" if name else "a single set or one called 'anchor'"
        raise BadInput(
            f"an anchor needs reference rows, but this site has not received {wanted}: send them first (task `lend`)",
            code="missing-reference-rows",
        )
    return references[name]


class StepPlan(Protocol):
    """The steps of a round: batches, or the draws of DP-SGD."""

    @property
    def order(self) -> Array:
        """(m,) position among the members of the j-th site."""

    @property
    def rows(self) -> Array:
        """(S, m, width)"""

    @property
    def steps_in_order(self) -> Array:
        """(m,) steps of the j-th site."""


@dataclass(frozen=True)
class ReferenceDraws:
    """The reference rows of each step: (S, m, A), sites in the plan's order, 0 after a site's last step.

    Permuted: `feature` of each row is taken from the row `other` (in an image it is hidden).
    """

    reference: SharedReference
    rows: Array
    steps: Array  # (m,) steps of each site, in the plan's order
    other: Array | None = None
    feature: Array | None = None

    @classmethod
    def draw(
        cls, reference: SharedReference, plan: StepPlan, members: Array, *, names: tuple[str, ...], config: TrainConfig
    ) -> ReferenceDraws:
        """Draw as many rows for a step as its batch has, or all; no row twice in a pass. Seeded by (seed, round, site)."""
        count = len(reference.x)
        width = min(config.batch, count) if config.batch else count
        steps = plan.steps_in_order
        rows, other, feature = (np.zeros((len(plan.rows), len(members), width), np.int64) for _ in range(3))
        sites = [names[k] for k in members[plan.order]]
        streams = site_generators(config.seed, purpose="anchor", round=config.round, sites=sites)
        for j, (rng, s) in enumerate(zip(streams, steps.tolist(), strict=True)):
            passes = [rng.permutation(count) for _ in range(-(-s * width // count))]
            if not passes:
                continue
            rows[:s, j] = np.concatenate(passes)[: s * width].reshape(s, width)
            if config.permuted:
                feature[:s, j] = rng.integers(len(reference.features), size=(s, width))
                other[:s, j] = (rows[:s, j] + rng.integers(1, max(count, 2), size=(s, width))) % count
        return cls(reference, rows, steps, other, feature) if config.permuted else cls(reference, rows, steps)

    def inputs(self, steps: slice, sites: slice) -> Array:
        """Gather the rows (s, m, A, d) of a table for these steps, permuted if requested."""
        x = self.reference.x.take(self.rows[steps, sites], axis=0)
        if self.other is None or self.feature is None:
            return x
        moved = self.reference.features.feature_index == self.feature[steps, sites, :, None]
        return np.where(moved, self.reference.x.take(self.other[steps, sites], axis=0), x)

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """Yield each site's steps, as many at a time as fit in memory."""
        size = max(1, _BLOCK_BYTES // (self.rows.shape[2] * max(1, self.reference.x[0].nbytes)))
        for j, s in enumerate(self.steps.tolist()):
            for first in range(0, s, size):
                yield j, slice(first, min(first + size, s))


def distinct(start: Array, order: Array) -> tuple[Array, Array]:
    """Find the distinct models among the sites' starts, so that each is evaluated once.

    Args:
        start: (P,) for all sites, or (m, P).
        order: Position among the members of the j-th site of the plan, (m,).

    Returns:
        The distinct models, (G, P), and the number of each planned site's model, (m,).
    """
    if start.ndim == 1:
        return start[None], np.zeros(len(order), np.int64)
    numbers: dict[bytes, int] = {}
    model_of = [numbers.setdefault(start[k].tobytes(), len(numbers)) for k in order]
    first = [model_of.index(g) for g in range(len(numbers))]
    return start[order[first]], np.array(model_of, np.int64)


def _predict(model: Dense, theta: Array, x: Array) -> Array:
    """Compute a model's predictions as targets of training: probabilities, or outcomes in units of training."""
    z = model.logits(theta, x)
    return probabilities(z) if model.loss == CROSS_ENTROPY else link(model.loss, z)


@dataclass(frozen=True)
class Anchor:
    """Reference rows that join every batch on the NumPy kernel; their targets are the predictions of the site's start."""

    draws: ReferenceDraws
    target: Array  # (S, m, A, C)
    weight: float

    @classmethod
    def build(cls, model: Dense, draws: ReferenceDraws, start: Array, order: Array, *, weight: float) -> Anchor:
        """Predict each row once for each start; permuted rows one site after another, so chunks change no bit."""
        models, mine = distinct(start, order)
        rows = draws.rows
        with np.errstate(over="ignore", invalid="ignore"):
            if draws.feature is None:
                predicted = np.stack([_predict(model, theta, draws.reference.x) for theta in models])
                return cls(draws, predicted[mine[:, None], rows], weight)
            target = np.zeros((*rows.shape, model.outputs), start.dtype)
            for j, steps in draws.blocks():
                x = draws.inputs(steps, slice(j, j + 1))
                target[steps, j] = _predict(model, models[mine[j]], x[:, 0])
        return cls(draws, target, weight)

    def gradient(self, model: Dense, theta: Array, step: int) -> Array:
        """Compute the anchor rows' part of the gradients of the first models (a, P) of the plan in a step.

        No row of a patient is in it, so DP-SGD adds it after its noise.
        """
        steps, sites = slice(step, step + 1), slice(0, len(theta))
        target = self.target[step, sites]
        each = np.full(target.shape[:2], self.weight / target.shape[1], theta.dtype)
        out = np.empty_like(theta)
        x = self.draws.inputs(steps, sites)[0]
        model.gradient_into(model.layers(theta), model.layers(out), x, target, each, None)
        return out

    def append_to(self, batch: tuple[Array, Array, Array], steps: slice, active: int) -> tuple[Array, Array, Array]:
        """Append the anchor's rows to x, target and weight (s, a, B, ...) of these steps: (s, a, B + A, ...)."""
        sites = slice(0, active)
        target = self.target[steps, sites]
        each = np.full(target.shape[:3], self.weight / target.shape[2], batch[2].dtype)
        rows = (self.draws.inputs(steps, sites), target, each)
        x, t, w = (np.concatenate([a, b], axis=2) for a, b in zip(batch, rows, strict=True))
        return x, t, w
