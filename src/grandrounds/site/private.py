"""DP-SGD over a stack of sites (Abadi et al. 2016): sampled steps, each patient's gradient clipped, noise on the sum.

Each row joins each step with chance `rate` (Poisson sampling). The gradients of the rows that are in it are clipped to
length `clip` one by one and added up, Gaussian noise of deviation `noise * clip` is added, and the sum is divided by the
rows *expected* (rate * n), since how many came would tell something. One row moves the sum by at most `clip`; that is all
the promise rests on, whatever the optimiser makes of it. Where a patient column is named, patients join in place of rows,
and each that does brings one of their rows, drawn anew in each step: one patient moves the sum by at most `clip`. A step
without rows is noise alone and still a step. What does not look at patients (L2, FedProx's pull, anchors on reference rows,
SCAFFOLD's variates, which come of steps that are private already) is added after the noise.

Which rows and which noise follow from the site's own secret, not from the experiment's seed. How many rows a site has is
taken as known.

No gradient of a single row is ever held: in a dense net it is the outer product of what each layer was fed and of the
slope at its outputs, so its length is (sum_layers (|a|^2 + 1) |delta|^2)^0.5, and clipping scales the slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.dense import Dense, Layers
from grandrounds.models.optimizers import optimizer
from grandrounds.privacy.clipped import sampled_steps, shrinking, squared_length
from grandrounds.site.anchor import Anchor, Taken
from grandrounds.site.stack import Part
from grandrounds.site.work import Trained, Work

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret

BLOCK = 32
"""Rows that go through a net at once. Every block is padded to it, so a site's arithmetic is the same in any company."""

TOO_FEW = "too-few-rows"
"""The code that a site with too few rows refuses with."""

_DRAWN = 1 << 22
"""Uniform draws, or entries of noise, that are held at once."""


@dataclass(frozen=True)
class Draws:
    """What chance decides in one round: who is in which step. Largest sites first, so that the others can be sliced away."""

    order: Array  # (m,) position among the members of the j-th site here
    steps: Array  # (m,) steps of each member, in the members' own order
    rows: Array  # (S, m, W) row numbers into the part; a padded place points at the site's first row
    real: Array  # (S, m, W) whether a place is taken
    expected: Array  # (m,) rows that a step is expected to have, in this order
    noise: Noise

    @classmethod
    def of(cls, part: Part, members: Array, secrets: Sequence[Secret], *, work: Work, purpose: str, size: int) -> Draws:
        """`secrets`: of the members; `purpose`: what these draws are for, which no other round or question shares."""
        if work.contrast or work.alignment:
            raise BadInput(
                "DP-SGD bounds what one row adds to a sum: MOON and alignment have no part in it",
                code="unsupported-with-dp",
            )
        if not (work.clip > 0 and 0 < work.rate <= 1 and work.noise >= 0):
            raise BadInput(
                "DP-SGD needs a clip above 0, a rate above 0 and up to 1, and noise that is not negative",
                code="bad-privacy-parameter",
            )
        from grandrounds.privacy.mechanisms import noise_generator

        counts = part.protected[members]
        order = np.argsort(-counts, kind="stable")
        most = sampled_steps(work.rate, epochs=work.epochs, steps=work.steps)
        # a site without enough rows takes no step and says so
        steps = np.where((counts >= max(1, work.fewest)), most, 0)
        drawn = [
            _sampled(noise_generator(secrets[k], f"{purpose}: sampling"), int(counts[k]), int(steps[k]), work.rate)
            for k in order.tolist()
        ]
        if part.patients is not None:  # who joined are patients: each is there with one row
            streams = [noise_generator(secrets[k], f"{purpose}: rows") for k in order.tolist()]
            held = [part.patients[m] for m in members[order].tolist()]
            drawn = [(at, p.draw_rows(who, rng)) for (at, who), p, rng in zip(drawn, held, streams, strict=True)]
        widest = max((int(np.bincount(at, minlength=1).max(initial=0)) for at, _ in drawn), default=0)
        width = max(1, -(-widest // BLOCK)) * BLOCK
        rows = np.repeat(part.offsets[members[order]][None, :, None], most, axis=0).repeat(width, axis=2)
        real = np.zeros(rows.shape, bool)
        for j, (at, row) in enumerate(drawn):
            place = np.arange(len(at)) - np.searchsorted(at, at)
            rows[at, j, place] += row
            real[at, j, place] = True
        streams = [noise_generator(secrets[k], f"{purpose}: noise") for k in order.tolist()]
        return cls(order, steps, rows, real, work.rate * counts[order], Noise(streams, steps=most, size=size))

    @property
    def steps_in_order(self) -> Array:
        """(m,) steps of the j-th site here."""
        return self.steps[self.order]

    def blocks(self, step: int) -> list[tuple[slice, int]]:
        """The blocks of places that any site has filled in a step, and up to which site."""
        found = []
        for at in range(0, self.rows.shape[2], BLOCK):
            here = np.flatnonzero(self.real[step, :, at])
            if len(here):
                found.append((slice(at, at + BLOCK), int(here[-1]) + 1))
        return found


class Noise:
    """Standard normal draws (m, size) for one step after another, each site's from its own stream."""

    def __init__(self, streams: Sequence[np.random.Generator], *, steps: int, size: int) -> None:
        self._streams, self._left, self._size = streams, steps, size
        self._held = np.empty((0, len(streams), size))

    def next(self) -> Array:
        if not len(self._held):
            ahead = min(self._left, max(1, _DRAWN // max(1, len(self._streams) * self._size)))
            self._left -= ahead
            self._held = np.stack([rng.standard_normal((ahead, self._size)) for rng in self._streams], axis=1)
        now: Array = self._held[0]
        self._held = self._held[1:]
        return now

    def of_site(self, j: int) -> Array:
        """The next draw (size,) of one site alone, where sites are not trained side by side."""
        return self._streams[j].standard_normal(self._size)


def _sampled(rng: np.random.Generator, n: int, steps: int, rate: float) -> tuple[Array, Array]:
    """Which rows are in which step, as pairs (step, row) in the order of steps."""
    at, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ahead = max(1, _DRAWN // max(1, n))
    for first in range(0, steps, ahead):
        step, row = np.nonzero(rng.random((min(ahead, steps - first), n)) < rate)
        at.append(step + first)
        rows.append(row)
    return np.concatenate(at), np.concatenate(rows)


def add_clipped(
    model: Dense, layers: Layers, grads: Layers, x: Array, target: Array, weight: Array, *, clip: float
) -> None:
    """Add to `grads` the sum over rows of their gradients, each clipped to length `clip`; a row of weight 0 adds nothing.

    x (a, B, d), target (a, B, C), weight (a, B), which multiplies a row's gradient before it is clipped. A row whose
    gradient is no number adds nothing either: the bound must hold for whatever a row may be.
    """
    deltas, inputs = model.deltas(layers, x, target, weight)
    squares = [(squared_length(fed) + 1) * squared_length(delta) for fed, delta in zip(inputs, deltas, strict=True)]
    length = np.sqrt(np.sum(squares, axis=0))
    finite = np.isfinite(length)
    factor = shrinking(length, clip).astype(x.dtype)
    if not finite.all():
        inputs = [np.where(finite[..., None], fed, 0) for fed in inputs]
        deltas = [np.where(finite[..., None], delta, 0) for delta in deltas]
    for (gw, gb), fed, delta in zip(grads, inputs, deltas, strict=True):
        delta *= factor[..., None]
        gw += np.matmul(fed.swapaxes(-1, -2), delta)
        gb += np.add.reduce(delta, axis=-2)


def train(
    model: Dense,
    part: Part,
    members: Array,
    start: Array,
    *,
    draws: Draws,
    work: Work,
    class_weight: Array | None = None,
    slots: tuple[Array, ...] = (),
    clock: Array | None = None,
    correction: Array | None = None,
    taken: Taken | None = None,
) -> Trained:
    """Like the NumPy kernel's `train`, with DP-SGD's steps: `start` (P,) or (m, P)."""
    order = draws.order
    anchor = None if taken is None else Anchor.of(model, taken, start, order, weight=work.anchor)
    base = np.broadcast_to(start if start.ndim == 1 else start[order], (len(members), start.shape[-1]))
    theta, grad = base.copy(), np.empty(base.shape, start.dtype)
    drift = None if correction is None else correction[order].astype(start.dtype)
    mask = model.layout.mask("weight").astype(start.dtype)
    rule = optimizer(work.optimizer, momentum=work.momentum, weight_decay=work.weight_decay, mask=mask)
    state = [s[order].astype(start.dtype) for s in slots] or [np.zeros_like(theta) for _ in range(rule.slots)]
    t = np.zeros((len(members), 1)) if clock is None else clock[order].astype(float)
    a = int((draws.steps[order] > 0).sum())  # those with too few rows come last
    th, g, kept = theta[:a], grad[:a], [v[:a] for v in state]
    scale = 1 / np.maximum(draws.expected[:a, None], 1e-300)
    with np.errstate(over="ignore", invalid="ignore"):
        for s in range(len(draws.rows) if a else 0):
            g[...] = 0
            for here, until in draws.blocks(s):
                rows, real = draws.rows[s, :until, here], draws.real[s, :until, here]
                w = real.astype(start.dtype) if class_weight is None else real * class_weight[part.y[rows]]
                layers, grads = model.layers(th[:until]), model.layers(g[:until])
                add_clipped(
                    model, layers, grads, part.x.take(rows, axis=0), part.target.take(rows, axis=0), w, clip=work.clip
                )
            g[...] = (g + work.noise * work.clip * draws.noise.next()[:a]) * scale
            if work.l2:
                g += work.l2 * mask * th
            if work.proximal:
                g += work.proximal * (th - base[:a])
            if drift is not None:
                g += drift[:a]
            if anchor is not None:
                g += anchor.gradient(model, th, s)
            t[:a] += 1
            rule.step(th, g, kept, t[:a], work.lr)
    back = np.argsort(order, kind="stable")
    slots = tuple(v[back] for v in state) if work.keep_optimizer else ()
    return Trained(theta[back], draws.steps, slots, t[back])


def refusals(counts: Array, work: Work) -> list[str]:
    """For each site the code that it refuses DP-SGD with, or nothing."""
    return [TOO_FEW if n < max(1, work.fewest) else "" for n in counts.tolist()]
