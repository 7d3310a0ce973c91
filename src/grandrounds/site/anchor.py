"""Reference anchors: a site's steps also keep its answers on rows that all sites hold as they were at the start.

loss + w * mean_i CE(p_start(r_i), p(r_i)) over reference rows r_i that the server lent, beside each batch. Nobody's labels
are needed: what a row should be called is what the model that the site was told says of it, worked out at the site. The
*permuted* anchor puts one feature of each row out of place first (a table's comes from another row, a picture's tile is
hidden), so it holds still how predictions move when a feature is taken away, which is what a permutation sketch reads.
Above w = 3 local training can do little but copy, and some runs collapsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.references import which
from grandrounds.core.rng import site_generators
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, probabilities
from grandrounds.protocol.messages import Payload
from grandrounds.site.work import Work

_BLOCK_BYTES = 16 * 2**20
"""Permuted rows held at once while the start's answers to them are worked out."""


@dataclass(frozen=True)
class Lent:
    """Reference rows that a site holds: prepared like its own, with what their inputs belong to."""

    x: Array  # (R, d), or pictures (R, C, H, W)
    features: Features
    target: Array | None = None  # (R, C), where their labels were sent too
    masks: Array | None = None  # (R, H, W), where what pictures are about was marked

    @classmethod
    def of(cls, sent: Payload, dtype: np.typing.DTypeLike, *, like: Array | None = None) -> Lent:
        """As the task `lend` sends them; `like` has the shape of the site's own rows, where it has prepared them."""
        missing = next((key for key in ("x", "features") if key not in sent), None)
        if missing is not None:
            raise BadInput(
                f"reference rows came without '{missing}': server and site are of different versions",
                code="protocol-mismatch",
            )
        x, of = np.asarray(sent["x"], dtype), np.asarray(sent["features"], np.int64)
        if like is not None and x.shape[1:] != like.shape[1:]:
            raise BadInput(
                f"the lent rows have inputs of shape {x.shape[1:]} and this site's have {like.shape[1:]}: "
                "prepare both with one encoding",
                code="wrong-shape",
            )
        if not len(x) or of.shape != (int(np.prod(x.shape[1:] if x.ndim == 2 else x.shape[2:])),):
            raise BadInput(
                f"{len(x)} lent rows of shape {x.shape[1:]} do not go with features {of.shape}: send one for each input",
                code="wrong-shape",
            )
        grid, size = (tuple(np.asarray(sent[key]).tolist()) if key in sent else None for key in ("grid", "size"))
        names = tuple(str(f + 1) for f in range(int(of.max()) + 1))
        target = np.asarray(sent["target"], dtype) if "target" in sent else None
        masks = np.asarray(sent["masks"], bool) if "masks" in sent else None
        return cls(x, Features(names, of, grid, size), target, masks)

    @property
    def classes(self) -> Array | None:
        """(R,) class numbers, where labels were sent."""
        if self.target is None:
            return None
        out: Array = self.target[:, 0].astype(np.int64) if self.target.shape[1] == 1 else self.target.argmax(axis=1)
        return out

    def explained(self, outputs: int) -> Array:
        """(R, C): which output of each row is explained; without labels the first."""
        return np.zeros((len(self.x), outputs), self.x.dtype) if self.target is None else self.target


def anchored_to(lent: Mapping[str, Lent], work: Work) -> Lent:
    """The reference rows, of those that a site holds, that it is anchored to."""
    name = which(lent, work.anchor_rows)
    if name is None or name not in lent:
        meant = f"'{name}'" if name else "one set alone or one called 'anchor'"
        raise BadInput(
            f"an anchor needs reference rows and this site holds not {meant}: ask 'lend' before 'train'",
            code="missing-reference-rows",
        )
    return lent[name]


class Steps(Protocol):
    """What a round's plan says of its steps: batches, or the draws of DP-SGD."""

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
class Taken:
    """Which lent rows each step takes: (S, m, A), sites in the plan's order, 0 behind a site's own steps.

    Permuted: `feature` of each is taken from the row `other` (a picture's is hidden).
    """

    lent: Lent
    rows: Array
    steps: Array  # (m,) steps of each site, in the plan's order
    other: Array | None = None
    feature: Array | None = None

    @classmethod
    def of(cls, lent: Lent, plan: Steps, members: Array, *, names: tuple[str, ...], work: Work) -> Taken:
        """As many rows a step as its batch has, or all; none comes twice in a pass. Drawn from (seed, round, site)."""
        held = len(lent.x)
        width = min(work.batch, held) if work.batch else held
        steps = plan.steps_in_order
        rows, other, feature = (np.zeros((len(plan.rows), len(members), width), np.int64) for _ in range(3))
        sites = [names[k] for k in members[plan.order]]
        streams = site_generators(work.seed, purpose="anchor", round=work.round, sites=sites)
        for j, (rng, s) in enumerate(zip(streams, steps.tolist(), strict=True)):
            passes = [rng.permutation(held) for _ in range(-(-s * width // held))]
            if not passes:
                continue
            rows[:s, j] = np.concatenate(passes)[: s * width].reshape(s, width)
            if work.permuted:
                feature[:s, j] = rng.integers(len(lent.features), size=(s, width))
                other[:s, j] = (rows[:s, j] + rng.integers(1, max(held, 2), size=(s, width))) % held
        return cls(lent, rows, steps, other, feature) if work.permuted else cls(lent, rows, steps)

    def inputs(self, steps: slice, sites: slice) -> Array:
        """The rows (s, m, A, d) of a table that these steps take, permuted where they are."""
        x = self.lent.x.take(self.rows[steps, sites], axis=0)
        if self.other is None or self.feature is None:
            return x
        moved = self.lent.features.feature_index == self.feature[steps, sites, :, None]
        return np.where(moved, self.lent.x.take(self.other[steps, sites], axis=0), x)

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """Each site's steps, as many at a time as memory should hold."""
        size = max(1, _BLOCK_BYTES // (self.rows.shape[2] * max(1, self.lent.x[0].nbytes)))
        for j, s in enumerate(self.steps.tolist()):
            for at in range(0, s, size):
                yield j, slice(at, min(at + size, s))


def distinct(start: Array, order: Array) -> tuple[Array, Array]:
    """The different models among the sites' starts, (P,) or (m, P), as (G, P); and which each site of the plan has, (m,)."""
    if start.ndim == 1:
        return start[None], np.zeros(len(order), np.int64)
    known: dict[bytes, int] = {}
    of = [known.setdefault(start[k].tobytes(), len(known)) for k in order]
    first = [of.index(g) for g in range(len(known))]
    return start[order[first]], np.array(of, np.int64)


@dataclass(frozen=True)
class Anchor:
    """Lent rows that join every batch on the NumPy kernel, with what the site's start says of them as targets."""

    taken: Taken
    target: Array  # (S, m, A, C)
    weight: float

    @classmethod
    def of(cls, model: Dense, taken: Taken, start: Array, order: Array, *, weight: float) -> Anchor:
        """One answer to each row and start; permuted rows are answered one site after another, so chunks change no bit."""
        models, mine = distinct(start, order)
        rows = taken.rows
        with np.errstate(over="ignore", invalid="ignore"):
            if taken.feature is None:
                said = np.stack([probabilities(model.logits(theta, taken.lent.x)) for theta in models])
                return cls(taken, said[mine[:, None], rows], weight)
            target = np.zeros((*rows.shape, model.outputs), start.dtype)
            for j, steps in taken.pieces():
                x = taken.inputs(steps, slice(j, j + 1))
                target[steps, j] = probabilities(model.logits(models[mine[j]], x[:, 0]))
        return cls(taken, target, weight)

    def gradient(self, model: Dense, theta: Array, step: int) -> Array:
        """What the anchor's rows alone add to the gradients of the first models (a, P) of the plan in a step.

        No row of a patient is in it, so DP-SGD adds it after its noise.
        """
        steps, sites = slice(step, step + 1), slice(0, len(theta))
        target = self.target[step, sites]
        each = np.full(target.shape[:2], self.weight / target.shape[1], theta.dtype)
        out = np.empty_like(theta)
        x = self.taken.inputs(steps, sites)[0]
        model.gradient_into(model.layers(theta), model.layers(out), x, target, each, None)
        return out

    def beside(self, batch: tuple[Array, Array, Array], steps: slice, active: int) -> tuple[Array, Array, Array]:
        """x, target and weight (s, a, B, ...) of these steps with the anchor's rows behind: (s, a, B + A, ...)."""
        sites = slice(0, active)
        target = self.target[steps, sites]
        each = np.full(target.shape[:3], self.weight / target.shape[2], batch[2].dtype)
        own: tuple[Any, ...] = (self.taken.inputs(steps, sites), target, each)
        x, t, w = (np.concatenate([a, b], axis=2) for a, b in zip(batch, own, strict=True))
        return x, t, w
