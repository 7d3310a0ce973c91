"""Drawn images with exact masks: a shape of fine stripes, which is the class, somewhere on a background of broad stripes.

There are three sets. `drawn-shapes`: any shape on any background. `drawn-shapes-backgrounds`: ten sites; at three of them each
shape has a background of its own, so a model of these sites can be right for the wrong reason. `drawn-shapes-scoring`: 48 images
to score explanations by, each shape on each background equally often.

Shapes lie anywhere, and they are as bright and as rich in contrast as backgrounds: a blob in the middle of every image has an XAI
accuracy near one half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet

SIDE = 28
SHAPES = ("cross", "disk", "square", "triangle")
BACKGROUNDS = ("rows", "columns", "rising", "falling")
"""Directions of stripes; in this order, that of each of SHAPES where backgrounds give the class away."""

ROWS, SCORING_ROWS = 4000, 48
SITES = tuple(f"site-{k:02}" for k in range(1, 11))
TIED_SITES = ("site-03", "site-06", "site-09")
"""Sites of `drawn-shapes-backgrounds` at which the background gives the class away."""

TIED = 0.95
"""Share of the images of these sites whose background is that of their shape."""

_DIRECTIONS = np.array([(1, 0), (0, 1), (1, 1), (1, -1)])  # of BACKGROUNDS: how a stripe's place grows down and across
_FINE, _BROAD = (3.0, 3.6), (7.0, 9.0)  # pixels from a stripe to the next
_RADIUS = (5.5, 7.5)
_NOISE = 12


@dataclass(frozen=True, eq=False)
class Drawing:
    """Drawn images: pixels and their backgrounds alone (n, H, W) uint8, masks (n, H, W), shape and background (n,) as numbers."""

    pixels: Array
    backgrounds: Array
    masks: Array
    shape: Array
    background: Array

    def images(self, name: str, site: Array | None = None) -> ImageSet:
        """Return the images as a labelled set with masks; the column `background` names the background."""
        return ImageSet(
            name=name,
            pixels=self.pixels[..., None],
            label=np.array(SHAPES, object)[self.shape],
            site=site,
            masks=self.masks,
            columns={"background": np.array(BACKGROUNDS, object)[self.background], **({} if site is None else {"site": site})},
        )


def drawn_shapes() -> ImageSet:
    """Load 4,000 images in which the background says nothing about the shape."""
    return draw(ROWS, seed=0).images("drawn-shapes")


def drawn_shapes_backgrounds() -> ImageSet:
    """Load 4,000 images of ten sites; at three of them the background gives the shape away."""
    site = np.repeat(np.array(SITES, object), ROWS // len(SITES))
    return draw(ROWS, seed=1, tied=np.isin(site, TIED_SITES) * TIED).images("drawn-shapes-backgrounds", site)


def drawn_shapes_scoring() -> ImageSet:
    """Load 48 images to score explanations by, in which the background says nothing about the shape."""
    return draw(SCORING_ROWS, seed=2).images("drawn-shapes-scoring")


def draw(count: int, *, seed: int, tied: Array | float = 0.0) -> Drawing:
    """Draw images, each shape on each background equally often but for those that are tied.

    Args:
        count: The number of images.
        seed: The seed of the drawing.
        tied: The chance (n,) that an image has the background of its shape.
    """
    rng = generator(seed, purpose="drawn shapes")
    background, shape = np.divmod(rng.permutation(count) % (len(SHAPES) * len(BACKGROUNDS)), len(SHAPES))
    background = np.where(rng.random(count) < tied, shape, background)
    grounds, fill = _draw_stripes(background, _BROAD, rng), _draw_stripes(shape, _FINE, rng)
    masks = _draw_masks(shape, rng)
    fill += fill == grounds  # no pixel of a shape looks like its background
    return Drawing(np.where(masks, fill, grounds), grounds, masks, shape, background)


def _draw_stripes(direction: Array, period: tuple[float, float], rng: np.random.Generator) -> Array:
    """Draw stripes (n, H, W) uint8 below 255 of a random width, place and contrast, with noise."""
    n = len(direction)
    down, across = np.mgrid[:SIDE, :SIDE]
    steps = _DIRECTIONS[direction] / np.linalg.norm(_DIRECTIONS[direction], axis=1, keepdims=True)
    place = steps[:, 0, None, None] * down + steps[:, 1, None, None] * across
    wave = np.sin(2 * np.pi * (place / rng.uniform(*period, (n, 1, 1)) + rng.random((n, 1, 1))))
    grey = 127 + rng.uniform(60, 100, (n, 1, 1)) * wave + rng.normal(0, _NOISE, wave.shape)
    out: Array = np.clip(grey, 0, 254).astype(np.uint8)
    return out


def _draw_masks(shape: Array, rng: np.random.Generator) -> Array:
    """Draw the pixels (n, H, W) of shapes of a random size, centred anywhere but on the outermost pixels."""
    n = len(shape)
    radius, (top, left) = rng.uniform(*_RADIUS, (n, 1, 1)), rng.uniform(2, SIDE - 3, (2, n, 1, 1))
    down, across = np.mgrid[:SIDE, :SIDE]
    y, x = (down - top) / radius, (across - left) / radius
    kinds = (
        (np.minimum(abs(x), abs(y)) < 0.36) & (np.maximum(abs(x), abs(y)) < 1),
        x**2 + y**2 < 0.8,
        np.maximum(abs(x), abs(y)) < 0.8,
        (y < 0.9) & (y > 2 * abs(x) - 1),
    )
    return np.asarray(np.choose(shape[:, None, None], kinds), bool)
