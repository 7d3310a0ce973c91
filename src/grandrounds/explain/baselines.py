"""What a score of reasons must be held against: heat that looks at no picture, and the same net with its weights shuffled.

Objects sit in the middle of pictures, so a blob passes for an explanation; and heat by integrated gradients follows a picture's
contrast whatever the net has learnt. A net's score says something as far as it is above these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.images import usable_masks
from grandrounds.explain.agreement import cell_blobs, centre_blob, uniform_noise
from grandrounds.explain.rationale import RationaleRule
from grandrounds.explain.scored import Heated, mean, pointed, scored

NOISE, CENTRE, CELLS, SHUFFLED = "noise", "centre blob", "blob per cell", "shuffled weights"
SHUFFLES = 3
"""Nets with shuffled weights whose mean is taken: a single one can be lucky."""

_MAPS = 10_000  # of noise, so that few pictures have no luck with it
_PIXELS = 2**22  # that they may have together
_CELLS = 2  # blobs on a side where the rule makes no scenes


def baselines(
    model: Any, theta: Array, x: Array, y: Array, masks: Array | None, rule: RationaleRule
) -> dict[str, dict[str, float]]:
    """Baseline -> its scores on pictures x (n, C, H, W) of classes y (n,): `xai`, `in_mask` and `iou` with masks, `grid` with
    scenes, and of shuffled weights all that the net itself is scored by. Means over many maps of noise and several shuffles.
    """
    scenes = rule.scenes(x, y)
    cells = None if scenes is None else scenes.cell
    shape = (len(x), *x.shape[2:])
    marked = masks if masks is not None and usable_masks(masks).any() else None
    blind = {
        CENTRE: centre_blob(shape),
        CELLS: cell_blobs(shape, rule.grid or _CELLS),
    }
    return {
        NOISE: _noise(shape, marked, cells, rule),
        **{name: _unseeing(heat, marked, cells, rule) for name, heat in blind.items()},
        SHUFFLED: _shuffled(model, theta, x, y, masks, rule),
    }


def shuffled(model: Any, theta: Array, rng: np.random.Generator) -> Array:
    """The net with the entries of each parameter block in another order.

    Within blocks and not over all: every layer keeps the sizes that its weights have, so signals pass through as
    before and only what was learnt is gone. Shuffled over all, scales of norms land among weights, and a net that saturates
    or is dead is an opponent too easy to beat.
    """
    out = theta.copy()
    for _, at, _ in model.layout.slices:
        out[at] = rng.permutation(theta[at])
    return out


def _noise(shape: tuple[int, ...], masks: Array | None, cells: Array | None, rule: RationaleRule) -> dict[str, float]:
    """The mean over many draws."""
    times = max(1, min(_MAPS // shape[0], _PIXELS // int(np.prod(shape))))
    heat = uniform_noise((times * shape[0], *shape[1:]), generator(rule.seed, purpose="noise to compare with"))
    many = None if masks is None else np.tile(masks, (times, 1, 1))
    return _unseeing(heat, many, None if cells is None else np.tile(cells, times), rule)


def _unseeing(heat: Array, masks: Array | None, cells: Array | None, rule: RationaleRule) -> dict[str, float]:
    found = {} if masks is None else Heated.of(heat, masks, rule).figures()
    return found if cells is None else {**found, "grid": mean(pointed(heat, cells, rule.grid))}


def _shuffled(
    model: Any, theta: Array, x: Array, y: Array, masks: Array | None, rule: RationaleRule
) -> dict[str, float]:
    rng = generator(rule.seed, purpose="shuffled weights")
    told = [scored(rule, model, shuffled(model, theta, rng), x, y, masks).figures() for _ in range(SHUFFLES)]
    return {
        name: mean(np.array([t[name] for t in told], float)) for name in told[0] if name not in ("pictures", "scored")
    }
