"""Truth masks: which pixels of a picture are what it is about, drawn by hand or derived."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.images import pillow, size_text

STROKE = 0.3
"""Where ink begins. Of .05 to .5 this agrees best with XFed's hand-drawn masks of 100 digits (IoU .82)."""

ENDINGS = ("", "_mask", "_segmentation")
"""What a mask file may carry after its picture's name."""

_SEVERAL_BITS = 127  # of 255: the middle, for masks saved as grey or colour


def stroke_masks(pixels: Array, *, threshold: float = STROKE) -> Array:
    """Masks (n, H, W) of bright strokes on black (MNIST): pixels (n, H, W, C) at or above a share of white."""
    if not 0 < threshold <= 1:
        raise BadInput(f"threshold = {threshold:g}: a stroke mask needs a share of white above 0, at most 1")
    return np.asarray(pixels.max(axis=3) >= threshold * 255)


def mask_area(masks: Array) -> Array:
    """The share of each picture (n,) that its mask covers."""
    return np.asarray(masks.mean(axis=(1, 2), dtype=np.float64))


def usable_masks(masks: Array) -> Array:
    """True (n,) where inside and outside both exist; "in the mask or not" means nothing elsewhere."""
    flat = masks.reshape(len(masks), -1)
    return np.asarray(flat.any(axis=1) & ~flat.all(axis=1))


def mask_notes(masks: Array) -> list[str]:
    """Empty and full masks, counted and named by picture number (from 0): they are left out of every score."""
    area = mask_area(masks)
    out = []
    for word, share in (("empty", 0.0), ("full", 1.0)):
        rows = np.flatnonzero(area == share).tolist()
        if rows:
            shown = ", ".join(str(i) for i in rows[:10]) + (", ..." if len(rows) > 10 else "")
            out.append(f"{len(rows)} of {len(masks)} truth masks {_are(rows)} {word} (picture {shown})")
    return out


def read_masks(
    folder: str | Path, names: Sequence[str], *, sizes: Sequence[tuple[int, int]], resize: tuple[int, int] | None = None
) -> Array:
    """Masks (n, H, W) from PNG files, one for each picture name without ending ("a" -> a.png or a_mask.png).

    `sizes` are the (height, width) of the pictures as they are on disk; a mask of another size is
    refused. `resize` then brings all to one size: a pixel is inside where half of it is.
    """
    image = pillow("reading masks")
    paths = _mask_files(Path(folder), names)
    out = []
    for path, name, size in zip(paths, names, sizes, strict=True):
        mask = _read_mask(image, path)
        if mask.shape != size:
            raise BadInput(
                f"mask {path} is {size_text(mask.shape)} but picture '{name}' is {size_text(size)} "
                "(height x width); save the mask at the picture's size"
            )
        if resize is not None and resize != size:
            grey = image.fromarray(mask.astype(np.uint8) * 255)
            mask = np.asarray(grey.resize(resize[::-1], image.Resampling.BOX)) > _SEVERAL_BITS
        out.append(mask)
    return np.stack(out)


def _mask_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The mask of each picture; the first that has none is named, with their number."""
    if not folder.is_dir():
        raise BadInput(f"mask folder {folder} not found; check the path")
    stems = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".png"}
    found = [next((stems[name + end] for end in ENDINGS if name + end in stems), None) for name in names]
    without = [name for name, path in zip(names, found, strict=True) if path is None]
    if without:
        raise BadInput(
            f"{len(without)} of {len(names)} pictures {_have(without)} no mask in {folder}, first '{without[0]}'; "
            f"{nearest(without[0], stems)} (PNG files named like the picture)"
        )
    return [path for path in found if path is not None]


def _read_mask(image: Any, path: Path) -> Array:
    """Inside or outside (H, W), however the drawing program saved it: palette, 0/1, grey, or white on black."""
    try:
        with image.open(path) as opened:
            values = np.asarray(opened if opened.mode in ("1", "L", "P") else opened.convert("RGB"))
            palette = opened.mode == "P"
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError):
        raise BadInput(f"mask {path} cannot be read: it is damaged or no picture; save it again as PNG") from None
    if values.ndim == 3:
        values = values.max(axis=2)
    if palette or values.dtype == np.bool_ or values.max(initial=0) <= 1:
        return values > 0
    return values > _SEVERAL_BITS


def _are(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"


def _have(rows: Sequence[object]) -> str:
    return "has" if len(rows) == 1 else "have"
