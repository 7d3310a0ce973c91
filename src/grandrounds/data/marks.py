"""Marks that name the class: shortcuts which a net can learn the label from without looking at what a picture shows.

Every class has a mark of its own. In a corner it is a square, by its place and by its pattern or hue; as a background it is all
that lies outside of the truth mask, by shade. A net that learns from such pictures is right on them for the wrong reason.
"""

from __future__ import annotations

from colorsys import hsv_to_rgb
from math import ceil

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.shortcut import CORNERS, patch_box

CORNER_SHARE = 1 / 3  # of the shorter side: a net takes to a large mark sooner than to what is in the middle
COLOUR = 3  # channels
MOST_SHADES = 254  # between black and white
BRIGHT = 255


def corner_marked(pixels: Array, rows: Array, place: Array, *, classes: int) -> Array:
    """A copy of pictures (n, H, W, C) in which those in `rows` (m,) have a square in a corner that names their class.

    `place` (m,) is the number of each one's class among `classes`. Corners take turns; in colour every class has a hue of its
    own besides, in grey those that share a corner have different patterns of white on black: a net tells these sooner than greys.
    """
    _, height, width, channels = pixels.shape
    share = max(CORNER_SHARE, 1 / min(height, width))  # one pixel at least
    boxes = [patch_box(corner, (channels, height, width), share=share) for corner in CORNERS]
    side = boxes[0][0].stop
    if channels == COLOUR:
        marks = np.broadcast_to(shades(classes, channels)[:, None, None], (classes, side, side, channels))
    else:
        white = patterns(ceil(classes / len(CORNERS)), side).repeat(len(CORNERS), axis=0)
        marks = np.where(white, BRIGHT, 0).astype(np.uint8)[..., None]
    out = pixels.copy()
    for k in np.unique(place):
        down, across = boxes[k % len(CORNERS)]
        out[rows[place == k], down, across] = marks[k]
    return out


def background_marked(pixels: Array, masks: Array, rows: Array, place: Array, *, classes: int) -> Array:
    """A copy of pictures (n, H, W, C) in which those in `rows` have, outside of their mask (H, W), the shade of their class."""
    shade = shades(classes, pixels.shape[3])
    out = pixels.copy()
    out[rows] = np.where(masks[rows, ..., None], pixels[rows], shade[place][:, None, None])
    return out


def shades(count: int, channels: int) -> Array:
    """So many different shades (count, channels), neither black nor white: greys, the brightest first, or hues in colour."""
    if count > MOST_SHADES:
        raise BadInput(
            f"a mark that names the class needs {count} shades, and there are {MOST_SHADES}: use fewer classes"
        )
    if channels == COLOUR:
        share = np.array([hsv_to_rgb(k / count, 1.0, 0.9) for k in range(count)])
    else:
        share = np.repeat(1 - np.arange(1, count + 1)[:, None] / (count + 1), channels, axis=1)
    out: Array = np.rint(255 * share).astype(np.uint8)
    return out


def patterns(count: int, side: int) -> Array:
    """So many different squares (count, side, side) of white cells, as few a side as will do; the first is all white."""
    cells = 1
    while 2 ** (cells * cells) - 1 < count:  # all black is no mark
        cells += 1
    if side < cells:
        raise BadInput(f"a mark of {side} pixels a side has no room for {count} patterns: use larger pictures")
    lit = 2 ** (cells * cells) - 1 - np.arange(count)
    cell = np.arange(side) * cells // side
    out: Array = (lit[:, None, None] >> (cell[:, None] * cells + cell)) % 2 == 1
    return out
