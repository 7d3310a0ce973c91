"""A site's heat maps as a PNG: a row for each picture, with the maps of local and common models over it, round by round."""

from __future__ import annotations

import numpy as np

from grandrounds.analysis.case.maps_sheet import WHOSE, MappedPicture, MapSheet
from grandrounds.analysis.case.picture_grid import HIDDEN, Panel, Strip, blended, draw, shown
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.mapped import TITLES

_SHORT = {name: spec.short for name, spec in explainers_for(Use.HEAT_MAP).items() if spec.short}
"""Names that are too long to stand above a picture."""

_WIDEST = 14


def maps_png(sheet: MapSheet) -> bytes:
    """The sheet; a picture with more maps than stand side by side goes on in the next line."""
    when = f"round{'s' * (len(sheet.rounds) > 1)} {' and '.join(map(str, sheet.rounds))}"
    title = f"{sheet.run}, {sheet.site}: where its own (local) and the common model look after {when}"
    return draw(title, [strip(sheet, p) for p in sheet.pictures], columns=_WIDEST)


def strip(sheet: MapSheet, picture: MappedPicture) -> Strip:
    """One row: the picture, its truth mask where there is one, and over the picture each map of its label's class."""
    panels = [Panel("picture", shown(picture.pixels))]
    if picture.mask is not None:
        panels.append(Panel("truth mask", shown(np.asarray(picture.mask, np.uint8)[..., None] * 255)))
    for name in sheet.maps:
        for r in sheet.rounds:
            for whose in WHOSE:
                panels.append(_panel(picture, r, name, whose))
    return Strip(heading(sheet, picture), tuple(panels))


def _panel(picture: MappedPicture, round: int, name: str, whose: str) -> Panel:
    """One map over the picture, `r10 local` for the local model after round 10; grey where there is no such model."""
    heat = picture.heat.get((round, name, whose))
    if heat is None:
        covered = np.broadcast_to(np.array(HIDDEN, np.uint8), (*picture.pixels.shape[:2], 3))
        return Panel(f"r{round} {whose}: none", shown(covered))
    title = f"r{round} {whose}, {_SHORT.get(name, TITLES[name])}"
    return Panel(title if heat.any() else f"{title}: dark", blended(picture.pixels, heat))


def heading(sheet: MapSheet, picture: MappedPicture) -> str:
    """Which picture it is, and what was said of it."""
    told = []
    for r in sheet.rounds:
        each = [f"{w} {picture.said[r, w][0]} {picture.said[r, w][1]:.2f}" for w in WHOSE if (r, w) in picture.said]
        told.append(f"round {r}: {', '.join(each)}")
    return f"picture {picture.number} ({sheet.part} row), {picture.truth}.  Said after {';  '.join(told)}"
