"""One image: the prediction, heat maps of three explainers, and the truth mask, as layers over it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from pydantic import BaseModel

from grandrounds.capabilities.cases.case_page import PARTS
from grandrounds.capabilities.cases.image import MAPS, ImageExplanation
from grandrounds.capabilities.cases.image_page import (
    colour_map,
    heat_note,
    image_title,
    to_display,
    verdict,
    wrong_text,
)
from grandrounds.capabilities.console.cases.patients import Patients
from grandrounds.capabilities.console.run_index import NotFound
from grandrounds.capabilities.console.views.case import Band, band
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.images import pillow
from grandrounds.runs.run_rows import is_unseen

PICTURE, MASK = "picture", "mask"
THUMBNAIL = 56
"""Largest side of an image in the list, in pixels."""
PRIVATE = "Patient data: an image. Treat this page as part of the medical record."
_TINT = (0, 214, 190)  # colour of the mask: it does not occur in skin or grey images


class Layer(BaseModel):
    """A layer over the image: a heat map of the predicted class, or the truth mask, with its numbers."""

    name: str
    title: str
    empty: bool
    concentration: float | None = None
    inside: float | None = None
    iou_ratio: float | None = None


class ImageView(BaseModel):
    """An image's page. `record`: as `rounds explain --case N --json` prints it."""

    title: str
    private: str
    said: str
    part: str
    band: Band | None
    classes: dict[str, float]
    layers: list[Layer]
    reading: str
    judged: bool  # the model did not know the image
    wrong: str  # a sentence where the prediction is wrong; "" otherwise
    notes: list[str]
    record: dict[str, Any]


def view(patients: Patients, number: int) -> ImageView:
    case = explain_image(patients, number)
    words = heat_note(case)
    ranked = sorted(zip(case.classes, case.probabilities, strict=True), key=lambda p: -p[1])
    stated = patients.model(patients.user).event
    event = stated.word if stated is not None and stated.word in case.classes else case.predicted
    risk = case.probabilities[case.classes.index(event)]
    return ImageView(
        title=image_title(case),
        private=PRIVATE,
        said=verdict(case),
        part=PARTS.get(case.part or "", "new row").replace("row", "image"),
        band=band(patients.reliability, risk, event=event),
        classes=dict(ranked),
        layers=_layers(case),
        reading=f"{words[0].upper()}{words[1:]}. Heat maps are for the predicted class.",
        judged=is_unseen(case.part),
        wrong=wrong_text(case),
        notes=list(case.notes),
        record=case.to_dict(),
    )


def layer_png(patients: Patients, number: int, layer: str, *, model_site: str | None = None) -> bytes:
    """Draw a layer as a PNG of the size that the image is shown at. `model_site`: the site whose model is used."""
    case = explain_image(patients, number, model_site=model_site)
    base = to_display(case.pixels)
    if layer == PICTURE:
        return _png(base)
    if layer == MASK and case.mask is not None:
        return _png(_mask(case.mask, base))
    if layer in case.heats:
        return _png(_heat(case.heats[layer], base))
    layers = [PICTURE, *case.heats, *([MASK] if case.mask is not None else [])]
    raise NotFound(f"this image has no layer '{layer[:80]}'; known: {', '.join(layers)}", code="unknown-layer")


def thumbnail_png(pixels: Array) -> bytes:
    """Draw an image (H, W, C) of bytes as a small PNG, for a list.

    Args:
        pixels: The image.
    """
    image = pillow("drawing images")
    small = image.fromarray(np.ascontiguousarray(np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]))
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return _png(np.asarray(small))


def explain_image(patients: Patients, number: int, *, model_site: str | None = None) -> ImageExplanation:
    if not patients.has_images:
        raise BadInput("this run is of a table: its patients have columns, not images", code="needs-images")
    if model_site is not None and model_site not in patients.run.summary["models"]:
        raise NotFound(f"this run has no model of '{model_site[:80]}'s own", code="unknown-site")
    case = patients.explain(number, model_site=model_site)
    assert isinstance(case, ImageExplanation)
    return case


def _layers(case: ImageExplanation) -> list[Layer]:
    layers = []
    for name, heat in case.heats.items():
        n = case.numbers[name]
        ratio = None if n.iou_ratio is None or not np.isfinite(n.iou_ratio) else n.iou_ratio
        layers.append(
            Layer(
                name=name,
                title=MAPS[name],
                empty=not bool(heat.any()),
                concentration=n.concentration,
                inside=n.inside,
                iou_ratio=ratio,
            )
        )
    if case.mask is not None:
        layers.append(Layer(name=MASK, title="truth mask", empty=not bool(case.mask.any())))
    return layers


def _heat(heat: Array, base: Array) -> Array:
    """Colour heat (H, W) at the size of the image that is shown; its hottest pixel is the brightest."""
    image = pillow("drawing heat maps")
    size = np.abs(np.asarray(heat, np.float32))
    top = float(size.max(initial=0))
    smooth = image.fromarray(size / top if top > 0 else size)
    wide = np.clip(np.asarray(smooth.resize(base.shape[1::-1], image.Resampling.BILINEAR)), 0, 1)
    return np.rint(colour_map(wide)).astype(np.uint8)


def _mask(mask: Array, base: Array) -> Array:
    """Tint the area that the mask marks, transparent elsewhere: (H, W, 4) of bytes."""
    image = pillow("drawing masks")
    wide = image.fromarray(mask.astype(np.uint8) * 255).resize(base.shape[1::-1], image.Resampling.NEAREST)
    tint = np.broadcast_to(np.array(_TINT, np.uint8), base.shape)
    return np.concatenate([tint, np.asarray(wide)[..., None]], axis=2)


def _png(pixels: Array) -> bytes:
    buffer = io.BytesIO()
    pillow("drawing images").fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()
