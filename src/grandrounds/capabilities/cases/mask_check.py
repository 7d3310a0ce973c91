"""Check truth masks: the area that they mark, and the scores of heat that ignores the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.cases.image import BASELINES
from grandrounds.capabilities.cases.image_page import Panel, Strip, cover_outside, draw, to_display
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet, mask_area, mask_notes, usable_masks
from grandrounds.explain.agreement import Share, centre_blob, grid_accuracy, uniform_noise, xai_accuracy

GRID = 2
"""Cells per side of the scenes for the baselines: XFed's default."""

_PIXELS = 2**24  # pixels for baselines: ten thousand small images, or some hundreds of large ones
_DRAWS = 10_000  # number of noise maps per image
_TINT = np.array((0, 214, 190))  # a colour that does not occur in skin and most photographs
_COVER = 0.55  # of the tint over what is marked


@dataclass(frozen=True)
class Baseline:
    """Scores of heat that ignores the image: on the masks, and in scenes of GRID x GRID images.

    The standard error is that of one score on as many images as the set has, however many maps were tried.
    """

    xai: Share
    grid: Share


@dataclass(frozen=True, eq=False)
class MaskCheck:
    """The masks of a set: the share that each covers (n,), notes on unusable ones, and the baselines of scores on them."""

    images: ImageSet
    area: Array
    notes: tuple[str, ...]
    baselines: Mapping[str, Baseline]

    @property
    def usable(self) -> int:
        """The number of masks that are neither empty nor full."""
        return int(usable_masks(self._masks).sum())

    @property
    def _masks(self) -> Array:
        assert self.images.masks is not None
        return self.images.masks

    def sheet(self, most: int) -> bytes:
        """Draw `most` images as a PNG, from the smallest mask to the largest: faulty masks are often the smallest."""
        order = np.argsort(self.area, kind="stable")
        chosen = order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))]
        title = f"Truth masks of {self.images.name}: {len(chosen)} of {len(order)}, smallest first (numbers from 0)"
        return draw(title, [self._strip(int(i)) for i in chosen], heat=False)

    def _strip(self, i: int) -> Strip:
        pixels, mask = self.images.pixels[i], self._masks[i]
        panels = (
            Panel("image", to_display(pixels)),
            Panel("mask", tint_mask(pixels, mask)),
            Panel("inside the mask", cover_outside(pixels, mask)),
            Panel("outside the mask", cover_outside(pixels, ~mask)),
        )
        return Strip(f"image {i}: {self.images.label[i]}, {self.area[i]:.1%} marked", panels)


def check_masks(images: ImageSet) -> MaskCheck:
    """Check the masks of a set before a model is scored on them.

    Raises:
        BadInput: The set has no masks, or no images.
    """
    if images.masks is None:
        raise BadInput(
            f"{images.name} has no truth masks: set data.masks to a folder of PNG files named like the images, "
            "or to 'strokes' (digits)",
            code="no-truth-masks",
        )
    if not len(images):
        raise BadInput(f"{images.name} has no images: nothing to check", code="no-images")
    masks = images.masks[_sample_images(images.masks)]
    baselines = {"noise": _noise(masks), "centre_blob": _baseline(centre_blob(masks.shape), masks)}
    named = {BASELINES[name]: baseline for name, baseline in baselines.items()}
    return MaskCheck(images, mask_area(images.masks), tuple(mask_notes(images.masks)), named)


def tint_mask(pixels: Array, mask: Array) -> Array:
    """Draw the image (H, W, C) with the marked part (H, W) under a tint."""
    colour = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    over = np.rint((1 - _COVER) * colour + _COVER * _TINT).astype(np.uint8)
    return to_display(np.where(mask[..., None], over, colour))


def _noise(masks: Array) -> Baseline:
    """Average the scores of many draws of noise."""
    times = max(1, min(_DRAWS // len(masks), _PIXELS // masks.size))
    rng = generator(0, purpose="noise to compare with")
    many = _baseline(uniform_noise((times * len(masks), *masks.shape[1:]), rng), np.tile(masks, (times, 1, 1)))
    return Baseline(*(_single_draw(share, times) for share in (many.xai, many.grid)))


def _baseline(heat: Array, masks: Array) -> Baseline:
    """Score heat (n, H, W). Only the place of the image in a scene matters to heat that ignores it."""
    cells = generator(0, purpose="cells").permutation(np.arange(len(heat)) % GRID**2)
    return Baseline(xai_accuracy(heat, masks), grid_accuracy(heat, cells, GRID))


def _single_draw(share: Share, times: int) -> Share:
    """Return a share over several draws on the same images, with the error of one draw."""
    left_out = share.left_out[: len(share.left_out) // times]  # of the first draw
    return Share(share.value, share.count // times, left_out, share.error * times**0.5)


def _sample_images(masks: Array) -> Array:
    """Choose the images that baselines are scored on: all, or as many as memory has room for."""
    most = max(1, _PIXELS // masks[0].size)
    if len(masks) <= most:
        return np.arange(len(masks))
    drawn = generator(0, purpose="pictures to score").choice(len(masks), most, replace=False)  # language: ok (a stream)
    return np.sort(drawn)
