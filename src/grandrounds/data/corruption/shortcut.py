"""Shortcut features: a coloured corner patch tied to the label (SSE-AGG, eq. 18).

Each site has its own corner and its own rule; every third site ties the patch to the other class,
so that shortcuts conflict between sites. A model that looks at lesions loses nothing when the
patch goes, one that looks at the corner does: test once as trained, once with p = 0 (patch
removed) or `reverse` (patch on the wrong class).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet

CORNERS = ("top left", "top right", "bottom left", "bottom right")
RED = (255, 0, 0)
SHARE = 1 / 16  # 14 of 224, 2 of 28
EVERY = 3  # every third site has the opposite rule


@dataclass(frozen=True)
class Patch:
    """One site's rule: in which corner the patch sits, and whether the positive classes carry it."""

    corner: str
    on_positive: bool = True

    def __post_init__(self) -> None:
        if self.corner not in CORNERS:
            raise BadInput(f"corner '{self.corner}' is unknown; {nearest(self.corner, CORNERS)}", code="unknown-corner")


@dataclass(frozen=True, eq=False)
class PlantedShortcut:
    """The shortcut in a consortium's images: each site's rule, and its test images as they were without it.

    A run is judged on both: as trained (ID) and with the patches gone (OOD).
    """

    patches: Mapping[str, Patch]
    p: float
    classes: tuple[str, ...]  # those called positive
    other_classes: tuple[str, ...]
    clean: ImageSet  # the sites' test images, site by site, without a patch

    def patched_classes(self, site: str) -> tuple[str, ...]:
        """List the classes whose images carry the patch at this site."""
        return self.classes if self.patches[site].on_positive else self.other_classes


def site_patches(sites: Iterable[str], *, reversed_sites: Collection[str] | None = None) -> dict[str, Patch]:
    """Give each site a rule by its place in sorted order: corners take turns, every third is reversed.

    `reversed_sites` names those with the opposite rule instead.
    """
    names = sorted(sites)
    for name in reversed_sites or ():
        if name not in names:
            raise BadInput(f"reversed site '{name}' is not in the data; {nearest(name, names)}", code="unknown-site")
    opposite = names[EVERY - 1 :: EVERY] if reversed_sites is None else reversed_sites
    return {name: Patch(CORNERS[k % len(CORNERS)], name not in opposite) for k, name in enumerate(names)}


def inject(
    images: ImageSet,
    rows_by_site: Mapping[str, Array],
    *,
    positive: Collection[str],
    seed: int,
    p: float = 0.9,
    reverse: bool = False,
    patches: Mapping[str, Patch] | None = None,
    share: float = SHARE,
    colour: tuple[int, int, int] = RED,
) -> tuple[ImageSet, Array]:
    """Paint patches into a set of images.

    An image whose class is the one its site's rule asks for carries the patch with probability p; others never do. The draw
    of an image does not depend on p, so the patches at a smaller p are among those at a larger one. Rows of no site stay clean.

    Args:
        images: The set.
        rows_by_site: The rows of each site.
        positive: The classes called positive.
        seed: The seed of the draw.
        p: The chance of a patch.
        reverse: Turn every rule round.
        patches: The rule of each site (default: `site_patches`).
        share: The side of the patch, as a share of the image's.
        colour: The colour of the patch.

    Returns:
        The set with patches, and which rows (n,) carry one.
    """
    if not 0 <= p <= 1:
        raise BadInput(f"p = {p:g}: the chance of a patch is a number from 0 to 1", code="out-of-range")
    labels = sorted(set(images.label.tolist()))
    for name in positive:
        if name not in labels:
            raise BadInput(
                f"positive class '{name}' is not a label of {images.name}; {nearest(name, labels)}",
                code="unknown-class",
            )
    rules = site_patches(rows_by_site) if patches is None else patches
    is_positive = np.isin(images.label.astype(str), sorted(positive))
    carries = np.zeros(len(images), bool)
    pixels = images.pixels.copy()
    for site, rows in rows_by_site.items():
        if site not in rules:
            raise BadInput(f"site '{site}' has no patch rule; {nearest(site, rules)}", code="unknown-site")
        rule = rules[site]
        drawn = generator(seed, purpose="shortcut", site=site).random(len(rows)) < p
        mine = rows[drawn & (is_positive[rows] == (rule.on_positive != reverse))]
        carries[mine] = True
        down, across = patch_box(rule.corner, images.shape, share=share)
        pixels[mine, down, across] = colour if images.shape[0] == 3 else max(colour)
    return replace(images, pixels=pixels), carries


def patch_box(corner: str, shape: tuple[int, int, int], *, share: float = SHARE) -> tuple[slice, slice]:
    """Find the rows and columns of an image (C, H, W) that a patch in this corner covers."""
    _, height, width = shape
    side = round(share * min(height, width))
    if not (0 < share <= 1 and side >= 1):
        raise BadInput(
            f"a patch of {share:g} of a {height}x{width} image has no pixel, or too many; give share=0.1",
            code="out-of-range",
        )
    down, across = corner.split()
    return (
        slice(0, side) if down == "top" else slice(height - side, height),
        slice(0, side) if across == "left" else slice(width - side, width),
    )


def fits_one_tile(shape: tuple[int, int, int], grid: int) -> bool:
    """Tell whether a patch in any corner of images (C, H, W) lies within one of grid x grid tiles."""
    down, _ = patch_box(CORNERS[0], shape)
    return bool(down.stop <= min(shape[1:]) // grid)


def patch_tile(corner: str, *, grid: int = 4) -> int:
    """Find the occlusion tile (row by row, from 0) that holds a patch in this corner, which SAM (25) reads off a sketch."""
    return (0, grid - 1, grid * (grid - 1), grid * grid - 1)[CORNERS.index(corner)]
