"""DP-SGD over a stack of sites (Abadi et al. 2016): sampled steps, each patient's gradient clipped, noise on the sum.

Each row joins each step with probability `rate` (Poisson sampling). The gradient of each row is clipped to norm `clip`, Gaussian
noise of standard deviation `noise * clip` is added to their sum, and the result is divided by the *expected* rows (rate * n),
because the actual number is private. So the sum has sensitivity `clip` to one row, which the privacy guarantee rests on for any
optimiser. With a patient column, patients are sampled instead of rows, and each contributes one of their rows, drawn in each
step: the sensitivity to one patient is `clip`. A step without rows is noise alone and still a step. Terms that do not depend on
patients (L2, FedProx's term, anchors on reference rows, a local objective's penalty, SCAFFOLD's variates, which follow from
private steps) are added after the noise.

Sampling and noise come from the site's own secret, not from the experiment's seed. The number of rows of a site is taken as
public.

Gradients of single rows are not stored: in a dense net they are outer products of a layer's inputs and the gradient at its
outputs, so the norm is (sum_layers (|a|^2 + 1) |delta|^2)^0.5, and clipping scales the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.dense import Dense, Layers
from grandrounds.models.optimizers import optimizer
from grandrounds.privacy.clipping import clip_factor, count_sampled_steps, squared_norm
from grandrounds.site.anchor import Anchor
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret

BLOCK = 32
"""Rows that go through a net at once. Every block is padded to it, so a site's arithmetic does not depend on other sites."""

TOO_FEW = "too-few-rows"
"""Refusal code of a site with too few rows."""

_DRAWN = 1 << 22
"""Number of uniform draws, or entries of noise, held at once."""


@dataclass(frozen=True)
class SampledSteps:
    """The random part of one round: the rows of each step. Sites are sorted by decreasing size, so that finished ones can be
    sliced away."""

    order: Array  # (m,) position among the members of the j-th site here
    steps: Array  # (m,) steps of each member, in the members' own order
    rows: Array  # (S, m, W) row numbers into the part; a padded place points at the site's first row
    real: Array  # (S, m, W) the place has a row
    expected: Array  # (m,) expected rows of a step, in this order
    noise: Noise

    @classmethod
    def draw(
        cls, part: Part, members: Array, secrets: Sequence[Secret], *, config: TrainConfig, purpose: str, size: int
    ) -> SampledSteps:
        """Draw the rows and the noise of every step from the sites' own secrets.

        Args:
            part: Training rows of all sites of the stack.
            members: Site numbers, (m,).
            secrets: Secrets of the members.
            config: Settings of the round.
            purpose: A label that no other round or Ask shares.
            size: Entries of a gradient.

        Raises:
            BadInput: The settings include a loss that cannot be clipped row by row, or numbers that give no privacy.
        """
        if config.contrast or config.alignment:
            raise BadInput(
                "DP-SGD clips the gradient of each row, which MOON and alignment do not support: use another method.stability",
                code="unsupported-with-dp",
            )
        if not (config.clip > 0 and 0 < config.rate <= 1 and config.noise >= 0):
            raise BadInput(
                "DP-SGD needs a clip above 0, a rate above 0 and up to 1, and noise that is not negative",
                code="bad-privacy-parameter",
            )
        from grandrounds.privacy.mechanisms import noise_generator

        counts = part.protected[members]
        order = np.argsort(-counts, kind="stable")
        most = count_sampled_steps(config.rate, epochs=config.epochs, steps=config.steps)
        # a site without enough rows takes no step and reports a code
        steps = np.where((counts >= max(1, config.fewest)), most, 0)
        drawn = [
            _sampled(noise_generator(secrets[k], f"{purpose}: sampling"), int(counts[k]), int(steps[k]), config.rate)
            for k in order.tolist()
        ]
        if part.patients is not None:  # patients are sampled: each contributes one row
            streams = [noise_generator(secrets[k], f"{purpose}: rows") for k in order.tolist()]
            patients = [part.patients[m] for m in members[order].tolist()]
            drawn = [(s, p.draw_rows(who, rng)) for (s, who), p, rng in zip(drawn, patients, streams, strict=True)]
        widest = max((int(np.bincount(step, minlength=1).max(initial=0)) for step, _ in drawn), default=0)
        width = max(1, -(-widest // BLOCK)) * BLOCK
        rows = np.repeat(part.offsets[members[order]][None, :, None], most, axis=0).repeat(width, axis=2)
        real = np.zeros(rows.shape, bool)
        for j, (step, row) in enumerate(drawn):
            place = np.arange(len(step)) - np.searchsorted(step, step)
            rows[step, j, place] += row
            real[step, j, place] = True
        streams = [noise_generator(secrets[k], f"{purpose}: noise") for k in order.tolist()]
        return cls(order, steps, rows, real, config.rate * counts[order], Noise(streams, steps=most, size=size))

    @property
    def steps_in_order(self) -> Array:
        """(m,) steps of the j-th site here."""
        return self.steps[self.order]

    def blocks(self, step: int) -> list[tuple[slice, int]]:
        """List the blocks of places that any site has filled in a step, each with the number of sites to include."""
        out = []
        for first in range(0, self.rows.shape[2], BLOCK):
            sites = np.flatnonzero(self.real[step, :, first])
            if len(sites):
                out.append((slice(first, first + BLOCK), int(sites[-1]) + 1))
        return out


class Noise:
    """Standard normal draws (m, size) for one step after another, each site's from its own stream."""

    def __init__(self, streams: Sequence[np.random.Generator], *, steps: int, size: int) -> None:
        self._streams, self._remaining, self._size = streams, steps, size
        self._ahead = np.empty((0, len(streams), size))

    def next(self) -> Array:
        """Return the next draw of all sites, (m, size)."""
        if not len(self._ahead):
            ahead = min(self._remaining, max(1, _DRAWN // max(1, len(self._streams) * self._size)))
            self._remaining -= ahead
            self._ahead = np.stack([rng.standard_normal((ahead, self._size)) for rng in self._streams], axis=1)
        now: Array = self._ahead[0]
        self._ahead = self._ahead[1:]
        return now

    def next_for(self, j: int) -> Array:
        """Return the next draw (size,) of one site, where sites are trained one after another."""
        return self._streams[j].standard_normal(self._size)


def _sampled(rng: np.random.Generator, n: int, steps: int, rate: float) -> tuple[Array, Array]:
    """Draw the rows of each step, as pairs (step, row) in the order of steps."""
    steps_of, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ahead = max(1, _DRAWN // max(1, n))
    for first in range(0, steps, ahead):
        step, row = np.nonzero(rng.random((min(ahead, steps - first), n)) < rate)
        steps_of.append(step + first)
        rows.append(row)
    return np.concatenate(steps_of), np.concatenate(rows)


def add_clipped(
    model: Dense, layers: Layers, grads: Layers, x: Array, target: Array, weight: Array, *, clip: float
) -> None:
    """Add to `grads` the sum over rows of their gradients, each clipped to length `clip`; a row of weight 0 adds nothing.

    x (a, B, d), target (a, B, C), weight (a, B), which multiplies a row's gradient before it is clipped. A row whose gradient is
    not finite adds nothing: the bound must hold for any row.
    """
    deltas, inputs = model.deltas(layers, x, target, weight)
    squares = [(squared_norm(fed) + 1) * squared_norm(delta) for fed, delta in zip(inputs, deltas, strict=True)]
    length = np.sqrt(np.sum(squares, axis=0))
    finite = np.isfinite(length)
    factor = clip_factor(length, clip).astype(x.dtype)
    if not finite.all():
        inputs = [np.where(finite[..., None], fed, 0) for fed in inputs]
        deltas = [np.where(finite[..., None], delta, 0) for delta in deltas]
    for (gw, gb), fed, delta in zip(grads, inputs, deltas, strict=True):
        delta *= factor[..., None]
        gw += np.matmul(fed.swapaxes(-1, -2), delta)
        gb += np.add.reduce(delta, axis=-2)


def train(job: TrainJob, sampled: SampledSteps) -> TrainResult:
    """Train the member sites with DP-SGD, like the NumPy kernel's `train`.

    Args:
        job: The model, the rows and the settings.
        sampled: The rows and the noise of every step.

    Returns:
        The local models in the members' order; a site with too few rows takes no step.
    """
    model, part, start, config = cast("Dense", job.model), job.part, job.start, job.config
    order, class_weight = sampled.order, job.class_weight
    anchor = None
    if job.reference_draws is not None:
        anchor = Anchor.build(model, job.reference_draws, start, order, weight=config.anchor)
    base = np.broadcast_to(start if start.ndim == 1 else start[order], (len(job.members), start.shape[-1]))
    theta, grad = base.copy(), np.empty(base.shape, start.dtype)
    drift = None if job.correction is None else job.correction[order].astype(start.dtype)
    mask = model.layout.mask("weight").astype(start.dtype)
    rule = optimizer(config.optimizer, momentum=config.momentum, weight_decay=config.weight_decay, mask=mask)
    state = [s[order].astype(start.dtype) for s in job.slots] or [np.zeros_like(theta) for _ in range(rule.slots)]
    t = np.zeros((len(job.members), 1)) if job.clock is None else job.clock[order].astype(float)
    own = job.objective  # its penalty depends only on parameters that already have noise
    vectors = {} if own is None else {n: v[order] for n, v in own.state.items()}
    a = int((sampled.steps[order] > 0).sum())  # those with too few rows come last
    th, g, slots = theta[:a], grad[:a], [v[:a] for v in state]
    scale = 1 / np.maximum(sampled.expected[:a, None], 1e-300)
    with np.errstate(over="ignore", invalid="ignore"):
        for s in range(len(sampled.rows) if a else 0):
            g[...] = 0
            for places, until in sampled.blocks(s):
                rows, real = sampled.rows[s, :until, places], sampled.real[s, :until, places]
                w = real.astype(start.dtype) if class_weight is None else real * class_weight[part.y[rows]]
                layers, grads = model.layers(th[:until]), model.layers(g[:until])
                x, target = part.x.take(rows, axis=0), part.target.take(rows, axis=0)
                add_clipped(model, layers, grads, x, target, w, clip=config.clip)
            g[...] = (g + config.noise * config.clip * sampled.noise.next()[:a]) * scale
            if config.l2:
                g += config.l2 * mask * th
            if config.proximal:
                g += config.proximal * (th - base[:a])
            if own is not None and own.has_penalty:
                g += own.penalty_gradient(th, base[:a], {n: v[:a] for n, v in vectors.items()})
            if drift is not None:
                g += drift[:a]
            if anchor is not None:
                g += anchor.gradient(model, th, s)
            t[:a] += 1
            rule.step(th, g, slots, t[:a], config.lr)
    back = np.argsort(order, kind="stable")
    kept_slots = tuple(v[back] for v in state) if config.keep_optimizer else ()
    return TrainResult(theta[back], sampled.steps, kept_slots, t[back])


def refusals(counts: Array, config: TrainConfig) -> list[str]:
    """List the code that each site refuses DP-SGD with; empty where it does not."""
    return [TOO_FEW if n < max(1, config.fewest) else "" for n in counts.tolist()]
