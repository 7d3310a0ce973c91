"""Batches of local training: the rows of each site in each step, shuffled and padded to one width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator, site_generators
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig


def batch_width(part: Part, batch: int) -> int:
    """Return the rows of a step: the batch size, or the largest site's rows if fewer (or if batch is 0).

    The largest site of the whole stack counts, so that a site's arithmetic does not depend on the chunk.
    """
    largest = int(part.counts.max(initial=1))
    return min(batch, largest) if batch else largest


def step_counts(counts: Array, *, width: int, config: TrainConfig) -> Array:
    """Count the steps of each site: fixed, or its epochs times its batches."""
    if config.steps:
        return np.where(counts > 0, config.steps, 0)
    return config.epochs * -(-counts // width)


def batch_rows(n: int, *, width: int, steps: int, rng: np.random.Generator) -> Array:
    """Draw row numbers (steps, width) in the site's shuffled order, -1 where a short batch is padded."""
    rows = np.full(steps * width, -1, np.int64)
    _deal(rows, n, width=width, rng=rng)
    return rows.reshape(steps, width)


def _deal(rows: Array, n: int, *, width: int, rng: np.random.Generator, first: int = 0) -> None:
    """Write n row numbers from `first` on into `rows` (steps * width,), shuffled anew for each epoch of whole batches."""
    epoch = -(-n // width) * width
    for start in range(0, len(rows), epoch):
        room = rows[start : start + n]
        np.add(rng.permutation(n)[: len(room)], first, out=room)


def _deal_on(rows: Array, n: int, *, width: int, first: int, site: str, config: TrainConfig) -> None:
    """Write the batches of this round where those of the earlier rounds ended: epochs go on across rounds.

    Each epoch has a random stream of its own, so a site needs no memory of the round before. One that missed a round skips the
    batches of it.
    """
    in_epoch = -(-n // width)
    steps = len(rows) // width
    begin = (config.round - 1) * steps
    for epoch in range(begin // in_epoch, -(-(begin + steps) // in_epoch)):
        dealt = np.full(in_epoch * width, -1, np.int64)
        dealt[:n] = generator(config.seed, purpose="epoch", round=epoch, site=site).permutation(n) + first
        low, high = max(begin, epoch * in_epoch), min(begin + steps, (epoch + 1) * in_epoch)
        rows[(low - begin) * width : (high - begin) * width] = dealt[(low - epoch * in_epoch) * width :][: (high - low) * width]


@dataclass(frozen=True)
class BatchPlan:
    """Every batch of one round for the member sites, sorted by decreasing step count."""

    order: Array  # (m,) position among the members of the j-th site of the plan
    steps: Array  # (m,) steps of each member, in the members' own order
    rows: Array  # (S, m, width) row numbers into the part; a padded place points at the site's first row
    weight: Array  # (S, m, width) 1 / real rows of the batch, 0 where padded

    @classmethod
    def draw(cls, part: Part, members: Array, *, names: tuple[str, ...], config: TrainConfig) -> BatchPlan:
        """Draw the batches of a round from (seed, round, site), independent of the other sites in the stack.

        Args:
            part: Training rows of all sites of the stack.
            members: Site numbers, (m,).
            names: Names of all sites of the stack.
            config: Settings of the round.
        """
        width = batch_width(part, config.batch)
        steps = step_counts(part.counts[members], width=width, config=config)
        order = np.argsort(-steps, kind="stable")
        most = int(steps.max(initial=0))
        dealt = np.full((len(members), most * width), -1, np.int64)
        first, counts = part.offsets.tolist(), part.counts.tolist()
        numbers = members[order].tolist()
        streams = site_generators(config.seed, purpose="order", round=config.round, sites=[names[k] for k in numbers])
        goes_on = config.continue_epoch and config.steps > 0
        for rng, mine, k, s in zip(streams, dealt, numbers, steps[order].tolist(), strict=True):
            if s and goes_on:
                _deal_on(mine[: s * width], counts[k], width=width, first=first[k], site=names[k], config=config)
            elif s:
                _deal(mine[: s * width], counts[k], width=width, rng=rng, first=first[k])
        rows = np.ascontiguousarray(dealt.reshape(len(members), most, width).swapaxes(0, 1))
        real = rows >= 0
        filled = real.sum(axis=2, keepdims=True)
        weight = (real / np.maximum(filled, 1)).astype(part.x.dtype)
        if not real.all():
            np.copyto(rows, part.offsets[members[order]][:, None], where=~real)
        return cls(order, steps, rows, weight)

    @cached_property
    def steps_in_order(self) -> Array:
        return self.steps[self.order]

    @cached_property
    def active(self) -> list[int]:
        """Count the sites that are still training in each step."""
        finished = np.searchsorted(np.sort(self.steps), np.arange(len(self.rows)), side="right")
        return [len(self.steps) - int(n) for n in finished]

    def batch(self, step: int, j: int) -> tuple[Array, Array]:
        """Return the real rows of one site's step and their weights, without padding."""
        weight = self.weight[step, j]
        real = weight > 0
        return self.rows[step, j][real], weight[real]
