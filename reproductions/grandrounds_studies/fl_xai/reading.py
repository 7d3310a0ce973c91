"""Sec. 4.6: where a trained net looks, by Grad-CAM and by NormGrad, as numbers; on photographs and on skin lesions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds_studies.fl_xai import drawing
from grandrounds_studies.fl_xai.claims import tops
from grandrounds_studies.fl_xai.maps import CALLED, SHARP, alike, name_of, numbers, of_map
from grandrounds_studies.fl_xai.setting import (
    AT_SITES,
    BASE,
    FEDAVG,
    INTERVALS,
    KINDS,
    LOOK,
    MAPPED,
    MAPS,
    MEASURED,
    OURS,
    QUICK,
    SEEDS,
    SETTLED,
    source,
)
from grandrounds_studies.measures import ACCURACY, AUROC, MAJORITY
from grandrounds_studies.study import Claim, Headline, Measure, Point, Quick, Study, merged

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

LESIONS: dict[str, Any] = {
    "data": {"name": "ham10000-malignant"},
    "split": {"partition": "column"},
    "train": {"class_weights": "balanced"},
}
PHOTOS, SKIN = Point("CIFAR-10, 10 sites", {}), Point("HAM10000, four hospitals", LESIONS)
_ALL = (FEDAVG.label,)
_NORMS = ("normgrad", "gradient_norm")
_WORDS = {"concentration": "concentration", "gini": "the Gini index"}


def _area(run: Run) -> float:
    """Return the mass of a uniform map inside the mask: the share of the mapped images that masks cover, the mean of sites.

    Sites count alike, as in the maps' own numbers: hospitals differ in how large lesions are. NaN without masks.
    """
    from grandrounds.explain.map_metrics import MapRule
    from grandrounds.runs.run_rows import RunRows
    from grandrounds.site.mapping import own_pictures

    held = RunRows.read(run)
    stack, masks = held.consortium.stack, getattr(held.consortium.data, "masks", None)
    if masks is None:
        return float("nan")
    rule = MapRule(MAPS, int(held.plan.explain.maps_rows), int(held.plan.seed))
    drawn = [own_pictures(stack, k, rule) for k in range(len(stack.names))]
    shares = [masks[getattr(rows, part)[at]].mean() for rows, (part, at) in zip(stack.rows, drawn, strict=True)]
    return float(np.mean(shares))


AREA = Measure("area", "share of the image that is lesion", _area)


def _sharper(point: Point, map: str, figure: str) -> Claim:
    return Claim(
        f"NormGrad is finer, with smaller but more concentrated areas than Grad-CAM ({CALLED[map]}, by {_WORDS[figure]}, "
        f"{point.label})",
        "Table 4.4",
        _ALL,
        tops(name_of(map, figure), point.label, than=name_of("grad_cam", figure)),
    )


def _more(point: Point, map: str, figure: str, says: str) -> Claim:
    return Claim(
        f"{says} ({CALLED[map]}, {point.label})",
        OURS,
        _ALL,
        tops(name_of(map, figure), point.label, than=name_of("grad_cam", figure)),
    )


READING = Study(
    name="fl-xai/4.6",
    title="Heat maps of the net: Grad-CAM against NormGrad",
    source=source("4.6", "Figs. 4.25 to 4.29 and Table 4.4"),
    headline=Headline(PHOTOS.label, FEDAVG.label, name_of("normgrad", "concentration")),
    unpublished="words and images only: Table 4.4 describes the maps of five images",
    base=merged(BASE, MAPPED),
    points=(PHOTOS, SKIN),
    arms=(FEDAVG,),
    measures=(
        *(ACCURACY, MAJORITY, AUROC),
        *numbers("concentration", "gini", "deletion", "insertion", "inside"),
        AREA,
        of_map("grad_cam", "dark"),
        *(alike(m) for m in MAPS),
        *(of_map(m, "concentration", of="local") for m in MAPS),
    ),
    claims=(
        *(_sharper(point, map, figure) for point in (PHOTOS, SKIN) for map in _NORMS for figure in SHARP),
        *(
            Claim(
                f"more of its heat is inside of the lesion than an even map has there ({CALLED[map]}, {SKIN.label})",
                OURS,
                _ALL,
                tops(name_of(map, "inside"), SKIN.label, than=AREA.name),
            )
            for map in MAPS
        ),
        *(_more(SKIN, map, "inside", "more of its heat is inside of the lesion than of Grad-CAM's") for map in _NORMS),
        *(
            _more(point, map, "insertion", "it finds what the class hangs on better than Grad-CAM: insertion is above")
            for point in (PHOTOS, SKIN)
            for map in _NORMS
        ),
    ),
    settled=(
        *SETTLED,
        MEASURED,
        AT_SITES,
        KINDS,
        "Skin lesions are ours: HAM10000 at 28 x 28 pixels, malignant or benign, at its four sources, with lesion masks; classes "
        "weigh alike in training. They have an inside, which CIFAR-10 has not.",
        LOOK,
        INTERVALS,
    ),
    remarks=(
        "Grad-CAM and NormGrad are read from the last convolution, a map of 10 x 10 (8 x 8 for lesions) that is drawn up to the "
        "image's size, so that neither can be finer than that. The gradient norm is of single pixels.",
    ),
    draws=lambda results: [
        *drawing.side_by_side(results, numbers("concentration", maps=MAPS), "Concentration"),
        *drawing.side_by_side(results, numbers("insertion", maps=MAPS), "Insertion"),
    ],
    quick=Quick(QUICK, points=(PHOTOS.label,)),
    seeds=SEEDS,
)
