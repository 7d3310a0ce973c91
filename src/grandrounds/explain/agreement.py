"""Agreement of explanations with a known truth: heat maps with masks (XFed), sketches with known shortcuts (SSE-AGG).

The absolute value of a heat map is used; a mask marks the object's pixels. An empty or full mask cannot be scored: its image is
left out, counted and listed. Objects are usually centred, so a fixed blob in the middle scores near 1: report the baselines with
every XAI accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.explain.features import Features
from grandrounds.metrics.classification import ratio

FORMS = {
    "mass": "mean heat inside against mean heat outside (no threshold)",
    "pixels": "share of inside and of outside among the hottest pixels",
    "nonzero": "share of inside and of outside among all pixels with any heat, as printed: 1 for any dense map",
}
TOP = 0.25
"""The share of pixels that count as the hottest."""

_TIE = 1e-9  # relative to the warmest cell; larger than rounding of sums
_WIDTH = 0.2  # standard deviation of a blob, as a share of the side


@dataclass(frozen=True, eq=False, repr=False)
class Share(float):
    """Share of the scored samples: a plain number, with the count it is based on and its standard error.

    `count` samples were scored, `left_out` (by position, from 0) could not be; `error` is the standard error
    sqrt(p (1 - p) / count). Without any scored sample the share is 0 and so is `count`.
    """

    value: float
    count: int
    left_out: tuple[int, ...]
    error: float

    def __new__(cls, value: float, *_: object, **__: object) -> Share:
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        suffix = f", {len(self.left_out)} left out" if self.left_out else ""
        return f"{self.value:.4f} +- {self.error:.4f} ({self.count} scored{suffix})"

    @classmethod
    def from_credit(cls, credit: Array) -> Share:
        """Average credits (n,) in [0, 1]; NaN is a sample that could not be scored."""
        unscored = np.isnan(credit)
        count = int((~unscored).sum())
        value = float(credit[~unscored].mean()) if count else 0.0
        return cls(value, count, tuple(np.flatnonzero(unscored).tolist()), standard_error(value, count))


def standard_error(share: float, count: int) -> float:
    """Return the standard error sqrt(p (1 - p) / count) of a share of `count` samples; 0 without any sample."""
    return math.sqrt(max(0.0, share * (1 - share)) / count) if count else 0.0


def iou_ratio(heat: Array, mask: Array, *, form: str = "mass", q: float = TOP) -> Array:
    """Return XFed's r = u / v, the ratio of heat inside the mask to heat outside, (n,) or one number for one pair.

    Eq. 6 prints the inside in both u and v, which makes r the same for every heat map; this is its Alg. 1.
    `mass`: u and v are the mean heat inside and outside. `pixels`: the share of the inside, and of the outside, that
    is among the top q of pixels. `nonzero`: the same of all pixels with any heat. No heat outside but some inside is
    inf, no heat at all 0, an empty or full mask NaN.
    """
    h, m = _check_pair(heat, mask)
    if form not in FORMS:
        raise BadInput(f"form '{form}' of the IoU-ratio is unknown; {nearest(form, FORMS)}", code="unknown-form")
    if form != "mass":
        h = (_hottest(h, q) if form == "pixels" else h > 0).astype(float)
    inside, outside = ratio((h * m).sum(-1), m.sum(-1)), ratio((h * ~m).sum(-1), (~m).sum(-1))
    over = np.where(outside == 0, np.where(inside > 0, np.inf, 0.0), ratio(inside, outside))
    return _mask_unscorable(over, m)


def iou(heat: Array, mask: Array, q: float = TOP) -> Array:
    """Compute the intersection over union of the top q of pixels and the mask, (n,); NaN for an empty or full mask."""
    h, m = _check_pair(heat, mask)
    hot = _hottest(h, q)
    return _mask_unscorable(ratio((hot & m).sum(-1), (hot | m).sum(-1)), m)


def in_mask(heat: Array, mask: Array, q: float = TOP) -> Array:
    """Compute the share of the mask among the top q of pixels, (n,): u of the `pixels` form."""
    h, m = _check_pair(heat, mask)
    return _mask_unscorable(ratio((_hottest(h, q) & m).sum(-1), m.sum(-1)), m)


def mass_in_mask(heat: Array, mask: Array) -> Array:
    """Compute the share of the heat inside the mask, (n,); 0 without heat, NaN for an empty or full mask."""
    h, m = _check_pair(heat, mask)
    total = h.sum(-1)
    return _mask_unscorable((h * m).sum(-1) / np.where(total > 0, total, 1.0), m)


def xai_accuracy(heats: Array, masks: Array, *, form: str = "mass", q: float = TOP) -> Share:
    """Return XFed's XAI accuracy (Algorithm 1): the share of images with r > 1, or r >= 1 in the `nonzero` form, as printed."""
    return Share.from_credit(drawn(np.atleast_1d(iou_ratio(heats, masks, form=form, q=q)), form))


def drawn(ratios: Array, form: str = "mass") -> Array:
    """Return for each r (n,) 1 if there is more heat inside the mask, else 0; NaN if r is NaN."""
    right = ratios >= 1 if form == "nonzero" else ratios > 1
    out: Array = np.where(np.isnan(ratios), np.nan, right)
    return out


def grid_accuracy(heats: Array, cells: Array, grid: int, *, positive: bool = False) -> Share:
    """Play the grid pointing game: the share of scenes whose cell with most heat is the right one; by chance 1 / grid^2."""
    return Share.from_credit(grid_credit(heats, cells, grid, positive=positive))


def grid_credit(heats: Array, cells: Array, grid: int, *, positive: bool = False) -> Array:
    """Return for each scene (n,) 1 where its cell with most heat is the right one, else 0, or a part of 1 where cells tie.

    heats (n, H, W), cells (n,) counted row by row from 0. If several cells are equally warm, the right one gets its share of the
    credit, like a random guess; a scene without heat is wrong. `positive` uses only positive evidence for the class, as Boehle
    et al. (2021) do: distractors often have strong negative evidence, so absolute heat could point at them.
    """
    signed, right = np.asarray(heats, float), np.asarray(cells)
    h = np.maximum(signed, 0.0) if positive else np.abs(signed)
    if h.ndim != 3 or right.shape != h.shape[:1]:
        raise BadInput(
            f"heats {h.shape} and cells {right.shape} do not match: give (n, H, W) and (n,)",
            code="mismatched-shapes",
        )
    _check_heat(h)
    _check_grid(grid, h.shape[1:])
    tiles = Features.from_tiles(h.shape[1], h.shape[2], (grid, grid))
    if right.dtype.kind not in "iu" or not ((right >= 0) & (right < len(tiles))).all():
        raise BadInput(
            f"cells of a {grid} x {grid} grid are whole numbers from 0 to {len(tiles) - 1}", code="cell-out-of-range"
        )
    mass = tiles.sum_inputs(_scale_heat(h.reshape(len(h), -1)))
    warmest = mass >= mass.max(-1, keepdims=True) * (1 - _TIE)
    credit = warmest[np.arange(len(h)), right] / warmest.sum(-1)
    out: Array = np.where(mass.any(-1), credit, 0.0)
    return out


def uniform_noise(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Draw random heat (n, H, W): the baseline near 1/2."""
    return rng.random(tuple(shape))


def centre_blob(shape: Sequence[int]) -> Array:
    """Return heat (..., H, W) with one round blob in the middle, for any image."""
    return cell_blobs(shape, 1)


def cell_blobs(shape: Sequence[int], grid: int) -> Array:
    """Return heat (..., H, W) with a round blob in the middle of each cell of a grid."""
    if len(shape) < 2:
        raise BadInput(
            f"a heat map of shape {tuple(shape)} has no height and width; give (H, W) or (n, H, W)",
            code="invalid-image-shape",
        )
    _check_grid(grid, shape[-2:])
    down, across = (_bumps(side, grid) for side in shape[-2:])
    return np.broadcast_to(down[:, None] * across, tuple(shape)).copy()


def spurious_mass(sketches: Array, tiles: Array) -> Array:
    """Return SAM_k, the share of site k's sketch on the tile with its shortcut, (K,); SAM is the mean (SSE-AGG, eq. 25).

    sketches (K, F), or one (F,) that is read at every site's tile; tiles (K,), counted row by row from 0.
    """
    s, tile = np.asarray(sketches, float), np.asarray(tiles)
    if tile.ndim != 1 or s.ndim not in (1, 2) or (s.ndim == 2 and len(s) != len(tile)):
        raise BadInput(
            f"sketches {s.shape} and tiles {tile.shape} do not match: give (K, F) and (K,)",
            code="mismatched-shapes",
        )
    if tile.dtype.kind not in "iu" or not ((tile >= 0) & (tile < s.shape[-1])).all():
        raise BadInput(
            f"the tiles of a sketch of {s.shape[-1]} are whole numbers from 0 to {s.shape[-1] - 1}",
            code="tile-out-of-range",
        )
    if not (np.isfinite(s).all() and (s >= 0).all() and s.any(-1).all()):
        raise BadInput(
            "a sketch has shares: values of 0 or more, not all zero; a model that uses no feature has a uniform sketch",
            code="bad-shares",
        )
    shares = np.broadcast_to(s / s.sum(-1, keepdims=True), (len(tile), s.shape[-1]))
    out: Array = shares[np.arange(len(tile)), tile]
    return out


def spurious_gap(with_shortcut: float, without: float) -> float:
    """Return the AUROC on images with the shortcut minus that on images without it (SSE-AGG, eq. 26)."""
    return with_shortcut - without


def _check_pair(heat: Array, mask: Array) -> tuple[Array, Array]:
    """Heat scaled to at most 1 and mask, each (..., pixels)."""
    h, m = np.abs(np.asarray(heat, float)), np.asarray(mask)
    if h.ndim not in (2, 3) or h.shape != m.shape:
        raise BadInput(
            f"heat {h.shape} and mask {m.shape} do not match: give both as (H, W) or (n, H, W), with heat summed over channels",
            code="mismatched-shapes",
        )
    if not h.size:
        raise BadInput(f"heat of shape {h.shape} has no pixel: give at least one heat map", code="no-values")
    _check_heat(h)
    if m.dtype != np.bool_ and not ((m == 0) | (m == 1)).all():
        raise BadInput(
            "a mask must be boolean (inside or outside), not grey values", code="mask-not-binary"
        )
    lead = h.shape[:-2]
    return _scale_heat(h.reshape(*lead, -1)), m.astype(bool).reshape(*lead, -1)


def _check_heat(h: Array) -> None:
    if not np.isfinite(h).all():
        raise BadInput("a heat map has values that are not finite; check its model", code="not-finite")


def _scale_heat(h: Array) -> Array:
    """Heat (..., pixels) over its maximum: a constant map is exactly 1, and no sum overflows."""
    top = h.max(-1, keepdims=True, initial=0)
    out: Array = h / np.where(top > 0, top, 1.0)
    return out


def _hottest(h: Array, q: float) -> Array:
    """The top q share of pixels, rounded up; pixels that tie with the last are in, pixels without heat never."""
    if not 0 < q <= 1:
        raise BadInput(f"q = {q:g}: the share of hottest pixels is above 0 and at most 1", code="share-out-of-range")
    size = h.shape[-1]
    count = max(1, math.ceil(q * size - 1e-9))
    last = np.partition(h, size - count, axis=-1)[..., size - count, None]
    out: Array = (h >= last) & (h > 0)
    return out


def _mask_unscorable(values: Array, m: Array) -> Array:
    """Replace values by NaN where a mask has no inside or no outside."""
    usable = m.any(-1) & ~m.all(-1)
    out: Array = np.where(usable, values, np.nan)[()]
    return out


def _check_grid(grid: int, size: Sequence[int]) -> None:
    if not 1 <= grid <= min(size):
        raise BadInput(
            f"a grid of {grid} x {grid} cells does not fit an image of {size[0]} x {size[1]} pixels",
            code="grid-too-fine",
        )


def _bumps(side: int, cells: int) -> Array:
    """Return a Gaussian over each of the cells along one side, with the cells of `Features.from_tiles`."""
    cell = np.arange(side) * cells // side
    width = np.bincount(cell)
    start = np.cumsum(width) - width
    place = (np.arange(side) - start[cell] + 0.5) / width[cell] - 0.5
    out: Array = np.exp(-0.5 * (place / _WIDTH) ** 2)
    return out
