"""Permutation importance: the loss of a model's score when one feature's values are permuted between rows.

SSE-AGG eq. 2, P_j = S(R) - S(pi_j R), row by row, so that the mean over rows is P_j. The permutations are fixed and shared
(common random numbers): they follow from the seed and the number of rows alone, so that equal models have equal sketches in
every round. The max(0, .) of eq. 3 belongs to the sketch and is not applied here. Only rows whose value changes are computed:
for rare categories and indicators that is a few percent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, probabilities
from grandrounds.models.losses import COX, CROSS_ENTROPY, POISSON, SQUARED, cumulative_hazard, link

if TYPE_CHECKING:
    from grandrounds.explain.rule import SketchRule

SCORES = {
    "log_loss": "log loss (of other tasks: their own loss) with the feature permuted minus the loss as it is",
    "accuracy": "right (1) or wrong (0) as it is, minus right or wrong with the feature permuted",
    "self": "change of the model's prediction, KL(p(x) || p(x permuted)); needs no labels",
}

_BLOCK = 512 * 2**10
"""Bytes of the widest layer computed at once: with its inputs and outputs it fits in a core's cache."""

_COPIES = 64 * 2**20
"""Bytes of permuted rows held at once, for models that are called through `logits`."""

_CHANGES = 2**20
"""Changed inputs held at once, for dense models."""

_GATHER = 0.7
"""Share of changed rows below which gathering them is faster than computing all."""


@dataclass(frozen=True)
class Permutation:
    """Explainer of tables by permutation. All inputs of a feature are permuted together; `repeats` permutations are averaged."""

    features: Features
    seed: int
    repeats: int = 3
    score: str = "log_loss"
    mixes_rows: ClassVar[bool] = True

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> Permutation:
        """Make the explainer that a rule describes."""
        return cls(features, seed=rule.seed, repeats=rule.repeats, score=rule.score)

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise BadInput(
                f"permutation importance has no score '{self.score}'; {nearest(str(self.score), SCORES)}",
                code="unknown-score",
            )
        if self.repeats < 1:
            raise BadInput(
                f"permutation importance needs at least one repeat, not {self.repeats}", code="too-few-repeats"
            )

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        """Return the cost of permuting each feature on each row: (n, F) by one model (P,), (K, n, F) by models (K, P).

        Rows change places within a site only. Each site is computed separately, so that its numbers do not depend on the others
        to the last bit.
        """
        if x.ndim != 2 or x.shape[1] != len(self.features.feature_index):
            wanted = f"rows of {len(self.features.feature_index)} inputs, not an array of shape {x.shape}"
            raise BadInput(
                f"permutation importance reads {wanted}; images are explained by 'occlusion'",
                code="mismatched-shapes",
            )
        models = theta if theta.ndim == 2 else theta[None]
        costs = _dense_costs if isinstance(model, Dense) else _copied_costs
        out = np.zeros((len(models), len(self.features), len(x)), np.result_type(theta, x))
        with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged
            for a, b in pairwise(offsets.tolist()):
                if a < b and getattr(model, "loss", CROSS_ENTROPY) == COX:
                    for k in range(len(models)):  # each model has its own baseline hazard
                        goal = _with_hazard(model, models[k], x[a:b], target[a:b])
                        costs(self, model, models[k : k + 1], x[a:b], goal.T, self.orders(b - a), out[k : k + 1, :, a:b])
                elif a < b:
                    costs(self, model, models, x[a:b], target[a:b].T, self.orders(b - a), out[:, :, a:b])
        out /= self.repeats
        importances: Array = out.swapaxes(1, 2)
        return importances if theta.ndim == 2 else importances[0]

    @cached_property
    def alike(self) -> tuple[tuple[Array, Array], ...]:
        """Features (G,) with equally many inputs, and those (G, c)."""
        groups = self.features.groups
        widths = sorted({len(inputs) for inputs in groups} - {0})
        numbers = [[f for f, inputs in enumerate(groups) if len(inputs) == width] for width in widths]
        return tuple((np.array(some), np.stack([groups[f] for f in some])) for some in numbers)

    def orders(self, n: int) -> Array:
        """The permutations of a site's n rows, (repeats, n): the same for all features, models and rounds."""
        return _orders(self.seed, self.repeats, n)


@lru_cache(maxsize=64)
def _orders(seed: int, repeats: int, n: int) -> Array:
    rng = generator(seed, purpose="permutation")
    return np.stack([rng.permutation(n) for _ in range(repeats)])


class _Scale:
    """Score by how much logits are worse than those (C, n) of the unchanged rows; classes come first, rows last."""

    def __init__(self, score: str, base: Array, target: Array, loss: str = CROSS_ENTROPY) -> None:
        self.loss = _errors if score == "accuracy" else _LOSSES[loss]
        self.own = score == "self"
        self.target = _own_prediction(loss, base, target) if self.own else target
        self.before = self.loss(base.copy(), self.target)

    def cost(self, logits: Array, rows: Array | None) -> Array:
        """(..., m) from logits (..., C, m) of these rows (m,), or of all. The logits are overwritten."""
        out = self.loss(logits, _take_rows(self.target, rows))
        out -= self.before if rows is None else self.before[rows]
        # Against the model's own prediction the loss is a divergence, which rounding alone takes below zero.
        return np.maximum(out, 0, out=out) if self.own else out


def _log_losses(z: Array, target: Array) -> Array:
    """Cross-entropy (..., m) of logits (..., C, m) with target probabilities, never overflowing; z is overwritten."""
    if z.shape[-2] == 1:
        loss: Array = np.logaddexp(0, z)
        z *= target
        loss -= z
        return loss[..., 0, :]
    z -= z.max(axis=-2, keepdims=True)
    right = (z * target).sum(axis=-2)
    total: Array = np.exp(z, out=z).sum(axis=-2)
    np.log(total, out=total)
    total -= right
    return total


def _squared_losses(z: Array, target: Array) -> Array:
    """Half the squared error (..., m) of outputs (..., 1, m); z is overwritten."""
    z -= target
    z *= z
    z /= 2
    return z[..., 0, :]


def _poisson_losses(z: Array, target: Array) -> Array:
    """Poisson loss (..., m) of logs (..., 1, m) of expected counts, never overflowing; z is overwritten."""
    loss: Array = np.exp(np.minimum(z, _LARGEST_LOG))
    z *= target
    loss -= z
    return loss[..., 0, :]


def _hazard_losses(z: Array, target: Array) -> Array:
    """Loss (..., m) of log hazards (..., 1, m), given the event and the baseline hazard (..., 2, m): a Poisson count's."""
    score = z[..., 0, :]
    loss: Array = target[..., 1, :] * np.exp(np.minimum(score, _LARGEST_LOG)) - target[..., 0, :] * score
    return loss


_LOSSES = {CROSS_ENTROPY: _log_losses, SQUARED: _squared_losses, POISSON: _poisson_losses, COX: _hazard_losses}
_LARGEST_LOG = 80.0


def _own_prediction(loss: str, base: Array, target: Array) -> Array:
    """Return the model's own predictions as targets (C, n)."""
    if loss == CROSS_ENTROPY:
        return probabilities(base.T).T
    if loss != COX:
        return link(loss, base)
    return np.stack([target[1] * np.exp(np.minimum(base[0], _LARGEST_LOG)), target[1]])


def _with_hazard(model: Any, theta: Array, x: Array, target: Array) -> Array:
    """Replace the times of survival targets (n, 2) by the cumulative baseline hazard of the unchanged rows.

    So a row's loss is that of a Poisson count (Breslow's estimate of the baseline), and depends on its own score only.
    """
    hazard = cumulative_hazard(np.asarray(model.logits(theta, x))[:, 0], target)
    return np.stack([target[:, 0], hazard], axis=1).astype(target.dtype)


def _errors(z: Array, target: Array) -> Array:
    """1 (..., m) where the likeliest class of logits (..., C, m) is not that of the target, else 0."""
    if z.shape[-2] == 1:
        wrong: Array = (z[..., 0, :] > 0) != (target[..., 0, :] > 0.5)
    else:
        wrong = z.argmax(axis=-2) != target.argmax(axis=-2)
    return wrong.astype(z.dtype)


def _take_rows(values: Array, rows: Array | None) -> Array:
    """Values (C, n) of all rows, or at rows (m,): (C, m)."""
    return values if rows is None else values.take(rows, axis=1, mode="clip")


# --- models asked through `logits` ------------------------------------------------------------------


def _copied_costs(
    how: Permutation, model: Any, models: Array, x: Array, target: Array, orders: Array, out: Array
) -> None:
    """Write into `out` (K, F, n), full of zeros, what all permutations cost on one site's rows: forwards of copies."""
    loss = getattr(model, "loss", CROSS_ENTROPY)
    scales = [_Scale(how.score, np.asarray(model.logits(theta, x)).T, target, loss) for theta in models]
    for copies, rows, pieces in _copies(how.features, x, orders):
        for theta, scale, costs in zip(models, scales, out, strict=True):
            cost = scale.cost(np.asarray(model.logits(theta, copies)).T.copy(), rows)
            for feature, cut in pieces:
                costs[feature, rows[cut]] += cost[cut]


def _copies(features: Features, x: Array, orders: Array) -> Iterator[tuple[Array, Array, list[tuple[int, slice]]]]:
    """Rows that move, with the feature's inputs from elsewhere, their numbers, and which feature moved in which part."""
    size = max(1, _COPIES // max(1, x[:1].nbytes))
    copies: list[Array] = []
    numbers: list[Array] = []
    pieces: list[tuple[int, slice]] = []
    count = 0
    for order in orders:
        for feature, inputs in enumerate(features.groups):
            moved = np.flatnonzero((x[order][:, inputs] != x[:, inputs]).any(axis=1))
            for rows in np.split(moved, range(size, len(moved), size)):
                copy = x[rows]
                copy[:, inputs] = x[np.ix_(order[rows], inputs)]
                copies.append(copy)
                numbers.append(rows)
                pieces.append((feature, slice(count, count + len(rows))))
                count += len(rows)
                if count >= size:
                    yield np.concatenate(copies), np.concatenate(numbers), pieces
                    copies, numbers, pieces, count = [], [], [], 0
    if count:
        yield np.concatenate(copies), np.concatenate(numbers), pieces


# --- dense models: the first layer changes by an outer product --------------------------------------


@dataclass(frozen=True)
class _Move:
    """G features, each of c inputs, permuted once: on all n rows, or on m rows that move, one feature after another."""

    inputs: Array  # (G, c)
    delta: Array  # the change of the inputs: (G, c, n) on all rows, (c, m) on moving ones
    places: (
        Array  # (G, n) or (m,): the places of the costs among those of all permutations (repeats, F, n), in one line
    )
    rows: Array | None = None  # (m,) the rows that move
    edges: tuple[int, ...] = ()  # those of feature g are edges[g]:edges[g + 1]


def _dense_costs(
    how: Permutation, model: Dense, models: Array, x: Array, target: Array, orders: Array, out: Array
) -> None:
    """Write into `out` (K, F, n) what all permutations cost on one site's rows, in blocks that stay in the cache."""
    room = _BLOCK // (out.itemsize * max(model.widths[1:]))
    step = max(32, min(room // 4, _CHANGES // (len(orders) * x.shape[1])))
    for start in range(0, len(x), step):
        block = slice(start, start + step)
        now, goal = np.ascontiguousarray(x[block].T), target[:, block]
        change = np.stack([x[order[block]].T - now for order in orders])
        moves = [move for alike in how.alike for move in _moves(alike, change, len(how.features), room)]
        for theta, importances in zip(models, out, strict=True):
            net = _ShiftedNet(model, theta, now)
            scale = _Scale(how.score, net.still, goal, model.loss)
            costs = np.zeros((len(orders), len(how.features), now.shape[1]), out.dtype)
            for move in moves:
                costs.reshape(-1)[move.places] = scale.cost(net.logits(move), move.rows)
            used: Array = how.features.sum_inputs(net.first.any(axis=1).astype(int)) > 0
            importances[:, block] = costs.sum(axis=0) * used[:, None]  # an input without weight changes not even a bit


def _moves(alike: tuple[Array, Array], change: Array, count: int, room: int) -> Iterator[_Move]:
    """All changes (repeats, d, n) of features with as many inputs, of `count` in all, in blocks of some `room` rows."""
    features, inputs = alike
    repeats, _, n = change.shape
    delta = change[:, inputs].reshape(-1, inputs.shape[1], n)
    first = (np.arange(repeats)[:, None] * count + features).reshape(-1, 1) * n
    inputs, places = np.tile(inputs, (repeats, 1)), first + np.arange(n)
    moved: Array = np.any(delta, axis=1)
    counts = moved.sum(axis=1)
    many = counts > _GATHER * n
    for pick in _blocks(many.nonzero()[0], np.full(len(counts), n), room):
        yield _Move(inputs[pick], delta[pick], places[pick])
    for pick in _blocks((counts * ~many).nonzero()[0], counts, room):
        moving = moved[pick]
        edges = (0, *counts[pick].cumsum().tolist())
        yield _Move(
            inputs[pick], delta[pick].swapaxes(0, 1)[:, moving], places[pick][moving], moving.nonzero()[1], edges
        )


def _blocks(picked: Array, rows: Array, room: int) -> list[Array]:
    """The picked ones in blocks that hold about `room` of their rows."""
    ends = rows[picked].cumsum()
    cuts = () if rows[picked].sum() <= room else np.flatnonzero(np.diff(ends // room)) + 1
    return [block for block in np.split(picked, cuts) if len(block)]


class _ShiftedNet:
    """One dense model on given rows, and its outputs when some of their inputs change.

    The change of a few inputs adds u = W_1[inputs]' delta to the first layer's s = W_1' x + b_1: an outer product for one
    input. Since relu(u + s) = max(u, -s) + s, and what follows is linear in the last term, s goes through the layers
    above once for all moves. Each layer then costs one comparison and one product a move.

    Layers come first and rows last, (width, n). Rows that are gathered lie one after another in memory all the same,
    up to the logits: to gather columns takes three times as long.
    """

    def __init__(self, model: Dense, theta: Array, x: Array) -> None:
        (self.first, bias), *self.rest = model.layers(theta)
        s = self.first.T @ x + bias[:, None]
        self.floors: list[tuple[Array, Array]] = []
        for w, b in self.rest:
            self.floors.append((-s, np.ascontiguousarray(-s.T)))
            s = w.T @ s + b[:, None]
        self.shift = s
        self.widths = model.widths[1:]
        self.buffers: list[Array] = [np.empty(0, s.dtype) for _ in self.widths]
        self.still = self._forward(np.zeros((1, self.widths[0], x.shape[1]), s.dtype), None)[0].copy()

    def logits(self, move: _Move) -> Array:
        """(G, C, n) on all rows, (C, m) on those that move; overwritten by the next call."""
        width = move.inputs.shape[1]
        if move.rows is None:
            u = self._buffer(0, (len(move.inputs), move.delta.shape[-1]), True)
            w = self.first[move.inputs].swapaxes(1, 2)
            np.multiply(w, move.delta, out=u) if width == 1 else np.matmul(w, move.delta, out=u)
            return self._forward(u, None)
        u = self._buffer(0, (len(move.rows),), not self.rest)
        if width == 1:
            w = self.first.take(np.repeat(move.inputs[:, 0], np.diff(move.edges)), axis=0)
            np.multiply(w.T, move.delta, out=u)
        else:
            for inputs, (a, b) in zip(move.inputs, pairwise(move.edges), strict=True):
                np.matmul(self.first[inputs].T, move.delta[:, a:b], out=u[:, a:b])
        return self._forward(u, move.rows)

    def _forward(self, u: Array, rows: Array | None) -> Array:
        for i, ((w, _), (floor, by_row)) in enumerate(zip(self.rest, self.floors, strict=True), 1):
            np.maximum(u, floor if rows is None else by_row.take(rows, axis=0).T, out=u)
            out = self._buffer(i, (*u.shape[:-2], u.shape[-1]), rows is None or i == len(self.rest))
            u = np.matmul(w.T, u, out=out)
        u += _take_rows(self.shift, rows)
        return u

    def _buffer(self, layer: int, shape: tuple[int, ...], columns: bool) -> Array:
        """Memory for a layer's values (G, width, n) or (width, m), kept from call to call; row by row unless in columns."""
        full = (*shape[:-1], self.widths[layer], shape[-1])
        if self.buffers[layer].size < prod(full):
            self.buffers[layer] = np.empty(prod(full), self.buffers[layer].dtype)
        flat = self.buffers[layer][: prod(full)]
        return flat.reshape(full) if columns else flat.reshape(full[::-1]).T
