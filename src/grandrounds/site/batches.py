"""Which rows each site takes in each local step: seeded, padded to one width, sites with most steps first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import site_generators
from grandrounds.site.stack import Part
from grandrounds.site.work import Work


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
    rows = np.full(steps * width, -1, np.int64)
    _deal(rows, n, width=width, rng=rng)
    return rows.reshape(steps, width)


def _deal(rows: Array, n: int, *, width: int, rng: np.random.Generator, first: int = 0) -> None:
    """Write n row numbers from `first` on into `rows` (steps * width,), shuffled anew for each epoch of whole batches."""
    epoch = -(-n // width) * width
    for at in range(0, len(rows), epoch):
        room = rows[at : at + n]
        np.add(rng.permutation(n)[: len(room)], first, out=room)


@dataclass(frozen=True)
class Plan:
    """Every batch of one round for the member sites, in the order of falling step counts."""

    order: Array  # (m,) position among the members of the j-th site of the plan
    steps: Array  # (m,) steps of each member, in the members' own order
    rows: Array  # (S, m, width) row numbers into the part; a padded place points at the site's first row
    weight: Array  # (S, m, width) 1 / real rows of the batch, 0 where padded

    @classmethod
    def of(cls, part: Part, members: Array, *, names: tuple[str, ...], work: Work) -> Plan:
        width = batch_width(part, work.batch)
        steps = step_counts(part.counts[members], width=width, work=work)
        order = np.argsort(-steps, kind="stable")
        most = int(steps.max(initial=0))
        dealt = np.full((len(members), most * width), -1, np.int64)
        first, counts = part.offsets.tolist(), part.counts.tolist()
        numbers = members[order].tolist()
        streams = site_generators(work.seed, purpose="order", round=work.round, sites=[names[k] for k in numbers])
        for rng, mine, k, s in zip(streams, dealt, numbers, steps[order].tolist(), strict=True):
            if s:
                _deal(mine[: s * width], counts[k], width=width, rng=rng, first=first[k])
        rows = np.ascontiguousarray(dealt.reshape(len(members), most, width).swapaxes(0, 1))
        real = rows >= 0
        held = real.sum(axis=2, keepdims=True)
        weight = (real / np.maximum(held, 1)).astype(part.x.dtype)
        if not real.all():
            np.copyto(rows, part.offsets[members[order]][:, None], where=~real)
        return cls(order, steps, rows, weight)

    @cached_property
    def steps_in_order(self) -> Array:
        return self.steps[self.order]

    @cached_property
    def active(self) -> list[int]:
        """How many sites are still at work in each step."""
        left = np.searchsorted(np.sort(self.steps), np.arange(len(self.rows)), side="right")
        return [len(self.steps) - int(n) for n in left]

    def batch(self, step: int, j: int) -> tuple[Array, Array]:
        """The real rows of one site's step and their weights, without padding."""
        weight = self.weight[step, j]
        real = weight > 0
        return self.rows[step, j][real], weight[real]
