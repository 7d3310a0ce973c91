"""Labelled images in memory, the counterpart of `Dataset`, and truth masks: the pixels that show the object of an image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, install_extra, nearest
from grandrounds.data.dataset import MAX_GROUPS, group_by_quartile
from grandrounds.data.table import Table, parse_numbers

DARK = 8  # an image whose brightest value (of 255) is below this shows nothing


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one size with their labels: those of one or several sites before anything is agreed between them.

    Rows with the same `patient` (a lesion, a patient) must stay on one side of every split.
    `columns` holds further facts by name, as text with None for missing, for subgroups.
    """

    name: str
    pixels: Array  # (n, H, W, C) uint8
    label: Array  # (n,) object of str
    site: Array | None = None  # (n,) object of str
    patient: Array | None = None  # (n,) object of str
    masks: Array | None = None  # (n, H, W) bool: where the truth is
    columns: Mapping[str, Array] = field(default_factory=dict)
    time: None = None  # images are not ordered by time; a split by time asks for it

    def __post_init__(self) -> None:
        """Check forms and lengths, and hold read-only views so that sets can share arrays safely."""
        if self.pixels.ndim != 4 or self.pixels.dtype != np.uint8:
            raise TypeError(f"pixels are {self.pixels.dtype} {self.pixels.shape}, not uint8 (n, H, W, C)")
        if self.masks is not None and self.masks.dtype != np.bool_:
            raise TypeError(f"masks are {self.masks.dtype}, not bool (n, H, W)")
        for part, values in self._texts().items():
            if values.ndim != 1 or values.dtype != np.object_:
                raise TypeError(f"{part} is {values.dtype} {values.shape}, not an object array (n,) of text")
            self._check_length(part, len(values))
        if self.masks is not None:
            self._check_length("masks", len(self.masks))
            if self.masks.shape[1:] != self.pixels.shape[1:3]:
                raise BadInput(
                    f"masks of {self.name} are {size_text(self.masks.shape[1:])} and its images "
                    f"{size_text(self.pixels.shape[1:3])} (height x width); give masks of the images' size",
                    code="mask-size-mismatch",
                )
        for part in ("pixels", "label", "site", "patient", "masks"):
            object.__setattr__(self, part, _read_only(getattr(self, part)))
        object.__setattr__(self, "columns", {name: _read_only(values) for name, values in self.columns.items()})

    def __len__(self) -> int:
        return len(self.label)

    @property
    def shape(self) -> tuple[int, int, int]:
        """One image as a network sees it: (C, H, W)."""
        _, height, width, channels = self.pixels.shape
        return channels, height, width

    def take(self, rows: Array | slice | Sequence[int]) -> ImageSet:
        """Select images by indices, a mask or a slice."""
        return replace(
            self,
            pixels=self.pixels[rows],
            label=self.label[rows],
            site=None if self.site is None else self.site[rows],
            patient=None if self.patient is None else self.patient[rows],
            masks=None if self.masks is None else self.masks[rows],
            columns={name: values[rows] for name, values in self.columns.items()},
        )

    def groups(self, column: str) -> Array:
        """Group images by a column, as text; call it before `take`, so that cuts agree.

        Besides the further columns, "label" and "site" are known. Numbers with many values (ages)
        are cut at their quartiles, as in a table.
        """
        columns = {"label": self.label, **({} if self.site is None else {"site": self.site}), **self.columns}
        if column not in columns:
            raise BadInput(
                f"column '{column}' not found in {self.name}; {nearest(column, columns)} (use evaluation.subgroup)",
                code="unknown-column",
            )
        values = columns[column]
        present = np.fromiter((v is not None for v in values), bool, len(values))
        numbers = parse_numbers(values[present].tolist())
        if numbers is not None and len(np.unique(numbers)) > MAX_GROUPS:
            floats = np.full(len(values), np.nan)
            floats[present] = numbers
            return group_by_quartile(floats, numbers)
        words = values.copy()
        words[~present] = "missing"
        return words

    def sha256(self) -> str:
        """Hash pixels, masks and words (not the set's name), the same on every machine."""
        digest = hashlib.sha256(f"pictures {self.pixels.shape} {self.masks is not None}".encode())
        digest.update(np.ascontiguousarray(self.pixels).data)
        if self.masks is not None:
            digest.update(np.packbits(self.masks).data)
        digest.update(Table(self._texts(), self.name).sha256().encode())
        return digest.hexdigest()

    def _texts(self) -> dict[str, Array]:
        """Collect everything but the images, by a name that says its part."""
        parts = {"label": self.label, "site": self.site, "patient": self.patient}
        texts = {name: values for name, values in parts.items() if values is not None}
        return texts | {f"column '{name}'": values for name, values in self.columns.items()}

    def _check_length(self, part: str, n: int) -> None:
        if n != len(self.pixels):
            raise BadInput(
                f"{self.name} has {len(self.pixels)} images but its {part} is of length {n}; give one for each image",
                code="length-mismatch",
            )


def find_dark_images(images: ImageSet) -> list[int]:
    """Find the numbers of images that show nothing: all their pixels are black, or nearly."""
    brightest = images.pixels.max(axis=(1, 2, 3), initial=0)
    return [int(i) for i in np.flatnonzero(brightest < DARK)]


def size_text(size: Sequence[int]) -> str:
    """Format a height and width for messages."""
    return "x".join(str(n) for n in size)


def pillow(purpose: str) -> Any:
    """Pillow's `Image` module, for `purpose`; it is not needed for arrays, so it is imported only here."""
    try:
        from PIL import Image
    except ImportError:
        raise BadInput(
            f"{purpose} needs Pillow; {install_extra('imaging')}", code="missing-package"
        ) from None
    return Image


def _read_only(values: Array | None) -> Array | None:
    if values is None:
        return None
    view = values.view()
    view.flags.writeable = False
    return view


STROKE = 0.3
"""Share of white from which a pixel is ink. Of .05 to .5 this agrees best with XFed's masks of 100 digits (IoU .82)."""

ENDINGS = ("", "_mask", "_segmentation")
"""Endings of a mask file after its image's name."""

_SEVERAL_BITS = 127  # of 255: the middle, for masks saved as grey or colour


def stroke_masks(pixels: Array, *, threshold: float = STROKE) -> Array:
    """Make masks (n, H, W) of bright strokes on black (MNIST): pixels (n, H, W, C) at or above a share of white."""
    if not 0 < threshold <= 1:
        raise BadInput(
            f"threshold = {threshold:g}: a stroke mask needs a share of white above 0, at most 1", code="out-of-range"
        )
    return np.asarray(pixels.max(axis=3) >= threshold * 255)


def mask_area(masks: Array) -> Array:
    """Compute the share of each image (n,) that its mask covers."""
    return np.asarray(masks.mean(axis=(1, 2), dtype=np.float64))


def usable_masks(masks: Array) -> Array:
    """Return True (n,) where inside and outside both exist; "in the mask or not" means nothing elsewhere."""
    flat = masks.reshape(len(masks), -1)
    return np.asarray(flat.any(axis=1) & ~flat.all(axis=1))


def mask_notes(masks: Array) -> list[str]:
    """Count empty and full masks and name them by image number (from 0): they are left out of every score."""
    area = mask_area(masks)
    out = []
    for word, share in (("empty", 0.0), ("full", 1.0)):
        rows = np.flatnonzero(area == share).tolist()
        if rows:
            shown = ", ".join(str(i) for i in rows[:10]) + (", ..." if len(rows) > 10 else "")
            out.append(f"{len(rows)} of {len(masks)} truth masks {_are(rows)} {word} (image {shown})")
    return out


def read_masks(
    folder: str | Path, names: Sequence[str], *, sizes: Sequence[tuple[int, int]], resize: tuple[int, int] | None = None
) -> Array:
    """Read masks (n, H, W) from PNG files, one for each image name without ending ("a" -> a.png or a_mask.png).

    Args:
        folder: The folder of masks.
        names: The names of the images.
        sizes: (height, width) of the images as they are on disk; a mask of another size is refused.
        resize: The size to bring all to: a pixel is inside where half of it is.
    """
    image = pillow("reading masks")
    paths = _mask_files(Path(folder), names)
    out = []
    for path, name, size in zip(paths, names, sizes, strict=True):
        mask = _read_mask(image, path)
        if mask.shape != size:
            raise BadInput(
                f"mask {path} is {size_text(mask.shape)} but image '{name}' is {size_text(size)} "
                "(height x width); save the mask at the image's size",
                code="mask-size-mismatch",
            )
        if resize is not None and resize != size:
            grey = image.fromarray(mask.astype(np.uint8) * 255)
            mask = np.asarray(grey.resize(resize[::-1], image.Resampling.BOX)) > _SEVERAL_BITS
        out.append(mask)
    return np.stack(out)


def _mask_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Find the mask of each image; the first that has none is named, with their number."""
    if not folder.is_dir():
        raise BadInput(f"mask folder {folder} not found; check the path", code="folder-not-found")
    stems = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".png"}
    paths = [next((stems[name + end] for end in ENDINGS if name + end in stems), None) for name in names]
    without = [name for name, path in zip(names, paths, strict=True) if path is None]
    if without:
        raise BadInput(
            f"{len(without)} of {len(names)} images {_have(without)} no mask in {folder}, first '{without[0]}'; "
            f"{nearest(without[0], stems)} (PNG files named like the image)",
            code="missing-masks",
        )
    return [path for path in paths if path is not None]


def _read_mask(image: Any, path: Path) -> Array:
    """Read inside or outside (H, W), however the drawing program saved it: palette, 0/1, grey, or white on black."""
    try:
        with image.open(path) as opened:
            values = np.asarray(opened if opened.mode in ("1", "L", "P") else opened.convert("RGB"))
            palette = opened.mode == "P"
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError):
        raise BadInput(
            f"mask {path} cannot be read: it is damaged or no image; save it again as PNG", code="damaged-image"
        ) from None
    if values.ndim == 3:
        values = values.max(axis=2)
    if palette or values.dtype == np.bool_ or values.max(initial=0) <= 1:
        return values > 0
    return values > _SEVERAL_BITS


def _are(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"


def _have(rows: Sequence[object]) -> str:
    return "has" if len(rows) == 1 else "have"
