"""Small random changes to training pictures: mirrored, or moved a little. One draw for each picture and round.

The draws of a site follow from (seed, round, site), so they are the same whoever shares its stack.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.site.stack import Part
from grandrounds.site.work import Work

MOST = 1 / 8
"""The furthest a picture is moved, as a share of its side."""


def augmented(part: Part, members: Array, *, names: tuple[str, ...], work: Work) -> Array:
    """The pictures (N, C, H, W) of a part with the members' own changed: `flip` mirrors half, `shift` also moves them."""
    x = part.x.copy()
    height, width = x.shape[2:]
    for k in members:
        rows = slice(int(part.offsets[k]), int(part.offsets[k + 1]))
        rng = generator(work.seed, purpose="augment", round=work.round, site=names[k])
        mine = x[rows]
        mirrored = rng.random(len(mine)) < 0.5
        mine[mirrored] = mine[mirrored, :, :, ::-1]
        if work.augment == "shift":
            most = max(1, round(MOST * min(height, width)))
            down, across = rng.integers(-most, most + 1, (2, len(mine)))
            x[rows] = moved(mine, down, across)
    return x


def moved(x: Array, down: Array, across: Array) -> Array:
    """Each picture moved by its own (down, across) pixels; what comes in from outside is 0, the mean after scaling."""
    n, _, height, width = x.shape
    r = np.arange(height)[None, :, None] - down[:, None, None]
    c = np.arange(width)[None, None, :] - across[:, None, None]
    inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
    at = np.arange(n)[:, None, None]
    out = x.transpose(0, 2, 3, 1)[at, np.clip(r, 0, height - 1), np.clip(c, 0, width - 1)]
    return np.ascontiguousarray(np.where(inside[..., None], out, 0).transpose(0, 3, 1, 2))
