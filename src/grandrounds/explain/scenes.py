"""Grid scenes: a picture in one cell among distractors of other classes (the grid pointing game, Boehle et al. 2021).

Where objects are centred, a blob in the middle passes for an explanation. In a scene the object may be in any cell, so
only a heat map that follows the model can find it. Cells are shrunken, so that a scene has the size of a picture and a
net with a fixed input takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.features import Features


@dataclass(frozen=True)
class Scenes:
    """n scenes: pixels x (n, C, H, W), class y (n,), in which cell (n,) the picture is, and the mask (n, H, W) of it."""

    x: Array
    y: Array
    cell: Array
    mask: Array
    grid: int

    def __len__(self) -> int:
        return len(self.x)


def grid_scenes(x: Array, y: Array, grid: int, rng: np.random.Generator) -> Scenes:
    """One scene for each picture of x (n, C, H, W) with class y (n,), on a grid of cells counted row by row from 0.

    Every cell is right equally often (to one), so whoever always points at the same place scores 1 / grid^2. Distractors
    are drawn from the pictures of other classes, without repeating one in a scene where there are enough of them.
    """
    _check(x, y, grid)
    n, _, height, width = x.shape
    cells = grid * grid
    cell = rng.permutation(np.arange(n) % cells)
    shown = np.empty((n, cells), np.int64)
    for label in np.unique(y):
        own, others = np.flatnonzero(y == label), np.flatnonzero(y != label)
        few = len(others) < cells - 1
        for i in own:
            drawn = rng.choice(others, cells - 1, replace=few)
            shown[i] = np.insert(drawn, cell[i], i)
    tiles = Features.of_tiles(height, width, (grid, grid))
    scenes = np.empty(x.shape, np.result_type(x, np.float32))
    for c, pixels in enumerate(tiles.groups):
        (top, left), (bottom, right) = (divmod(int(corner), width) for corner in pixels[[0, -1]])
        small = shrunken(x, bottom + 1 - top, right + 1 - left)
        scenes[:, :, top : bottom + 1, left : right + 1] = small[shown[:, c]]
    mask = tiles.of.reshape(height, width) == cell[:, None, None]
    return Scenes(scenes, y.copy(), cell, mask, grid)


def shrunken(x: Array, height: int, width: int) -> Array:
    """Pictures (..., H, W) at a smaller size: each new pixel is the mean of the area it covers.

    By a whole factor this is average pooling; otherwise a pixel that straddles an edge counts on each side by its part.
    """
    down, across = _areas(x.shape[-2], height), _areas(x.shape[-1], width)
    out: Array = down @ x @ across.T
    return out.astype(np.result_type(x, np.float32), copy=False)


def _areas(before: int, after: int) -> Array:
    """The weight of each old pixel in each new one along a side, (after, before); rows add up to 1."""
    edges = np.arange(after + 1) * before / after
    left, right = edges[:-1, None], edges[1:, None]
    place = np.arange(before)
    covered = np.clip(np.minimum(right, place + 1) - np.maximum(left, place), 0, None)
    out: Array = covered / covered.sum(axis=1, keepdims=True)
    return out


def _check(x: Array, y: Array, grid: int) -> None:
    if x.ndim != 4 or y.shape != x.shape[:1]:
        raise BadInput(f"pictures {x.shape} and classes {y.shape} do not belong together: give (n, C, H, W) and (n,)")
    if not 2 <= grid <= min(x.shape[2:]):
        raise BadInput(f"grid = {grid}: a scene of {x.shape[2]} x {x.shape[3]} pixels needs at least 2 cells a side")
    if len(np.unique(y)) < 2:
        raise BadInput("scenes need pictures of two classes or more: a picture stands among those of other classes")
