"""Whether a site's pictures fit what the consortium agreed on: the counterpart of `fit`, with the same findings.

Brightness stands where units stand for a column. The mean brightness of each picture is held against the agreed quantiles,
in deviations of the consortium (`unit_check.distance`), as it is and as it would be of the negative.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.check_table import (
    EXTRA_COLUMN,
    MISSING_COLUMN,
    REPEATED_ROWS,
    UNREADABLE,
    Finding,
    counted,
    few_findings,
    fits,
    label_findings,
    ordered,
    patient_findings,
)
from grandrounds.data.agreement.image_schema import WHITE, PictureSchema
from grandrounds.data.agreement.images import MASKS, USUAL, Held, read_own
from grandrounds.data.agreement.unit_check import CERTAIN, CLOSE, FAR, FEWEST, SAMPLING, distance
from grandrounds.data.images import DARK, size_text
from grandrounds.data.masks import mask_notes

NO_PICTURES, SIZE, CHANNELS, PIXEL_VALUES = "no-pictures", "size", "channels", "pixel-values"
NO_MASKS, MASK_VALUES, BRIGHTNESS, BLACK = "no-masks", "masks", "brightness", "black"

_BLOCK = 1 << 24  # values at a time, to bound memory


def check(held: Held, agreed: PictureSchema) -> list[Finding]:
    """Everything that differs, errors first. No error means that the pictures are read as a run will read them."""
    found = [*few_findings(held.count, agreed.fewest_rows, "picture"), *_told(held, agreed)]
    if held.fault:
        found += [Finding("error", UNREADABLE, "", held.fault)] if fits(found) else []
        return ordered(found)
    found += _pictures(held, agreed)
    if fits(found):
        try:
            read_own(held.source, agreed)
        except BadInput as e:  # a rule of the readers that is not told above
            found.append(Finding("error", UNREADABLE, "", str(e)))
    return ordered(found)


def _told(held: Held, agreed: PictureSchema) -> Iterator[Finding]:
    """What is told of each picture: its label and its patient."""
    for name in agreed.names:
        if name not in held.told.columns:
            yield Finding("error", MISSING_COLUMN, name, f"{held.source} has no such array or column; add it")
    yield from label_findings(held.told, agreed, unit="picture", where=held.where)
    if agreed.patient is not None and agreed.patient in held.told.columns:
        yield from patient_findings(held.told, agreed.patient, unit="picture", where=held.where)
    if held.unasked:
        what = (
            f"'{held.unasked}' names patients, which is not agreed on: pictures of one may be on both sides of a split"
        )
        yield Finding("warning", EXTRA_COLUMN, "", what)


def _pictures(held: Held, agreed: PictureSchema) -> Iterator[Finding]:
    images = held.images
    if images is None:
        yield Finding("error", NO_PICTURES, "", f"no array is called {' or '.join(USUAL['images'])}; name it so")
        return
    if images.ndim not in (3, 4) or images.dtype.kind not in "iuf" or not images.size:
        return  # what the reader says of it is told
    yield from _form(images, agreed)
    wrong = list(_values(held, images))
    yield from wrong
    yield from _masks(held, agreed)
    if not wrong:
        yield from _looks(images, agreed)


def _form(images: Array, agreed: PictureSchema) -> Iterator[Finding]:
    """Another size, or other channels; RGBA is read as RGB."""
    channels = 1 if images.ndim == 3 else images.shape[3]
    channels = 3 if channels == 4 else channels
    if images.ndim == 4 and images.shape[1:] == agreed.shape:
        what = f"the channels come first (shape {images.shape}): move them last, (n, height, width, channels)"
        yield Finding("error", SIZE, "", what)
        return
    if tuple(images.shape[1:3]) != agreed.size:
        what = (
            f"pictures are {size_text(images.shape[1:3])} (height x width) where {size_text(agreed.size)} is agreed: "
            "bring them to that size"
        )
        yield Finding("error", SIZE, "", what)
    if channels != agreed.channels:
        way = "make them grey" if agreed.channels == 1 else "save them in colour"
        what = f"{counted(channels, 'channel')} where {agreed.channels} {'is' if agreed.channels == 1 else 'are'} agreed: {way}"
        yield Finding("error", CHANNELS, "", what)


def _values(held: Held, images: Array) -> Iterator[Finding]:
    """Whole numbers from 0 to 255, or floats from 0 to 1; a CT's or a 12-bit export's are neither."""
    most = 1 if images.dtype.kind == "f" else 255
    broken = np.zeros(len(images), bool)
    low, high = np.inf, -np.inf
    for rows in _blocks(images):
        part = images[rows]
        broken[rows] = ~np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    if broken.any():
        what = f"{counted(int(broken.sum()), 'picture')} with NaN or infinite values, first {held.where(int(broken.argmax()))}"
        yield Finding("error", PIXEL_VALUES, "", f"{what}: mend them or leave them out")
    elif low < 0 or high > most:
        way = "scale them to whole numbers from 0 to 255, or floats from 0 to 1"
        yield Finding("error", PIXEL_VALUES, "", f"values run from {low:g} to {high:g}: {way}")


def _masks(held: Held, agreed: PictureSchema) -> Iterator[Finding]:
    if held.masks is None:
        if agreed.masks:
            what = f"no truth masks, and every picture is to have one: add an array or a folder '{MASKS}'"
            yield Finding("error", NO_MASKS, "", what)
        return
    if held.masks.dtype == np.bool_ and held.masks.ndim == 3:
        yield from (
            Finding("warning", MASK_VALUES, "", f"{note}: left out of every score") for note in mask_notes(held.masks)
        )


def _looks(images: Array, agreed: PictureSchema) -> Iterator[Finding]:
    """Black pictures, copies, and brightness unlike the consortium's."""
    light, highest = brightness(images)
    black = int((highest < DARK).sum())
    if 0 < black < len(images):
        yield Finding("warning", BLACK, "", f"{black} of {counted(len(images), 'picture')} black: they show nothing")
    again = len(images) - len({hashlib.blake2b(np.ascontiguousarray(one).tobytes()).digest() for one in images})
    if again:
        yield Finding("warning", REPEATED_ROWS, "", f"{counted(again, 'picture')} the same as another: remove copies")
    if agreed.brightness and len(light) >= FEWEST and black < len(images):
        yield from brightness_findings(light, agreed.brightness)


def brightness_findings(light: Array, quantiles: tuple[float, ...]) -> Iterator[Finding]:
    """The thresholds are those of units: far from 1 deviation on, refused from 2.5 on."""
    spare = SAMPLING / np.sqrt(len(light))
    before, negative = distance(quantiles, light), distance(quantiles, WHITE - light)
    if before < FAR + spare:
        return
    middle = float(np.median(light))
    what = (
        f"pictures are much {'darker' if middle < quantiles[2] else 'brighter'} than agreed (the median of their brightness is "
        f"{middle:.4g}, the consortium's {quantiles[2]:.4g})"
    )
    fitting = negative <= min(max(CLOSE + spare, before / 5), before / 2)
    way = (
        "; their negatives would fit: were black and white exchanged?"
        if fitting
        else ": look at how they were exported"
    )
    yield Finding("error" if before >= CERTAIN + spare else "warning", BRIGHTNESS, "", f"{what}{way}")


def brightness(images: Array) -> tuple[Array, Array]:
    """Mean and highest value (n,) of each picture, from 0 to 255."""
    scale = WHITE if images.dtype.kind == "f" else 1.0
    mean, high = np.empty(len(images)), np.empty(len(images))
    axes = tuple(range(1, images.ndim))
    for rows in _blocks(images):
        mean[rows] = images[rows].mean(axis=axes, dtype=np.float64) * scale
        high[rows] = images[rows].max(axis=axes) * scale
    return mean, high


def _blocks(images: Array) -> list[slice]:
    step = max(1, _BLOCK // max(1, int(np.prod(images.shape[1:]))))
    return [slice(at, at + step) for at in range(0, len(images), step)]
