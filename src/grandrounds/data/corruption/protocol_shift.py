"""Protocol shift: a fixed transform of images for each site (SSE-AGG, experiment II).

Blur is the optics, then gamma, contrast and brightness are the sensor, then JPEG is the archive.
JPEG bytes may differ by a level or two between builds of libjpeg: images with `jpeg` repeat to
the bit on one machine, not across all.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet, pillow

GAMMA = 0.4  # of log gamma: 0.67 to 1.49
BRIGHTNESS = 0.10
CONTRAST = 0.3  # of its log: 0.74 to 1.35
BLUR = 0.025  # 0.7 pixels of 28, 5.6 of 224
QUALITY = (90, 40)  # of JPEG, from the mildest to the harshest archive


@dataclass(frozen=True)
class Shift:
    """Image acquisition protocol of one site; the default values change nothing.

    A value v in 0..1 becomes (v ** gamma - 0.5) * contrast + 0.5 + brightness, clipped to 0..1.
    """

    gamma: float = 1.0
    brightness: float = 0.0
    contrast: float = 1.0
    blur: float = 0.0  # Gaussian radius as a share of the image's shorter side
    jpeg: int | None = None  # quality, 1 to 95

    def __post_init__(self) -> None:
        if not (self.gamma > 0 and self.contrast > 0 and 0 <= self.blur <= 1 and -1 <= self.brightness <= 1):
            raise BadInput(
                f"{self} is not a valid shift: gamma and contrast are above 0, blur is 0 to 1, brightness -1 to 1",
                code="out-of-range",
            )
        if self.jpeg is not None and not 1 <= self.jpeg <= 95:
            raise BadInput(f"{self} is not a valid shift: jpeg is a quality from 1 to 95, or None", code="out-of-range")


def draw_shift(site: str, *, seed: int, strength: float = 1.0) -> Shift:
    """Draw the shift of one site: the same for (seed, site) wherever it is drawn; strength 0 changes nothing."""
    if not 0 <= strength <= 2:
        raise BadInput(
            f"shift strength = {strength:g}: give a number from 0 (none) to 2 (twice the usual)", code="out-of-range"
        )
    gamma, brightness, contrast, blur, jpeg = generator(seed, purpose="protocol shift", site=site).random(5)
    best, worst = QUALITY
    return Shift(
        gamma=float(np.exp(GAMMA * strength * (2 * gamma - 1))),
        brightness=float(BRIGHTNESS * strength * (2 * brightness - 1)),
        contrast=float(np.exp(CONTRAST * strength * (2 * contrast - 1))),
        blur=float(BLUR * strength * blur),
        jpeg=max(1, round(best - (best - worst) * strength * float(jpeg))) if strength else None,
    )


def apply_shift(pixels: Array, shift: Shift) -> Array:
    """Change images (n, H, W, C) uint8 as the site with this shift would have taken them."""
    radius = shift.blur * min(pixels.shape[1:3])
    tone = _tone_curve(shift)
    if radius == 0 and shift.jpeg is None:
        return tone.take(pixels)
    pil = pillow("a protocol shift")
    out = np.empty_like(pixels)
    for i, image in enumerate(pixels):
        toned = tone[_blur(pil, image, radius)]
        out[i] = toned if shift.jpeg is None else _compress(pil, toned, shift.jpeg)
    return out


def shift_sites(
    images: ImageSet,
    rows_by_site: Mapping[str, Array],
    *,
    seed: int,
    strength: float = 1.0,
    clean: Collection[str] = (),
) -> ImageSet:
    """Change a set as its sites would have taken it; sites in `clean`, and rows of no site, stay as they are."""
    for name in clean:
        if name not in rows_by_site:
            raise BadInput(
                f"clean site '{name}' is not in the data; {nearest(name, rows_by_site)}", code="unknown-site"
            )
    pixels = images.pixels.copy()
    for name, rows in rows_by_site.items():
        if name not in clean:
            pixels[rows] = apply_shift(pixels[rows], draw_shift(name, seed=seed, strength=strength))
    return replace(images, pixels=pixels)


def _tone_curve(shift: Shift) -> Array:
    """Map each of the 256 values."""
    value = (np.arange(256) / 255) ** shift.gamma
    value = (value - 0.5) * shift.contrast + 0.5 + shift.brightness
    return np.asarray(np.rint(np.clip(value, 0, 1) * 255).astype(np.uint8))


def _blur(pil: Any, image: Array, radius: float) -> Array:
    if radius == 0:
        return image
    from PIL import ImageFilter

    return _to_array(_to_pillow(pil, image).filter(ImageFilter.GaussianBlur(radius)), image.shape)


def _compress(pil: Any, image: Array, quality: int) -> Array:
    """Send an image through a JPEG file."""
    buffer = io.BytesIO()
    _to_pillow(pil, image).save(buffer, "JPEG", quality=quality)
    with pil.open(buffer) as opened:
        return _to_array(opened, image.shape)


def _to_pillow(pil: Any, image: Array) -> Any:
    return pil.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def _to_array(image: Any, shape: tuple[int, ...]) -> Array:
    return np.asarray(image).reshape(shape)
