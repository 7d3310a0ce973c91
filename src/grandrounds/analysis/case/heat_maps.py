"""Heat maps of a finished run at one site: the images, the maps of local and common models, and the predictions.

The run folder holds maps and no image (at_sites/SITE): the images are read again where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.case.image_page import HIDDEN, Panel, Strip, blended, draw, shown
from grandrounds.analysis.case.rows import RunRows
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.core.plan_types import Plan
from grandrounds.data.images import ImageSet
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.map_metrics import COMMON, LOCAL, REPORT, TITLES
from grandrounds.runs.folder import RunFolder
from grandrounds.site.map_files import Arrays, file_of, read_maps

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

WHOSE = (LOCAL, COMMON)


@dataclass(frozen=True, eq=False)
class MappedPicture:
    """One picture of the site, and what was made of it after each round."""

    number: int  # as the user counts the rows of the data, from 1
    truth: str
    pixels: Array  # (H, W, C) bytes
    mask: Array | None  # (H, W)
    heat: Mapping[
        tuple[int, str, str], Array
    ]  # (round, map, local or common) -> (H, W); none of a model it did not train
    said: Mapping[tuple[int, str], tuple[str, float]]  # (round, local or common) -> class and its probability


@dataclass(frozen=True, eq=False)
class MapSheet:
    """The pictures of one site."""

    run: str
    site: str
    part: str  # of the site's rows that the pictures are from
    rounds: tuple[int, ...]
    maps: tuple[str, ...]
    pictures: tuple[MappedPicture, ...]
    count: int  # of the site's pictures that maps were made of, shown or not
    covered: float | None  # share of these pictures that masks cover: what heat without a clue would have inside


def read_map_records(run: Run) -> dict[int, dict[str, Any]]:
    """Round -> the record of its maps; a run without any is refused."""
    found = {r["round"]: r[REPORT] for r in run.rounds if r.get(REPORT)}
    if not found:
        raise BadInput(
            f"{run.folder} has no heat maps: run it with explain.maps = ['grad_cam', 'normgrad']", code="no-heat-maps"
        )
    return found


def choose_rounds(known: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The rounds that are meant: those named, else the first and the last."""
    strange = [r for r in wanted if r not in known]
    if strange:
        raise BadInput(
            f"round {strange[0]} has no heat maps; those with maps are: {', '.join(map(str, known))}",
            code="no-heat-maps",
        )
    return tuple(dict.fromkeys(wanted)) or tuple(dict.fromkeys((known[0], known[-1])))


def map_sheet(
    run: Run, site: str | int, *, rounds: Sequence[int] = (), pictures: int = 5, data: Any = None
) -> MapSheet:
    """The first so many of a site's pictures with their maps; `data`: the run's rows, where they came from memory."""
    known = read_map_records(run)
    shown = choose_rounds(list(known), rounds)
    name = site_named(site, list(known[shown[-1]]["sites"]), where=run.folder)
    kept = {r: _kept(run, name, r) for r in shown}
    first = kept[shown[0]]
    part = str(first["part"])
    held = RunRows.read(run, data)
    stack, holdings = held.consortium.stack, held.consortium.data
    rows = getattr(stack.rows[stack.names.index(name)], part)[first["places"]]
    assert isinstance(holdings, ImageSet)
    maps, classes = maps_asked(Plan(run.plan)), tuple(run.model.encoding.classes)
    made = tuple(
        MappedPicture(
            number=held.number(int(row)),
            truth=str(holdings.label[row]),
            pixels=holdings.pixels[row],
            mask=None if holdings.masks is None else holdings.masks[row],
            heat=_heat(kept, maps, i),
            said=_said(kept, classes, i),
        )
        for i, row in enumerate(rows[:pictures])
    )
    covered = None if holdings.masks is None else float(holdings.masks[rows].mean())
    return MapSheet(run.folder.resolve().name, name, part, shown, maps, made, len(rows), covered)


def _kept(run: Run, site: str, round: int) -> Arrays:
    path = file_of(RunFolder(run.folder).at_sites, site, round)
    if not path.exists():
        raise BadInput(
            f"{run.folder} has no maps of {site} after round {round}: {path} is not there", code="no-heat-maps"
        )
    held = read_maps(path)
    pictures = held.get("places", np.empty(0)).size
    of_pictures = [held[name] for name in held if name != "part"]
    if "part" not in held or not all(a.ndim and len(a) == pictures for a in of_pictures):
        raise BadInput(
            f"{path} is damaged: it lacks pictures that it should hold; run the experiment again", code="damaged-file"
        )
    return held


def _heat(kept: Mapping[int, Arrays], maps: Sequence[str], picture: int) -> dict[tuple[int, str, str], Array]:
    return {
        (r, name, whose): held[f"{whose}.{name}"][picture]
        for r, held in kept.items()
        for name in maps
        for whose in WHOSE
        if f"{whose}.{name}" in held
    }


def _said(kept: Mapping[int, Arrays], classes: Sequence[str], picture: int) -> dict[tuple[int, str], tuple[str, float]]:
    out = {}
    for r, held in kept.items():
        for whose in WHOSE:
            if f"{whose}.said" in held:
                p = held[f"{whose}.said"][picture]
                out[r, whose] = (classes[int(p.argmax())], float(p.max()))
    return out


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
