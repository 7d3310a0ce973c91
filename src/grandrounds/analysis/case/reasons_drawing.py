"""XFed's Fig. 2 as a PNG: each picture, its truth mask, the heat of the true class, and that heat inside and outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.analysis.case.picture_grid import Panel, Strip, coloured, draw, masked, shown
from grandrounds.analysis.case.reasons_sheet import Reasoned, ScoredPicture
from grandrounds.core.arrays import Array

COLUMNS = 5


def reasons_png(found: Reasoned, *, most: int = 12) -> bytes:
    """The sheet: pictures that are right for the wrong reason first, then wrong for the right one, then the others."""
    chosen = _chosen(found, most)
    title = f"{found.run} on {found.on}: {len(chosen)} of {len(found.pictures)} pictures (numbers from 0)"
    return draw(title, [strip(p) for p in chosen], columns=COLUMNS)


def strip(picture: ScoredPicture) -> Strip:
    """One row of the sheet."""
    hot, mask = heat_colours(picture.heat), np.asarray(picture.mask, bool)
    panels = (
        Panel("picture", shown(picture.pixels)),
        Panel("truth mask", shown(mask[..., None].astype(np.uint8) * 255)),
        Panel("heat map", shown(hot)),
        Panel("heat inside", masked(hot, mask)),
        Panel("heat outside", masked(hot, ~mask)),
    )
    return Strip(f"picture {picture.number}: {picture.in_words}", panels)


def heat_colours(heat: Array) -> Array:
    """Heat (H, W) as colours (H, W, 3) of bytes; the hottest pixel of the picture is the brightest."""
    size = np.abs(np.asarray(heat, float))
    top = size.max(initial=0)
    out: Array = np.rint(coloured(size / top if top > 0 else size)).astype(np.uint8)
    return out


def _chosen(found: Reasoned, most: int) -> Sequence[ScoredPicture]:
    """Some of each kind, as many as there is room for: what is of interest first, and of the rest what comes first."""
    kinds = [found.of(right=r, reason=w) for r, w in ((True, False), (False, True), (False, False), (True, True))]
    rest = [p for p in found.pictures if p.reason is None]
    room = max(1, most // len(kinds))
    first = [p for kind in kinds for p in kind[:room]]
    more = [p for kind in [*kinds, rest] for p in kind if p not in first]
    kept = {p.number for p in [*first, *more][:most]}
    return [p for kind in [*kinds, rest] for p in kind if p.number in kept]
