"""Local training of many sites at once: the task `train`.

Sites are sorted by their number of steps and the finished ones sliced away, so unequal sites
waste no work. Rows are gathered in blocks of steps. A short last batch is padded to the full
width with rows of weight zero, and every gradient is averaged over the real rows only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.models.dense import Dense
from grandrounds.models.optimizers import optimizer
from grandrounds.rng import generator
from grandrounds.site.stack import Part

_BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Work:
    """What a site is asked to do in one round; travels as plain numbers and words in the Ask."""

    seed: int
    round: int
    lr: float
    epochs: int = 1
    steps: int = 0
    batch: int = 32
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    l2: float = 0.0
    proximal: float = 0.0
    keep_optimizer: bool = False

    def to_values(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Work:
        kinds = {"int": int, "float": float, "str": str, "bool": bool}
        return cls(**{f.name: kinds[str(f.type)](values[f.name]) for f in fields(cls)})


@dataclass(frozen=True)
class Trained:
    """The local models of m sites, and the optimiser's slots for those who keep them."""

    theta: Array  # (m, P)
    steps: Array  # (m,)
    slots: tuple[Array, ...]  # each (m, P)
    clock: Array  # (m, 1) optimiser steps taken so far


def batch_width(part: Part, batch: int) -> int:
    """Rows a step: the batch size, or the largest site where that is smaller (or batch is 0: all rows).

    Taken over all sites of the stack, whoever takes part, so that a site's arithmetic never depends on the chunk.
    """
    largest = int(part.counts.max(initial=1))
    return min(batch, largest) if batch else largest


def step_counts(counts: Array, *, width: int, work: Work) -> Array:
    """How many steps each site takes: fixed, or its epochs times its batches."""
    if work.steps:
        return np.where(counts > 0, work.steps, 0)
    return work.epochs * -(-counts // width)


def batch_rows(n: int, *, width: int, steps: int, rng: np.random.Generator) -> Array:
    """Row numbers (steps, width) in the site's seeded order, -1 where a short batch is padded."""
    per_epoch = -(-n // width)
    epochs = -(-steps // per_epoch)
    rows = np.full((epochs, per_epoch * width), -1, np.int64)
    for e in range(epochs):
        rows[e, :n] = rng.permutation(n)
    return rows.reshape(-1, width)[:steps]


def train(
    model: Dense,
    part: Part,
    members: Array,
    start: Array,
    *,
    names: tuple[str, ...],
    work: Work,
    class_weight: Array | None = None,
    slots: tuple[Array, ...] = (),
    clock: Array | None = None,
) -> Trained:
    """Train the member sites from `start` (P,) on their own rows. `slots`, `clock`: what they kept, (m, P) and (m, 1)."""
    width = batch_width(part, work.batch)
    counts = part.counts[members]
    steps = step_counts(counts, width=width, work=work)
    order = np.argsort(-steps, kind="stable")
    rows, weight = _plan(part, members[order], steps[order], names=names, width=width, work=work)
    active = [int((steps > s).sum()) for s in range(int(steps.max(initial=0)))]

    theta = np.repeat(start[None], len(members), axis=0)
    mask = model.layout.mask("weight").astype(start.dtype)
    rule = optimizer(work.optimizer, momentum=work.momentum, weight_decay=work.weight_decay, mask=mask)
    state = [s[order].astype(start.dtype) for s in slots] or [np.zeros_like(theta) for _ in range(rule.slots)]
    t = np.zeros((len(members), 1)) if clock is None else clock[order].astype(float)
    grad = np.empty_like(theta)
    l2 = work.l2 * mask if work.l2 else None

    row_bytes = max(1, part.x.shape[1] * part.x.itemsize * width)
    at = 0
    with np.errstate(over="ignore", invalid="ignore"):
        while at < len(active):
            a = active[at]
            until = min(len(active), at + max(1, _BLOCK_BYTES // (row_bytes * a)))
            block = rows[at:until, :a]
            xs, ts = part.x[block], part.target[block]
            ws = weight[at:until, :a]
            if class_weight is not None:
                ws = ws * class_weight[part.y[block]]
            for s in range(until - at):
                a = active[at + s]
                th, g = theta[:a], grad[:a]
                model.gradient(th, xs[s, :a], ts[s, :a], ws[s, :a], g)
                if l2 is not None:
                    g += l2 * th
                if work.proximal:
                    g += work.proximal * (th - start)
                t[:a] += 1
                rule.step(th, g, [v[:a] for v in state], t[:a], work.lr)
            at = until
    back = np.argsort(order, kind="stable")
    kept = tuple(v[back] for v in state) if work.keep_optimizer else ()
    return Trained(theta[back], steps, kept, t[back])


def _plan(
    part: Part, members: Array, steps: Array, *, names: tuple[str, ...], width: int, work: Work
) -> tuple[Array, Array]:
    """Row numbers and averaging weights of every step: both (steps, sites, width)."""
    rows = np.zeros((int(steps.max(initial=0)), len(members), width), np.int64)
    weight = np.zeros(rows.shape, part.x.dtype)
    for j, (k, s) in enumerate(zip(members, steps, strict=True)):
        if s:
            rng = generator(work.seed, purpose="order", round=work.round, site=names[k])
            mine = batch_rows(int(part.counts[k]), width=width, steps=int(s), rng=rng)
            real = mine >= 0
            rows[:s, j] = np.where(real, mine + part.offsets[k], part.offsets[k])
            weight[:s, j] = real / real.sum(axis=1, keepdims=True)
    return rows, weight
