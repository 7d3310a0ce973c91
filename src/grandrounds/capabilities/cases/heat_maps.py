"""Heat maps of a finished run at one site: the images, the maps of local and common models, and the predictions.

The run folder holds maps and no image (at_sites/SITE): the images are read again where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.cases.image_page import HIDDEN, Panel, Strip, draw, overlay_heat, to_display
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.core.plan_types import Plan
from grandrounds.data.images import ImageSet
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.map_metrics import COMMON, LOCAL, REPORT, TITLES
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run_rows import RunRows
from grandrounds.site.map_files import Arrays, file_of, read_maps

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

WHOSE = (LOCAL, COMMON)


@dataclass(frozen=True, eq=False)
class MappedImage:
    """One image of the site, with its maps and predictions after each round."""

    number: int  # as the user counts the rows of the data, from 1
    truth: str
    pixels: Array  # (H, W, C) bytes
    mask: Array | None  # (H, W)
    heat: Mapping[
        tuple[int, str, str], Array
    ]  # (round, map, local or common) -> (H, W); none of a model it did not train
    predictions: Mapping[tuple[int, str], tuple[str, float]]  # (round, local or common) -> class and its probability


@dataclass(frozen=True, eq=False)
class MapSheet:
    """The images of one site with their heat maps."""

    run: str
    site: str
    part: str  # the split that the images are from
    rounds: tuple[int, ...]
    maps: tuple[str, ...]
    images: tuple[MappedImage, ...]
    count: int  # number of the site's images with maps, shown or not
    covered: float | None  # share of these images that masks cover: the heat inside the mask expected by chance


def read_map_records(run: Run) -> dict[int, Mapping[str, Any]]:
    """Read the record of heat maps by round.

    Raises:
        BadInput: The run has none.
    """
    records = {r["round"]: r[REPORT] for r in run.rounds if r.get(REPORT)}
    if not records:
        raise BadInput(
            f"{run.folder} has no heat maps: run it with explain.maps = ['grad_cam', 'normgrad']", code="no-heat-maps"
        )
    return records


def choose_rounds(available: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Choose the rounds to show: those wanted, else the first and the last.

    Raises:
        BadInput: A wanted round has no heat maps.
    """
    unknown = [r for r in wanted if r not in available]
    if unknown:
        raise BadInput(
            f"round {unknown[0]} has no heat maps; those with maps are: {', '.join(map(str, available))}",
            code="no-heat-maps",
        )
    return tuple(dict.fromkeys(wanted)) or tuple(dict.fromkeys((available[0], available[-1])))


def map_sheet(run: Run, site: str | int, *, rounds: Sequence[int] = (), images: int = 5, data: Any = None) -> MapSheet:
    """Read the first images of a site with their heat maps.

    Args:
        run: A finished run with heat maps.
        site: The site's name or number.
        rounds: The rounds to show; by default the first and the last with maps.
        images: How many images to show.
        data: The run's own rows, where they came from memory.

    Raises:
        BadInput: There are no such maps, or a file of maps is damaged.
    """
    records = read_map_records(run)
    chosen = choose_rounds(list(records), rounds)
    name = site_named(site, list(records[chosen[-1]]["sites"]), where=run.folder)
    maps_by_round = {r: _read_site_maps(run, name, r) for r in chosen}
    first = maps_by_round[chosen[0]]
    part = str(first["part"])
    run_rows = RunRows.read(run, data)
    stack, holdings = run_rows.consortium.stack, run_rows.consortium.data
    rows = getattr(stack.rows[stack.names.index(name)], part)[first["places"]]
    assert isinstance(holdings, ImageSet)
    maps, classes = maps_asked(Plan(run.plan)), tuple(run.model.encoding.classes)
    mapped = tuple(
        MappedImage(
            number=run_rows.number(int(row)),
            truth=str(holdings.label[row]),
            pixels=holdings.pixels[row],
            mask=None if holdings.masks is None else holdings.masks[row],
            heat=_heat_of_image(maps_by_round, maps, i),
            predictions=_predictions_of_image(maps_by_round, classes, i),
        )
        for i, row in enumerate(rows[:images])
    )
    covered = None if holdings.masks is None else float(holdings.masks[rows].mean())
    return MapSheet(run.folder.resolve().name, name, part, chosen, maps, mapped, len(rows), covered)


def _read_site_maps(run: Run, site: str, round: int) -> Arrays:
    path = file_of(RunFolder(run.folder).at_sites, site, round)
    if not path.exists():
        raise BadInput(
            f"{run.folder} has no maps of {site} after round {round}: {path} is not there", code="no-heat-maps"
        )
    arrays = read_maps(path)
    images = arrays.get("places", np.empty(0)).size
    per_image = [arrays[name] for name in arrays if name != "part"]
    if "part" not in arrays or not all(a.ndim and len(a) == images for a in per_image):
        raise BadInput(f"{path} is damaged: images are missing from it; run the experiment again", code="damaged-file")
    return arrays


def _heat_of_image(
    maps_by_round: Mapping[int, Arrays], maps: Sequence[str], index: int
) -> dict[tuple[int, str, str], Array]:
    return {
        (r, name, whose): arrays[f"{whose}.{name}"][index]
        for r, arrays in maps_by_round.items()
        for name in maps
        for whose in WHOSE
        if f"{whose}.{name}" in arrays
    }


def _predictions_of_image(
    maps_by_round: Mapping[int, Arrays], classes: Sequence[str], index: int
) -> dict[tuple[int, str], tuple[str, float]]:
    out = {}
    for r, arrays in maps_by_round.items():
        for whose in WHOSE:
            if f"{whose}.said" in arrays:
                p = arrays[f"{whose}.said"][index]
                out[r, whose] = (classes[int(p.argmax())], float(p.max()))
    return out


_SHORT = {name: spec.short for name, spec in explainers_for(Use.HEAT_MAP).items() if spec.short}
"""Short names for panels above an image."""

_WIDEST = 14


def maps_png(sheet: MapSheet) -> bytes:
    """Draw the sheet; an image with more maps than fit side by side goes on in the next line."""
    when = f"round{'s' * (len(sheet.rounds) > 1)} {' and '.join(map(str, sheet.rounds))}"
    title = f"{sheet.run}, {sheet.site}: heat maps of its local and of the common model after {when}"
    return draw(title, [strip(sheet, p) for p in sheet.images], columns=_WIDEST)


def strip(sheet: MapSheet, image: MappedImage) -> Strip:
    """Draw one row: the image, its truth mask where there is one, and over the image each map of its label's class."""
    panels = [Panel("image", to_display(image.pixels))]
    if image.mask is not None:
        panels.append(Panel("truth mask", to_display(np.asarray(image.mask, np.uint8)[..., None] * 255)))
    for name in sheet.maps:
        for r in sheet.rounds:
            for whose in WHOSE:
                panels.append(_panel(image, r, name, whose))
    return Strip(heading(sheet, image), tuple(panels))


def _panel(image: MappedImage, round: int, name: str, whose: str) -> Panel:
    """Draw one map over the image, `r10 local` for the local model after round 10; grey where there is no such model."""
    heat = image.heat.get((round, name, whose))
    if heat is None:
        covered = np.broadcast_to(np.array(HIDDEN, np.uint8), (*image.pixels.shape[:2], 3))
        return Panel(f"r{round} {whose}: none", to_display(covered))
    title = f"r{round} {whose}, {_SHORT.get(name, TITLES[name])}"
    return Panel(title if heat.any() else f"{title}: dark", overlay_heat(image.pixels, heat))


def heading(sheet: MapSheet, image: MappedImage) -> str:
    """Write the image's number, its label and its predictions."""
    predictions = []
    for r in sheet.rounds:
        each = [
            f"{w} {image.predictions[r, w][0]} {image.predictions[r, w][1]:.2f}"
            for w in WHOSE
            if (r, w) in image.predictions
        ]
        predictions.append(f"round {r}: {', '.join(each)}")
    return f"image {image.number} ({sheet.part} row), {image.truth}.  Said after {';  '.join(predictions)}"
