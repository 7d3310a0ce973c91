"""Which rows each site takes in each local step: seeded, padded to one width, sites with most steps first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grandrounds.arrays import Array
from grandrounds.rng import generator
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
    per_epoch = -(-n // width)
    epochs = -(-steps // per_epoch)
    rows = np.full((epochs, per_epoch * width), -1, np.int64)
    for e in range(epochs):
        rows[e, :n] = rng.permutation(n)
    return rows.reshape(-1, width)[:steps]


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
        rows = np.zeros((int(steps.max(initial=0)), len(members), width), np.int64)
        weight = np.zeros(rows.shape, part.x.dtype)
        for j, (k, s) in enumerate(zip(members[order], steps[order], strict=True)):
            if s:
                rng = generator(work.seed, purpose="order", round=work.round, site=names[k])
                mine = batch_rows(int(part.counts[k]), width=width, steps=int(s), rng=rng)
                real = mine >= 0
                rows[:s, j] = np.where(real, mine + part.offsets[k], part.offsets[k])
                weight[:s, j] = real / real.sum(axis=1, keepdims=True)
        return cls(order, steps, rows, weight)

    @cached_property
    def steps_in_order(self) -> Array:
        return self.steps[self.order]

    @cached_property
    def active(self) -> list[int]:
        """How many sites are still at work in each step."""
        return [int((self.steps > s).sum()) for s in range(len(self.rows))]

    def batch(self, step: int, j: int) -> tuple[Array, Array]:
        """The real rows of one site's step and their weights, without padding."""
        weight = self.weight[step, j]
        real = weight > 0
        return self.rows[step, j][real], weight[real]
