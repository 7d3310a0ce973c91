"""Truth masks as a person checks them: what they mark, and what heat that looks at no picture scores on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.analysis.case.image import BASELINES
from grandrounds.analysis.case.image_page import Panel, Strip, draw, masked, shown
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet, mask_area, mask_notes, usable_masks
from grandrounds.explain.agreement import Share, centre_blob, grid_accuracy, uniform_noise, xai_accuracy

GRID = 2
"""Cells on a side of the scenes that the baselines are held to: XFed's default."""

_PIXELS = 2**24  # that baselines are scored on: all of ten thousand small pictures, some hundreds of large ones
_DRAWS = 10_000  # maps of noise, so that few pictures have no luck with it
_TINT = np.array((0, 214, 190))  # a colour that skin and most photographs have not
_COVER = 0.55  # of the tint over what is marked


@dataclass(frozen=True)
class Baseline:
    """What heat without a look at the picture scores: on the masks, and in scenes of GRID x GRID pictures.

    The standard error is that of one score on as many pictures as the set has, however many maps were tried.
    """

    xai: Share
    grid: Share


@dataclass(frozen=True, eq=False)
class MaskCheck:
    """The masks of a set: how much they cover (n,), which are of no use, and the baselines beside every score on them."""

    pictures: ImageSet
    area: Array
    notes: tuple[str, ...]
    baselines: Mapping[str, Baseline]

    @property
    def usable(self) -> int:
        return int(usable_masks(self._masks).sum())

    @property
    def _masks(self) -> Array:
        assert self.pictures.masks is not None
        return self.pictures.masks

    def sheet(self, most: int) -> bytes:
        """A PNG of `most` pictures from the smallest mask to the largest, where what is wrong with masks shows first."""
        order = np.argsort(self.area, kind="stable")
        chosen = order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))]
        title = f"Truth masks of {self.pictures.name}: {len(chosen)} of {len(order)}, smallest first (numbers from 0)"
        return draw(title, [self._strip(int(i)) for i in chosen], heat=False)

    def _strip(self, i: int) -> Strip:
        pixels, mask = self.pictures.pixels[i], self._masks[i]
        panels = (
            Panel("picture", shown(pixels)),
            Panel("mask", tinted(pixels, mask)),
            Panel("inside the mask", masked(pixels, mask)),
            Panel("outside the mask", masked(pixels, ~mask)),
        )
        return Strip(f"picture {i}: {self.pictures.label[i]}, {self.area[i]:.1%} marked", panels)


def check_masks(pictures: ImageSet) -> MaskCheck:
    """What can be said of a set's masks before a model is scored on them."""
    if pictures.masks is None:
        raise BadInput(
            f"{pictures.name} has no truth masks: set data.masks to a folder of PNG files named like the pictures, "
            "or to 'strokes' (digits)",
            code="no-truth-masks",
        )
    if not len(pictures):
        raise BadInput(f"{pictures.name} has no picture: nothing to check", code="no-images")
    masks = pictures.masks[_scored(pictures.masks)]
    baselines = {"noise": _noise(masks), "centre_blob": _baseline(centre_blob(masks.shape), masks)}
    named = {BASELINES[name]: found for name, found in baselines.items()}
    return MaskCheck(pictures, mask_area(pictures.masks), tuple(mask_notes(pictures.masks)), named)


def tinted(pixels: Array, mask: Array) -> Array:
    """The picture (H, W, C) with what its mask (H, W) marks under a tint."""
    colour = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    over = np.rint((1 - _COVER) * colour + _COVER * _TINT).astype(np.uint8)
    return shown(np.where(mask[..., None], over, colour))


def _noise(masks: Array) -> Baseline:
    """The mean over many draws of noise."""
    times = max(1, min(_DRAWS // len(masks), _PIXELS // masks.size))
    rng = generator(0, purpose="noise to compare with")
    many = _baseline(uniform_noise((times * len(masks), *masks.shape[1:]), rng), np.tile(masks, (times, 1, 1)))
    return Baseline(*(_of_one(share, times) for share in (many.xai, many.grid)))


def _baseline(heat: Array, masks: Array) -> Baseline:
    """Scores of heat (n, H, W). Where a scene has its picture is all that matters to heat that does not look at it."""
    cells = generator(0, purpose="cells").permutation(np.arange(len(heat)) % GRID**2)
    return Baseline(xai_accuracy(heat, masks), grid_accuracy(heat, cells, GRID))


def _of_one(share: Share, times: int) -> Share:
    """A share over several goes at the same pictures, with the error that one go has."""
    left = share.left_out[: len(share.left_out) // times]  # the first go's
    return Share(share.value, share.count // times, left, share.error * times**0.5)


def _scored(masks: Array) -> Array:
    """The pictures that baselines are scored on: all, or of very many pixels as many as memory has room for."""
    most = max(1, _PIXELS // masks[0].size)
    if len(masks) <= most:
        return np.arange(len(masks))
    drawn = generator(0, purpose="pictures to score").choice(len(masks), most, replace=False)
    return np.sort(drawn)
